"""The steps of secure aggregation between nodes and a server that passes their messages."""

import numpy as np
import pytest
from flwr.app import RecordDict
from hypothesis import given
from hypothesis import strategies as st

from strategies.aggregate import ExactSum
from strategies.secure.messages import threshold_of
from strategies.secure.node import SecureNode
from strategies.secure.primitives import (
    ProtocolBroken,
    add_mask,
    agree,
    join,
    mask_key,
    new_secret,
    public_key,
    seal,
    split,
    unseal,
)

SESSION, SHARE, TERMS = b"s" * 16, 2 / 3, b"the same for all"
INPUTS = b"model and task"


class Parties:
    """Nodes 1 to n of one session, and what the server has got from them."""

    def __init__(self, count: int) -> None:
        self.nodes = {party: SecureNode(RecordDict(), SHARE) for party in range(1, count + 1)}
        self.keys = {
            party: node.advertise({"session": SESSION, "party": party})
            for party, node in self.nodes.items()
        }

    def listed(self, **changes) -> dict:
        fields = {
            "session": SESSION, "cohort": len(self.keys), "parties": list(self.keys),
            "sealing": [keys["sealing"] for keys in self.keys.values()],
            "masking": [keys["masking"] for keys in self.keys.values()],
        }  # fmt: skip
        return {**fields, **changes}

    def share(self) -> None:
        self.sealed = {
            party: node.share_secrets(self.listed())["sealed"] for party, node in self.nodes.items()
        }

    def inbox(self, party: int, senders=None, **changes) -> dict:
        senders = senders or list(self.nodes)
        position = list(self.keys).index(party)
        sealed = [self.sealed[sender][position] for sender in senders]
        return {"session": SESSION, "senders": senders, "sealed": sealed, **changes}


def masked(count: int = 4) -> Parties:
    """Return parties that have masked the arrays [party, 0, -party]."""
    parties = Parties(count)
    parties.share()
    for party, node in parties.nodes.items():
        groups = {"arrays": {"w": np.array([party, 0, -party], np.int64)}}
        node.mask(groups, parties.inbox(party), TERMS, INPUTS)
    return parties


def test_two_parties_agree_on_a_key_for_each_purpose():
    one, other = new_secret(), new_secret()
    key = agree(one, public_key(other), "sealing")
    assert key == agree(other, public_key(one), "sealing")
    assert key != agree(one, public_key(other), "pair mask")
    with pytest.raises(ProtocolBroken, match="a public key is invalid"):
        agree(one, bytes(32), "sealing")


def test_a_sealed_text_is_read_with_its_key_and_its_circumstances_only():
    key = new_secret() * 2
    sealed = seal(key, b"share", b"1 to 2")
    assert unseal(key, sealed, b"1 to 2") == b"share"
    assert seal(key, b"share", b"1 to 2") != sealed
    for changed in ((key, sealed, b"1 to 3"), (key, sealed[:-1], b"1 to 2"), (key, b"", b"1 to 2")):
        with pytest.raises(ProtocolBroken, match="changed on its way"):
            unseal(*changed)


def test_enough_shares_give_the_secret_and_one_fewer_does_not():
    secret = new_secret()
    shares = list(enumerate(split(secret, 3, 5)))
    assert join(shares[:3]) == join([shares[4], shares[0], shares[2]]) == secret
    assert join(shares[:2]) != secret


@pytest.mark.parametrize(
    ("parties", "share", "needed"),
    [(3, 2 / 3, 3), (4, 2 / 3, 3), (10, 2 / 3, 7), (100, 2 / 3, 67), (4, 0.51, 3), (5, 1.0, 5)],
)
def test_the_threshold_is_the_share_and_more_than_half(parties, share, needed):
    assert threshold_of(parties, share) == needed > parties / 2


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5),
    st.binary(min_size=32, max_size=32),
)
def test_a_mask_vanishes_when_it_is_subtracted_also_at_the_ends_of_the_range(values, key):
    arrays = {"a": np.array(values, np.int64), "b": np.array(values[::-1], np.int64)}
    hidden = {name: array.copy() for name, array in arrays.items()}
    add_mask(hidden, key)
    assert any(not np.array_equal(hidden[name], array) for name, array in arrays.items())
    add_mask(hidden, key, -1)
    assert all(np.array_equal(hidden[name], array) for name, array in arrays.items())


@given(
    st.lists(st.tuples(st.floats(-1, 1, width=32), st.integers(1, 2000)), min_size=3, max_size=6),
    st.integers(0, 2**32 - 1),
)
def test_masked_sums_are_the_plain_ones_also_for_the_largest_values(clients, seed):
    """Values up to the bound, weights up to the total: the sum stays inside 64 bits."""
    total = sum(weight for _, weight in clients)
    reference = {"w": np.array([1.0], np.float32)}
    plain, hidden = ExactSum(reference, total), ExactSum(reference, total)
    random = np.random.default_rng(seed)
    masks = random.integers(-(2**63), 2**63 - 1, len(clients) - 1, np.int64, endpoint=True)
    with np.errstate(over="ignore"):
        masks = [*masks, np.int64(0) - masks.sum(dtype=np.int64)]
        for (share, weight), mask in zip(clients, masks, strict=True):
            model = {"w": np.array([1024 * share], np.float32)}
            plain.add(model, weight)
            one = ExactSum(reference, total)
            one.add(model, weight)
            hidden.merge_checked({"w": one.sums["w"] + mask}, weight)
    hidden.check_partial(hidden.sums, hidden.weight)
    assert np.array_equal(plain.sums["w"], hidden.sums["w"])
    assert np.array_equal(plain.mean()["w"], hidden.mean()["w"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parties": [1, 2, 3, 3]}, "names one twice"),
        ({"sealing": [b"k" * 32]}, "has no keys for some"),
        ({"session": b"t" * 16}, "belongs to another session"),
        ({"masking": [b"k" * 32, b"l" * 32, b"m" * 32, b"n" * 32]}, "this node with its own keys"),
    ],
)
def test_a_node_shares_nothing_with_parties_that_it_cannot_trust(changes, words):
    parties = Parties(4)
    with pytest.raises(ProtocolBroken, match=words):
        parties.nodes[1].share_secrets(parties.listed(**changes))


def test_a_node_shares_nothing_with_one_other_party_or_with_one_key_under_two_names():
    two = Parties(2)
    with pytest.raises(ProtocolBroken, match="2 parties are left of the 3 that are needed"):
        two.nodes[1].share_secrets(two.listed())
    four = Parties(4)
    keys = four.listed()["masking"]
    with pytest.raises(ProtocolBroken, match="two parties have the same key"):
        four.nodes[1].share_secrets(four.listed(masking=[*keys[:3], keys[2]]))


def test_every_step_is_taken_once_and_in_order():
    parties = Parties(3)
    node = parties.nodes[1]
    with pytest.raises(ProtocolBroken, match="comes too early"):
        node.unmask({"session": SESSION, "survivors": [1, 2, 3]})
    parties.share()
    with pytest.raises(ProtocolBroken, match="repeats a step"):
        node.share_secrets(parties.listed())
    groups = {"arrays": {"w": np.zeros(2, np.int64)}}
    node.mask(groups, parties.inbox(1), TERMS, INPUTS)
    with pytest.raises(ProtocolBroken, match="repeats a step"):
        node.mask(groups, parties.inbox(1), TERMS, INPUTS)
    node.unmask({"session": SESSION, "survivors": [1, 2, 3]})
    with pytest.raises(ProtocolBroken, match="belongs to another session"):
        node.unmask({"session": SESSION, "survivors": [1, 2, 3]})
    assert not node.records


@pytest.mark.parametrize(
    ("senders", "words"),
    [
        ([1, 2], "2 parties are left of the 3 that are needed"),
        ([2, 3, 4], "left this node out"),
        ([1, 2, 2, 3], "names a party twice"),
        ([1, 2, 3, 9], "one that did not take part"),
    ],
)
def test_a_node_masks_for_enough_parties_of_its_list_only(senders, words):
    parties = Parties(4)
    parties.share()
    asked = parties.inbox(1) | {"senders": senders}
    with pytest.raises(ProtocolBroken, match=words):
        parties.nodes[1].mask({"arrays": {"w": np.zeros(1, np.int64)}}, asked, TERMS, INPUTS)


def test_a_share_that_was_changed_or_meant_for_another_node_is_refused():
    parties = Parties(4)
    parties.share()
    mine = parties.inbox(1)["sealed"]
    changed = mine[0][:-1] + bytes([mine[0][-1] ^ 1])
    for sealed in ([changed, *mine[1:]], parties.inbox(2)["sealed"]):
        asked = parties.inbox(1, sealed=sealed)
        with pytest.raises(ProtocolBroken, match="changed on its way"):
            parties.nodes[1].mask({"arrays": {"w": np.zeros(1, np.int64)}}, asked, TERMS, INPUTS)


def test_a_node_reveals_one_half_of_each_partys_secrets_and_forgets_them():
    parties = masked()
    state = dict(parties.nodes[1].records.config_records["secure-aggregation"])
    revealed = parties.nodes[1].unmask({"session": SESSION, "survivors": [1, 2, 4]})["shares"]
    halves = [
        share[16:] if party == 3 else share[:16] for party, share in enumerate(state["shares"], 1)
    ]
    assert revealed == halves
    assert not parties.nodes[1].records
    with pytest.raises(ProtocolBroken, match="2 parties are left"):
        parties.nodes[2].unmask({"session": SESSION, "survivors": [1, 2]})


def views(inputs: list[int]) -> list[np.ndarray]:
    """Return what the server gets from each party, whose every value is its number of `inputs`."""
    parties = Parties(len(inputs))
    parties.share()
    sent = []
    for (party, node), value in zip(parties.nodes.items(), inputs, strict=True):
        arrays = {"w": np.full(4000, value, np.int64)}
        node.mask({"arrays": arrays}, parties.inbox(party), TERMS, INPUTS)
        sent.append(arrays["w"])
    survivors = {"session": SESSION, "survivors": list(parties.nodes)}
    shares = [node.unmask(survivors)["shares"] for node in parties.nodes.values()]
    opened = {"arrays/w": np.sum(sent, axis=0, dtype=np.int64)}
    for number in range(len(inputs)):
        add_mask(opened, mask_key(join([(i, each[number]) for i, each in enumerate(shares)])), -1)
    return [*sent, opened["arrays/w"]]


def test_the_server_sees_the_same_of_inputs_with_the_same_sum():
    """Masked values are uniform whatever they hide; the opened sums are equal."""
    for one, other in zip(views([1000, 1, -1]), views([0, 500, 500]), strict=True):
        for seen in (one, other):
            counts = np.bincount(np.frombuffer(seen.tobytes(), np.uint8), minlength=256)
            expected = counts.sum() / 256
            if (seen == 1000).all():
                continue
            assert ((counts - expected) ** 2 / expected).sum() < 400  # 255 degrees: 1e-8
        assert (one == other).all() == (one == 1000).all()
