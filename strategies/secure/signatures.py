"""What nodes sign: no server can put its own keys between them, or tell them different things.

A node signs the public keys of its session with the key pair that it has in the deployment (ECDSA
on curve P-384 with SHA-384). It accepts only lists in which every party's keys are signed by a node
whose public key its own operator has given it, each node once. Before it reveals a share, as many
parties as must stay have signed the same list and the same survivors (the consistency check of
Bonawitz et al. 2017, CCS, figure 4), and that their sums have the same form, scale, clipping and
noise: otherwise a server could let the others add less noise, or elsewhere, or give it less weight.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP384R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from strategies.aggregate import GroupSums
from strategies.secure.messages import FEWEST
from strategies.secure.primitives import ProtocolBroken

SIGNER, SIGNATURE = "signer", "signature"  # fields of a node's answer; lists of them add an "s"
LONGEST = 128  # bytes of either field
_PURPOSE = b"fedapp secure aggregation: public keys of a session\0"
_STAYED = b"fedapp secure aggregation: who has stayed in a session\0"


@dataclass(frozen=True)
class NodeKeys:
    """A node's own key, and the nodes whose signatures it accepts.

    Attributes:
        key: signs this node's public keys.
        known: the nodes' public keys, this node's included, as `encoded` returns them.
        least: the fewest parties of a session; the server proposes the session, so it could ask for
            a sum of this node and its own accomplices.
    """

    key: EllipticCurvePrivateKey
    known: frozenset[bytes]
    least: int = FEWEST

    def sign(self, session: bytes, party: int, keys: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the fields that prove the keys of this node's session."""
        statement = _keys_statement(session, party, keys["sealing"], keys["masking"])
        signature = self.key.sign(statement, ECDSA(SHA384()))
        return {SIGNER: encoded(self.key.public_key()), SIGNATURE: signature}

    def confirm(self, statement: bytes) -> bytes:
        """Return this node's signature of a `survivors_statement`."""
        return self.key.sign(statement, ECDSA(SHA384()))

    def check(
        self, session: bytes, parties: Sequence[int], listed: Mapping[str, Any], threshold: int
    ) -> None:
        """Check the session that the server proposes, and the list of all parties' keys.

        Raises:
            ProtocolBroken: keys of a party are not signed by a known node, a node signs twice, the
                parties are too few, or fewer than two thirds of them must stay to the end.
        """
        if len(parties) < self.least:
            raise ProtocolBroken(f"{len(parties)} parties, and this node requires {self.least}")
        if 3 * threshold < 2 * len(parties):
            raise ProtocolBroken("this node requires a secure-threshold of two thirds or more")
        signers = list(listed.get(f"{SIGNER}s", ()))
        signatures = list(listed.get(f"{SIGNATURE}s", ()))
        if not len(signers) == len(signatures) == len(parties):
            raise ProtocolBroken("the server has sent no signatures of the parties' keys")
        if len(set(signers)) != len(signers):
            raise ProtocolBroken("two parties have signed with the same key")
        for party, signer, signature, sealing, masking in zip(
            parties, signers, signatures, listed["sealing"], listed["masking"], strict=True
        ):
            if signer not in self.known:
                raise ProtocolBroken(f"this node does not know who has signed party {party}'s keys")
            verify(session, party, {"sealing": sealing, "masking": masking}, signer, signature)


def check_confirmed(
    statement: bytes, signers: Mapping[int, bytes], asked: Mapping[str, Any], least: int
) -> None:
    """Raise `ProtocolBroken` unless `least` parties have signed a `survivors_statement`.

    `signers` has the public keys of the parties that may sign, by party; `asked` has the fields
    "confirmed", parties, and "signatures".
    """
    confirmed = [int(party) for party in asked.get("confirmed", ())]
    signatures = list(asked.get("signatures", ()))
    different = len(set(confirmed)) == len(confirmed) == len(signatures)
    if not different or not set(confirmed) <= signers.keys():
        raise ProtocolBroken("the confirmations name a party twice, or one that has not stayed")
    if len(confirmed) < least:
        raise ProtocolBroken(f"{len(confirmed)} of {least} parties have confirmed who has stayed")
    for party, signature in zip(confirmed, signatures, strict=True):
        verify_confirmed(statement, party, signers[party], signature)


def verify_confirmed(statement: bytes, party: int, signer: bytes, signature: bytes) -> None:
    """Raise `ProtocolBroken` unless `signer` has signed a `survivors_statement`."""
    otherwise = f"party {party} has confirmed other parties, keys or noise"
    _verify(statement, signer, signature, otherwise)


def verify(
    session: bytes, party: int, keys: Mapping[str, bytes], signer: bytes, signature: bytes
) -> None:
    """Raise `ProtocolBroken` unless `signer` has signed a party's keys for this session."""
    statement = _keys_statement(session, party, keys["sealing"], keys["masking"])
    _verify(statement, signer, signature, f"the signature of party {party}'s keys is false")


def _verify(statement: bytes, signer: bytes, signature: bytes, otherwise: str) -> None:
    try:
        public = EllipticCurvePublicKey.from_encoded_point(SECP384R1(), signer)
        public.verify(signature, statement, ECDSA(SHA384()))
    except (InvalidSignature, ValueError):
        raise ProtocolBroken(otherwise) from None


def digest(session: bytes, listed: Mapping[str, Any]) -> bytes:
    """Return a hash of a session, its parties and all their keys, in the order of the list."""
    numbers = [int(party).to_bytes(8, "big") for party in listed["parties"]]
    columns = (numbers, listed["sealing"], listed["masking"], listed[f"{SIGNER}s"])
    parts = [session, *(bytes(value) for column in columns for value in column)]
    return sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()


def terms_of(sums: GroupSums, clip: float, deviation: float) -> bytes:
    """Return a hash of what all nodes of a session must do equally with their sums.

    It is the shape and the scale of each tensor, so that the same values lie under each other, the
    norm to which updates are clipped, and the standard deviation of the noise.
    """
    groups = {"": sums.model, **sums.groups}
    tensors = {
        f"{group}/{name}": [total.exponents[name], *values.shape]
        for group, total in groups.items()
        for name, values in total.sums.items()
    }
    text = json.dumps([float(clip), float(deviation), tensors], sort_keys=True)
    return sha256(text.encode()).digest()


def survivors_statement(
    listed: bytes, survivors: Sequence[int], threshold: int, terms: bytes
) -> bytes:
    """Return what a node signs to confirm who has stayed.

    It is the `digest` of the list, the hash of `terms_of`, the number of parties that must stay,
    and the parties that have stayed.
    """
    numbers = (party.to_bytes(8, "big") for party in (threshold, *sorted(survivors)))
    return _STAYED + listed + terms + b"".join(numbers)


def encoded(key: EllipticCurvePublicKey) -> bytes:
    """Return a public key as the 49 bytes of its compressed point."""
    return key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def _keys_statement(session: bytes, party: int, sealing: bytes, masking: bytes) -> bytes:
    """Return what is signed; all parts but the first have fixed lengths."""
    return _PURPOSE + session + party.to_bytes(8, "big") + sealing + masking
