"""Quantised uploads: a client's update in 2, 4 or 8 bits per value, rounded at random.

An update is a client's model minus the received one. Each trained tensor u [...] becomes whole
numbers between -s and s, s = 2^(bits - 1) - 1 levels on each side of zero, and one scale, the
largest |u|. A value between two levels takes the upper one with the probability of its distance to
the lower one. So the mean of what the server reads is the update, no value is off by a level or
more, and zero stays zero. Source: QSGD, Alistarh et al. 2017, NeurIPS, section 3.1, with the
largest absolute value of a tensor in place of its Euclidean norm, and codes of fixed length.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from strategies.aggregate import Arrays, UpdateRefused, WrongForm, largest
from strategies.form import misfit

WHOLE = 32  # bits of a value that is sent as it is
_SCALE = np.dtype("<f4")  # of the first bytes of a coded tensor


@dataclass(frozen=True)
class Codec:
    """The form in which clients send their models, known to server and nodes.

    Attributes:
        bits: per value of an update, 2, 4 or 8; 32: models are sent as they are.
        trained: names of the tensors whose updates are coded; others are sent as they are.
    """

    bits: int = WHOLE
    trained: tuple[str, ...] = ()

    @property
    def rounds(self) -> bool:
        """Whether updates are rounded."""
        return self.bits < WHOLE

    def form(self, received: Mapping[str, np.ndarray]) -> Arrays:
        """Return arrays of the shapes and types that a client sends; the values mean nothing."""
        names = self.trained if self.rounds else ()
        sizes = {name: _SCALE.itemsize + self._packed(received[name].size) for name in names}
        return {**received, **{n: np.broadcast_to(np.uint8(0), size) for n, size in sizes.items()}}

    def encode(self, model: Arrays, received: Arrays, rng: np.random.Generator) -> Arrays:
        """Return a model of the shapes of `received` as it is sent.

        A coded tensor is uint8 [4 + ceil(n bits / 8)]: the scale and the codes of n values. The
        same `rng` gives the same bytes. Raises `UpdateRefused` if an update is not finite.
        """
        if not self.rounds:
            return model
        coded = {}
        for name in self.trained:
            with np.errstate(over="ignore"):
                update = np.asarray(model[name] - received[name], np.float32).reshape(-1)
            scale = largest(update)
            if not np.isfinite(scale):
                raise UpdateRefused(f"the update of '{name}' has non-finite values")
            codes = pack(_rounded(update, scale, self._levels, rng), self.bits)
            coded[name] = np.concatenate([np.array([scale], _SCALE).view(np.uint8), codes])
        return {**model, **coded}

    def decode(self, sent: Arrays, received: Arrays) -> Arrays:
        """Return the model that a client has sent: the received one plus the rounded update.

        Raises:
            WrongForm: names, shapes or types are not those of `encode`.
            UpdateRefused: no update has such a scale or such codes.
        """
        if not self.rounds:
            return sent
        if difference := misfit(sent, self.form(received)):
            raise WrongForm(difference)
        moved = {name: self._moved(name, sent[name], received[name]) for name in self.trained}
        return {**sent, **moved}

    @property
    def _levels(self) -> int:
        return int(2 ** (self.bits - 1)) - 1

    def _packed(self, size: int) -> int:
        """Return the bytes of so many codes."""
        return -(-size * self.bits // 8)

    def _moved(self, name: str, coded: np.ndarray, old: np.ndarray) -> np.ndarray:
        """Return a received tensor plus its decoded update, in float32 arithmetic."""
        if coded.dtype != np.uint8:
            raise WrongForm(f"'{name}' is of {coded.dtype}, not of the codes of {self.bits} bits")
        scale = np.frombuffer(coded[: _SCALE.itemsize].tobytes(), _SCALE)[0]
        codes = unpack(coded[_SCALE.itemsize :], self.bits, old.size)
        if not 0 <= scale < np.inf:
            raise UpdateRefused(f"the scale of '{name}' is {scale:g}, not a finite number from 0")
        if largest(codes) > 2 * self._levels:
            raise UpdateRefused(f"'{name}' has a code above {2 * self._levels}, the largest one")
        levels = np.float32(self._levels)
        with np.errstate(over="ignore"):  # a model that is not finite is refused later
            update = (codes.astype(np.float32) - levels) * (scale / levels)
            return np.asarray(old + update.reshape(old.shape), old.dtype)


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Pack codes, uint8 [n] below 2^bits, in bytes [ceil(n bits / 8)], for 2, 4 or 8 bits.

    The first 1/k of the codes are in the lowest bits of the k codes of a byte, and so on, because
    whole arrays are then shifted.
    """
    parts = 8 // bits
    rows = np.zeros((parts, -(-len(codes) // parts)), np.uint8)
    rows.reshape(-1)[: len(codes)] = codes
    for part in range(1, parts):
        rows[0] |= rows[part] << np.uint8(part * bits)
    return rows[0]


def unpack(packed: np.ndarray, bits: int, size: int) -> np.ndarray:
    """Return the `size` codes that `pack` has packed."""
    mask = np.uint8(2**bits - 1)
    parts = [(packed >> np.uint8(shift)) & mask for shift in range(0, 8, bits)]
    return np.concatenate(parts)[:size]


def _rounded(update: np.ndarray, scale: float, levels: int, rng: np.random.Generator) -> np.ndarray:
    """Return the codes 0 .. 2 levels of float32 [n], of which `scale` is the largest |value|.

    The fraction is compared by itself: added to a whole number it would lose its last bits.
    """
    exact = update / np.float32(scale or 1.0) * np.float32(levels)
    lower = np.floor(exact)
    upper = rng.random(len(exact), np.float32) < exact - lower
    return (lower + np.float32(levels)).astype(np.uint8) + upper
