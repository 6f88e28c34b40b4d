"""The options of a sweep as text: varied values and seeds."""

import re
import tomllib
from collections.abc import Iterable, Sequence

from fedapp.core.errors import UserError
from fedapp.results.run_directory import Scalar

Vary = dict[str, tuple[Scalar, ...]]

# A comma outside quotes: an even number of each quote follows it.
_COMMA = re.compile(r""",(?=(?:[^"']|"[^"]*"|'[^']*')*$)""")
MOST_SEEDS = 10_000
_SEEDS = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")
_OWN_KEYS = ("seed", "run-name", "output-dir", "resume")


def parse_vary(texts: Sequence[str]) -> Vary:
    """Parse "key=value,value" arguments; values are TOML scalars, and bare words are strings.

    Raises:
        UserError: no key, no value, a value or a key twice, or a key that the sweep sets itself.
    """
    varied: Vary = {}
    for text in texts:
        key, separator, values = text.partition("=")
        key = key.strip()
        if not (key and separator):
            raise UserError(f"--vary {text!r} must look like key=value,value")
        if key in varied:
            raise UserError(f"--vary names '{key}' twice; give all its values at once")
        scalars = [_scalar(item.strip(), text) for item in _COMMA.split(values)]
        varied[key] = checked_values("--vary", key, scalars)
    return varied


def checked_values(option: str, key: str, values: Sequence[Scalar]) -> tuple[Scalar, ...]:
    """Return a varied key's values.

    Raises:
        UserError: there is none, one stands twice, or the sweep sets the key itself.
    """
    refuse_own(option, [key])
    if not values:
        raise UserError(f"{option} gives '{key}' no value")
    if len(set(map(repr, values))) < len(values):
        raise UserError(f"{option} gives '{key}' a value twice: {', '.join(map(str, values))}")
    return tuple(values)


def checked_seeds(option: str, seeds: Sequence[int]) -> list[int]:
    """Return seeds; raises UserError unless there are some, all different and from 0."""
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0 or len(seeds) > MOST_SEEDS:
        raise UserError(
            f"{option} must be different whole numbers from 0, such as 0, 1, 2, at most "
            f"{MOST_SEEDS:,}"
        )
    return list(seeds)


def parse_seeds(text: str) -> list[int]:
    """Parse "0,1,2" or "0-2,7"; raises UserError unless all are different whole numbers."""
    found = [_SEEDS.fullmatch(word.strip()) for word in text.split(",")]
    ranges = [range(int(each[1]), int(each[2] or each[1]) + 1) for each in found if each]
    if sum(each.stop - each.start for each in ranges if each) > MOST_SEEDS:
        raise UserError(f"--seeds {text!r} names more than {MOST_SEEDS:,} seeds")
    seeds = [seed for numbers in ranges for seed in numbers]
    if not (all(found) and all(ranges)) or len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {text!r} must be different whole numbers, such as 0,1,2 or 0-2")
    return seeds


def refuse_own(option: str, keys: Iterable[str], varied: Iterable[str] = ()) -> None:
    """Raise UserError for a key that the sweep sets itself, or that is varied.

    Configuration files may contain such keys.
    """
    for key in keys:
        if key in _OWN_KEYS:
            typed = option.startswith("-")
            names = "--seeds, --name and --output-dir" if typed else "seeds, name and output_dir"
            raise UserError(f"{option} cannot name '{key}': use {names}")
        if key in varied:
            raise UserError(f"'{key}' has one value in {option} and is varied too: give it once")


def _scalar(word: str, text: str) -> Scalar:
    """Parse a TOML scalar; other text is a string."""
    try:
        value = tomllib.loads(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        if not word or "'" in word or '"' in word:
            raise UserError(f"--vary {text!r} must list values separated by commas") from None
        return word
    if not isinstance(value, str | int | float | bool):
        raise UserError(f"--vary {text!r}: {word} is not a word, number, true or false")
    return value
