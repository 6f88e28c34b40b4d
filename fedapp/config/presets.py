"""The presets that come with fedapp: one small TOML file for each protocol of a paper.

A preset says which data, clients and rounds; what depends on the method too (its learning rate, its
weights) stays "auto", so that `method` can be changed on top of it. Two are to be put on top of
another one: they say nothing of data, clients and rounds.
"""

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "presets"


def preset_path(name: str) -> Path | None:
    """Return the file of a preset that is called by its name alone, or None."""
    path = FOLDER / f"{name}.toml"
    return path if Path(name).name == name and path.is_file() else None


def preset_rows() -> list[dict[str, str]]:
    """Return the presets: name, and the comment at the head of the file."""
    rows = []
    for path in sorted(FOLDER.glob("*.toml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        comment = [line.lstrip("# ") for line in lines if line.startswith("#")]
        rows.append({"preset": path.stem, "protocol": " ".join(comment)})
    return rows
