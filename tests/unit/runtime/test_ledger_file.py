"""The file in which a node counts what its client spends: never begun anew, never exceeded."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedapp.config.privacy import Budget
from fedapp.core.errors import UserError
from fedapp.runtime.node.ledger import Ledger, check_evaluation, check_training

NOISE = 20.0
ONE, THREE = (Budget(NOISE, 5, 5, 1e-5).epsilon(rounds) for rounds in (1, 3))
UNUSED = {"secure-peers": "/peers", "privacy-epsilon": 8.0}


def test_the_rounds_that_are_left(tmp_path):
    ledger = Ledger(tmp_path / "one.json", THREE + 1e-9, 1e-5)
    assert [ledger.rounds_left(NOISE, most) for most in (0, 2, 3, 100)] == [0, 2, 3, 3]
    ledger.charge(NOISE)
    assert [ledger.rounds_left(NOISE, most) for most in (1, 2, 100)] == [1, 2, 2]
    assert ledger.rounds_left(NOISE / 10, 100) == 0
    before = ledger.file.read_bytes()
    with pytest.raises(UserError, match=rf"has spent epsilon {ONE:.3g} of its 0\.68"):
        ledger.charge(NOISE / 10)
    assert ledger.file.read_bytes() == before


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"rounds": {"x": 1}}', '{"rounds": {"1": 0.5}}', '{"rounds": {"0": 1}}'],
)
def test_a_damaged_ledger_is_not_taken_for_an_empty_one(text, tmp_path):
    file = tmp_path / "one.json"
    file.write_text(text)
    with pytest.raises(UserError, match=f"{file} is not as a node writes it; restore it"):
        Ledger(file, 8.0, 1e-5).charge(NOISE)
    assert file.read_text() == text


def test_a_ledger_that_cannot_be_locked_is_refused(tmp_path, monkeypatch):
    def no_locks(self):
        raise NotImplementedError("no locks here")

    monkeypatch.setattr("filelock.FileLock.acquire", no_locks)
    with pytest.raises(UserError, match="cannot be locked; put it on a file system with locks"):
        Ledger(tmp_path / "one.json", 8.0, 1e-5).charge(NOISE)


def test_nodes_that_use_one_ledger_at_the_same_time_are_all_counted(tmp_path):
    ledgers = [Ledger(tmp_path / "one.json", 1e3, 1e-5) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda ledger: [ledger.charge(NOISE) for _ in range(5)], ledgers))
    assert json.loads((tmp_path / "one.json").read_text())["rounds"] == {"20.0": 20}


def test_the_folder_is_on_disk_before_a_sum_leaves(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("fedapp.runtime.node.ledger.sync_folder", synced.append)
    Ledger(tmp_path / "one.json", 1e3, 1e-5).charge(NOISE)
    assert synced == [tmp_path]


def test_two_names_of_a_ledger_are_one(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "one.json")
    for name in ("link.json", "one.json"):
        ledger = Ledger.of({**UNUSED, "privacy-ledger": str(tmp_path / name)})
        ledger.charge(NOISE)
    assert json.loads((tmp_path / "one.json").read_text())["rounds"] == {"20.0": 2}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "'privacy-epsilon' alone; .* needs both"),
        ({"privacy-ledger": "one.json"}, "'privacy-ledger' is 'one.json' but must be a whole path"),
        ({"privacy-ledger": "/none/one"}, "must be a whole path in a folder that exists"),
        ({"privacy-ledger": "/one", "privacy-epsilon": 0}, "is 0 but must be above 0"),
        ({"privacy-ledger": "/one", "privacy-epsilon": "8"}, "is '8' but must be above 0"),
        ({"privacy-ledger": "/one", "privacy-delta": 1.0}, "must be above 0 and below 1"),
    ],
)
def test_mistakes_in_the_node_config_are_named(changes, words):
    with pytest.raises(UserError, match=words):
        Ledger.of({**UNUSED, **changes})


def test_a_link_to_a_lost_folder_is_not_an_empty_ledger(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "disk" / "one.json")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name, words in (("link.json", "in a folder that exists"), ("circle", "privacy-ledger")):
        with pytest.raises(UserError, match=words):
            Ledger.of({**UNUSED, "privacy-ledger": str(tmp_path / name)}).charge(NOISE)
    assert not (tmp_path / "disk").exists()


def test_a_ledger_needs_signed_keys_and_delta_a_ledger():
    with pytest.raises(UserError, match="without 'secure-key' and 'secure-peers'"):
        Ledger.of({"privacy-epsilon": 8.0, "privacy-ledger": "/one"})
    with pytest.raises(UserError, match="'privacy-delta' without 'privacy-epsilon'"):
        Ledger.of({"privacy-delta": 1e-6})
    assert Ledger.of({}) is None
    check_training(None, None, masked=False)
    check_evaluation(None)
    assert Ledger.of({**UNUSED, "privacy-ledger": "/one"}).delta == 1e-5
