"""Rounds with quantised uploads: the same bits everywhere, fewer bytes, and lies are refused."""

import re
from functools import partial

import numpy as np
import pytest
from flwr.app import Message
from in_process import (
    assert_same,
    break_client,
    differ,
    federate,
    settings,
    train_one,
)
from safetensors.numpy import load_file

from clients.base import LocalClient
from clients.training.local_training import LossDiverged
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.methods.table import METHODS
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.server import forecast as forecasts
from strategies.rounds.records import (
    ARRAYS,
    DIVERGED,
    ERROR,
    UPLOADS,
    from_array_record,
    to_array_record,
)
from strategies.rounds.report import RoundFailed
from strategies.rounds.transport import array_bytes

pytestmark = pytest.mark.usefixtures("few_images")

coded = partial(settings, method="fedavg", upload_bits=4, participation=1.0)


@pytest.mark.parametrize(
    "keys",
    [
        {"upload_bits": 2},
        {"method": "scaffold"},
        {"method": "fedadam", "upload_bits": 8},
        {"method": "lg-fedavg", "partition": "dirichlet"},
        {"aggregation": "median", "upload_bits": 8},
        {"weights": "uniform", "dp_clip": 0.1, "upload_bits": 8},
    ],
)
def test_nodes_with_one_client_or_several_or_a_pool_give_the_same_bits(keys):
    run = coded(**keys)
    one = federate(run, nodes=10, seed=1)[0]
    assert_same(one, federate(run, nodes=3, seed=2)[0])
    for workers in (1, 2):
        assert_same(one, federate(run, nodes=workers, node_configs=[{"hosts": "any"}] * 2)[0])
    assert differ(one, federate({**run, "upload-bits": 32}, nodes=3)[0])


def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path):
    train = partial(train_one, tmp_path, method="scaffold", upload_bits=4, keep_state=True)
    whole = train(num_rounds=3)
    expected = load_file(whole.path / "model.safetensors")
    whole.path.rename(tmp_path / "whole")
    train(num_rounds=1)
    resumed = train(num_rounds=3, resume="auto")
    assert_same(expected, load_file(resumed.path / "model.safetensors"))


def test_every_round_client_and_seed_rounds_in_its_own_way(monkeypatch):
    """Without training, all clients send the same update, and only the rounding differs."""
    sent = []

    def work(self, received, server_round, lr):
        update = original(self, received, server_round, lr)
        update.shared = {name: array + np.float32(1e-3) for name, array in received.items()}
        for array in update.shared.values():
            array.flat[0] += np.float32(1.0)  # the scale; all others are between two levels
        return update

    def keep(reply: Message) -> Message:
        if ARRAYS in reply.content:
            arrays = from_array_record(reply.content.array_records[ARRAYS])
            sent.append(arrays["extractor.0.weight"].tobytes())
        return reply

    original = LocalClient.work
    monkeypatch.setattr(LocalClient, "work", work)
    runs = [coded(num_rounds=2, seed=seed, num_clients=5, shards=2) for seed in (0, 1)]
    for run in runs:
        federate(run, nodes=5, tamper=keep)
    assert len(sent) == len(set(sent)) == 2 * 2 * 5


@pytest.mark.parametrize(
    ("bits", "factor", "aggregation"),
    [(8, 4, "mean"), (4, 8, "mean"), (2, 16, "mean"), (8, 4, "median")],
)
def test_clients_send_fewer_bytes_by_the_ratio_of_the_bits(bits, factor, aggregation):
    run = coded(num_rounds=1, upload_bits=bits, aggregation=aggregation)
    final, strategy, _ = federate(run, nodes=10)
    whole, report = array_bytes(final), strategy.report
    payloads = {result.payload for result in report.results}
    assert len(payloads) == 1
    (payload,) = payloads
    assert whole / factor <= payload <= whole / factor + 5 * len(final)
    headers = 200 * len(final) * 10  # of Flower's arrays
    assert 10 * payload < report.bytes_up < 10 * payload + headers
    assert report.client_bytes_down == 10 * whole
    several = federate(run, nodes=3)[1].report
    assert {result.payload for result in several.results} == payloads


def test_the_forecast_counts_what_is_sent(monkeypatch):
    monkeypatch.setattr(forecasts, "LEAST_SECONDS", 0.01)
    bytes_of = {
        bits: forecasts.forecast(parse_config(coded(upload_bits=bits)), 1).bytes_per_round
        for bits in (32, 4)
    }
    down = bytes_of[32] / 2
    assert bytes_of[4] == pytest.approx(down * (1 + 1 / 8), rel=1e-3)


def test_scaffold_sends_its_control_variates_whole():
    final, strategy, _ = federate(coded(method="scaffold", num_rounds=1), nodes=10)
    whole = array_bytes(final)
    assert strategy.report.results[0].payload == pytest.approx(whole * (1 + 1 / 8), rel=1e-3)


def test_running_statistics_are_not_rounded():
    process = ProcessContext(parse_config(coded(model="resnet10", bn="running")))
    others = process.slot.shared.keys() - set(process.codec.trained)
    assert others
    assert all(name.endswith(("running_mean", "running_var")) for name in others)


@pytest.mark.parametrize(("aggregation", "bits"), [("mean", 4), ("median", 8)])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a[:-1], "has shape"),
        (lambda a: a.astype(np.float32), "is of float32, not of the codes of {bits} bits"),
        (lambda a: np.concatenate([np.array([np.nan], "<f4").view(np.uint8), a[4:]]), "scale of"),
        (lambda a: np.concatenate([np.array([1e9], "<f4").view(np.uint8), a[4:]]), "more than"),
        (lambda a: np.concatenate([a[:4], np.full_like(a[4:], 0xFF)]), "has a code above {most}"),
        (None, "is missing"),
    ],
)
def test_a_reply_that_no_client_has_encoded_is_refused_by_name(change, words, aggregation, bits):
    def tamper(reply: Message) -> Message:
        name = ARRAYS if aggregation == "mean" else UPLOADS
        if reply.metadata.src_node_id == 101 and name in reply.content:
            arrays = from_array_record(reply.content.array_records[name])
            first = next(iter(arrays))
            value = arrays.pop(first)
            reply.content[name] = to_array_record(
                {**arrays, first: change(value)} if change else arrays
            )
        return reply

    run = coded(num_rounds=1, aggregation=aggregation, upload_bits=bits)
    words = words.format(bits=bits, most=2**bits - 2)
    with pytest.raises(RoundFailed, match=f"client 1 failed in round 1: .*refused.*{words}"):
        federate(run, nodes=10, tamper=tamper)
    final, strategy, _ = federate({**run, "tolerate-failures": True}, nodes=10, tamper=tamper)
    assert [(f.client, f.kind) for f in strategy.report.failures] == [(1, ERROR)]
    assert len(strategy.report.results) == 9
    assert all(np.isfinite(array).all() for array in final.values())


@pytest.mark.parametrize("nodes", [3, 10])
def test_clients_that_diverge_or_send_another_form_are_named_as_without_rounding(
    monkeypatch, nodes
):
    with pytest.raises(RoundFailed, match="0 usable updates of 10 and needs 1"):
        federate(coded(lr=1e9, num_rounds=1), nodes=nodes)
    spoil = {1: lambda a: a * np.float32(np.nan), 2: lambda a: a + np.float32(1e9)}
    spoil[3] = lambda a: a[..., :-1]

    def finish(self, received, update, lr):
        change = spoil.get(self.client, lambda a: a)
        update.shared = {name: change(array) for name, array in update.shared.items()}

    monkeypatch.setattr(LocalClient, "finish", finish)
    run = coded(num_rounds=1, tolerate_failures=True)
    failures = federate(run, nodes=nodes)[1].report.failures
    assert [(f.client, f.kind) for f in failures] == [(1, DIVERGED), (2, DIVERGED), (3, ERROR)]
    for failure, words in zip(failures, ("non-finite", "more than", "has shape"), strict=True):
        assert re.search(words, failure.reason)


def test_a_client_without_an_update_leaves_the_others_as_they_are(monkeypatch):
    break_client(monkeypatch, {2}, LossDiverged("nan"))
    run = coded(num_rounds=1)
    assert_same(federate(run, nodes=10)[0], federate(run, nodes=3)[0])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"method": "feddor"}, "method 'feddor' sends or does something else"),
        ({"method": "fedkd"}, "method 'fedkd' sends or does something else"),
        ({"method": "local"}, "method 'local' sends or does something else"),
        ({"method": "fednova"}, "method 'fednova' sends or does something else .FedNova"),
        ({"method": "fedexp"}, "method 'fedexp' sends or does something else .FedExP"),
        ({"aggregation": "krum"}, "not what aggregation 'krum' makes of each of them: set it to 8"),
        ({"dp_clip": 1.0, "weights": "uniform"}, "not what dp-clip makes of each of them"),
        ({"secure_aggregation": "pairwise"}, "masked sums of 64 bits per value: set it to 32"),
        ({"upload_bits": 3}, "'upload-bits' is 3 but must be 2, 4, 8 or 32"),
    ],
)
def test_where_rounding_cannot_help_it_is_refused(keys, words):
    with pytest.raises(UserError, match=words):
        parse_config(coded(**keys))


def test_methods_whose_server_averages_models_may_round():
    names = {name for name, row in METHODS.items() if not row.averages_models}
    assert {"fednova", "fedexp", "feddyn", "fedproto", "feddor", "fedkd", "local"} <= names
    assert not names & {"fedavg", "feddr+", "scaffold", "fedadam", "fedbn", "fml"}
