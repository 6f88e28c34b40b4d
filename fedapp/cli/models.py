"""The commands that make models of finished runs (personal, calibrated), and use them.

They work in this process, without Flower, so they need no federation, but the clients' data or what
the run has asked their hosts for. Slow imports are inside the commands, so that `--help` is fast.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedapp.cli.options import AsJson, check_run_directories, say, show
from fedapp.config.overrides import read_overrides
from fedapp.core.errors import printable
from fedapp.results.formatting import clients_headline, decimal, percent
from fedapp.results.which_model import FINAL, Which

if TYPE_CHECKING:
    from fedapp.trained_models.model_scores import ModelScores

WhichModel = Annotated[
    Which,
    typer.Option(
        "--which", help="best: of keep-best=true; calibrated: with the head of `fedapp calibrate`."
    ),
]
Personal = Annotated[
    Path | None, typer.Option(help="A client's model, of `fedapp personalise --export`.")
]


def personalise(
    run: Annotated[Path, typer.Argument(help="A run directory with model.safetensors.")],
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            help="finetune-* keys, data-dir, download, device, threads, beta, tau, batch-size, "
            "test-batch-size, state-dir; all other keys are the run's.",
        ),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="New folder for the clients' models, as safetensors.")
    ] = None,
    client: Annotated[
        int | None, typer.Option(help="Only this client, such as that of this host.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Test the clients' personal models, and export them; writes RUN/personal.json.

    Every client fine-tunes the run's final model; where the method has models of the clients' own,
    these are taken as the clients have kept them (keep-state=true), if they keep any.

    Example: fedapp personalise runs/NAME -c "finetune-epochs=5 finetune-lr=0.001" --export models
    """
    check_run_directories(run)
    from fedapp.core.files import json_text
    from fedapp.trained_models.personalise import personalise as test_personal_models

    found = test_personal_models(run, read_overrides(config or []), export, client)
    if as_json:
        print(json_text(found, 2), end="")
        return
    settings = {key: str(value) for key, value in found.items() if key.startswith("finetune-")}
    tested = clients_headline(found) if client is None else _of_client(client, found)
    heads = [] if export is None else _of_heads(found)
    lines: list[tuple[str, Any]] = [*settings.items(), *tested, *heads]
    show(f"Personal models of {run.name}", [{"": k, "value": v} for k, v in lines], False)


def _of_client(client: int, found: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return what was found of a single client."""
    scores = found["clients"][client]
    accuracy = percent(scores["accuracy"] if scores["examples"] else None)
    return [("Client", client), ("Own test images", scores["examples"]), ("Accuracy", accuracy)]


def _of_heads(found: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the mean accuracy of the written models if the clients predict by prototypes."""
    tested = [each for each in found["clients"].values() if each["examples"]]
    heads = [each.get("accuracy_head", each["accuracy"]) for each in tested]
    if heads == [each["accuracy"] for each in tested]:
        return []
    return [("The written models, by their heads", percent(sum(heads) / len(heads)))]


def calibrate(
    run: Annotated[Path, typer.Argument(help="A run directory with model.safetensors.")],
    features: Annotated[int, typer.Option(help="Virtual features per class.")] = 500,
    epochs: Annotated[int, typer.Option(help="Epochs of the head on them.")] = 10,
    lr: Annotated[float, typer.Option(help="Learning rate of the head.")] = 0.01,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", "-c", help="data-dir, download, device, threads; others are the run's."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Retrain the head of a run's final model on virtual features of all classes (CCVR).

    Writes RUN/calibrated.safetensors and RUN/calibration.json. Where the clients' data are on their
    own hosts, the run must have been trained with class-statistics=true.

    Example: fedapp calibrate runs/NAME
    """
    check_run_directories(run)
    from fedapp.core.files import json_text
    from fedapp.trained_models.calibrate import Retraining
    from fedapp.trained_models.calibrate import calibrate as retrain

    found = retrain(run, read_overrides(config or []), Retraining(features, epochs, lr))
    if as_json:
        print(json_text(found, 2), end="")
        return
    rows = [
        {"head": f"{when} calibration", "accuracy": percent(found[when]["accuracy"])}
        for when in ("before", "after")
    ]
    show(f"Calibrated head of {run.name}", rows, False)


def classify(
    run: Annotated[Path, typer.Argument(help="A run directory with model.safetensors.")],
    files: Annotated[list[Path], typer.Argument(help="Image files.")],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
    which: WhichModel = FINAL,
    personal: Personal = None,
    as_json: AsJson = False,
) -> None:
    """Print the class of each image by the final global model of a run, or by a client's own.

    Example: fedapp classify runs/NAME photos/*.jpg
    """
    check_run_directories(run)
    from fedapp.results.run_directory import RunDirectory
    from fedapp.trained_models.classify import BATCH_NOTE, TrainedModel

    trained = TrainedModel.of(RunDirectory.load(run), device, which, personal)
    guesses = trained.classify(files)
    if trained.depends_on_batch:
        print(f"note: {BATCH_NOTE}", file=sys.stderr)
    rows = [
        {"image": printable(file), "class": guess.label, "score": round(guess.score, 4)}
        for file, guess in zip(files, guesses, strict=True)
    ]
    show("Classes", rows, as_json)


def test(
    run: Annotated[Path, typer.Argument(help="A run directory with model.safetensors.")],
    data_dir: Annotated[str, typer.Option(help="Folder that holds the images.")] = "",
    dataset: Annotated[
        str,
        typer.Option(
            help="Test on other images: 'images' (DIR/test/CLASS/* or DIR/CLASS/*) or the test "
            "images of a data set, with classes of the same names."
        ),
    ] = "",
    download: Annotated[bool, typer.Option("--download", help="Download missing data.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N; else the run's.")] = "",
    which: WhichModel = FINAL,
    personal: Personal = None,
    as_json: AsJson = False,
) -> None:
    """Test the final global model of a run, or a client's own, on labelled images.

    Without --dataset on the run's test images. Writes RUN/test.json and RUN/confusion.png; of other
    images or models with their names: RUN/test-NAME.json.

    Example: fedapp test runs/NAME --dataset images --data-dir photos
    """
    check_run_directories(run)
    from fedapp.core.files import json_text
    from fedapp.trained_models.classify import BATCH_NOTE
    from fedapp.trained_models.model_scores import score_model

    keys = {"data-dir": data_dir, "download": download, "device": device}
    given = {key: value for key, value in keys.items() if value}
    scores = score_model(run, dataset, given, which, personal)
    if dataset and scores.depends_on_batch:
        print(f"note: {BATCH_NOTE}", file=sys.stderr)
    if as_json:
        print(json_text(scores.as_dict(), 2), end="")
    else:
        _show_scores(run, scores)
    for file in (scores.file, scores.figure):
        print(f"wrote {printable(file)}", file=sys.stderr)


def export(
    run: Annotated[Path, typer.Argument(help="A run directory with model.safetensors.")],
    file: Annotated[
        Path | None,
        typer.Argument(
            help="New file: .pt2 for PyTorch, or .onnx.", show_default="RUN/model.pt2, replaced"
        ),
    ] = None,
    which: WhichModel = FINAL,
    personal: Personal = None,
) -> None:
    """Write the final global model of a run, or a client's own, as a program without fedapp.

    A .pt2 file needs PyTorch alone. It takes images as bytes and normalises
    them; it gives the score of each class as `fedapp classify` computes it.

    Example: fedapp export runs/NAME model.pt2
    """
    check_run_directories(run)
    from fedapp.trained_models.classify import BATCH_NOTE
    from fedapp.trained_models.export import export_model

    made = export_model(run, file, which, personal)
    if made.depends_on_batch:
        print(f"note: {BATCH_NOTE}", file=sys.stderr)
    print(f"wrote {printable(made.file)}", file=sys.stderr)


def _show_scores(run: Path, scores: "ModelScores") -> None:
    """Print the scores of a test, those of its classes and its largest confusions."""
    totals: list[tuple[str, Any]] = [
        ("Model", scores.model),
        ("Images", f"{scores.images:,}, {scores.tested_on}"),
        ("Accuracy", percent(scores.accuracy)),
        ("Balanced accuracy", percent(scores.balanced_accuracy)),
        ("Macro F1", percent(scores.macro_f1)),
        ("Log loss", decimal(scores.loss)),
    ]
    shown = [{"": name, "value": printable(value)} for name, value in totals]
    show(f"Test of {run.name}", shown, False)
    rates = ("precision", "recall", "f1")
    rows = [
        {"class": each.name, **{rate: percent(getattr(each, rate)) for rate in rates},
         "images": each.images}
        for each in scores.worst()
    ]  # fmt: skip
    some = len(rows) < len(scores.classes)
    title = f"The {len(rows)} worst of {len(scores.classes)} classes" if some else "Classes"
    show(title, rows, False)
    if scores.confusions:
        say("Largest confusions\n" + "".join(f"  {each}\n" for each in scores.confusions))
