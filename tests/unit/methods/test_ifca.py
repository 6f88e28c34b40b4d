"""IFCA: which model a client takes, what the server makes of it, and that groups are found."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from in_process import assert_same, federate, settings, train_one, work
from small_clients import strategy_of
from torch.nn.functional import cross_entropy

from clients.training.arrays import to_arrays
from fedapp import server_app
from fedapp.config.effect import without_effect
from fedapp.config.resolve import parse_config
from fedapp.engines.in_process import InProcessGrid
from fedapp.interface.runs import load_run
from fedapp.results import checkpoint
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.server.strategy import build_strategy
from fedapp.trained_models.personalise import personalise
from strategies.ifca import CHOICE, IFCA
from strategies.rounds.federation import Federation
from strategies.rounds.records import REFUSED, UPLOADS, ClientResult, Task, pack_uploads
from strategies.rounds.report import RoundDiverged

SKEWED = {"method": "ifca", "partition": "iid", "feature_skew": "rotation", "lr": 0.1}


def process_of(**keys) -> ProcessContext:
    return ProcessContext(parse_config(settings(batch_size=25, **keys)))


def sent_by(process: ProcessContext) -> dict:
    strategy = build_strategy(process.config, process, Federation({}, {}), "")
    return strategy.extras([0])


def losses(client, models) -> list[float]:
    """Return each model's cross-entropy on the client's training images, as one batch."""
    batches = list(client.data.examples(1))
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    found = []
    for model in models.values():
        client.model.load_state_dict({n: torch.from_numpy(a) for n, a in model.items()})
        with torch.no_grad():
            found.append(float(cross_entropy(client.model.eval()(images)[1], labels)))
    return found


def test_a_client_trains_the_model_with_the_lowest_loss_as_fedavg_would(few_images):
    process, plain = (
        process_of(**SKEWED, ifca_clusters=5),
        process_of(**{**SKEWED, "method": "fedavg"}),
    )
    models, choices = sent_by(process), set()
    for number in range(4):
        expected = int(np.argmin(losses(process.client(number), models)))
        choices.add(expected)
        update = work(process.client(number, None, models, 1), 1)
        assert update.uploads.pop(CHOICE).tolist() == [expected]
        assert not update.shared
        alone = plain.client(number)
        start = {name: models[f"cluster-{expected}"][name] for name in alone.shared}
        assert_same(update.uploads, alone.work(start, 1, 0.05).shared)
    assert len(choices) > 1


def test_the_models_start_from_different_weights_and_the_first_from_fedavgs(few_images):
    models = sent_by(process_of(method="ifca", ifca_clusters=3))
    assert_same(models["cluster-0"], to_arrays(process_of(method="fedavg").slot.shared))
    weights = [model["head.weight"] for model in models.values()]
    assert len({each.tobytes() for each in weights}) == 3
    given = parse_config(settings(method="ifca", initial_model="model.safetensors"))
    assert given.initial_model == ""
    assert "initial-model has no effect" in without_effect(["initial-model"], given)


def replies(uploads: dict) -> tuple[RecordDict, list[ClientResult]]:
    results = [ClientResult(client, 10 * client + 1, 1, 0.5, 0.1, 0, 0.0) for client in uploads]
    return RecordDict({UPLOADS: pack_uploads(uploads)}), results


def choosing(number, *values: float) -> dict:
    return {"w": np.array(values, np.float32), CHOICE: np.array([number])}


def strategy() -> IFCA:
    models = [{"w": np.array([float(n), 0.0], np.float32)} for n in range(3)]
    made = strategy_of(IFCA, clients=6, models=models)
    made.begin_round({}, 6, 6)
    return made


TASK = Task(1, tuple(range(6)), 0.1, "uniform", 6, 6)


def test_each_model_becomes_the_plain_mean_of_those_trained_from_it():
    server = strategy()
    content, results = replies({0: choosing(2, 1, 2), 1: choosing(0, 5, 5), 4: choosing(2, 3, -4)})
    assert server.add_reply(content, TASK, results) == results
    server.end_round({})
    assert [model["w"].tolist() for model in server.models] == [[5, 5], [1, 0], [2, -1]]
    counts = [server.report.metrics[f"clients_of_cluster_{number}"] for number in range(3)]
    assert counts == [1, 0, 2]
    other = strategy()
    other.load_state(server.state())
    assert [model["w"].tolist() for model in other.models] == [[5, 5], [1, 0], [2, -1]]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (choosing(3, 0, 0), "'ifca-choice' is not the number of a model, 0 to 2"),
        (choosing(-1, 0, 0), "not the number of a model"),
        (choosing(0.5, 0, 0), "not the number of a model"),
        (choosing(np.nan, 0, 0), "not the number of a model"),
        ({"w": np.zeros(2, np.float32)}, "not the number of a model"),
        (choosing(1, 0, 0, 0), "'w' has shape"),
        (choosing(1, np.inf, 0), "'w' has non-finite values"),
        (choosing(1, 1e9, 0), "more than the limit"),
        ({**choosing(1, 0, 0), "v": np.zeros(1, np.float32)}, "'v'"),
    ],
)
def test_an_upload_that_does_not_fit_is_refused_alone(bad, reason):
    server = strategy()
    content, results = replies({0: bad, 1: choosing(1, 7, 7)})
    assert [each.client for each in server.add_reply(content, TASK, results)] == [1]
    (failure,) = server.report.failures
    assert (failure.client, failure.kind) == (0, REFUSED)
    assert reason in failure.reason
    server.end_round({})
    assert [model["w"].tolist() for model in server.models] == [[0, 0], [7, 7], [2, 0]]


def test_a_state_without_one_of_the_models_is_not_loaded():
    state = strategy().state()
    del state["cluster-1.w"]
    with pytest.raises(KeyError, match=r"cluster-1\.w"):
        strategy().load_state(state)


def test_a_round_in_which_all_clients_diverge_ends_the_run(few_images):
    with pytest.raises(RoundDiverged):
        federate(settings(**{**SKEWED, "lr": 1e9}))


def test_images_of_all_classes_share_the_batches_by_which_batchnorm_normalises(few_images):
    keys = {**SKEWED, "model": "mobilenet", "bn": "batch", "partition": "stratified"}
    process = process_of(**keys, test_batch_size=6, ifca_clusters=2)
    client = process.client(0)
    by_test, by_class = (
        [y for _, y in source(1)] for source in (client.data.mixed, client.data.examples)
    )
    assert max(map(len, by_test)) == 6 < len(by_class[0])
    assert sorted(torch.cat(by_test)) == sorted(torch.cat(by_class))
    assert min(len(set(labels.tolist())) for labels in by_test) > 2
    seen = []
    client.data = replace(client.data, mixed=lambda r: seen.append(r) or iter(()))
    client.extras = sent_by(process)
    client.personalise(7, 0.0)
    assert seen == [7, 7]


def test_the_number_of_nodes_changes_nothing(few_images):
    one, four = (
        federate(settings(**SKEWED, num_rounds=2), nodes=nodes, seed=nodes)[1].state()
        for nodes in (1, 4)
    )
    assert_same(one, four)


def test_a_resumed_run_equals_one_without_a_break(tmp_path, few_images):
    def state(run: RunDirectory) -> dict:
        return checkpoint.load(run.path, parse_config(run.config()).fingerprint()).strategy

    whole = train_one(tmp_path / "whole", **SKEWED, num_rounds=3)
    train_one(tmp_path / "parts", **SKEWED, num_rounds=1)
    parts = train_one(tmp_path / "parts", **SKEWED, num_rounds=3, resume="auto")
    assert parts.rounds()[-1]["accuracy"] == whole.rounds()[-1]["accuracy"]
    assert_same(state(whole), state(parts))


def test_clients_with_images_of_one_kind_find_each_other(tmp_path):
    """Clients i and i + 4 have images that are turned by the same angle."""
    keys = {**SKEWED, "num_clients": 8, "num_rounds": 20, "local_epochs": 2, "participation": 1.0}
    values = settings(**keys, output_dir=str(tmp_path), run_name="one")
    server_app.run(InProcessGrid(values), values, "", 0.0)
    run = RunDirectory.load(tmp_path / "one")
    saved, last = run.client_scores()["clients"], run.rounds()[-1]
    clusters = [saved[str(client)]["cluster"] for client in range(8)]
    assert clusters[:4] == clusters[4:]
    assert len(set(clusters)) > 1
    assert sum(last[f"clients_of_cluster_{number}"] for number in range(4)) == 8
    assert "client_cluster_mean" not in last
    found = personalise(run.path, {}, tmp_path / "models")
    assert found["client_accuracy_mean"] == last["client_accuracy_mean"]
    upright, file = process_of().data.dataset, tmp_path / "models" / "client-4.safetensors"
    guesses = load_run(run.path).classify(upright.test_images[:50], personal=file)
    right = np.array([int(each.label) for each in guesses]) == upright.test_labels[:50]
    assert right.mean() > 0.8
