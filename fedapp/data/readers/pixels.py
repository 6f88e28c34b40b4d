"""One image, from a file or decoded by a library, as an array of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedapp.core.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image


def read_image(path: Path, side: int | None = None) -> np.ndarray:
    """Decode one file, stretched to `side` if given, to uint8 [H, W, 1] (greyscale) or [H, W, 3].

    Raises:
        UserError: the file cannot be read, or has more than 8 bits per channel.
    """
    with open_image(path) as image:
        return to_bytes(f"image {path}", image, side)


def read_central_square(path: Path, side: int, mode: str = "") -> np.ndarray:
    """Decode a file as `central_square` does; raises UserError as `read_image`."""
    with open_image(path) as image:
        return central_square(f"image {path}", image, side, mode)


def to_bytes(name: str, image: Image, side: int | None = None) -> np.ndarray:
    """Return an image, stretched to `side` if given, as uint8 [H, W, 1] (greyscale) or [H, W, 3].

    It is turned upright as its EXIF data say.

    Raises:
        UserError: the image has more than 8 bits per channel; the message contains `name`.
    """
    from PIL.Image import Resampling

    check_depth(name, image)
    plain = _opaque(_upright(image)).convert(_mode(image))
    if side is not None and plain.size != (side, side):
        plain = plain.resize((side, side), Resampling.BILINEAR)
    return _pixels(plain)


def central_square(name: str, image: Image, side: int, mode: str = "") -> np.ndarray:
    """Return the central square of an image, scaled to `side`: uint8 [side, side, 1 or 3].

    The image is turned upright as its EXIF data say. A JPEG that is at least four times as
    large as needed is decoded at a fraction of its size, which is several times as fast.

    Args:
        name: for errors.
        image: of any size.
        side: of the square in pixels.
        mode: "L" for one channel, "RGB" for three; "": one if the image is greyscale.

    Raises:
        UserError: the image has more than 8 bits per channel; the message contains `name`.
    """
    from PIL import ImageOps
    from PIL.Image import Resampling

    check_depth(name, image)
    mode = mode or _mode(image)
    image.draft(None, (2 * side, 2 * side))
    plain = _opaque(_upright(image)).convert(mode)
    return _pixels(ImageOps.fit(plain, (side, side), Resampling.BILINEAR))


def check_depth(name: str, image: Image) -> None:
    """Raise UserError that contains `name` for an image with more than 8 bits per channel."""
    if image.mode[0] in "IF":
        raise UserError(f"{name} has more than 8 bits per channel, which is not handled")


def _upright(image: Image) -> Image:
    """Return an image turned as its EXIF data say; as it is if these cannot be read."""
    from PIL import ImageOps

    image.load()  # an error from here on is about the EXIF data alone
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image


def _opaque(image: Image) -> Image:
    """Return an image on white where it is transparent: its hidden pixels are often black."""
    import PIL.Image

    if not image.has_transparency_data:
        return image
    white = PIL.Image.new("RGBA", image.size, "white")
    return PIL.Image.alpha_composite(white, image.convert("RGBA"))


def _mode(image: Image) -> str:
    return "L" if image.mode in ("1", "L", "LA") else "RGB"


def _pixels(plain: Image) -> np.ndarray:
    array = np.asarray(plain)
    return array[..., None] if array.ndim == 2 else array


@contextmanager
def open_image(path: Path) -> Iterator[Image]:
    """Open an image file; any failure in the block becomes a UserError that names the file."""
    import PIL.Image

    try:
        with PIL.Image.open(path) as image:
            yield image
    except UserError:
        raise
    except Exception as error:  # Pillow raises many types of exceptions
        raise UserError(f"cannot read image {path}: {error}") from error
