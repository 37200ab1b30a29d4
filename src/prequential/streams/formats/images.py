"""Streams of images: a folder with one folder for each class, or a table that lists paths and labels."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import threading
import warnings
import zlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from prequential.errors import BadInput, BadSetting, MissingExtra
from prequential.streams.cache import WHOLE, cached_array, file_hash
from prequential.streams.limits import MAX_PIXELS, reading, reason
from prequential.streams.stream import Chunk, Stream, in_reading_order
from prequential.streams.tasks import Pool

MOST_WORKERS = 256  # threads that decode; more only take memory
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
LOOK = 256  # images checked at a time when all of them are
LARGE = 2**22  # pixels from which images are decoded one at a time
MAX_SIZE = 2**22  # pixels of the first image up to which it says the size of all

_large = threading.Lock()


class ImageRows(ABC):
    """Where the images of a stream are: rows that each have an image, as a file or as bytes, and a label."""

    name: str  # for messages
    folder: Path | None = None  # where the files are, if they were there when the stream was opened
    order: np.ndarray | None = None  # the rows in the order of time; None: as they are
    classes: int | None = None

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @abstractmethod
    def take(self, rows: np.ndarray) -> tuple[list[Path | bytes], list[Hashable], dict[int, str]]:
        """Images and labels of these rows, and what is wrong with some of them, by place among `rows`."""

    @abstractmethod
    def labels(self, rows: np.ndarray) -> list[Hashable]:
        """The labels of these rows alone."""

    @abstractmethod
    def undecodable(self, example: int, row: int, source: Path | bytes, why: str) -> str:
        """The sentence for an image that cannot be decoded."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the images and labels."""

    def stamp(self) -> str:
        """For the names of copies: changes with every edit, also where the fingerprint only samples."""
        return ""


class DecodedStream(Stream):
    """What image streams have in common: rows of images, decoded when they are read, all of one size."""

    def __init__(
        self,
        rows: ImageRows,
        *,
        size: int | tuple[int, int] | None,
        order: str,
        seed: int,
        gray: bool,
        classes: int | Sequence[Hashable] | None,
        on_bad_row: str,
        workers: int | None,
        max_pixels: int | None = None,
    ) -> None:
        if len(rows) == 0:
            raise BadInput(f"{rows.name} holds no images; expected files that end in {', '.join(sorted(SUFFIXES))}")
        self.rows, self.images = rows, rows.folder
        self.classes = classes if classes is not None else rows.classes
        self.on_bad_row, self.gray = on_bad_row, gray
        self.decoder = Decoder(workers, max_pixels)
        self._index = rows.order  # which row each example is; None: the same
        self._order = order
        if order == "shuffled":
            self._index = shuffled(len(rows), seed)
            self._order = f"shuffled {seed}"
        self.size = known_size(size) or self._first_size()
        if on_bad_row == "skip":
            bad = cached_array(f"bad-images-{self.fingerprint()}-{rows.stamp()}", self._find_bad)
            if len(bad):
                index = np.arange(len(rows)) if self._index is None else self._index
                self._index = index[~np.isin(index, bad)]
        self.skipped = len(rows) - len(self)
        if len(self) == 0:
            raise BadInput(f"{rows.name}: none of the {len(rows)} images can be used")

    def __len__(self) -> int:
        return len(self.rows) if self._index is None else len(self._index)

    @cached_property
    def _hash(self) -> str:
        text = f"images {self.rows.fingerprint()} {self.size} {self.gray} {self.on_bad_row} {self._order}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def fingerprint(self) -> str:
        """A hash of the names, labels, sizes and content of the images, and of how they are read."""
        return self._hash

    def pool(self) -> tuple[Pool, np.ndarray]:
        """All images by position, decoded on demand, and their labels: what `SplitStream` takes."""
        labels = self.rows.labels(np.arange(len(self)) if self._index is None else np.asarray(self._index))
        return Pool(self, lambda positions: self._take(positions)[0]), np.array(labels)

    def _read(self, start: int, stop: int) -> Chunk:
        return Chunk(*self._take(np.arange(start, stop)))

    def _take(self, positions: np.ndarray) -> tuple[np.ndarray, list[Hashable]]:
        """The images and labels at these positions."""
        images, labels, bad = self._try(positions)
        for sentence in bad.values():
            raise BadInput(sentence)
        return images, labels

    def attempt(self, start: int, stop: int) -> tuple[np.ndarray, list[Hashable], dict[int, str]]:
        """The good images of start..stop-1, their labels, and what is wrong with each bad one, by position."""
        return self._try(np.arange(start, min(stop, len(self))))

    def _try(self, positions: np.ndarray) -> tuple[np.ndarray, list[Hashable], dict[int, str]]:
        rows = positions if self._index is None else np.asarray(self._index[positions])
        with reading(self.rows.name):
            sources, labels, wrong = self.rows.take(rows)
        images: list[np.ndarray] = []
        good: list[Hashable] = []
        bad: dict[int, str] = {}
        for i, image in enumerate(self.decoder(sources, self.size, self.gray)):
            position = int(positions[i])
            if i in wrong:
                bad[position] = wrong[i]
            elif isinstance(image, str):
                bad[position] = self.rows.undecodable(position, int(rows[i]), sources[i], image)
            else:
                images.append(image)
                good.append(labels[i])
        return np.stack(images) if images else np.empty((0,), np.uint8), good, bad

    def _first_size(self) -> tuple[int, int]:
        """The size of the first image; of the first that can be decoded, where others are left out."""
        total = len(self)
        for i in range(total):
            row = np.array([i if self._index is None else self._index[i]])
            sources, _, bad = self.rows.take(row)
            image = next(iter(self.decoder(sources, None, self.gray)))
            if not isinstance(image, str):
                height, width = (int(length) for length in image.shape[:2])
                if height * width > MAX_SIZE:
                    raise BadInput(
                        f"{self.rows.name}: the first image has {height}×{width} pixels, too many for a size of all "
                        "images; say which they should have, such as size=224"
                    )
                return height, width
            if self.on_bad_row == "stop":
                raise BadInput(bad[0] if bad else self.rows.undecodable(i, int(row[0]), sources[0], image))
        raise BadInput(f"{self.rows.name}: none of the {len(self.rows)} images can be decoded")

    def _find_bad(self) -> np.ndarray:
        found = []
        for start in range(0, len(self.rows), LOOK):
            sources, _, bad = self.rows.take(np.arange(start, min(start + LOOK, len(self.rows))))
            images = self.decoder(sources, self.size, self.gray)
            found += [start + i for i, image in enumerate(images) if i in bad or isinstance(image, str)]
        return np.array(found, np.int64)


class ImageStream(DecodedStream):
    """Image files as examples, decoded when they are read, all of one size.

    Parameters
    ----------
    path
        A folder whose folders are named after the classes, or a manifest: a CSV, Parquet or Arrow file with a column
        of paths (relative to the manifest) and a column of labels.
    image
        Of a manifest, the column of the paths; by default the one whose first values end in .jpg, .png and so on.
    label
        Of a manifest, the column of the labels; by default the one called label, y, target or class, else the last.
    time
        Of a manifest, the column to order by; by default one called time, where there is one.
    group
        Not possible: an image has no features beside it that could say whose it is.
    size
        Height and width, or one number for both; by default that of the first image. Others are scaled and
        cut at the middle.
    order
        Of a folder: by file "name" whatever the class (the default), by "path" (class after class), by the time a
        file was "modified", or "shuffled". Names are counted as a person does, 2 before 10. Of a manifest: as
        "listed" (or in the order of time), or "shuffled".
    seed
        Another seed gives another shuffled order.
    gray
        False gives (height, width, 3), True (height, width), both uint8.
    classes
        How many labels there can be, or which; a folder knows.
    kinds
        Of a manifest, how the labels are to be read where the first 4096 in the order of the stream mislead:
        {"label": "category"} reads them as text.
    on_bad_row
        "stop" raises one sentence when an image that cannot be decoded is reached; "skip" leaves those out, for which
        all images are decoded once and the result is kept in the cache folder; `skipped` says how many there were.
    workers
        How many threads decode, at most 256; by default one for each processor, at most 8.
    max_pixels
        How many pixels an image may have as it is decoded, 2**25 by default: a small file can hold any number. A JPEG
        is decoded near the size that is wanted, and that counts.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        image: str | None = None,
        label: str | None = None,
        time: str | None = None,
        group: str | None = None,
        size: int | tuple[int, int] | None = None,
        order: str | None = None,
        seed: int = 0,
        gray: bool = False,
        classes: int | Sequence[Hashable] | None = None,
        kinds: Mapping[str, str] | None = None,
        on_bad_row: str = "stop",
        workers: int | None = None,
        max_pixels: int | None = None,
    ) -> None:
        from prequential.streams.formats.image_tables import open_rows, table_in

        self.path = Path(path)
        rows: ImageRows
        if self.path.is_dir() and not table_in(self.path):
            order = known_order(order or "name", ("name", "path", "modified", "shuffled"))
            known_on_bad_row(on_bad_row)
            chosen = {"image": image, "label": label, "time": time, "group": group, "kinds": kinds}
            for name, value in chosen.items():
                if value is not None:
                    raise BadSetting(
                        f"{self.path} is a folder of images, labeled by the names of its folders, so {name} "
                        f"({value!r}) "
                        "cannot be chosen; give a manifest"
                    )
            rows = _Folder(self.path, order)
        else:
            rows, order = open_rows(self.path, image, label, time, group, order, seed, kinds, on_bad_row)
        super().__init__(
            rows,
            size=size,
            order=order,
            seed=seed,
            gray=gray,
            classes=classes,
            on_bad_row=on_bad_row,
            workers=workers,
            max_pixels=max_pixels,
        )


class _Folder(ImageRows):
    """The files below the class folders."""

    def __init__(self, folder: Path, order: str) -> None:
        self.name, self._root = str(folder), folder
        found = []
        classes = sorted(part.name for part in folder.iterdir() if part.is_dir())
        for name in classes:
            for file in (folder / name).rglob("*"):
                if file.suffix.lower() in SUFFIXES and file.is_file():
                    found.append(file.relative_to(folder))
        if not found and any(file.suffix.lower() in SUFFIXES for file in folder.iterdir()):
            raise BadInput(
                f"{folder} holds images, but no folders named after their classes; sort them into such, or "
                "give a manifest"
            )
        found.sort()  # for names that count the same, such as 1.png and 01.png
        if order == "name":
            by_name = in_reading_order(Path(file.name, file) for file in found)
            found = [Path(*file.parts[1:]) for file in by_name]
        else:
            found = in_reading_order(found)
        if order == "modified":
            found.sort(key=lambda file: (folder / file).stat().st_mtime_ns)
        # Arrow arrays: a million paths take some 50 MB, as Python strings three times that
        self._names = pa.array([str(file) for file in found], pa.large_string())
        self._labels = pa.array([file.parts[0] for file in found], pa.large_string())
        self.classes = len(classes)

    def __len__(self) -> int:
        return len(self._names)

    def take(self, rows: np.ndarray) -> tuple[list[Path | bytes], list[Hashable], dict[int, str]]:
        files = [self._root / str(name) for name in self._names.take(pa.array(rows)).to_pylist()]
        return list(files), self.labels(rows), {}

    def labels(self, rows: np.ndarray) -> list[Hashable]:
        found: list[Hashable] = self._labels.take(pa.array(rows)).to_pylist()
        return found

    def undecodable(self, example: int, row: int, source: Path | bytes, why: str) -> str:
        return f"example {example}: {source!s} cannot be decoded ({why}), expected an image"

    def fingerprint(self) -> str:
        digest = hashlib.sha256(files_hash(self._files).encode())
        for name in self._names:
            digest.update(f"{name.as_py()}\n".encode())
        return digest.hexdigest()

    def _files(self) -> Iterator[Path]:
        return (self._root / str(name.as_py()) for name in self._names)


def files_hash(files: Callable[[], Iterator[Path]]) -> str:
    """A hash of the sizes and the content of image files, those that are not there included.

    Of more than 1 GiB of images, the sizes of all and the content of some 1024 are hashed.
    """
    sizes = array("q")
    for file in files():
        try:
            sizes.append(file.stat().st_size)
        except OSError:
            sizes.append(-1)
    known = np.frombuffer(sizes, np.int64) if len(sizes) else np.zeros(0, np.int64)
    there = np.flatnonzero(known >= 0)
    step = max(1, len(there) // 1024) if known[there].sum() > WHOLE else 1
    chosen = set(there[::step].tolist())
    content = file_hash(*(file for i, file in enumerate(files()) if i in chosen))
    return hashlib.sha256(known.tobytes() + content.encode()).hexdigest()


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


def shuffled(count: int, seed: int) -> np.ndarray:
    """The numbers 0..count-1 in an order that depends on the seed and the count alone."""
    if not 0 <= seed < 2**64:
        raise BadSetting(f"seed ({seed}) must be in 0..2**64-1")
    bits = np.random.Philox(key=np.array([seed, count], np.uint64)).random_raw(count)
    return np.argsort(bits, kind="stable")


def known_size(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    """Height and width, of which one number may stand for both."""
    if size is None:
        return None
    both = (size, size) if isinstance(size, int) else tuple(size)
    if len(both) != 2 or min(both) < 1:
        raise BadSetting(f"size ({size}) must be at least 1: one number, or two for height and width")
    return both[0], both[1]


def known_order(order: str, known: Sequence[str]) -> str:
    if order not in known:
        raise BadSetting(f"order ({order!r}) must be one of {', '.join(known)}")
    return order


def known_on_bad_row(on_bad_row: str) -> None:
    if on_bad_row not in ("stop", "skip"):
        raise BadSetting(f"on_bad_row ({on_bad_row!r}) must be 'stop' or 'skip'")
