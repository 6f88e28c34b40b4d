"""How an earlier run ended."""

from fedapp.results.run_directory import RunDirectory


def outcome(run: RunDirectory) -> str:
    """Return "completed", or "diverged", which a run would do again; "" if it has not ended."""
    summary = run.summary()
    if summary.get("status") == "completed":
        return "completed"
    return "diverged" if summary.get("diverged") else ""
