"""What a node's client has spent of its privacy in all runs, counted and limited by the node.

The server chooses the noise and the number of rounds, and may repeat a round. A node whose operator
does not leave this to the server sets a limit in its node-config: `privacy-epsilon`, the most that
its client spends in all runs together, at `privacy-delta`, and `privacy-ledger`, the file in which
it counts. The node then sends nothing but masked sums with noise, and counts each before it leaves:
a round that is repeated, or that gives no model, counts, too. Signed keys are required, because the
noise is that of all nodes of a round, which have to prove to each other how much they add.

What the server may choose must not tell more. So the node hosts one client, whose data are its own
folder; its reports are the same whatever the images are; and what goes wrong with them stands in
its own log only.
"""

import logging
import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from clients.state.store import sync_folder
from fedapp.config.privacy import spent
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.files import json_text, parse_object, write_atomically
from fedapp.core.paths import expanded
from fedapp.results.folders import check_writable
from fedapp.runtime.node.secure import PEERS
from fedapp.runtime.process.context import ProcessContext

EPSILON, DELTA, LEDGER = "privacy-epsilon", "privacy-delta", "privacy-ledger"
log = logging.getLogger(__name__)
_DELTA = 1e-5  # the default of `privacy-delta`, and of `dp-delta`

Rounds = dict[float, int]  # number of rounds by noise multiplier


@dataclass(frozen=True)
class Ledger:
    """A file with the noise multipliers of all rounds in which a node has taken part.

    Attributes:
        file: a JSON object with "rounds", their number by noise multiplier, and, to be read by
            people, "epsilon" and "delta".
        limit: the largest epsilon, at `delta`.
    """

    file: Path
    limit: float
    delta: float

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> "Ledger | None":
        """Return the ledger that a node-config names, or None; raises UserError for mistakes."""
        named = [name for name in (EPSILON, LEDGER) if name in node_config]
        if not named:
            if DELTA in node_config:
                raise UserError(f"node-config has '{DELTA}' without '{EPSILON}' and '{LEDGER}'")
            return None
        if len(named) == 1:
            raise UserError(
                f"node-config has '{named[0]}' alone; a node that limits what it spends needs both "
                f"'{EPSILON}', the largest epsilon, and '{LEDGER}', the file in which it counts"
            )
        if PEERS not in node_config:
            raise UserError(
                f"node-config has '{EPSILON}' without 'secure-key' and '{PEERS}': the noise is "
                "that of all nodes of a round, and only signatures prove that the others add theirs"
            )
        limit, file = _number(node_config, EPSILON, math.inf), _file(str(node_config[LEDGER]))
        return cls(file, limit, _number(node_config, DELTA, 1.0, _DELTA))

    def rounds_left(self, noise: float, most: int) -> int:
        """Return how many more rounds with this noise the limit allows, at most `most`."""
        known = self._rounds()

        def epsilon(more: int) -> float:
            return self._epsilon(_added(known, noise, more))

        return bisect_right(range(1, most + 1), self.limit, key=epsilon)

    def check_writable(self) -> None:
        """Raise UserError if a round could not be counted."""
        with self._locked():
            check_writable(self.file.parent, f"node-config key '{LEDGER}': folder")

    def charge(self, noise: float) -> None:
        """Count one round on disk.

        Raises:
            UserError: it would exceed the limit, or the file cannot be read or written; then
                nothing may be sent.
        """
        with self._locked():
            rounds = _added(self._rounds(), noise, 1)
            epsilon = self._epsilon(rounds)
            if epsilon > self.limit:
                raise UserError(self.exhausted(noise))
            content = {"epsilon": epsilon, "delta": self.delta, "rounds": rounds}
            try:
                write_atomically(self.file, json_text(content, indent=2).encode(), 0o600)
                sync_folder(self.file.parent)
            except OSError as error:
                raise UserError(
                    f"node-config key '{LEDGER}': {self.file} cannot be written "
                    f"({error.strerror}), and what is not counted is not sent"
                ) from None

    def exhausted(self, noise: float) -> str:
        """Return why the node takes part in no further round with this noise."""
        used = self._epsilon(self._rounds())
        return (
            f"this node's client has spent epsilon {used:.3g} of its {self.limit:.3g} "
            f"('{EPSILON}'), and a further round with dp-noise {noise:g} would exceed it: more "
            "noise, or a larger limit, allows more rounds"
        )

    def _epsilon(self, rounds: Rounds) -> float:
        return spent(rounds, self.delta)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other nodes that count in the same file out; raises UserError where none can be."""
        lock = FileLock(self.file.with_name(f".{self.file.name}.lock"), fallback_to_soft=False)
        try:
            lock.acquire()
        except OSError as error:
            raise UserError(
                f"node-config key '{LEDGER}': {self.file} cannot be locked ({error.strerror})"
            ) from None
        except NotImplementedError:
            raise UserError(
                f"node-config key '{LEDGER}': {self.file} cannot be locked; put it on a file "
                "system with locks"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def _rounds(self) -> Rounds:
        """Return the counted rounds; raises UserError if the file cannot be read or is damaged."""
        try:
            found = parse_object(self.file.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise UserError(
                f"node-config key '{LEDGER}': {self.file} cannot be read ({error.strerror})"
            ) from None
        rounds = _counted(found or {})
        if rounds is None:
            raise UserError(
                f"node-config key '{LEDGER}': {self.file} is not as a node writes it; restore it "
                "from a copy, because without it nobody knows what the client has spent"
            )
        return rounds


def check_one_client(ledger: Ledger | None, config: RunConfig) -> None:
    """Raise UserError if a node counts, and its images would not be those of one client."""
    if ledger and config.partition != "own":
        raise UserError(
            f"this node counts what its client spends (node-config key '{EPSILON}'), which needs "
            "partition 'own': otherwise the server could divide its images among many clients"
        )


def check_training(ledger: Ledger | None, process: ProcessContext, masked: bool) -> None:
    """Raise UserError if a node counts, and its sum has no noise or its client keeps a state."""
    if ledger is None:
        return
    config = process.config
    check_one_client(ledger, config)
    noise = float(config.dp_noise)
    if not (masked and config.dp_clip and noise):
        raise UserError(
            f"this node sends masked sums with noise only (node-config key '{EPSILON}'), and the "
            "run has none; set secure-aggregation to 'pairwise', and dp-clip and dp-noise or "
            "dp-epsilon"
        )
    if process.keeps:
        raise UserError(
            f"clients of method '{config.method}' keep a state, which a node that counts what it "
            f"tells (node-config key '{EPSILON}') could not tell the server if it is lost; choose "
            "another method"
        )


def check_evaluation(ledger: Ledger | None) -> None:
    """Raise UserError if a node counts what it spends: an evaluation on clients is not counted."""
    if ledger:
        raise UserError(
            f"this node sends sums with noise only (node-config key '{EPSILON}'), and an "
            "evaluation on clients tells accuracies without noise; set client-eval-every and "
            "finetune-epochs to 0, and use a method with a global model"
        )


@contextmanager
def unsaid(ledger: Ledger | None) -> Iterator[None]:
    """Log errors of a node that counts instead of sending them: they may tell about its images."""
    try:
        yield
    except Exception as error:
        if ledger is None:
            raise
        log.error("not sent, because this node counts what it tells", exc_info=error)
        raise UserError(
            f"this node keeps its reasons to itself (node-config key '{EPSILON}'): its log has them"
        ) from None


def _file(text: str) -> Path:
    """Return the file of a ledger, without links; raises UserError if its folder is missing."""
    key = f"node-config key '{LEDGER}'"
    file = expanded(text, key)
    try:
        found = file.resolve()
        usable = file.is_absolute() and found.parent.is_dir()
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", "") or "its links lead in a circle"
        raise UserError(f"{key}: {text} cannot be read ({reason})") from None
    if not usable:
        raise UserError(
            f"{key} is '{file}' but must be a whole path in a folder that exists, so that no count "
            "is begun anew where a disk is missing"
        )
    return found


def _counted(content: Mapping[str, Any]) -> Rounds | None:
    """Return the rounds in the content of a ledger's file; None if a node does not write such."""
    try:
        rounds = {float(noise): count for noise, count in content["rounds"].items()}
    except (KeyError, ValueError, AttributeError):
        return None
    valid = all(type(n) is int and 0 < n < 2**53 and 0 < z < math.inf for z, n in rounds.items())
    return rounds if valid else None


def _added(rounds: Rounds, noise: float, count: int) -> Rounds:
    """Return the rounds with `count` more of this noise."""
    return {**rounds, noise: rounds.get(noise, 0) + count}


def _number(
    node_config: Mapping[str, Any], name: str, below: float, default: float | None = None
) -> float:
    """Return a positive number of a node-config; raises UserError for anything else."""
    value = node_config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < below:
        most = "" if below == math.inf else f" and below {below:g}"
        raise UserError(f"node-config key '{name}' is {value!r} but must be above 0{most}")
    return float(value)
