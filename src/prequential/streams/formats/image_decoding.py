"""Encoded images as arrays of bytes: decoded by Pillow in threads, scaled and cut to one size."""

from __future__ import annotations

import io
import os
import struct
import threading
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadSetting, MissingExtra
from prequential.streams.limits import MAX_PIXELS, reason

MOST_WORKERS = 256  # threads that decode; more only take memory
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
LARGE = 2**22  # pixels from which images are decoded one at a time

_large = threading.Lock()


class Decoder:
    """Decodes and scales images in worker threads, in order, a few ahead.

    Threads and not processes: Pillow releases the GIL while it decodes and scales, so threads use all
    processors just as well, and unlike processes they start at once, hand over an image without copying it, and
    work in any program, also one that is not guarded by `if __name__ == "__main__"`. `benchmarks/decoding.py`
    measures both.
    """

    def __init__(self, workers: int | None = None, max_pixels: int | None = None) -> None:
        try:
            import PIL  # noqa: F401
        except ImportError:
            raise MissingExtra("decoding images", "images") from None
        for name, value in {"workers": workers, "max_pixels": max_pixels}.items():
            if value is not None and value < 1:
                raise BadSetting(f"{name} ({value}) must be at least 1")
        if workers is not None and workers > MOST_WORKERS:
            raise BadSetting(
                f"workers ({workers}) must be at most {MOST_WORKERS}: each is a thread that decodes images"
            )
        self.workers = workers or min(8, os.cpu_count() or 1)
        self.max_pixels = max_pixels or MAX_PIXELS
        allow_pixels(self.max_pixels)
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, sources: Any, size: tuple[int, int] | None, gray: bool) -> Iterator[np.ndarray | str]:
        """The images, or in the place of one that cannot be decoded what is wrong with it."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.workers, "decode")
        waiting = []
        for source in sources:
            waiting.append(self._pool.submit(decode, source, size, gray, self.max_pixels))
            if len(waiting) >= 4 * self.workers:
                yield waiting.pop(0).result()
        for image in waiting:
            yield image.result()


def allow_pixels(max_pixels: int) -> None:
    """Pillow's own limit, which holds for the whole process, must not be below that of the user."""
    from PIL import Image

    # what it warns of is refused here with a sentence, and damage to what is beside the pixels is of no matter
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    warnings.filterwarnings("ignore", module=r"PIL\.TiffImagePlugin")
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels


def decode(
    source: Path | bytes, size: tuple[int, int] | None, gray: bool = False, max_pixels: int = MAX_PIXELS
) -> np.ndarray | str:
    """An image as (height, width, 3) or (height, width) bytes, or the reason why it cannot be decoded."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_formats()) as image:
            if size is not None:
                image.draft("L" if gray else "RGB", size[::-1])  # JPEG can be decoded at half, a quarter or an eighth
            pixels = image.width * image.height
            if pixels > max_pixels:
                return f"it has {image.width}×{image.height} pixels, more than max_pixels ({max_pixels})"
            # one large image at a time: as many as there are threads would not fit in memory
            with _large if pixels > LARGE else nullcontext():
                return _scaled(image, size, gray)
    except UnidentifiedImageError:  # its text names the file again, or where the bytes are in memory
        return "cannot identify image file"
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return f"it has more pixels than max_pixels ({max_pixels})"
    except OSError as error:
        return reason(error)
    # what Pillow's plugins raise on damaged files, besides what it promises
    except (
        ValueError,
        SyntaxError,
        EOFError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        MemoryError,
        RuntimeError,
        struct.error,
        zlib.error,
    ) as error:
        return reason(error)


def _scaled(image: Any, size: tuple[int, int] | None, gray: bool) -> np.ndarray:
    from PIL import Image, ImageOps

    plain = _eight_bits(image).convert("L" if gray else "RGB")
    if plain is not image:
        image.close()  # and frees its pixels
    if size is not None and plain.size != size[::-1]:
        plain = ImageOps.fit(plain, size[::-1], Image.Resampling.BICUBIC)
    return np.asarray(plain)


@cache
def _formats() -> tuple[str, ...]:
    """The kinds of images that are decoded; others of Pillow's run programs (EPS) or are not meant for photos."""
    from PIL import Image

    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _eight_bits(image: Any) -> Any:
    """A gray image of 16 bits as one of 8, which Pillow would cut off at 255; colors of 16 bits it scales itself."""
    from PIL import Image

    if image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM")):
        kind = "floating-point" if image.mode == "F" else "32-bit"
        raise ValueError(f"it holds {kind} numbers, whose range is not known; expected 8 or 16 bits for each channel")
    if image.mode == "I" or image.mode.startswith("I;16"):
        return Image.fromarray(np.right_shift(np.asarray(image), 8, dtype=np.int32).astype(np.uint8))
    return image
