"""What a node may send that nobody asked for: it is refused by name, and a tolerant run goes on."""

import io
import re

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from heterogeneous_runs import run as personal_run
from in_process import federate, settings
from small_clients import strategy_of

from strategies.aggregate import UpdateRefused
from strategies.fedavg import FedAvg
from strategies.fedkd import FedKD
from strategies.low_rank import LowRank
from strategies.rounds.records import (
    DIVERGED,
    ERROR,
    REFUSED,
    REPORT,
    UPLOADS,
    ClientResult,
    Task,
    from_array_record,
    pack_uploads,
    to_array_record,
)
from strategies.rounds.report import RoundFailed

pytestmark = pytest.mark.usefixtures("few_images")

RUN = settings(method="fedavg", num_rounds=1, participation=1.0, tolerate_failures=True)
JUDGED = {**RUN, "client-eval-every": 1}
TRAIN, EVALUATE = MessageType.TRAIN, MessageType.EVALUATE


def report_of(run, kind, change):
    """Return the last round's report when node 101, which hosts client 1, tampers with replies."""

    def tamper(reply: Message) -> Message:
        if reply.metadata.src_node_id == 101 and reply.metadata.message_type == kind:
            change(reply.content)
        return reply

    final, strategy, _ = federate(run, nodes=10, tamper=tamper)
    assert all(np.isfinite(array).all() for array in final.values())
    return strategy.report


def columns(**changes):
    """Change columns of a reply's report; None removes one."""

    def change(content: RecordDict) -> None:
        changed = {**content[REPORT], **changes}
        content[REPORT] = MetricRecord({n: v for n, v in changed.items() if v is not None})

    return change


@pytest.mark.parametrize("value", ["", b"", []])
@pytest.mark.parametrize("kind", [TRAIN, EVALUATE])
def test_a_record_whose_bytes_flower_cannot_count_does_not_end_a_run(value, kind):
    report = report_of(JUDGED, kind, lambda c: c.__setitem__("x", ConfigRecord({"x": value})))
    failures = report.evaluation_failures if kind == EVALUATE else report.failures
    assert {(f.client, f.kind) for f in failures} <= {(1, ERROR)}
    unjudged = len(report.evaluation_failures)  # some Flower versions can count the bytes
    assert report.client_accuracy["client_count"] == 10 - unjudged


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (columns(client=[3]), r"reports on clients \[3\], not \[1\]"),
        (columns(client=None), "KeyError.*client"),
        (columns(accuracy=None), "has no 'accuracy'"),
        (columns(examples=None), "has no 'examples'"),
        (columns(loss=None), "has no 'loss'"),
        (columns(accuracy=[0.5, 0.5]), "ValueError"),
        (lambda content: content.pop(REPORT), r"reports on clients \[\], not \[1\]"),
    ],
)
def test_a_malformed_evaluation_is_a_failure_of_its_own_clients(change, words):
    report = report_of(JUDGED, EVALUATE, change)
    assert [(f.client, f.kind) for f in report.evaluation_failures] == [(1, ERROR)]
    assert re.search(words, report.evaluation_failures[0].reason), report.evaluation_failures[
        0
    ].reason
    assert report.client_accuracy["client_count"] == 9


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e308])
@pytest.mark.parametrize(
    ("name", "counted"),
    [("accuracy", 9), ("loss", 9), ("examples", 9), ("reinitialised", 9), ("further", 10)],
)
def test_a_score_that_is_not_finite_counts_in_no_mean(name, counted, value):
    report = report_of(JUDGED, EVALUATE, columns(**{name: [value]}))
    assert [(f.client, f.kind) for f in report.evaluation_failures] == [(1, DIVERGED)]
    assert report.client_accuracy["client_count"] == counted
    assert report.unevaluated == [1] * (10 - counted)
    assert np.isfinite(report.client_accuracy["client_loss_total"])


def test_an_accuracy_that_is_no_share_counts_in_no_mean():
    report = report_of(JUDGED, EVALUATE, columns(accuracy=[7.0]))
    assert report.unevaluated == [1]
    assert report.client_accuracy["client_accuracy_mean"] <= 1


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        (
            "fednova",
            {"effective_steps": [1e90]},
            r"number of steps is 1e\+90, not in \(0, ",
        ),
        ("fednova", {"effective_steps": [0.0]}, "effective number of steps is 0, not in"),
        ("fedexp", {"squared_distance": [1e90]}, r"squared distance is 1e\+90, more than"),
        ("fedexp", {"squared_distance": [1e4]}, r"squared distance is 1e\+04, but its model has "),
        ("fedexp", {"squared_distance": [-1.0]}, "squared distance is -1"),
        ("fedavg", {"seconds": [np.inf]}, "not finite"),
        ("fedavg", {"loss": [1e308]}, "its 'loss' is 1e.308, which is not finite or too large"),
        ("fedavg", {"images": [1e308]}, "its 'images' is 1e.308, not a number of something"),
        ("fedavg", {"payload": [-1]}, "its 'payload' is -1, not a number of something"),
    ],
)
def test_numbers_that_no_training_gives_are_refused(method, changes, words):
    report = report_of({**RUN, "method": method}, TRAIN, columns(**changes))
    assert [(f.client, f.kind) for f in report.failures] == [(1, ERROR)]
    assert re.search(words, report.failures[0].reason), report.failures[0].reason


def test_a_failure_of_an_unknown_kind_is_an_error():
    told = ConfigRecord({"client": [1], "kind": ["late"], "reason": ["so it says"]})

    def change(content):
        content.pop("report", None)
        content["failures"] = told

    report = report_of(RUN, TRAIN, change)
    assert [(f.client, f.kind) for f in report.failures] == [(1, ERROR)]
    assert "of the kind 'late'" in report.failures[0].reason


def archive() -> bytes:
    """An archive of arrays, which numpy reads as something that is no array."""
    text = io.BytesIO()
    np.savez(text, np.zeros(3))
    return text.getvalue()


def huge() -> bytes:
    """A whole header that promises 4 TiB, and nothing after it."""
    text = io.BytesIO()
    promised = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)}
    np.lib.format.write_array_header_1_0(text, promised)
    return text.getvalue()


NO_ARRAYS = {"empty": b"", "zip": b"PK\x03\x04..", "archive": archive(), "huge": huge()}


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("data", NO_ARRAYS.values(), ids=NO_ARRAYS)
def test_bytes_that_are_no_array_are_refused_by_client_and_no_run_ends(data, nodes):
    """Not even one that tolerates no failures, whatever numpy would make of them."""

    def tamper(reply: Message) -> Message:
        uploads = reply.content.array_records.get(UPLOADS, {})
        if "2/proto" in uploads:
            uploads["2/proto"] = Array("float32", (1,), "numpy.ndarray", data)
        return reply

    strategy = federate(personal_run(method="feddor", num_rounds=1), nodes=nodes, tamper=tamper)[1]
    assert [(f.client, f.kind) for f in strategy.report.failures] == [(2, REFUSED)]
    assert "its upload was refused: 'proto' is no array" in strategy.report.failures[0].reason
    assert [result.client for result in strategy.report.results] == [0, 1, 3]


@pytest.mark.parametrize("data", NO_ARRAYS.values(), ids=NO_ARRAYS)
def test_bytes_beside_a_model_that_are_no_array_are_a_failure_of_its_client(data):
    bad = Array("float32", (1,), "numpy.ndarray", data)

    def change(content: RecordDict) -> None:
        name = next(iter(content["control"]))
        content["control"][name] = bad

    report = report_of({**RUN, "method": "scaffold"}, TRAIN, change)
    assert [(f.client, f.kind) for f in report.failures] == [(1, ERROR)]
    assert "is no array" in report.failures[0].reason


@pytest.mark.parametrize("bad", [np.zeros((8, 1)), np.full((8, 1), "x")])
def test_fedkd_refuses_an_upload_of_another_type_and_keeps_the_others(bad):
    """Both fit in shape, and torch would not multiply them with float32."""
    codec = LowRank(0.9, 0.9, 1)
    mentee = {"w": np.zeros((8, 8), np.float32)}
    strategy = strategy_of(
        FedKD, mentee=mentee, compress=codec.compress, decompress=codec.decompress
    )
    good = codec.compress({"w": np.ones((8, 8), np.float32)}, 1)
    assert good.keys() == {"w.u", "w.s", "w.v"}
    results = [ClientResult(client, 1, 1, 0.0, 0.0, 0, 0.0) for client in (0, 1, 2)]
    uploads = pack_uploads({0: good, 1: {**good, "w.u": bad}, 2: good})
    task = Task(1, (0, 1, 2), 0.1, "uniform", 3, 3)
    accepted = strategy.add_reply(RecordDict({UPLOADS: uploads}), task, results)
    assert [result.client for result in accepted] == [0, 2]
    assert [(f.client, f.kind) for f in strategy.report.failures] == [(1, REFUSED)]
    assert "not float32" in strategy.report.failures[0].reason
    assert len(strategy.uploads()) == 2


@pytest.mark.parametrize("change", [lambda n: n + 1, lambda n: np.full_like(n, 2**62)])
def test_fedgen_refuses_label_counts_that_are_not_of_the_clients_examples(change):
    """With counts of 2**62 the sum over classes is negative, and no distribution of labels."""

    def tamper(reply: Message) -> Message:
        if UPLOADS in reply.content and reply.metadata.src_node_id == 102:
            uploads = from_array_record(reply.content.array_records[UPLOADS])
            changed = {name: change(counts) for name, counts in uploads.items()}
            reply.content = RecordDict({**reply.content, UPLOADS: to_array_record(changed)})
        return reply

    config = personal_run(method="fedgen", tolerate_failures=True, num_rounds=1)
    strategy = federate(config, nodes=4, tamper=tamper)[1]
    (failure,) = strategy.report.failures
    assert (failure.client, failure.kind) == (2, ERROR)
    assert re.search(r"counts \d+ labels but has \d+ examples", failure.reason)
    assert sorted(strategy._label_counts) == [0, 1, 3]


def test_a_node_whose_uploads_break_off_leaves_nothing_behind():
    """An error that `read` does not name is the node's, and no half of its uploads is averaged."""

    class Breaking(FedKD):
        def read(self, client, arrays):
            if client == 2:
                raise ZeroDivisionError
            if client == 1:
                raise UpdateRefused("odd")
            return arrays

    strategy = strategy_of(Breaking, mentee={}, compress=None, decompress=None)
    results = [ClientResult(client, 1, 1, 0.0, 0.0, 0, 0.0) for client in (0, 1, 2)]
    with pytest.raises(ZeroDivisionError):
        strategy.add_reply(RecordDict(), Task(1, (0, 1, 2), 0.1, "uniform", 3, 3), results)
    assert (strategy.uploads(), strategy.report.failures) == ([], [])


def test_a_global_model_that_is_not_finite_ends_the_run_in_words(monkeypatch):
    monkeypatch.setattr(
        FedAvg, "server_update", lambda self, received, mean: {n: a / 0 for n, a in mean.items()}
    )
    with pytest.raises(RoundFailed, match="round 1 gave a model with non-finite values: "):
        federate(RUN)
