"""The server's side of secure aggregation (Bonawitz et al. 2017, CCS, figure 4).

It passes keys and sealed shares between the nodes, adds masked sums, and removes the masks of the
whole sum with the shares that the surviving nodes reveal. Sums are integers modulo 2^64, so the
opened sum is that of a run without masks, bit for bit.
"""

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from strategies.aggregate import Arrays
from strategies.rounds.records import ERROR, LATE, LATE_REASON, shortened
from strategies.rounds.report import RoundFailed
from strategies.rounds.transport import exchange, payload_bytes
from strategies.secure.messages import CONFIRM, KEYS, SECURE, SHARES, UNMASK, threshold_of
from strategies.secure.node import flattened, mask_purpose
from strategies.secure.primitives import (
    SECRET_BYTES,
    ProtocolBroken,
    add_mask,
    agree,
    commitment,
    join,
    mask_key,
    public_key,
)
from strategies.secure.signatures import (
    LONGEST,
    SIGNATURE,
    SIGNER,
    digest,
    survivors_statement,
    verify,
    verify_confirmed,
)

log = logging.getLogger(__name__)

_SESSION_BYTES = 16
_Reply = Mapping[str, Any]


class SecureSession:
    """One round of the protocol with the nodes of its cohort, each a party with a number."""

    def __init__(
        self, grid: Grid, nodes: Sequence[int], secure_threshold: float, timeout: float
    ) -> None:
        """Prepare a session of the nodes' ids.

        A share of them, `secure_threshold`, must stay until the end.
        """
        self.grid, self.timeout = grid, timeout
        self.threshold = threshold_of(len(nodes), secure_threshold)
        self.party = {node: number for number, node in enumerate(sorted(nodes), 1)}
        self.node = {number: node for node, number in self.party.items()}
        self.session = secrets.token_bytes(_SESSION_BYTES)
        self.lost: dict[int, tuple[str, str]] = {}  # reason and kind of failure by node
        self.bytes_down = self.bytes_up = 0
        self._keys: dict[int, _Reply] = {}  # by party, in ascending order
        self._sealed: dict[int, _Reply] = {}
        self._listed = b""  # the hash of the parties and their keys, if these are signed
        self._liars: set[int] = set()  # positions of parties whose shares were false

    def prepare(self) -> dict[int, ConfigRecord]:
        """Exchange keys and shares; return what each remaining node needs to mask its sum.

        Raises:
            RoundFailed: too few nodes are left.
        """
        asked = {number: {"party": number} for number in self.node}
        self._keys = self._usable(self._ask(KEYS, asked, ("sealing", "masking")))
        parties = list(self._keys)
        self._require(parties)
        listed = {
            "cohort": len(self.node),
            "parties": parties,
            "sealing": [self._keys[party]["sealing"] for party in parties],
            "masking": [self._keys[party]["masking"] for party in parties],
        }
        if any(SIGNER in reply for reply in self._keys.values()):
            listed |= {
                f"{name}s": [self._keys[party][name] for party in parties]
                for name in (SIGNER, SIGNATURE)
            }
            self._listed = digest(self.session, listed)
        fields = ("sealed", "commitment")
        self._sealed = self._ask(SHARES, dict.fromkeys(parties, listed), fields)
        senders = list(self._sealed)
        self._require(senders)
        return {
            self.node[party]: ConfigRecord(
                {
                    "session": self.session,
                    "senders": senders,
                    "sealed": [
                        self._sealed[sender]["sealed"][parties.index(party)] for sender in senders
                    ],
                }
            )
            for party in senders
        }

    def open(
        self,
        groups: Mapping[str, Arrays],
        nodes: Sequence[int],
        lost: str,
        terms: bytes,
        inputs: bytes,
    ) -> None:
        """Remove all masks from the sum of the masked sums of `nodes`, in place.

        `lost` says why other nodes have sent no masked sum. `terms` is what these nodes have done
        equally, as `terms_of` returns, and `inputs` what they have received, as `inputs_of` does.

        Raises:
            RoundFailed: too few nodes reveal their shares, or the shares do not fit.
        """
        survivors = sorted(self.party[node] for node in nodes)
        self._require(survivors, lost)
        asked: dict[int, dict[str, Any]] = {party: {"survivors": survivors} for party in survivors}
        if self._listed:
            asked = self._confirmed(asked, survivors, terms)
        answers = self._ask(UNMASK, asked, ("shares",))
        self._require(list(answers))
        flat = flattened(groups)
        for number, party in enumerate(self._sealed):
            shares = [
                (position, answers[holder]["shares"][number])
                for position, holder in enumerate(self._keys)
                if holder in answers and position not in self._liars
            ]
            seed = self._seed(party, party in survivors, shares)
            if party in survivors:
                add_mask(flat, mask_key(seed), -1)
            else:
                for other in survivors:  # their masks with the lost party did not cancel
                    key = agree(seed, self._keys[other]["masking"], mask_purpose(inputs))
                    add_mask(flat, key, -1 if other < party else 1)

    def _confirmed(
        self, asked: Mapping[int, Mapping[str, Any]], survivors: list[int], terms: bytes
    ) -> dict[int, dict[str, Any]]:
        """Let the survivors sign who has stayed; return the next question to those that have.

        Raises:
            RoundFailed: too few have signed.
        """
        statement = survivors_statement(self._listed, survivors, self.threshold, terms)
        signed = {}
        for party, reply in self._ask(CONFIRM, asked, (SIGNATURE,)).items():
            try:
                verify_confirmed(statement, party, self._keys[party][SIGNER], reply[SIGNATURE])
            except ProtocolBroken as reason:  # the other nodes would refuse it, too
                refused = f"its part in secure aggregation was refused: {reason}"
                self.lost[self.node[party]] = refused, ERROR
            else:
                signed[party] = reply[SIGNATURE]
        self._require(list(signed))
        proof = {"confirmed": list(signed), f"{SIGNATURE}s": list(signed.values())}
        return {party: {"survivors": survivors, **proof} for party in signed}

    def _seed(self, party: int, survived: bool, shares: list[tuple[int, bytes]]) -> bytes:
        """Return the seed that fits what the party has published; one share may be false.

        Raises:
            RoundFailed: more shares are false, or none is left over to replace a false one.
        """
        for suspect, chosen in _choices(shares, self.threshold):
            seed = join(chosen)
            if survived:
                fits = commitment(seed, self.session) == self._sealed[party]["commitment"]
            else:
                fits = public_key(seed) == self._keys[party]["masking"]
            if fits:
                if suspect is not None:
                    self._liars.add(suspect)
                    liar = self.node[list(self._keys)[suspect]]
                    log.warning("node %d has revealed a false share; the others suffice", liar)
                return seed
        raise RoundFailed(
            f"secure aggregation cannot remove the masks of node {self.node[party]}: shares that "
            "the nodes have revealed are false"
        )

    def _ask(
        self, kind: str, asked: Mapping[int, Mapping[str, Any]], fields: Sequence[str]
    ) -> dict[int, _Reply]:
        """Query parties and return the valid answers by party, in ascending order."""
        messages = [
            Message(
                RecordDict({SECURE: ConfigRecord({"session": self.session, **values})}),
                dst_node_id=self.node[party], message_type=f"query.{kind}",
            )
            for party, values in asked.items()
        ]  # fmt: skip
        self.bytes_down += sum(map(payload_bytes, messages))
        found: dict[int, _Reply] = {}
        for reply in exchange(self.grid, messages, self.timeout):
            node = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    self.lost[node] = (
                        f"its node reported: {shortened(reply.error.reason or '')}",
                        ERROR,
                    )
                    continue
                self.bytes_up += payload_bytes(reply)
                found[self.party[node]] = _fields(reply, fields, len(self._keys), len(self._sealed))
            except Exception as error:  # nodes are not trusted: whatever is wrong, it is theirs
                reason = shortened(str(error) if isinstance(error, ProtocolBroken) else repr(error))
                self.lost[node] = f"its part in secure aggregation was refused: {reason}", ERROR
        for party in asked.keys() - found.keys():
            self.lost.setdefault(self.node[party], (LATE_REASON, LATE))
        return {party: found[party] for party in sorted(found)}

    def _usable(self, keys: dict[int, _Reply]) -> dict[int, _Reply]:
        """Leave out parties whose keys all others would refuse.

        Such keys give no secret, belong to a party before them, or are not signed although keys of
        other parties are.
        """
        seen: set[bytes] = set()
        kept: dict[int, _Reply] = {}
        signed = any(SIGNER in reply for reply in keys.values())
        for party, reply in keys.items():
            pair = {bytes(reply["sealing"]), bytes(reply["masking"])}
            try:
                for key in pair:
                    agree(bytes(SECRET_BYTES), key, "test")
                if pair & seen:
                    raise ProtocolBroken("its keys are another node's")
                if signed:
                    _check_signature(self.session, party, reply)
            except ProtocolBroken as reason:
                refused = f"its part in secure aggregation was refused: {reason}"
                self.lost[self.node[party]] = refused, ERROR
            else:
                seen |= pair
                kept[party] = reply
        return kept

    def _require(self, parties: Sequence[int], lost: str = "") -> None:
        if len(parties) < self.threshold:
            reasons = [f"node {node}: {reason}" for node, (reason, _) in self.lost.items()]
            reasons = reasons or [lost or "no more took part"]
            raise RoundFailed(
                f"secure aggregation has {len(parties)} nodes left and needs {self.threshold} of "
                f"{len(self.node)}: {reasons[0]}"
            )


def _choices(
    shares: list[tuple[int, bytes]], threshold: int
) -> Iterator[tuple[int | None, list[tuple[int, bytes]]]]:
    """Yield enough shares, then enough without each of these, with the position left out."""
    yield None, shares[:threshold]
    for left_out, _ in shares[:threshold]:
        others = [share for share in shares if share[0] != left_out]
        if len(others) >= threshold:
            yield left_out, others[:threshold]


def _fields(reply: Message, fields: Sequence[str], parties: int, senders: int) -> _Reply:
    """Return a node's answer; raises `ProtocolBroken` for the reason it gives, or a wrong form."""
    record = reply.content.config_records.get(SECURE)
    if record is None or "error" in record:
        raise ProtocolBroken(str(record["error"]) if record else "it has sent nothing")
    for name in (SIGNER, SIGNATURE):
        text = record.get(name, None if name in fields else b"")
        if not isinstance(text, bytes) or len(text) > LONGEST:
            raise ProtocolBroken(f"its '{name}' is not at most {LONGEST} bytes")
    sizes = {"sealing": 32, "masking": 32, "commitment": 32}
    for name in fields:
        value = record.get(name)
        if name in sizes and not (isinstance(value, bytes) and len(value) == sizes[name]):
            raise ProtocolBroken(f"its '{name}' is not {sizes[name]} bytes")
    for name, count, size in (("sealed", parties, 0), ("shares", senders, SECRET_BYTES)):
        if name in fields:
            values = record.get(name)
            if not isinstance(values, list) or len(values) != count:
                raise ProtocolBroken(f"it has sent not {count} {name}")
            if any(not isinstance(v, bytes) or (size and len(v) != size) for v in values):
                raise ProtocolBroken(f"one of its {name} has a wrong length")
    return record


def _check_signature(session: bytes, party: int, reply: _Reply) -> None:
    """Raise `ProtocolBroken` unless a node has signed its keys; who it is, only nodes know."""
    if not (SIGNER in reply and SIGNATURE in reply):
        raise ProtocolBroken("it has not signed its keys, and other nodes have")
    verify(session, party, reply, reply[SIGNER], reply[SIGNATURE])
