"""A small real stream that comes with the package: handwritten digits in tasks with random label maps."""

from __future__ import annotations

from importlib import resources

import numpy as np

from prequential.streams.tasks import SplitStream


def digits(
    *, tasks: int = 100, task_length: int = 200, ways: int = 10, seed: int = 0, images: bool = False
) -> SplitStream:
    """The 1,797 handwritten digits of the UCI repository (8×8 pixels) as a stream of tasks; needs no download.

    Parameters
    ----------
    tasks, task_length, ways, seed
        As in `SplitStream`.
    images
        False gives vectors of 64 numbers in 0..1; True gives 8×8 images of whole numbers in 0..255.

    Examples
    --------
    >>> stream = digits(tasks=3)
    >>> chunk = stream.read(0, 50)
    >>> len(stream), chunk.x.shape, float(chunk.x.max())
    (600, (50, 64), 1.0)
    """
    x, y = load_digits()
    if images:
        return SplitStream(to_images(x), y, tasks=tasks, ways=ways, task_length=task_length, seed=seed)
    vectors = x.reshape(len(x), 64).astype(np.float32) / 16
    return SplitStream(vectors, y, tasks=tasks, ways=ways, task_length=task_length, seed=seed)


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """The images (1797, 8, 8) with values 0..16 and the digits they show, (1797,)."""
    file = resources.files("prequential") / "streams" / "datasets" / "data" / "digits.npz"
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
        return arrays["x"], arrays["y"]


def to_images(x: np.ndarray) -> np.ndarray:
    """The values 0..16 spread over 0..255."""
    return ((x.astype(np.uint16) * 255 + 8) // 16).astype(np.uint8)
