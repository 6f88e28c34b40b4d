"""What a trained model takes and says: the form of its images, and the names of its classes.

model.safetensors has it, so that a model can be used where its data set is not.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Self

from fedapp.core.errors import UserError


@dataclass(frozen=True)
class ImageFormat:
    """The form of a data set's images.

    Attributes:
        classes: class names, by label.
        mean: of each channel, on the scale 0..1; training and tests subtract it.
        std: of each channel, on the scale 0..1; training and tests divide by it.
        side: of the square images in pixels.
        channels: 1 (greyscale) or 3.
    """

    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    side: int
    channels: int

    def as_metadata(self) -> dict[str, str]:
        """Return the values as JSON, by name."""
        return {name: json.dumps(value) for name, value in asdict(self).items()}

    @classmethod
    def of_metadata(cls, metadata: Mapping[str, str], source: object) -> Self:
        """Return what `as_metadata` wrote; raises UserError that names `source` otherwise."""
        try:
            values = {field.name: json.loads(metadata[field.name]) for field in fields(cls)}
            tuples = {name: tuple(values[name]) for name in ("classes", "mean", "std")}
            form = cls(**{**values, **tuples})
            if form.is_valid():
                return form
        except (KeyError, TypeError, ValueError):
            pass
        raise UserError(
            f"{source} does not say what images its model takes: it is not the model of a run "
            "of this version of fedapp; train it again"
        )

    def is_valid(self) -> bool:
        """Return whether all values are of their types, and there are such images."""
        numbers = (*self.mean, *self.std)
        return (
            all(isinstance(name, str) for name in self.classes)
            and all(type(number) in (int, float) for number in numbers)
            and type(self.side) is int
            and self.side > 0
            and self.channels in (1, 3)
            and len(self.mean) == len(self.std) == self.channels
            and min(self.std) > 0
        )
