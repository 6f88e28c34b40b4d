"""A run from Python: what its directory holds, as numbers, curves, a model and a page.

Everything is read when it is asked for, so a run that still goes on can be watched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapp.analysis.personalise import check_global_model, load_weights
from fedapp.config.resolve import parse_config
from fedapp.interface.notebook import relative, shown
from fedapp.interface.rounds import Round, Rounds
from fedapp.models.model import Model
from fedapp.results import page, report
from fedapp.results.comparison import run_labels
from fedapp.results.formatting import headline, percent, status
from fedapp.results.plots import curves
from fedapp.results.run_directory import RunDirectory, Scalar
from fedapp.runtime.process import ProcessContext

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run, or one that goes on or was interrupted; `load_run` and `run` return it.

    Attributes:
        directory: its files.
        varied: of a run of a sweep, the values that tell it from the others, and its seed.
    """

    directory: RunDirectory
    varied: Mapping[str, Scalar] = field(default_factory=dict, compare=False)

    @property
    def path(self) -> Path:
        """The run directory, absolute."""
        return self.directory.path

    @property
    def name(self) -> str:
        """The run's name, which is that of its directory."""
        return self.directory.name

    @property
    def config(self) -> dict[str, Scalar]:
        """All keys, with underscores, and the values that the run has; "auto" is resolved.

        To run it again with changes, give `run` the path of its config.toml: there it is marked
        what "auto" chose.
        """
        return {key.replace("-", "_"): value for key, value in self.directory.config().items()}

    @property
    def summary(self) -> dict[str, Any]:
        """The figures of summary.json; {} before the run has ended.

        Accuracies are fractions, times are seconds, traffic is in bytes. "status" is completed,
        failed or interrupted.
        """
        return self.directory.summary()

    @property
    def completed(self) -> bool:
        """Whether the run came to its end."""
        return bool(self.summary.get("status") == "completed")

    @property
    def rounds(self) -> Rounds:
        """The rounds that have ended; raises UserError where metrics.jsonl is damaged."""
        return Rounds(map(Round.of, self.directory.rounds()))

    @property
    def report(self) -> Path:
        """The path of report.html, a page that needs no other file; made if it is not there."""
        path = self.path / "report.html"
        return path if path.exists() else report.write_report(self.path)

    def model(self, device: str = "cpu", data_dir: str = "") -> Model:
        """Return the final global model as a torch module in evaluation mode.

        It maps images [B, channels, H, W], normalised as in training, to features [B, d] and logits
        [B, C]. The run's data set is read for the shape of the model.

        Args:
            device: where the model goes: auto, cpu, cuda or cuda:N.
            data_dir: the folder of the data set, if it is another one than in the run.

        Raises:
            UserError: the clients of this method have models of their own, the run has saved no
                model yet, or its data set is not here.
        """
        saved = self.directory.config()
        check_global_model(str(saved["method"]))
        changes = {"device": device, "initial-model": "", "resume": ""}
        process = ProcessContext(parse_config({**saved, **changes}), data_dir)
        load_weights(process.model, self.path / "model.safetensors")
        model: Model = process.model
        return model.eval()

    def plot(self, *others: Run) -> Figure:
        """Return a matplotlib figure: accuracy and loss by round; a notebook shows it by itself.

        With other runs: the test accuracy of all of them over each other.
        """
        if others:
            runs = [each.directory for each in (self, *others)]
            lines = [(n, r.rounds()) for n, r in zip(run_labels(runs), runs, strict=True)]
            return shown(curves.compare_curves(lines))
        tested = self.summary.get("accuracy_of", curves.GLOBAL_MODEL)
        title = report.title(self.directory)
        return shown(curves.curves(self.directory.rounds(), title, tested))

    def __repr__(self) -> str:
        final = percent(self.summary.get("accuracy_final"))
        return f"<Run {self.name}: {status(self.summary)}, final accuracy {final}>"

    def _repr_html_(self) -> str:
        """Show the headline of the report as a small table."""
        summary = {**report.totals(self.directory.rounds()), **self.summary}
        varied = " ".join(f"{key}={value}" for key, value in self.varied.items())
        items = [
            ("Run", report.title(self.directory)),
            *([("Varied", varied)] if varied else []),
            ("Status", status(summary)),
            *headline(summary),
            ("Run directory", relative(self.path)),
        ]
        return page.settings_table(f"Run {self.name}", items)


def load_run(path: str | Path) -> Run:
    """Return the run of an existing run directory, whoever made it.

    Raises:
        UserError: there is no such folder, or it is no run directory.
    """
    return Run(RunDirectory.load(path))
