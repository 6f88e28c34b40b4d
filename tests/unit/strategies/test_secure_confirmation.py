"""Signatures of who has stayed: telling the nodes different things gives the server nothing."""

import os
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from flwr.app import ConfigRecord, RecordDict

from strategies.aggregate import GroupSums
from strategies.secure.messages import SECURE
from strategies.secure.node import SecureNode
from strategies.secure.primitives import ProtocolBroken
from strategies.secure.signatures import NodeKeys, encoded, survivors_statement, terms_of

SESSION = b"s" * 16
SIX = [ec.generate_private_key(ec.SECP384R1()) for _ in range(6)]
ALL = (1, 2, 3, 4, 5, 6)


class Six:
    """Six nodes that sign, of which four must stay; the server may tell them different things."""

    def __init__(self, steps: Path | None = None, kind: type[SecureNode] = SecureNode) -> None:
        known = frozenset(encoded(key.public_key()) for key in SIX)
        self.nodes = {
            party: kind(RecordDict(), 2 / 3, NodeKeys(key, known, least=6), steps)
            for party, key in enumerate(SIX, 1)
        }
        self.keys = {party: self.begin(party) for party in self.nodes}

    def begin(self, party: int) -> dict:
        return self.nodes[party].advertise({"session": SESSION, "party": party})

    def run(self, senders=ALL, survivors=ALL, of=ALL, terms=()) -> None:
        """Let the nodes `of` share, mask and confirm; `senders` and `survivors` may be by party.

        `terms` has what some of them do otherwise than the others, by party.
        """
        told = [dict.fromkeys(of, each) if isinstance(each, tuple) else each
                for each in (senders, survivors)]  # fmt: skip
        listed = {"session": SESSION, "cohort": 6, "parties": list(ALL)}
        for field in ("sealing", "masking", "signer", "signature"):
            column = [self.keys[party][field] for party in ALL]
            listed[field + "s" * field.startswith("sign")] = column
        sealed = {party: self.nodes[party].share_secrets(listed)["sealed"] for party in of}
        for party in of:
            asked = {"session": SESSION, "senders": list(told[0][party])}
            asked["sealed"] = [sealed[each][party - 1] for each in told[0][party]]
            sums = {"arrays": {"w": np.zeros(2, np.int64)}}
            self.nodes[party].mask(sums, asked, dict(terms).get(party, b"equal"), b"inputs")
        self.told = told[1]
        self.signed = {
            party: self.nodes[party].confirm(self.asked(party))["signature"] for party in self.told
        }

    def asked(self, party: int) -> dict:
        return {"session": SESSION, "survivors": list(self.told[party])}

    def open(self, party: int, confirmed) -> list[bytes]:
        proof = {"confirmed": list(confirmed), "signatures": [self.signed[p] for p in confirmed]}
        return self.nodes[party].unmask(self.asked(party) | proof)["shares"]


def test_a_node_reveals_its_shares_when_enough_have_confirmed_who_stayed():
    six = Six()
    six.run(survivors=dict.fromkeys((1, 2, 3, 5, 6), (1, 2, 3, 5, 6)))
    with pytest.raises(ProtocolBroken, match="3 of 4 parties have confirmed who has stayed"):
        six.open(1, (1, 2, 3))
    with pytest.raises(ProtocolBroken, match="name a party twice, or one that has not stayed"):
        six.open(1, (1, 2, 3, 3))
    assert len(six.open(1, (2, 3, 5, 6))) == 6
    assert not six.nodes[1].records
    with pytest.raises(ProtocolBroken, match="repeats a step of its session, or comes too early"):
        six.nodes[2].confirm(six.asked(2))  # once


def test_a_server_cannot_tell_the_nodes_different_things():
    """With different survivors for each node it could collect both halves of a node's secrets."""
    six, one = Six(), (1, 2, 3, 4)
    six.run(
        senders={**dict.fromkeys(ALL, ALL), 1: one},
        survivors={
            1: one,
            3: (1, 2, 3, 5, 6),
            4: (1, 2, 4, 5, 6),
            5: (1, 2, 5, 6),
            6: (1, 2, 5, 6),
        },
    )
    for party in six.told:
        with pytest.raises(ProtocolBroken, match=r"confirmed other parties, keys|of 4 parties"):
            six.open(party, [p for p in six.told if p in six.told[party]])
    six.told[5] = six.told[3]
    with pytest.raises(ProtocolBroken, match="other survivors than this node has signed"):
        six.open(5, (3, 5, 6))


def test_a_server_cannot_let_other_nodes_add_less_noise_or_give_it_less_weight():
    quiet = Six()
    quiet.run(terms=dict.fromkeys((4, 5, 6), b"less noise"))
    for party in ALL:
        with pytest.raises(ProtocolBroken, match="other parties, keys or noise"):
            quiet.open(party, (1, 2, 3, 4) if party < 4 else (3, 4, 5, 6))
    three = Six()
    three.run(terms={6: b"less noise"})
    assert len(three.open(1, (1, 2, 3, 4))) == 6  # enough of them have added theirs


def at_the_same_time(step: str, repeated: list[str]):
    """Return a step of a node that another process answers, too, with a copy of the context."""

    def twice(self, *arguments):
        copy = RecordDict({SECURE: ConfigRecord(dict(self.records.config_records[SECURE]))})
        other = SecureNode(copy, self.secure_threshold, self.keys, self.steps)
        result = getattr(SecureNode, step)(self, *arguments)
        with pytest.raises(ProtocolBroken, match="the message repeats a step of its session"):
            getattr(other, step)(*arguments)
        repeated.append(step)
        return result

    return twice


def test_messages_that_are_answered_at_the_same_time_take_each_step_once(tmp_path):
    """With two masked sums of one session the server would know the difference of the updates."""
    (tmp_path / "steps").mkdir()
    repeated: list[str] = []
    names = ("share_secrets", "mask", "confirm", "unmask")
    steps = {name: at_the_same_time(name, repeated) for name in names}
    six = Six(tmp_path / "steps", type("Twice", (SecureNode,), steps))
    six.run()
    six.open(1, (1, 2, 3, 4))
    assert {name: repeated.count(name) for name in names} == dict(
        zip(names, (6, 6, 6, 1), strict=True)
    )
    notes = list((tmp_path / "steps").iterdir())
    assert len(notes) == 19
    os.utime(notes[0], (0, 0))
    Six(tmp_path / "steps").run()
    assert not notes[0].exists()
    assert len(list((tmp_path / "steps").iterdir())) == 18 + 18


def test_a_step_that_cannot_be_noted_is_not_taken(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ProtocolBroken, match=r"file cannot be written \(Not a directory\)"):
        Six(tmp_path / "file").run()


def test_the_terms_are_the_scale_of_the_sums_the_clipping_and_the_noise():
    def sums(total=10, **changes):
        model = {"w": np.array([3.0, -5.0], np.float32), "b": np.ones(2, np.float32)}
        return GroupSums({**model, **changes}, {"c": {"v": np.zeros(3)}}, total, 2)

    terms = terms_of(sums(), 0.5, 2.0)
    assert terms == terms_of(sums(w=np.array([3.0, -5.0])), 0.5, 2.0)
    for other in (
        (sums(1000), 0.5, 2.0),
        (sums(b=np.full(2, 100.0)), 0.5, 2.0),
        (sums(w=np.array([-5.0]), b=np.ones(3)), 0.5, 2.0),  # as many values, elsewhere
        (sums(), 0.25, 2.0),
        (sums(), 0.5, 1.0),
    ):
        assert terms_of(*other) != terms
    statements = {survivors_statement(b"l", (1, 2), threshold, terms) for threshold in (2, 3)}
    assert len(statements) == 2


def test_a_session_begins_once_and_its_old_keys_are_confirmed_by_nobody():
    six = Six()
    with pytest.raises(ProtocolBroken, match="begins its session a second time"):
        six.begin(1)
    six.run(
        survivors=dict.fromkeys((2, 3, 4, 5), (2, 3, 4, 5)), of=(2, 3, 4, 5, 6), senders=ALL[1:]
    )
    for party in (2, 3, 4, 5):
        six.open(party, (2, 3, 4, 5))  # the server now knows a secret of 6
    old, six.keys = six.keys, {**six.keys, **{party: six.begin(party) for party in (2, 3, 4, 5)}}
    six.run(
        survivors=dict.fromkeys((1, 2, 3, 4), (1, 2, 3, 4)), of=(1, 2, 3, 4, 5), senders=ALL[:5]
    )
    assert old[6] == six.keys[6]
    six.signed[2] = SIX[1].sign(b"the list without the old key", ec.ECDSA(SHA384()))
    with pytest.raises(ProtocolBroken, match="party 2 has confirmed other parties, keys or noise"):
        six.open(1, (1, 2, 3, 4))
