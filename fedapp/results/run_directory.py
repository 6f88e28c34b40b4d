"""The run directory: access to every file of a run in one class.

The server, the report, `fedapp compare` and a resumed run read and write a run's files through it,
so that they agree on the formats. A file that replaces an earlier version is replaced
atomically: a reader during a run, or after a crash, sees the old or the new file.
"""

from __future__ import annotations

import os
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapp.config.overrides import as_toml, read_origins
from fedapp.core.errors import UserError
from fedapp.core.files import (
    Tensor,
    is_temporary,
    json_text,
    parse_object,
    safetensors_bytes,
    write_atomically,
)
from fedapp.core.paths import expanded, folder_name
from fedapp.results import checkpoint
from fedapp.results.checkpoint import Checkpoint
from fedapp.results.folders import CHECKPOINTS, existing, named, unnamed, writing

Scalar = str | int | float | bool

NO_MARKS: Mapping[str, str] = MappingProxyType({})
USED_FILES = ("extension", "split", "initial model")
_STATE, _MAX_STEM = "state.json", 100  # bytes


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run, at the absolute `path`; use `create` or `load`."""

    path: Path

    @classmethod
    def create(
        cls,
        output_dir: str | Path,
        run_name: str,
        config: Mapping[str, Scalar],
        *,
        resume: bool = False,
        origins: Mapping[str, str] = NO_MARKS,
    ) -> RunDirectory:
        """Create the directory of a run, or, with `resume`, reopen it.

        Writes a new directory's config.toml; an existing one stays until `write_config`. An empty
        `run_name` becomes "<method>-<dataset>-<YYYYmmdd-HHMMSS>", made unique.

        Raises:
            UserError: the name is not a folder name; or the directory has rounds of a run and
                `resume` is False, has other content than a run, or cannot be written.
        """
        parent = expanded(output_dir, "output-dir").resolve()
        try:
            parent.mkdir(parents=True, exist_ok=True)
            path = named(parent, run_name, resume) if run_name else unnamed(parent, config)
            (path / CHECKPOINTS).mkdir(exist_ok=True)
            run = cls(path)
            if not (resume and (path / "config.toml").exists()):
                run.write_config(config, origins)
        except OSError as error:
            raise UserError(
                f"output-dir {parent} cannot be written ({error.strerror}: {error.filename}); "
                "give a folder you may write to."
            ) from error
        if run.metrics_path.exists():
            run._rewrite_rounds(run.rounds())  # removes an incomplete last line
        if not run.rounds():
            run.remove_summary()  # of a run that the nodes refused
        return run

    @classmethod
    def load(cls, path: str | Path) -> RunDirectory:
        """Open an existing run directory.

        Raises:
            UserError: `path` is missing, not a folder, or has no config.toml.
        """
        return cls(existing(path))

    @property
    def name(self) -> str:
        """The run's name, the name of its folder."""
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        """The folder for checkpoints."""
        return self.path / CHECKPOINTS

    @property
    def model_path(self) -> Path:
        """The file of the final model."""
        return self.path / "model.safetensors"

    @property
    def metrics_path(self) -> Path:
        """The file of the rounds, with one JSON object per line."""
        return self.path / "metrics.jsonl"

    def config(self) -> dict[str, Scalar]:
        """Read config.toml (kebab-case keys); raises `UserError` if it is not that of a run."""
        path = self.path / "config.toml"
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is not valid TOML: {error}.") from error
        if "method" not in values:
            raise UserError(f"{path} is not that of a run: it has no key 'method'.")
        return values

    def origins(self) -> dict[str, str]:
        """Return the marks of config.toml: the keys that "auto" chose or that have their default.

        Runs of earlier versions have no "default".
        """
        return read_origins((self.path / "config.toml").read_text(encoding="utf-8"))

    def log_round(self, *rows: Mapping[str, Any]) -> None:
        """Append rounds to metrics.jsonl, all or none; NaN and infinities become null.

        Raises:
            OSError: the file cannot be written, for example on a full disk; it is unchanged.
        """
        with self.metrics_path.open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            rest = memoryview("".join(map(json_text, rows)).encode())
            try:
                while rest:  # a disk that becomes full may accept a part
                    rest = rest[file.write(rest) :]
            except BaseException:  # also Ctrl-C: an incomplete line would damage the file
                file.truncate(end)
                raise

    def rounds(self) -> list[dict[str, Any]]:
        """Read all finished rounds in order, without an incomplete last line after a crash.

        Raises:
            UserError: a line before the last is not a JSON object with a round's number.
        """
        if not self.metrics_path.exists():
            return []
        lines = self.metrics_path.read_bytes().splitlines()
        rows = [parse_object(line) for line in lines]
        if rows and rows[-1] is None:
            rows.pop()
        for number, row in enumerate(rows, 1):
            if row is None or type(row.get("round")) is not int:
                what = f"{self.metrics_path} line {number} is not a JSON object with a 'round'"
                raise UserError(f"{what}; correct or remove that line.")
        return [row for row in rows if row is not None]

    def _sync_rounds(self) -> None:
        """Let the rounds written so far survive a power failure."""
        if self.metrics_path.exists():
            with self.metrics_path.open("rb") as file:
                os.fsync(file.fileno())

    def save_checkpoint(self, saved: Checkpoint, keep: int) -> None:
        """Write a checkpoint and keep the newest `keep` (0: all).

        The rounds before it are on disk first: a resumed run does not compute them again.
        """
        self._sync_rounds()
        checkpoint.save(self.checkpoints, saved, keep)

    def truncate_rounds(self, after: int) -> None:
        """Remove the rounds later than `after`, which a resumed run computes again."""
        self._rewrite_rounds([row for row in self.rounds() if row["round"] <= after])

    def _rewrite_rounds(self, rows: Sequence[Mapping[str, Any]]) -> None:
        with writing(self.path):
            write_atomically(self.metrics_path, "".join(map(json_text, rows)).encode())

    def write_partition(
        self,
        class_counts: npt.ArrayLike,
        class_names: Sequence[str],
        test_counts: npt.ArrayLike | None = None,
        data_hash: str = "",
    ) -> None:
        """Write partition.json: images per client and class, both counts [clients, classes].

        `data_hash` identifies the data and their division.
        """
        counts = {
            "class_names": list(class_names),
            "train_counts": np.asarray(class_counts),
            "test_counts": None if test_counts is None else np.asarray(test_counts),
            "data_hash": data_hash,
        }
        with writing(self.path):
            self._write_json("partition.json", counts, indent=None)

    def partition(self) -> dict[str, Any]:
        """Read partition.json; {} if the run wrote none."""
        return self._read_json("partition.json")

    def write_privacy(self, count: int, terms: Mapping[str, float]) -> None:
        """Replace privacy.json: how many noisy models the run may have released, on what terms."""
        self._write_json("privacy.json", {"releases": count, **terms}, indent=None)

    def privacy(self) -> dict[str, Any]:
        """Read privacy.json; {} if the run has not begun to count."""
        return self._read_json("privacy.json")

    def write_client_scores(self, server_round: int, scores: Mapping[int, Any]) -> None:
        """Replace client_scores.json: accuracy, loss and examples of each client, by its id."""
        clients = {str(client): scores[client] for client in sorted(scores)}
        self._write_json("client_scores.json", {"round": server_round, "clients": clients}, None)

    def client_scores(self) -> dict[str, Any]:
        """Read client_scores.json; {} if no client has been evaluated."""
        return self._read_json("client_scores.json")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace summary.json atomically, when all rounds are on disk."""
        self._sync_rounds()
        self._write_json("summary.json", summary, indent=2)

    def write_config(
        self, config: Mapping[str, Scalar], origins: Mapping[str, str] = NO_MARKS
    ) -> None:
        """Write config.toml; `origins` marks keys that "auto" chose or that have their default."""
        with writing(self.path):
            write_atomically(self.path / "config.toml", as_toml(config, origins))

    def remove_summary(self) -> None:
        """Remove summary.json, if any: the run goes on, and a reader must not take it as ended."""
        with writing(self.path):
            (self.path / "summary.json").unlink(missing_ok=True)

    def remove_temporary(self) -> None:
        """Remove the incomplete files that a killed process has left."""
        with writing(self.path):
            for folder in (self.path, self.checkpoints):
                for file in filter(is_temporary, folder.iterdir()):
                    file.unlink(missing_ok=True)

    def summary(self) -> dict[str, Any]:
        """Read summary.json; {} if the run has not written one yet."""
        return self._read_json("summary.json")

    def used_files(self) -> dict[str, str]:
        """Return names and hashes of a run's files of USED_FILES, without those that it had not."""
        found = self.summary().get("versions") or {}
        return {kind: found[kind] for kind in USED_FILES if found.get(kind, "none") != "none"}

    def save_model(self, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Path:
        """Replace model.safetensors atomically; equal input gives equal bytes."""
        write_atomically(self.model_path, safetensors_bytes(tensors, metadata))
        return self.model_path

    def state_key(self) -> str:
        """Return the name of the clients' stored states of this run; create it at first use."""
        return self.earlier_state_key() or self.new_state_key()

    def earlier_state_key(self) -> str:
        """Return the existing name of the clients' stored states; "" if there is none."""
        return str(self._read_json(_STATE).get("state_key", ""))

    def new_state_key(self) -> str:
        """Create a new name, so that a run that starts again does not use its later states.

        The name consists of the directory's name, made short and safe as a folder name, and a
        random part, because runs of two servers may have the same name.
        """
        stem = folder_name(self.path.name).lstrip(".").encode()[:_MAX_STEM].decode(errors="ignore")
        key = f"{stem}-{secrets.token_hex(4)}"
        with writing(self.path):
            self._write_json(_STATE, {"state_key": key}, indent=None)
        return key

    def _write_json(self, name: str, value: Mapping[str, Any], indent: int | None) -> None:
        write_atomically(self.path / name, json_text(value, indent).encode())

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        if not path.exists():
            return {}
        value = parse_object(path.read_bytes())
        if value is None:
            raise UserError(f"{path} is not a JSON object; remove it or restore it.")
        return value
