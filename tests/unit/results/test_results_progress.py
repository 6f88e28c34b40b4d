"""Console lines say what happened, in words and units that do not change between rounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.results import formatting
from fedapp.results.progress import failure_lines, round_line, summary_text

ROW = {
    "round": 12,
    "seconds": 0.84,
    "clients": 20,
    "failed": 0,
    "train_loss": 0.0312,
    "accuracy": 0.953,
    "loss": 0.2134,
    "bytes_down": 1_200_000,
    "bytes_up": 1_249_999,
}
SUMMARY = {
    "method": "feddr+",
    "dataset": "digits",
    "rounds": 60,
    "accuracy_final": 0.9712,
    "accuracy_best": 0.975,
    "best_round": 48,
    "status": "failed",
    "reason": "loss [/bold] is not finite",
    "seconds": 51.23,
    "images_per_second": 8123.4,
    "bytes_down": 72e6,
    "bytes_up": 1_234_567_890,
}


def test_round_line():
    assert round_line(ROW, 60, elapsed=10.0) == (
        "round 12/60  accuracy 95.3 %  loss 0.2134  train loss 0.0312  clients 20  0.84 s"
        "  1.2 MB down  1.2 MB up  ETA 0:40"
    )


def test_round_line_names_failed_clients_only_when_there_are_some():
    assert "clients 17  failed 3  0.84 s" in round_line(
        {**ROW, "clients": 17, "failed": 3}, 60, elapsed=1
    )


def test_new_failures_are_named_with_the_last_line_of_their_reason():
    known = ["client 1: its disk is full"]
    traceback = "client 2: Traceback ...\n  File\nRuntimeError: shapes differ"
    assert failure_lines([*known, traceback], known) == ["  client 2: RuntimeError: shapes differ"]
    many = [f"client {number}: late" for number in range(8)]
    assert failure_lines(many, []) == [
        *(f"  client {number}: late" for number in range(5)),
        "  and 3 more: see metrics.jsonl",
    ]


def test_round_line_counts_the_clients_whose_states_were_lost():
    line = round_line({**ROW, "failed": 1, "reinitialised": [3, 7]}, 60, elapsed=1)
    assert "clients 20  failed 1  started afresh 2  0.84 s" in line


def test_round_line_without_evaluation_has_dashes_in_the_same_columns():
    line = round_line({**ROW, "accuracy": None, "loss": None}, 60, elapsed=10.0)
    full = round_line(ROW, 60, elapsed=10.0)
    assert len(line) == len(full)
    assert line.index("train loss") == full.index("train loss")
    assert "accuracy      -  loss      -  train" in line


def test_eta_of_a_resumed_run_counts_only_its_own_rounds():
    line = round_line({**ROW, "round": 52}, 60, elapsed=10.0, first_round=51)
    assert line.endswith("ETA 0:40")  # 5 s a round, 8 to go


def test_round_number_is_padded_to_the_total():
    assert round_line({**ROW, "round": 7}, 1000, elapsed=1).startswith("round    7/1000 ")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (formatting.percent(None), "-"),
        (formatting.percent(1.0), "100.0 %"),
        (formatting.decimal(None), "-"),
        (formatting.decimal(0), "0.0000"),
        (formatting.decimal(0.00001234), "1.234e-05"),
        (formatting.decimal(123456.0), "1.235e+05"),
        (formatting.decimal(float("nan")), "nan"),
        (formatting.megabytes(None), "-"),
        (formatting.megabytes(0), "0.0 MB"),
        (formatting.megabytes(12_345), "0.012 MB"),
        (formatting.megabytes(1_234_567_890), "1,234.6 MB"),
        (formatting.clock(59.6), "1:00"),
        (formatting.clock(3600), "1:00:00"),
        (formatting.duration(None), "-"),
        (formatting.duration(51.23), "51.2 s"),
        (formatting.duration(4000), "4,000 s (1:06:40)"),
        (formatting.status({}), "unfinished"),
        (formatting.status({"status": "completed", "reason": ""}), "completed"),
        (
            formatting.status({"status": "failed", "reason": "no: Traceback:\n  a\n\nE: b\n"}),
            "failed: no: Traceback: ... E: b",
        ),
    ],
)
def test_numbers_are_written_the_same_everywhere(written, expected):
    assert written == expected


@given(st.integers(0, 10**6))
def test_clock_keeps_the_seconds(seconds):
    parts = [int(part) for part in formatting.clock(seconds).split(":")]
    assert sum(part * 60**power for power, part in enumerate(reversed(parts))) == seconds


def test_summary_text():
    lines = summary_text(SUMMARY, "/runs/one").splitlines()
    shown = {line[:28].strip(): line[28:] for line in lines}
    assert shown == {
        "Run": "feddr+ on digits",
        "Status": "failed: loss [/bold] is not finite",
        "Final accuracy": "97.1 %",
        "Best accuracy": "97.5 % (round 48)",
        "Rounds": "60",
        "Time": "51.2 s",
        "Training images per second": "8,123 (time of tests included)",
        "Sent to nodes": "72.0 MB",
        "Sent by nodes": "1,234.6 MB",
        "Run directory": "/runs/one",
    }


def test_summary_of_a_run_without_results_is_dashes():
    text = summary_text({"status": "failed"}, "/runs/one")
    assert "Final accuracy              -\n" in text
