"""Tables of results in CSV files: later commands continue them, users open them elsewhere."""

import csv
import io
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fedapp.core.errors import UserError
from fedapp.core.files import write_atomically
from fedapp.core.locks import lock_file


def write_table(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
    """Write one line per row, by default with the columns of all rows; make the folder."""
    text = io.StringIO(newline="")
    names = columns or list(dict.fromkeys(key for row in reversed(rows) for key in row))
    writer = csv.DictWriter(text, names, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.getvalue().encode())


def changing(path: Path) -> AbstractContextManager[None]:
    """Keep other processes from changing a table while this one reads it and writes it anew."""
    return lock_file(path.with_name(f".{path.stem}.lock"))


def read_table(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    """Return the lines of an earlier table, [] if there is none; missing cells are "".

    Raises:
        UserError: the file is no CSV file with the `needed` columns.
    """
    if not path.is_file():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, restval="")
            rows, columns = list(reader), reader.fieldnames or ()
    except (csv.Error, UnicodeDecodeError) as error:
        raise changed_table(path, error) from None
    if missing := [name for name in needed if name not in columns]:
        raise changed_table(path, f"it has no column '{missing[0]}'")
    return rows


def changed_table(path: Path, reason: object) -> UserError:
    """Return the error for a table that another program has written."""
    return UserError(
        f"{path} is not as fedapp writes it ({reason}): restore it, or move it away, and a new one "
        "is made"
    )
