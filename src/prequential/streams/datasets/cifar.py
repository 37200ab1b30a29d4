"""Split-CIFAR-100: tasks of random classes, from the official archives or .npz files."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from prequential.errors import BadInput, MissingExtra
from prequential.streams.cache import cached_array, file_hash
from prequential.streams.datasets.download import given_or_downloaded
from prequential.streams.formats.arrays import load_npz
from prequential.streams.formats.pickles import read_plain_pickle
from prequential.streams.limits import Limit, reading, reason
from prequential.streams.tasks import SplitStream, checked_images

URL = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"  # the one without pickles
MD5 = "03b5dce01913d631647c71ecec9e9cb8"
RECORD = 2 + 3 * 32 * 32  # coarse class, class, image
MEMBERS = 1000  # files an archive may hold; the official ones hold four


def split_cifar(
    path: str | Path | None = None,
    *,
    tasks: int = 100,
    ways: int = 10,
    task_length: int = 5000,
    seed: int = 0,
    download: bool = False,
    max_bytes: int | None = None,
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
    max_bytes
        How many bytes an archive or a compressed .npz file may unpack to; see `prequential.streams.limits`.
    """
    file = given_or_downloaded(path, download, of="CIFAR-100", url=URL, name="cifar-100-binary.tar.gz", md5=MD5)
    x, y = load_cifar(file, max_bytes)
    return SplitStream(x, y, tasks=tasks, ways=ways, task_length=task_length, seed=seed)


def load_cifar(path: Path, max_bytes: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The images (n, 32, 32, 3) uint8 and their classes 0..99; memory-mapped from an unpacked copy in the cache."""
    if not path.exists():
        raise BadInput(f"{path} does not exist")
    files = _files(path)
    name = file_hash(*files)[:32]
    made: list[tuple[np.ndarray, np.ndarray]] = []

    def unpack() -> tuple[np.ndarray, np.ndarray]:
        if not made:
            with reading(path):
                made.append(checked_images(path, *_unpack(files, max_bytes), shape=(32, 32, 3), classes=100))
        return made[0]

    return cached_array(f"cifar-x-{name}", lambda: unpack()[0]), cached_array(f"cifar-y-{name}", lambda: unpack()[1])


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


def _unpack(files: list[Path], max_bytes: int | None) -> tuple[np.ndarray, np.ndarray]:
    if files[0].name.startswith("cifar100_webp_"):
        return _join([_read_webp(file) for file in files])
    if files[0].suffix == ".npz":
        arrays = load_npz(files[0], max_bytes)
        if not {"x", "y"} <= arrays.keys():
            raise BadInput(f"{files[0]} holds {', '.join(arrays)}, expected x and y")
        return arrays["x"], arrays["y"]
    if len(files) == 1:
        return _join(_read_archive(files[0], Limit(files[0], max_bytes=max_bytes)))
    return _join([_read_part(file.name, file.read_bytes()) for file in files])


class _Bounded:
    """A file that is unpacked while it is read, up to a limit: an archive may name any size for what is in it."""

    def __init__(self, path: Path, file: IO[bytes], limit: Limit) -> None:
        self._path, self._file, self._limit = path, file, limit

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            return self._limit.read(self._path, self._file)
        self._limit.check(self._path, self._file.tell() + size, at_least=True)
        return self._file.read(size)

    def seek(self, to: int, whence: int = 0) -> int:
        self._limit.check(self._path, to if whence == 0 else self._file.tell() + to, at_least=True)
        return self._file.seek(to, whence)

    def tell(self) -> int:
        return self._file.tell()


def _read_archive(path: Path, limit: Limit) -> list[tuple[np.ndarray, np.ndarray]]:
    """The parts of an official archive, read where they lie; nothing is extracted."""
    try:
        with _unpacking(path) as file, _tar(_Bounded(path, file, limit)) as archive:
            found = {}
            for number, member in enumerate(archive):
                if number >= MEMBERS:
                    raise BadInput(f"{path} holds more than {MEMBERS} files, expected an archive of CIFAR-100")
                limit.check(f"{path}, file {member.name!r}", member.size)
                if member.isfile():
                    found[Path(member.name).name] = member
            names = [name for name in ("train", "train.bin", "test", "test.bin") if name in found]
            if len(names) != 2:
                raise BadInput(
                    f"{path} holds {', '.join(sorted(found)) or 'nothing'}, expected train and test, or "
                    "train.bin and test.bin"
                )
            parts = []
            for name in names:
                opened = archive.extractfile(found[name])
                assert opened is not None  # it is a file
                parts.append(_read_part(name, opened.read()))
            return parts
    except BadInput:
        raise
    except Exception as error:  # what damaged archives make their readers raise
        raise BadInput(
            f"{path} is no archive of CIFAR-100 ({reason(error)}); expected cifar-100-python.tar.gz, "
            "cifar-100-binary.tar.gz, the folder one of them unpacks to, or a .npz file"
        ) from error


def _tar(file: Any) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=file, mode="r:")
    except tarfile.ReadError:
        raise ValueError("it is no tar archive") from None


def _unpacking(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        head = file.read(6)
    if head.startswith(b"\x1f\x8b"):
        return gzip.open(path)  # type: ignore[return-value]
    if head.startswith(b"BZh"):
        return bz2.open(path)
    return lzma.open(path) if head == b"\xfd7zXZ\0" else path.open("rb")


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
        import PIL  # noqa: F401
    except ImportError:
        raise MissingExtra("reading WebP images", "images") from None
    from prequential.streams.formats.image_decoding import decode

    arrays = load_npz(path)
    if lacking := {"webp", "offset", "first_class"} - arrays.keys():
        raise BadInput(f"{path} has no array {sorted(lacking)[0]!r}; it holds {', '.join(arrays)}")
    content, offset, first = arrays["webp"], arrays["offset"], int(arrays["first_class"])
    images: list[np.ndarray] = []
    for start, stop in pairwise(offset.tolist()):
        picture = decode(content[start:stop].tobytes(), None)
        if isinstance(picture, str):
            raise BadInput(
                f"{path}, class {first + len(images)}: cannot be decoded ({picture}), expected a WebP picture"
            )
        sheet = picture
        if sheet.shape != (640, 960, 3):
            raise BadInput(
                f"{path}, class {first + len(images)}: the picture has shape {sheet.shape}, expected (640, 960, 3)"
            )
        images.append(sheet.reshape(20, 32, 30, 32, 3).swapaxes(1, 2).reshape(600, 32, 32, 3))
    return np.concatenate(images), np.repeat(np.arange(first, first + len(images), dtype=np.uint8), 600)


def _join(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
