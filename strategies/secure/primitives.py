"""The cryptography of secure aggregation: keys, sealed texts, shared secrets and masks.

Every primitive is a library's: X25519, HKDF-SHA256, AES-256-GCM and ChaCha20 of `cryptography`,
Shamir's secret sharing over GF(2^128) of `pycryptodome`, which Flower uses too.
"""

import hashlib
import secrets
from collections.abc import Sequence

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from strategies.aggregate import Arrays

SECRET_BYTES = 16  # of a seed; one block of the secret sharing
_KEY_BYTES, _NONCE_BYTES = 32, 12
_CHUNK = 1 << 17  # values masked at a time


class ProtocolBroken(ValueError):  # noqa: N818 - a verdict about a message, not a program error
    """A message of the protocol is not what it should be; the text states the reason."""


def new_secret() -> bytes:
    """Return a random seed of 128 bits."""
    return secrets.token_bytes(SECRET_BYTES)


def public_key(seed: bytes) -> bytes:
    """Return the X25519 public key whose private key is derived from a seed, 32 bytes."""
    return _private_key(seed).public_key().public_bytes_raw()


def agree(seed: bytes, other: bytes, purpose: str) -> bytes:
    """Return the key of 32 bytes that two parties share for a purpose.

    Both compute the same from their own seed and the other's public key. Raises `ProtocolBroken`
    for a public key that gives no secret.
    """
    try:
        shared = _private_key(seed).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise ProtocolBroken(f"a public key is invalid ({error})") from None
    return _derive(shared, purpose)


def commitment(seed: bytes, session: bytes) -> bytes:
    """Return a hash by which a seed is recognised; it tells nothing about a random seed."""
    return hashlib.sha256(session + seed).digest()


def seal(key: bytes, text: bytes, associated_data: bytes) -> bytes:
    """Encrypt and authenticate a text with AES-256-GCM; `associated_data` is authenticated too."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, text, associated_data)


def unseal(key: bytes, sealed: bytes, associated_data: bytes) -> bytes:
    """Decrypt a text; raises `ProtocolBroken` if it or `associated_data` was changed."""
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], associated_data)
    except (InvalidTag, ValueError):
        raise ProtocolBroken("a sealed share was changed on its way") from None


def split(seed: bytes, threshold: int, parties: int) -> list[bytes]:
    """Return a share of 16 bytes for each party; `threshold` of them give the seed (Shamir 1979).

    Fewer tell nothing about it. The share at position i is that of the point i + 1.
    """
    return [share for _, share in Shamir.split(threshold, parties, seed, ssss=False)]


def join(shares: Sequence[tuple[int, bytes]]) -> bytes:
    """Return the seed of exactly `threshold` shares, each with its position."""
    return bytes(Shamir.combine([(p + 1, share) for p, share in shares], ssss=False))


def add_mask(arrays: Arrays, key: bytes, sign: int = 1) -> None:
    """Add, or subtract, a key's mask to int64 arrays in place, modulo 2^64.

    The mask is the ChaCha20 key stream over all arrays in the order of their names. A key is used
    for one mask only, so the nonce is 0.
    """
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    zeros = bytes(8 * _CHUNK)
    for name in sorted(arrays):
        values = arrays[name].reshape(-1).view(np.uint64)  # wraps around without a warning
        for start in range(0, len(values), _CHUNK):
            part = values[start : start + _CHUNK]
            mask = np.frombuffer(stream.update(zeros[: 8 * len(part)]), "<u8")
            if sign > 0:
                part += mask
            else:
                part -= mask


def mask_key(seed: bytes) -> bytes:
    """Return the key of a party's own mask."""
    return _derive(seed, "own mask")


def _private_key(seed: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(_derive(seed, "private key"))


def _derive(secret: bytes, purpose: str) -> bytes:
    info = f"fedapp secure aggregation {purpose}".encode()
    return HKDF(SHA256(), _KEY_BYTES, salt=None, info=info).derive(secret)
