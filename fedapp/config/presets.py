"""The presets that come with fedapp: one small TOML file for each protocol of a paper.

A preset sets data, clients and rounds. Keys that depend on the method too (learning rate, weights
of losses) stay "auto", so that a later `method` gets its own values. The presets htfllib and
fedorgp-code go on top of another preset: they set neither data nor clients nor rounds.
"""

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "presets"


def preset_path(name: str) -> Path | None:
    """Return the file of the preset with this name, or None if there is none."""
    path = FOLDER / f"{name}.toml"
    return path if path in FOLDER.glob("*.toml") else None  # a name may be too long for is_file()


def preset_rows() -> list[dict[str, str]]:
    """Return one row per preset: its name, and the protocol from the comments of its file."""
    rows = []
    for path in sorted(FOLDER.glob("*.toml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        comment = [line.lstrip("# ") for line in lines if line.startswith("#")]
        rows.append({"preset": path.stem, "protocol": " ".join(comment)})
    return rows
