"""A run from Python: the content of its directory as numbers, curves, a model and a report.

Every access reads the files again, so the progress of a running run is visible.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapp.config.key_groups import field_name
from fedapp.core.errors import UserError
from fedapp.data.image_format import ImageFormat
from fedapp.interface.keys import by_key
from fedapp.interface.notebook import displayable, relative
from fedapp.interface.rounds import Round, Rounds
from fedapp.models.model import Model
from fedapp.results.comparison.groups import run_labels
from fedapp.results.final_model import read_image_format
from fedapp.results.formatting import headline, percent, status
from fedapp.results.plots import curves
from fedapp.results.report import page, report
from fedapp.results.run_directory import RunDirectory, Scalar
from fedapp.results.run_list import runs_below
from fedapp.results.which_model import FINAL, Which
from fedapp.runtime.process.run_data import clear_data_cache
from fedapp.trained_models.calibrate import Retraining, calibrate
from fedapp.trained_models.classify import Given, Guess, TrainedModel
from fedapp.trained_models.export import export_model
from fedapp.trained_models.model_scores import ModelScores, score_model
from fedapp.trained_models.personalise import personalise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class Run:
    """A finished, running or interrupted run; `load_run` and `run` return it.

    Attributes:
        directory: its run directory.
        varied: in a sweep, the seed and the values that distinguish this run from the others.
    """

    directory: RunDirectory
    varied: Mapping[str, Scalar] = field(default_factory=dict, compare=False)

    @property
    def path(self) -> Path:
        """The run directory, absolute."""
        return self.directory.path

    @property
    def name(self) -> str:
        """The run's name, the name of its directory."""
        return self.directory.name

    @property
    def config(self) -> dict[str, Scalar]:
        """All keys, with underscores, and their values; "auto" is resolved.

        To run it again with changes, pass the path of its config.toml to `run`: that file marks the
        values that "auto" chose.
        """
        return {field_name(key): value for key, value in self.directory.config().items()}

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json; {} before the end of the run.

        Accuracies are fractions, times are seconds, traffic is in bytes. "status" is completed,
        failed or interrupted.
        """
        return self.directory.summary()

    @property
    def completed(self) -> bool:
        """Whether the run has completed all rounds."""
        return bool(self.summary.get("status") == "completed")

    @property
    def rounds(self) -> Rounds:
        """The finished rounds; raises UserError if metrics.jsonl is damaged."""
        return Rounds(map(Round.of, self.directory.rounds()))

    @property
    def report(self) -> Path:
        """The path of report.html, a self-contained page; created if it does not exist."""
        path = self.path / "report.html"
        return path if path.exists() else report.write_report(self.path)

    @property
    def image_format(self) -> ImageFormat:
        """What images the final model takes, with mean and deviation, and its classes' names.

        Raises UserError if the run has not ended, or saved no model.
        """
        return read_image_format(self.directory)

    def model(
        self, device: str = "cpu", which: Which = FINAL, personal: str | Path | None = None
    ) -> Model:
        """Return the final global model as a torch module in evaluation mode.

        It maps images [B, channels, H, W], normalised as in training (`image_format` has mean and
        deviation), to features [B, d] and logits [B, C].

        Args:
            device: the model's device: auto, cpu, cuda or cuda:N.
            which: "final", "best" (of keep-best) or "calibrated" (with the head of `calibrate`).
            personal: the file of a client's model, of `personalise`, to return instead.

        Raises:
            UserError: the method has personal models and no file is named, or the run has not ended
                or saved no such model.
        """
        return self._trained(device, which, personal).model

    def classify(
        self,
        images: Given,
        device: str = "cpu",
        which: Which = FINAL,
        personal: str | Path | None = None,
    ) -> list[Guess]:
        """Return the class name of each image, and its score, by the final global model.

        `images` are uint8 [n, H, W, channels] or the paths of files. Give all of them in one call,
        because each call loads the model. `personal` is the file of a client's model, of
        `personalise`, to use instead. Raises UserError as `model`, and for images that the model
        cannot take.
        """
        return self._trained(device, which, personal).classify(images)

    def test(
        self,
        dataset: str = "",
        which: Which = FINAL,
        personal: str | Path | None = None,
        **keys: Any,
    ) -> ModelScores:
        """Test the final global model on the run's test images, or on others, as `fedapp test`.

        Args:
            dataset: test on other labelled images, whose classes are matched by name: "images" for
                class folders in `data_dir`, or the test images of another data set.
            which: as in `model`.
            personal: the file of a client's model, of `personalise`, to test instead.
            keys: data_dir, download, device; the rest are the run's.

        Returns:
            Accuracy and other scores, those of each class, and the confusion matrix, an array. They
            are also written into the run directory.

        Raises:
            UserError: as `model`, or there are no such images, or not in the form that the model
                takes, or of a class that it does not know.
        """
        clear_data_cache()
        return score_model(self.path, dataset, by_key(keys), which, _path(personal))

    def export(
        self,
        file: str | Path | None = None,
        which: Which = FINAL,
        personal: str | Path | None = None,
    ) -> Path:
        """Write the final global model as a program that needs PyTorch alone; return its file.

        It maps images uint8 [n, side, side, channels] to the scores of `classify`, [n, C]. `file`
        ends in .pt2 or .onnx; None: RUN/model.pt2. Raises UserError as `model`, and if the file
        exists, has another ending or cannot be written, or the packages for ONNX are missing.
        """
        return export_model(self.path, _path(file), which, _path(personal)).file

    def personalise(
        self, export: str | Path | None = None, client: int | None = None, **keys: Any
    ) -> dict[str, Any]:
        """Test every client's personal model, as `fedapp personalise`.

        Clients fine-tune the final global model, or have kept models of their own.

        Args:
            export: new folder for the clients' models, as safetensors.
            client: only this client's.
            keys: finetune_* keys, data_dir, device and a few others; the rest are the run's.

        Returns:
            Mean, spread, worst client and quartiles of the accuracies, the settings, and each
            client's scores under "clients".

        Raises:
            UserError: the run has not ended, its clients' data or models are not here, or a key may
                not be changed.
        """
        if not (client is None or isinstance(client, int)):
            raise UserError(f"client is {client!r} but must be the number of a client")
        clear_data_cache()  # the files may have changed since another run was looked at
        return personalise(self.path, by_key(keys), _path(export), client)

    def calibrate(
        self, features: int = 500, epochs: int = 10, lr: float = 0.01, **keys: Any
    ) -> dict[str, Any]:
        """Retrain the head of the final model on virtual features, as `fedapp calibrate` (CCVR).

        Args:
            features: virtual features per class.
            epochs: of the head on these features.
            lr: the head's learning rate.
            keys: data_dir, download, device, threads; the rest are the run's.

        Returns:
            "before" and "after" with accuracy, loss and accuracy of each class, and the settings.

        Raises:
            UserError: as `personalise`, or the head is frozen or diverges.
        """
        clear_data_cache()
        return calibrate(self.path, by_key(keys), Retraining(features, epochs, lr))

    def plot(self, *others: Run) -> Figure:
        """Return a matplotlib figure of accuracy and loss by round; a notebook displays it.

        With other runs it shows the test accuracy of all runs on the same axes. Raises UserError
        if one of them is no `Run`.
        """
        if wrong := [each for each in others if not isinstance(each, Run)]:
            raise UserError(f"plot compares runs, not {wrong[0]!r}; load_run(PATH) gives a run")
        if others:
            runs = [each.directory for each in (self, *others)]
            lines = [(n, r.rounds()) for n, r in zip(run_labels(runs), runs, strict=True)]
            return displayable(curves.compare_curves(lines))
        tested = self.summary.get("accuracy_of", curves.GLOBAL_MODEL)
        title = report.title(self.directory)
        return displayable(curves.curves(self.directory.rounds(), title, tested))

    def _trained(self, device: str, which: str, personal: str | Path | None) -> TrainedModel:
        return TrainedModel.of(self.directory, device, which, _path(personal))

    def __repr__(self) -> str:
        final = percent(self.summary.get("accuracy_final"))
        return f"<Run {self.name}: {status(self.summary)}, final accuracy {final}>"

    def _repr_html_(self) -> str:
        """Return the main results of the report as a small table."""
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


def _path(text: str | Path | None) -> Path | None:
    return None if text is None else Path(text)


def load_run(path: str | Path) -> Run:
    """Return the run of an existing run directory.

    Raises:
        UserError: the folder does not exist, or is not a run directory.
    """
    return Run(RunDirectory.load(path))


def list_runs(folder: str | Path = "runs", sort: str = "age") -> list[Run]:
    """Return the runs in a folder and below it, those of sweeps too, as `fedapp runs` lists them.

    A run whose configuration or summary is damaged is left out, with a warning that names it.

    Args:
        folder: the folder that has the runs.
        sort: "age" (the last changed first), "final" (the best final accuracy first) or "method".

    Raises:
        UserError: `folder` is not a folder, or there is no such order.
    """
    found = runs_below(folder, sort)
    for each in found:
        if each.damaged:
            log.warning("%s is left out: %s", each.figures["run"], each.figures["reason"])
    return [Run(each.directory) for each in found if not each.damaged]
