"""Split-CIFAR-100: tasks of random classes, from the official archives or .npz files."""

from __future__ import annotations

import io
import tarfile
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np

from prequential.errors import BadInput, MissingExtra
from prequential.streams.arrays import load_npz
from prequential.streams.cache import cache_folder, file_hash, kept_array
from prequential.streams.download import download as fetch
from prequential.streams.pickles import read_plain_pickle
from prequential.streams.tasks import SplitStream, checked_images

URL = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"  # the one without pickles
MD5 = "03b5dce01913d631647c71ecec9e9cb8"
RECORD = 2 + 3 * 32 * 32  # coarse class, class, image


def split_cifar(
    path: str | Path | None = None,
    *,
    tasks: int = 100,
    ways: int = 10,
    task_length: int = 5000,
    seed: int = 0,
    download: bool = False,
) -> SplitStream:
    """The paper's Split-CIFAR-100: each task has other classes out of 100 and another map from class to label.

    Parameters
    ----------
    path
        The official cifar-100-python.tar.gz or cifar-100-binary.tar.gz, the folder one of them unpacks to, a folder
        with cifar100_webp_0.npz and cifar100_webp_1.npz, or a .npz file with `x` (n, 32, 32, 3) and `y`. Train and
        test images make up one pool, as nothing is held out in a stream.
    tasks, ways, task_length, seed
        As in `SplitStream`.
    download
        Fetches the official binary archive (161 MiB) into the cache folder when no path is given.
    """
    if path is None:
        if not download:
            raise BadInput("no path to CIFAR-100 was given; expected one, or download=True")
        path = fetch(URL, cache_folder() / "cifar-100-binary.tar.gz", md5=MD5)
    x, y = load_cifar(Path(path))
    return SplitStream(x, y, tasks=tasks, ways=ways, task_length=task_length, seed=seed)


def load_cifar(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The images (n, 32, 32, 3) uint8 and their classes 0..99; memory-mapped from an unpacked copy in the cache."""
    if not path.exists():
        raise BadInput(f"{path} does not exist")
    files = _files(path)
    name = file_hash(*files)[:32]
    made: list[tuple[np.ndarray, np.ndarray]] = []

    def unpack() -> tuple[np.ndarray, np.ndarray]:
        if not made:
            made.append(checked_images(path, *_unpack(files), shape=(32, 32, 3), classes=100))
        return made[0]

    return kept_array(f"cifar-x-{name}", lambda: unpack()[0]), kept_array(f"cifar-y-{name}", lambda: unpack()[1])


def _files(path: Path) -> list[Path]:
    """The files the images are in."""
    if path.is_file() and not path.name.startswith("cifar100_webp_"):
        return [path]
    folder = path if path.is_dir() else path.parent
    if webp := sorted(folder.glob("cifar100_webp_*.npz")):
        return webp
    for names in (("train.bin", "test.bin"), ("train", "test")):
        for base in (folder, folder / "cifar-100-binary", folder / "cifar-100-python"):
            if all((base / name).is_file() for name in names):
                return [base / name for name in names]
    for archive in ("cifar-100-binary.tar.gz", "cifar-100-python.tar.gz"):
        if (folder / archive).is_file():
            return [folder / archive]
    raise BadInput(
        f"{folder} holds none of the forms of CIFAR-100: train and test, train.bin and test.bin, or cifar100_webp_*.npz"
    )


def _unpack(files: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    if files[0].name.startswith("cifar100_webp_"):
        return _join([_read_webp(file) for file in files])
    if files[0].suffix == ".npz":
        arrays = load_npz(files[0])
        if not {"x", "y"} <= arrays.keys():
            raise BadInput(f"{files[0]} holds {', '.join(arrays)}, expected x and y")
        return arrays["x"], arrays["y"]
    if len(files) == 1:
        return _join(_read_archive(files[0]))
    return _join([_read_part(file.name, file.read_bytes()) for file in files])


def _read_archive(path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """The parts of an official archive, read where they lie; nothing is extracted."""
    try:
        with tarfile.open(path) as archive:
            found = {Path(member.name).name: member for member in archive.getmembers() if member.isfile()}
            names = [name for name in ("train", "train.bin", "test", "test.bin") if name in found]
            if len(names) != 2:
                raise BadInput(
                    f"{path} holds {', '.join(sorted(found)) or 'nothing'}, expected train and test, or train.bin and test.bin"
                )
            parts = []
            for name in names:
                opened = archive.extractfile(found[name])
                assert opened is not None  # it is a file
                parts.append(_read_part(name, opened.read()))
            return parts
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        # where no kind of archive fits, tarfile says so in a line for each
        reason = "it is no tar archive" if "\n" in str(error) else str(error) or type(error).__name__
        raise BadInput(
            f"{path} is no archive of CIFAR-100 ({reason}); expected cifar-100-python.tar.gz, cifar-100-binary.tar.gz, the "
            "folder one of them unpacks to, or a .npz file"
        ) from None


def _read_part(name: str, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    if name.endswith(".bin"):
        if len(data) % RECORD:
            raise BadInput(f"{name} has {len(data)} bytes, expected a multiple of {RECORD}")
        records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
        return _upright(records[:, 2:]), records[:, 1].copy()
    content = read_plain_pickle(data)
    if not isinstance(content, dict):
        raise BadInput(f"{name} holds a {type(content).__name__}, expected a dict with data and fine_labels")
    by_name = {key.decode() if isinstance(key, bytes) else key: value for key, value in content.items()}
    if not {"data", "fine_labels"} <= by_name.keys():
        raise BadInput(f"{name} holds {', '.join(map(str, by_name))}, expected data and fine_labels")
    rows, labels = by_name["data"], by_name["fine_labels"]
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != 3 * 32 * 32:
        raise BadInput(f"{name} holds data of shape {getattr(rows, 'shape', None)}, expected (n, 3072)")
    if not isinstance(labels, list):
        raise BadInput(f"{name} holds fine_labels of type {type(labels).__name__}, expected a list")
    for i, label in enumerate(labels):
        if not isinstance(label, int) or not 0 <= label <= 99:
            raise BadInput(f"{name}, image {i}: the label is {label!r}, expected a whole number in 0..99")
    return _upright(rows), np.array(labels, np.uint8)


def _upright(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _read_webp(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A file in which the 600 images of a class are one lossless WebP picture of 20 by 30."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("reading WebP images", "images") from None
    arrays = load_npz(path)
    if lacking := {"webp", "offset", "first_class"} - arrays.keys():
        raise BadInput(f"{path} has no array {sorted(lacking)[0]!r}; it holds {', '.join(arrays)}")
    content, offset, first = arrays["webp"], arrays["offset"], int(arrays["first_class"])
    images: list[np.ndarray] = []
    for start, stop in pairwise(offset.tolist()):
        try:
            with Image.open(io.BytesIO(content[start:stop].tobytes())) as picture:
                sheet = np.asarray(picture.convert("RGB"))
        except OSError:
            raise BadInput(f"{path}, class {first + len(images)}: cannot be decoded, expected a WebP picture") from None
        if sheet.shape != (640, 960, 3):
            raise BadInput(
                f"{path}, class {first + len(images)}: the picture has shape {sheet.shape}, expected (640, 960, 3)"
            )
        images.append(sheet.reshape(20, 32, 30, 32, 3).swapaxes(1, 2).reshape(600, 32, 32, 3))
    return np.concatenate(images), np.repeat(np.arange(first, first + len(images), dtype=np.uint8), 600)


def _join(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
