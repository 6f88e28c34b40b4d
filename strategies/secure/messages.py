"""What both sides of the protocol know: its phases, its limits and the fields of its records."""

import math

SECURE = "secure-aggregation"  # the record of every message of the protocol
KEYS, SHARES, CONFIRM, UNMASK = (  # kinds of queries
    f"secure_{step}" for step in ("keys", "shares", "confirm", "unmask")
)
FEWEST = 3  # parties: with two, each would learn the other's update from the sum


def threshold_of(parties: int, secure_threshold: float) -> int:
    """Return how many of a round's nodes must stay until the end.

    They are a share of them, `secure_threshold`, more than half, because the server could otherwise
    let two groups open different secrets of one party, and at least `FEWEST`.
    """
    return max(math.ceil(secure_threshold * parties - 1e-9), parties // 2 + 1, FEWEST)


def associated_data(session: bytes, sender: int, receiver: int) -> bytes:
    """Return what authenticates a sealed share: the session, who sent it, and to whom."""
    return session + sender.to_bytes(8, "big") + receiver.to_bytes(8, "big")
