"""Places that a user names: `~` stands for a home folder, and one of nobody is a mistake."""

from pathlib import Path

from fedapp.errors import UserError


def expanded(place: str | Path, what: str) -> Path:
    """Return a path without `~`; `what` says where a user named it, such as a key or a variable.

    Raises UserError where it begins with the home folder of nobody.
    """
    try:
        return Path(place).expanduser()
    except RuntimeError:
        raise UserError(
            f"{what} is '{place}' but there is no such home folder; write the whole path"
        ) from None


def absolute(place: str | Path, what: str) -> Path:
    """Return an absolute path; raises UserError as `expanded` does."""
    return expanded(place, what).absolute()
