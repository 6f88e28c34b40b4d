"""What both sides of the protocol know: its phases, its limits and the fields of its records."""

import math

SECURE = "secure-aggregation"  # the record of every message of the protocol
KEYS, SHARES, UNMASK = "secure_keys", "secure_shares", "secure_unmask"  # kinds of queries
FEWEST = 3  # parties: with two, each would learn the other's update from the sum


def threshold_of(parties: int, share: float) -> int:
    """Return how many parties must stay until the end: a share of them, and more than half.

    With half or fewer the server could let two disjoint groups open different secrets of one party.
    """
    return max(math.ceil(share * parties - 1e-9), parties // 2 + 1)


def about(session: bytes, sender: int, receiver: int) -> bytes:
    """Return what authenticates a sealed share: the session, who sent it, and to whom."""
    return session + sender.to_bytes(8, "big") + receiver.to_bytes(8, "big")
