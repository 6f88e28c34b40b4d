"""Signed public keys: no server can put its own keys between the nodes.

A node signs the public keys of its session with the key pair that it has in the deployment (ECDSA
on curve P-384 with SHA-384). It accepts only lists in which every party's keys are signed by a node
whose public key its own operator has given it, each node once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

from strategies.secure.messages import FEWEST
from strategies.secure.primitives import ProtocolBroken

SIGNER, SIGNATURE = "signer", "signature"  # fields of a node's answer; lists of them add an "s"
LONGEST = 128  # bytes of either field
_PURPOSE = b"fedapp secure aggregation: public keys of a session\0"


@dataclass(frozen=True)
class Identity:
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
        statement = _statement(session, party, keys["sealing"], keys["masking"])
        signature = self.key.sign(statement, ECDSA(SHA384()))
        return {SIGNER: encoded(self.key.public_key()), SIGNATURE: signature}

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


def verify(
    session: bytes, party: int, keys: Mapping[str, bytes], signer: bytes, signature: bytes
) -> None:
    """Raise `ProtocolBroken` unless `signer` has signed a party's keys for this session."""
    statement = _statement(session, party, keys["sealing"], keys["masking"])
    try:
        public = EllipticCurvePublicKey.from_encoded_point(SECP384R1(), signer)
        public.verify(signature, statement, ECDSA(SHA384()))
    except (InvalidSignature, ValueError):
        raise ProtocolBroken(f"the signature of party {party}'s keys is false") from None


def encoded(key: EllipticCurvePublicKey) -> bytes:
    """Return a public key as the 49 bytes of its compressed point."""
    return key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def _statement(session: bytes, party: int, sealing: bytes, masking: bytes) -> bytes:
    """Return what is signed; all parts but the first have fixed lengths."""
    return _PURPOSE + session + party.to_bytes(8, "big") + sealing + masking
