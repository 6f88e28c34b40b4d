"""A node's side of secure aggregation (Bonawitz et al. 2017, CCS, figure 4).

The party is the node: it masks the exact sum of the clients that it hosts. Its secrets live in the
context that Flower keeps for it between messages, on the node only, and are deleted when the round
is opened. A node takes each step once per session, so a repeated message reveals nothing more.
Without keys of its own the protocol is that for servers which follow it; with them, nodes also sign
their keys and who has stayed. Flower may answer several messages at the same time, each with a copy
of the context; so a node that does not trust the server notes on disk which steps it has taken.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from strategies.aggregate import Arrays
from strategies.secure.messages import SECURE, associated_data, threshold_of
from strategies.secure.primitives import (
    SECRET_BYTES,
    ProtocolBroken,
    add_mask,
    agree,
    commitment,
    mask_key,
    new_secret,
    public_key,
    seal,
    split,
    unseal,
)
from strategies.secure.signatures import (
    SIGNATURE,
    SIGNER,
    NodeKeys,
    check_confirmed,
    digest,
    survivors_statement,
)

Fields = Mapping[str, Any]

_ADVERTISED, _SHARED, _MASKED, _CONFIRMED, _OPENED = 1, 2, 3, 4, 5  # the last step taken
_KEPT = 7 * 86_400.0  # seconds for which the note of a step is kept
_SEAL = "sealing"


class SecureNode:
    """The steps of one node; its state is a record of the node's context."""

    def __init__(
        self,
        records: RecordDict,
        secure_threshold: float,
        keys: NodeKeys | None = None,
        steps: Path | None = None,
    ) -> None:
        """Take the state of the node's context, and the share of a round's nodes that must stay.

        With `keys` the node signs the public keys of its sessions, and requires the signatures of
        all parties. In the folder `steps` it notes each step that it takes.
        """
        self.records, self.secure_threshold = records, secure_threshold
        self.keys, self.steps = keys, steps

    def advertise(self, asked: Fields) -> dict[str, Any]:
        """Begin a session with fresh keys; secrets of another, unfinished session are deleted.

        Raises:
            ProtocolBroken: the session has begun.
        """
        begun = self.records.config_records.get(SECURE)
        if begun is not None and begun["session"] == bytes(asked["session"]):
            raise ProtocolBroken("the message begins its session a second time")
        sealing, masking = new_secret(), new_secret()
        self._store(
            session=bytes(asked["session"]), party=int(asked["party"]), step=_ADVERTISED,
            sealing=sealing, masking=masking, note=token_hex(),
        )  # fmt: skip
        public = {"sealing": public_key(sealing), "masking": public_key(masking)}
        if self.keys is None:
            return public
        return public | self.keys.sign(asked["session"], int(asked["party"]), public)

    def share_secrets(self, asked: Fields) -> dict[str, Any]:
        """Share the seeds of the node's masks with all parties, sealed for each.

        Raises:
            ProtocolBroken: the list of parties is not one that this node may trust its secrets to.
        """
        state = self._state(asked, _ADVERTISED)
        parties = [int(party) for party in asked["parties"]]
        keys = {"sealing": list(asked["sealing"]), "masking": list(asked["masking"])}
        self._check_parties(parties, keys, state)
        cohort = max(int(asked["cohort"]), len(parties))
        threshold, own = threshold_of(cohort, self.secure_threshold), new_secret()
        signed: dict[str, Any] = {}
        if self.keys is not None:
            self.keys.check(state["session"], parties, asked, threshold)
            signers = list(asked[f"{SIGNER}s"])
            signed = {"signers": signers, "listed": digest(state["session"], asked)}
        self._require(parties, threshold)
        self._take(_SHARED, state)
        pairs = zip(
            split(own, threshold, len(parties)),
            split(state["masking"], threshold, len(parties)),
            strict=True,
        )
        sealed = [
            seal(
                agree(state["sealing"], key, _SEAL), b"".join(shares),
                associated_data(state["session"], state["party"], party),
            )
            for party, key, shares in zip(parties, keys["sealing"], pairs, strict=True)
        ]  # fmt: skip
        shared = {"step": _SHARED, "own": own, "parties": parties, "threshold": threshold}
        self._store(**state | shared | signed, **_public(keys))
        return {"sealed": sealed, "commitment": commitment(own, state["session"])}

    def fewest(self, asked: Fields) -> int:
        """Return how many parties of a session stay at least, if it gives a sum.

        Raises:
            ProtocolBroken: the node has not shared its secrets, or has sent its masked sum.
        """
        return int(self._state(asked, _SHARED)["threshold"])

    def mask(
        self, groups: Mapping[str, Arrays], asked: Fields, terms: bytes, inputs: bytes
    ) -> None:
        """Mask the node's sums in place, with its own mask and one per pair.

        All nodes must do equally what `terms` is a hash of, and have received what `inputs` is.

        Raises:
            ProtocolBroken: too few parties are left, or a share was changed on its way.
        """
        state = self._state(asked, _SHARED)
        senders = [int(party) for party in asked["senders"]]
        self._check_group(senders, state["parties"], state)
        keys = {
            party: (sealing, masking)
            for party, sealing, masking in zip(
                state["parties"], state["public_sealing"], state["public_masking"], strict=True
            )
        }
        shares = [
            unseal(
                agree(state["sealing"], keys[party][0], _SEAL), text,
                associated_data(state["session"], party, state["party"]),
            )
            for party, text in zip(senders, asked["sealed"], strict=True)
        ]  # fmt: skip
        self._take(_MASKED, state)
        flat = flattened(groups)
        add_mask(flat, mask_key(state["own"]))
        for party in senders:
            if party != state["party"]:
                sign = 1 if state["party"] < party else -1
                key = agree(state["masking"], keys[party][1], mask_purpose(inputs))
                add_mask(flat, key, sign)
        self._store(
            session=state["session"], party=state["party"], note=state["note"], step=_MASKED,
            threshold=state["threshold"], parties=state["parties"], senders=senders, shares=shares,
            terms=terms,
            **{name: state[name] for name in ("signers", "listed") if name in state},
        )  # fmt: skip

    def confirm(self, asked: Fields) -> dict[str, Any]:
        """Sign the list of parties and which of them have stayed, once per session.

        Raises:
            ProtocolBroken: too few have stayed, or this node has no key to sign with.
        """
        state = self._state(asked, _MASKED)
        survivors = [int(party) for party in asked["survivors"]]
        self._check_group(survivors, state["senders"], state)
        if self.keys is None:
            raise ProtocolBroken("this node has no key to sign with")
        self._take(_CONFIRMED, state)
        self._store(**state | {"step": _CONFIRMED, "survivors": survivors})
        return {SIGNATURE: self.keys.confirm(_survivors_statement(state, survivors))}

    def unmask(self, asked: Fields) -> dict[str, Any]:
        """Return one share of each party's secrets, and delete all secrets of the session.

        Of a survivor it is a share of the seed of its own mask, of a lost party one of the seed of
        its pair masks; never both, because with both the server could remove all masks.

        Raises:
            ProtocolBroken: too few have stayed, or too few confirm the same survivors.
        """
        state = self._state(asked, _MASKED if self.keys is None else _CONFIRMED)
        survivors = [int(party) for party in asked["survivors"]]
        self._check_group(survivors, state["senders"], state)
        if self.keys is not None:
            if survivors != state["survivors"]:
                raise ProtocolBroken("the server names other survivors than this node has signed")
            known = dict(zip(state["parties"], state["signers"], strict=True))
            signers = {party: known[party] for party in survivors}
            statement = _survivors_statement(state, survivors)
            check_confirmed(statement, signers, asked, state["threshold"])
        self._take(_OPENED, state)
        self.records.pop(SECURE, None)
        halves = [
            share[:SECRET_BYTES] if party in survivors else share[SECRET_BYTES:]
            for party, share in zip(state["senders"], state["shares"], strict=True)
        ]
        return {"shares": halves}

    def _check_parties(
        self, parties: list[int], keys: Mapping[str, list[bytes]], state: Fields
    ) -> None:
        """Raise `ProtocolBroken` unless this node is among enough different parties."""
        if len(set(parties)) != len(parties) or any(len(k) != len(parties) for k in keys.values()):
            raise ProtocolBroken("the list of parties names one twice, or has no keys for some")
        mine = {name: public_key(state[name]) for name in keys}
        if state["party"] not in parties or any(
            keys[name][parties.index(state["party"])] != key for name, key in mine.items()
        ):
            raise ProtocolBroken("the list of parties does not have this node with its own keys")
        if any(len(set(each)) != len(each) for each in keys.values()):
            raise ProtocolBroken("two parties have the same key")

    def _check_group(self, group: list[int], allowed: list[int], state: Fields) -> None:
        """Raise `ProtocolBroken` unless a group of parties has this node and is large enough."""
        if len(set(group)) != len(group) or not set(group) <= set(allowed):
            raise ProtocolBroken("the server names a party twice, or one that did not take part")
        if state["party"] not in group:
            raise ProtocolBroken("the server has left this node out and asks it all the same")
        self._require(group, state["threshold"])

    def _require(self, group: list[int], least: int) -> None:
        if len(group) < least:
            raise ProtocolBroken(f"{len(group)} parties are left of the {least} that are needed")

    def _state(self, asked: Fields, step: int) -> dict[str, Any]:
        """Return the session's state; raises `ProtocolBroken` unless `step` was the last one."""
        record = self.records.config_records.get(SECURE)
        if record is None or record["session"] != bytes(asked["session"]):
            raise ProtocolBroken("the message belongs to another session")
        if record["step"] != step:
            raise ProtocolBroken("the message repeats a step of its session, or comes too early")
        return dict(record)

    def _take(self, step: int, state: Fields) -> None:
        """Note on disk that the session takes a step; raises `ProtocolBroken` if it has taken it.

        What depends on the step must follow: another process may have a copy of the state.
        """
        if self.steps is None:
            return
        note = self.steps / f"{state['note']}-{step}"
        try:
            if step == _SHARED:
                _remove_old(self.steps)
            os.close(os.open(note, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise ProtocolBroken("the message repeats a step of its session") from None
        except OSError as error:
            raise ProtocolBroken(f"{self.steps} cannot be written ({error.strerror})") from None

    def _store(self, **state: Any) -> None:
        self.records[SECURE] = ConfigRecord(state)


def _remove_old(steps: Path) -> None:
    """Remove notes of sessions that have long ended; another node may remove them, too."""
    for note in steps.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - note.stat().st_mtime > _KEPT:
                note.unlink()


def _survivors_statement(state: Fields, survivors: list[int]) -> bytes:
    """Return what a node that has masked its sums signs."""
    return survivors_statement(
        state["listed"], survivors, int(state["threshold"]), bytes(state["terms"])
    )


def mask_purpose(inputs: bytes) -> str:
    """Return the purpose of a pair mask's key, for nodes that have received the same."""
    return f"pair mask of {inputs.hex()}"


def flattened(groups: Mapping[str, Arrays]) -> Arrays:
    """Return the arrays of all groups under names of their own, without a copy."""
    return {f"{group}/{name}": a for group, arrays in groups.items() for name, a in arrays.items()}


def _public(keys: Mapping[str, list[bytes]]) -> dict[str, list[bytes]]:
    return {f"public_{name}": values for name, values in keys.items()}
