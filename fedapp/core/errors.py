"""The exception for mistakes that a user can correct.

Every mistake in an input (a config key, a data folder, a checkpoint) raises a `UserError`. Its
message is one sentence: what is wrong, where, and what would be right. The command line and the
ServerApp print only that sentence, without a traceback.
"""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager


class UserError(Exception):
    """A mistake in the configuration, the data or the environment, explained in one sentence."""

    def __init__(self, sentence: str) -> None:
        """Set the message, which any terminal and Flower's messages can hold."""
        super().__init__(printable(sentence))


def printable(text: object) -> str:
    """Return a text with the bytes of a file name that are not UTF-8 as \\udcNN."""
    return str(text).encode("utf-8", "backslashreplace").decode()


# PyTorch's allocator, a new CUDA context, and NVIDIA's libraries each have words of their own.
_MEMORY_IS_FULL = ("CUDA out of memory", "CUDA error: out of memory", "_STATUS_ALLOC_FAILED")


@contextmanager
def full_memory_explained(where: str = "") -> Iterator[None]:
    """Raise UserError for an error of a GPU whose memory is full; `where` begins its sentence."""
    try:
        yield
    except RuntimeError as error:
        if sentence := out_of_memory(error):
            raise UserError(f"{where}{sentence}") from None
        raise


def out_of_memory(error: Exception) -> str:
    """Return one sentence for an error of a GPU whose memory is full; "" for another error."""
    if not any(words in str(error) for words in _MEMORY_IS_FULL):
        return ""
    details = ". ".join(str(error).split("\n")[0].split(". ")[:3])
    return (
        f"a GPU's memory is full ({details}); use fewer workers on it (--workers), a smaller "
        "batch-size or device='cpu'"
    )


def nearest(name: str, known: Iterable[str], count: int, likeness: float) -> list[str]:
    """Return up to `count` known names that are `likeness` (0 to 1) or more like `name`.

    Case, hyphens and underscores do not count. A name that differs in nothing else is the only one.
    """
    plain = {_plain(each): each for each in known}
    if _plain(name) in plain:
        return [plain[_plain(name)]]
    return [plain[each] for each in difflib.get_close_matches(_plain(name), plain, count, likeness)]


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


OWN = (
    "one of your own needs its package installed, or --extension (FEDAPP_EXTENSIONS) and its file; "
    "a SuperLink that runs already keeps the variables of its start"
)


def _listed(names: Sequence[str], most: int = 30) -> str:
    """Return names as text; of more than `most`, which are no answer to read, the first ten."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:10])} and {len(names) - 10} more"


def unknown(what: str, name: str, known: Iterable[str], more: str = "") -> UserError:
    """Return the error for a name that is not in `known`, with the nearest names or the first."""
    names = list(known)
    near = nearest(name, names, 3, 0.4)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there is {_listed(names)}"
    return UserError(f"{what} '{name}' does not exist; {hint}{f' ({more})' if more else ''}")
