"""A callback of one's own: the class that the global model knows least, after every round.

PYTHONPATH=examples fedapp run -c "callbacks='own_callback:WorstClass'"
"""

from typing import Any

from fedapp.runtime.callbacks import ActiveRun, Callback


class WorstClass(Callback):
    """Adds the lowest class accuracy to every round, and the hardest class to the summary."""

    def round_ends(self, run: ActiveRun, row: dict[str, Any]) -> None:
        """Add "worst_class" (a name) and "worst_class_accuracy" to the round's line."""
        if row["class_accuracy"] is None:
            return  # this round was not evaluated
        worst = min(range(len(row["class_accuracy"])), key=row["class_accuracy"].__getitem__)
        row["worst_class"] = run.process.data.dataset.classes[worst]
        row["worst_class_accuracy"] = row["class_accuracy"][worst]

    def run_ends(self, run: ActiveRun, summary: dict[str, Any]) -> None:
        """Add the class that was the worst most often."""
        names = [row["worst_class"] for row in run.rows() if "worst_class" in row]
        summary["hardest_class"] = max(set(names), key=names.count) if names else None
