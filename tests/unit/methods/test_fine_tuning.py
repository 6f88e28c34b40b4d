"""Two-step personalisation: the second stage of a run, and the same from a saved model."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from in_process import InProcessGrid, assert_same, federate, settings
from safetensors.numpy import load_file
from torch.nn.functional import cross_entropy

from clients.training.fine_tuning import fine_tune
from clients.training.local_training import LossDiverged
from fedapp import server_app
from fedapp.analysis.saved_runs import SavedRun
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.methods.table import METHODS
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.context import ProcessContext
from fedapp.trained_models.personalise import personalise

TUNED = [name for name, row in METHODS.items() if row.fine_tuned]


@pytest.mark.parametrize("method", TUNED)
def test_the_rounds_are_those_of_the_global_method_and_every_client_is_tested(method):
    run = settings(method=method, num_rounds=2)
    final, strategy, _ = federate(run, nodes=2)
    assert_same(final, federate(settings(method=METHODS[method].settings_of, num_rounds=2))[0])
    accuracy = strategy.report.client_accuracy
    assert accuracy["client_count"] == 10
    assert strategy.client_evaluation_every == 2  # the last round only


def test_fine_tuning_gives_the_same_for_any_number_of_nodes_and_is_not_the_global_model():
    run = settings(method="fedavg-ft")
    few, many = (federate(run, nodes=n, seed=n)[1].report.client_accuracy for n in (2, 7))
    assert few == many
    plain = settings(method="fedavg", client_eval_every=2)
    assert federate(plain)[1].report.client_accuracy != few
    on_base = settings(method="fedavg", finetune_epochs=1)
    assert federate(on_base)[1].report.client_accuracy == few


def process_of(method, **keys):
    process = ProcessContext(parse_config(settings(method=method, **keys)))
    return process, list(process.client(0).get_parameters({}))


@pytest.mark.parametrize(
    ("method", "moved"),
    [
        ("fedavg-ft", "all"), ("fedbabu-ft", "all"), ("spherefed-ft", "body"), ("fedfn-ft", "all"),
        ("fedetf-ft", "body"), ("fedgela-ft", "body"), ("feddr+-ft", "body"),
    ],
)  # fmt: skip
def test_the_paper_says_which_part_is_trained_and_the_global_model_stays(method, moved):
    process, received = process_of(method)
    before = {name: tensor.clone() for name, tensor in process.model.state_dict().items()}
    client = process.client(0)
    found = client.evaluate(received, {"server_round": 2, "lr": 0.1})
    changed = {n for n, t in client.model.state_dict().items() if not torch.equal(t, before[n])}
    assert {n for n in before if n.startswith("extractor.")} <= changed
    head = {n for n in before if n.startswith("head.")}
    assert changed & head == (head if moved == "all" else set())
    assert all(torch.equal(t, before[n]) for n, t in process.model.state_dict().items())
    assert found == process.client(0).evaluate(received, {"server_round": 2, "lr": 0.1})


def test_fine_tuning_is_plain_sgd_on_the_training_data():
    process, received = process_of("fedavg-ft", finetune_epochs=2, finetune_lr=0.02)
    client = process.client(3)
    client.evaluate(received, {"server_round": 2, "lr": 0.1})
    model, epoch = process.new_model(), client.data.tuning(2)
    optimiser = torch.optim.SGD(model.parameters(), 0.02, 0.9, weight_decay=1e-5, fused=True)
    for _ in range(2):
        for images, labels in epoch():
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(images)[1], labels).backward()
            optimiser.step()
    for own, other in zip(client.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(own, other)


def test_losses_of_the_second_stage():
    def losses(method, **keys):
        (tuning,) = process_of(method, **keys)[0].slot.tuning
        return tuning.objective

    dr, plus = losses("dr-ft"), losses("feddr+-ft")
    assert (dr.base, dr.regulariser) == ("dr", None)
    assert (plus.base, plus.regulariser, plus.base_weight) == ("dr", "fd", 0.9)
    assert losses("dr-ft", finetune_loss="dr+").regulariser == "fd"
    assert losses("feddr+-ft", finetune_loss="dr") == dr
    assert losses("feddr+-ft", finetune_loss="base") == dr
    distilled = losses("fedavg-ft", finetune_loss="base+fd", beta=0.7)
    assert (distilled.base, distilled.regulariser) == ("ce", "fd")
    assert distilled.reg_weight == pytest.approx(0.3)
    assert losses("fedbabu-ft", finetune_loss="dr", finetune_part="body") == dr
    for loss_name in ("own", "base", "base+fd"):
        kept = losses("spherefed-ft", finetune_loss=loss_name, spherefed_reduction="sum-classes")
        assert kept.options.arguments == (("cosine-mse", "reduction", "sum-classes"),)


def test_the_teacher_of_the_second_stage_is_the_received_model():
    process, received = process_of("dr-ft", finetune_loss="dr+")
    shifted = [array + 0.01 for array in received]
    process.client(0).evaluate(shifted, {"server_round": 1, "lr": 0.1})
    for name, array in zip(process.slot.shared, shifted, strict=True):
        np.testing.assert_array_equal(process.slot.teacher.state_dict()[name], array)


def test_without_fine_tuning_its_rate_is_left_open():
    config = parse_config(settings(method="fedavg", local_epochs=3))
    assert (config.finetune_epochs, config.finetune_lr) == (0, "auto")


@pytest.mark.parametrize(
    ("method", "keys", "epochs", "factor"),
    [
        ("fedavg-ft", {}, 3, 0.01),
        ("fedavg-ft", {"finetune_protocol": "fedfn"}, 5, 0.1),
        ("fedbabu-ft", {"finetune_protocol": "fedfn"}, 5, 0.01),
        ("spherefed-ft", {"finetune_protocol": "fedfn"}, 5, 0.01),
        ("spherefed-ce-ft", {}, 5, 0.1),
        ("fedetf-ft", {"finetune_protocol": "fedetf", "bottleneck": 64}, 3, 1.0),
        ("fedfn-ft", {}, 5, 0.1),
        ("feddr+-ft", {}, 3, 0.01),
        ("fedavg", {"finetune_epochs": 2}, 2, 0.01),
    ],
)
def test_auto_takes_the_papers_protocol(method, keys, epochs, factor):
    config = parse_config(settings(method=method, local_epochs=3, **keys))
    assert config.finetune_epochs == epochs
    assert config.finetune_lr == pytest.approx(factor * float(config.lr))
    base = METHODS[method].settings_of or method
    assert config.lr == parse_config(settings(method=base)).lr


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"method": "fedavg-ft", "finetune_epochs": 0}, "take method 'fedavg' to leave that out"),
        ({"method": "fedper", "finetune_epochs": 2}, "have models of their own already"),
        ({"method": "fedavg-ft", "finetune_loss": "dr"}, "needs the fixed head"),
        (
            {"method": "fedbabu-ft", "finetune_loss": "dr"},
            "'finetune-loss' is 'dr', which trains no head, but 'finetune-part' is 'all'",
        ),
        (
            {"method": "feddr+-ft", "finetune_loss": "dr+", "finetune_part": "head"},
            "'dr\\+', which trains no head, .* set that to 'body'",
        ),
        ({"method": "fedavg-ft", "finetune_loss": "base+fd", "beta": 2.0}, "between 0 and 1"),
        (
            {"method": "fedntd", "finetune_loss": "base+fd", "finetune_epochs": 1},
            "in method 'fedntd' 'beta' is the weight of its own regulariser; use 'own' or 'base'",
        ),
    ],
)
def test_settings_that_cannot_work_are_named(keys, words):
    with pytest.raises(UserError, match=words):
        parse_config(settings(**keys))


def test_fedgela_predicts_with_the_clients_frequencies():
    process, received = process_of("fedgela")
    client = process.client(0)
    loss, count, scores = client.evaluate(received, {})
    counts = client.data.class_counts
    scale = 10 * counts / counts.sum()
    inputs, labels = (torch.cat(parts) for parts in zip(*client.data.test(), strict=True))
    with torch.no_grad():
        logits = process.model.eval()(inputs)[1]
    assert count == len(labels)
    assert loss == pytest.approx(float(cross_entropy(logits * scale, labels)), rel=1e-5)
    assert scores["accuracy"] == float((logits * scale).argmax(1).eq(labels).double().mean())
    assert loss != pytest.approx(float(cross_entropy(logits, labels)), rel=1e-3)


def test_a_client_that_diverges_is_named_and_the_others_are_counted():
    run = settings(method="fedavg-ft", finetune_lr=1e12, num_rounds=1)
    _, strategy, _ = federate(run)
    assert strategy.report.client_accuracy == {}
    failures = strategy.report.evaluation_failures
    assert [failure.client for failure in failures] == list(range(10))
    assert "fine-tuned" in failures[0].reason or "loss" in failures[0].reason
    process, _ = process_of("fedavg-ft")
    wild = replace(process.slot.tuning[0], lr=1e12)
    with pytest.raises(LossDiverged):
        fine_tune(
            process.slot, [wild], process.data._class_counts[0], process.client(0).data.tuning(1)
        )


@pytest.fixture
def finished(tmp_path, pictures):
    """A finished run directory of feddr+-ft."""
    run = settings(
        method="feddr+-ft", output_dir=str(tmp_path), run_name="done", state_dir=str(tmp_path)
    )
    with pictures():
        server_app.run(InProcessGrid(run, 3), run, "", 0.0)
    return tmp_path / "done"


def test_a_saved_model_gives_the_second_stage_of_its_run(finished, tmp_path):
    summary = RunDirectory.load(finished).summary()
    rows = RunDirectory.load(finished).rounds()
    assert summary["accuracy_final"] == summary["client_accuracy_mean"]
    assert summary["client_accuracy_worst"] <= summary["client_accuracy_quartiles"][0]
    assert rows[0]["accuracy"] is None
    assert 0 <= rows[0]["global_accuracy"] <= 1
    assert "Own test splits, fine-tuned models" in (finished / "report.html").read_text()
    folder = tmp_path / "models"
    result = personalise(finished, {}, folder)
    for key in ("mean", "std", "worst", "quartiles"):
        assert result[f"client_accuracy_{key}"] == summary[f"client_accuracy_{key}"]
    assert json.loads((finished / "personal.json").read_text())["client_count"] == 10
    assert folder.stat().st_mode & 0o077 == 0, "personal models are private"
    models = [load_file(folder / f"client-{client}.safetensors") for client in range(10)]
    assert not np.array_equal(models[0]["extractor.0.weight"], models[1]["extractor.0.weight"])
    np.testing.assert_array_equal(models[0]["head.weight"], models[1]["head.weight"])
    assert personalise(finished, {"finetune-protocol": "fedfn"})["finetune-epochs"] == 5
    with pytest.raises(UserError, match="exists already"):
        personalise(finished, {}, folder)
    with pytest.raises(UserError, match="'shards' cannot differ"):
        personalise(finished, {"shards": 3})


def test_clients_test_and_tune_the_model_that_the_method_evaluates(tmp_path):
    """FedExP's is the average of the last two, which is also what the run saves."""
    config = settings(
        method="fedexp", finetune_epochs=1, output_dir=str(tmp_path), run_name="exp",
        checkpoint_every=0,
    )  # fmt: skip
    server_app.run(InProcessGrid(config, 2), config, "", 0.0)
    run = RunDirectory.load(tmp_path / "exp")
    again, during = personalise(run.path, {}), run.rounds()[-1]
    for key in ("client_accuracy_mean", "client_loss_mean"):
        assert again[key] == during[key]
    assert list(SavedRun(run).starts) == [0]  # no round starts from it, nor ends with it


def test_a_run_keeps_the_protocol_that_its_preset_asked_for(tmp_path):
    """A run of fedavg under FedFN's preset is fine-tuned by FedFN's protocol afterwards too."""
    config = settings(
        method="fedavg", lr=0.1, finetune_protocol="fedfn", num_rounds=1,
        output_dir=str(tmp_path), run_name="run",
    )  # fmt: skip
    server_app.run(InProcessGrid(config, 2), config, "", 0.0)
    result, first = personalise(tmp_path / "run", {}), config["lr"]
    assert (result["finetune-protocol"], result["finetune-epochs"]) == ("fedfn", 5)
    assert result["finetune-lr"] == pytest.approx(0.1 * first)
    other = personalise(tmp_path / "run", {"finetune-protocol": "feddr+"})
    assert other["finetune-lr"] == pytest.approx(0.01 * first)


@pytest.mark.parametrize(
    ("paper", "table", "query", "expected"),
    [
        ("feddr+", "table5-pfl", "fedavg-ft s=10", (0.1, "feddr+", 3, 0.001, "own")),
        ("fedfn", "appendix-table9-pfl", "fedavg-ft s=10", (0.1, "fedfn", 5, 0.01, "own")),
        ("feddr+", "table14-pfl-finetune-loss", "dr-ft s=10 finetune-loss=dr+",
         (5.0, "feddr+", 3, 0.05, "dr+")),
        ("fedfn", "appendix-table9-pfl", "fedbabu-ft s=10", (0.1, "fedfn", 5, 0.001, "own")),
        ("fedfn", "appendix-table10-finetune-lr", "fedfn-ft s=10 finetune-lr-factor=1",
         (0.5, "fedfn", 5, 0.5, "own")),
    ],
)  # fmt: skip
def test_the_papers_cells_have_their_second_stage(paper, table, query, expected):
    from fedapp.experiments.papers.cells import cells_of, select
    from fedapp.experiments.papers.tables import find_paper

    tables = find_paper(paper)
    config = parse_config(select(cells_of(tables, tables.table(table)), query).config)
    stage = (config.lr, config.finetune_protocol, config.finetune_epochs)
    assert (*stage, pytest.approx(config.finetune_lr), config.finetune_loss) == expected
