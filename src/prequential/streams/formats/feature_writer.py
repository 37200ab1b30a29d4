"""Writes a folder of features that `FeatureStream` reads, and goes on after any interruption."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadInput, BadSetting
from prequential.labels import decode, encode
from prequential.storage.files import (
    is_temporary,
    make_directory,
    remove_temporaries,
    storage,
    sync_directory,
    write_atomically,
)
from prequential.storage.sealed import read_json, seal, write_sealed
from prequential.streams.formats.feature_shards import (
    FORMAT,
    FolderLock,
    PartFile,
    check_content,
    check_shard,
    read_manifest,
)

COPY = ".manifest.json.copy"
PARTS = ("x.part", "y.part")  # the shard being written: bare rows, of which the manifest says how many count
SKIPPED = "skipped.jsonl"  # written by an extraction of images


class FeatureWriter:
    """Writes a folder of features piece by piece; after an interruption, even a power cut, it goes on from `position`.

    However often it was interrupted, the finished files are the same to the last bit, provided the same pieces are
    appended. What was appended since the last `commit` or closed shard is forgotten by an interruption.

    Parameters
    ----------
    directory
        The folder; made if it is not there, gone on with if it holds an unfinished store of the same settings.
    width
        How many features a row has.
    dtype
        "float16" or "float32".
    rows_per_shard
        A shard is closed with the piece that gives it this many rows.
    classes
        How many labels there can be, or which, where that is known.
    about
        What the features are of: source, network and the like, as JSON values. Another one is refused on going on.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        width: int,
        dtype: str = "float16",
        rows_per_shard: int = 65536,
        classes: int | Sequence[Hashable] | None = None,
        about: dict[str, Any] | None = None,
    ) -> None:
        if dtype not in ("float16", "float32"):
            raise BadSetting(f"dtype is {dtype!r}, expected 'float16' or 'float32'")
        if width < 1 or rows_per_shard < 1:
            raise BadSetting(f"width ({width}) and rows_per_shard ({rows_per_shard}) must be at least 1")
        self.directory = Path(directory)
        settings: dict[str, Any] = {
            "format": FORMAT,
            "width": width,
            "dtype": dtype,
            "rows_per_shard": rows_per_shard,
            "classes": classes if isinstance(classes, int | None) else [encode(label) for label in classes],
            "about": about or {},
        }
        progress: dict[str, Any] = {"rows": 0, "position": 0, "skipped": 0, "part": 0, "labels": None, "shards": []}
        self.manifest: dict[str, Any] = {**settings, **progress, "complete": False}
        self._damaged = False  # whether manifest.json is, while its copy is whole
        self._parts: tuple[PartFile, PartFile] | None = None
        self._lock = FolderLock(self.directory)
        try:
            self._open(settings)
        except BaseException:
            self.close()
            raise

    def _open(self, settings: dict[str, Any]) -> None:
        """Goes on with what is there. Whatever can be refused is refused before anything is changed."""
        if self.directory.exists():
            self._refuse_links()
            self._read_manifest(settings)
        if not self.complete:  # a finished folder is locked only where something is to be changed
            make_directory(self.directory)
            self._lock.take()
            self._read_manifest(settings)  # as the writer before has left it
        self._known = {decode(code): i for i, code in enumerate(self.manifest["labels"] or [])}
        if not self.complete:
            self._open_parts()

    def _refuse_links(self) -> None:
        """Refuses anything but a file in the place of those that are written in place."""
        if not self.directory.is_dir():
            raise BadInput(f"{self.directory} is a file, expected a folder")
        for path in (self.directory / name for name in (*PARTS, SKIPPED)):
            if path.is_symlink() or (path.exists() and not path.is_file()):
                what = f"a symbolic link to {path.readlink()}" if path.is_symlink() else "not a regular file"
                raise BadInput(f"{path} is {what}, expected a file; remove it and start again")

    def _read_manifest(self, settings: dict[str, Any]) -> None:
        """Reads the manifest, or its copy where that is damaged or gone: the shards are worth keeping."""
        names = [name for name in ("manifest.json", COPY) if self._is_whole(name)]
        if not names and not (self.directory / "manifest.json").exists():
            return
        self.manifest = read_manifest(self.directory, (names or ["manifest.json"])[0])  # or says what is wrong
        self._damaged = names == [COPY]
        begun = {**self.manifest, **self.manifest["about"]}
        for name, value in {**settings, **settings["about"]}.items():
            if name != "about" and begun.get(name) != value:
                raise BadSetting(f"{self.directory} was begun with {name} {begun.get(name)!r}, not {value!r}")

    def _is_whole(self, name: str) -> bool:
        try:
            read_json(self.directory / name)
        except (FileNotFoundError, BadInput):
            return False
        return True

    @property
    def position(self) -> int:
        """How many examples of the source have been handled, for going on."""
        return int(self.manifest["position"])

    @property
    def complete(self) -> bool:
        return bool(self.manifest["complete"])

    def append(
        self, x: np.ndarray, y: Sequence[Hashable], *, skipped: int = 0, skipped_sha256: str | None = None
    ) -> None:
        """Adds rows and their labels, and counts examples of the source that gave no row.

        Where these are listed in a file, `skipped_sha256` is the checksum of that list with them in it.
        """
        if self._parts is None:
            raise BadInput(f"{self.directory} is finished with {self.manifest['rows']} rows; nothing can be added")
        x = np.asarray(x)
        progress: dict[str, Any] = {
            "part": self.manifest["part"] + len(y),
            "position": self.manifest["position"] + len(y) + skipped,
            "skipped": self.manifest["skipped"] + skipped,
        }
        if skipped_sha256 is not None:
            progress["skipped_sha256"] = skipped_sha256
        if len(y):
            self._write(x, y)
        self.manifest.update(progress)  # in one step: what is interrupted before it is forgotten
        if self.manifest["part"] >= self.manifest["rows_per_shard"]:
            self._close_shard()

    def _write(self, x: np.ndarray, y: Sequence[Hashable]) -> None:
        assert self._parts is not None
        width, dtype = self.manifest["width"], np.dtype(self.manifest["dtype"])
        first = self.manifest["rows"] + self.manifest["part"]
        if x.shape != (len(y), width):
            raise BadInput(f"row {first}: the features have shape {x.shape}, expected {(len(y), width)}")
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(x, dtype)
        bad = np.argwhere(~np.isfinite(stored))
        if len(bad):
            row, column = (int(i) for i in bad[0])
            raise BadInput(f"row {first + row}: feature {column} is {x[row, column]}, expected a finite {dtype} number")
        arrays = (stored, self._numbers(y, first))
        for part, array in zip(self._parts, arrays, strict=True):
            part.write(array)
        for part, array in zip(self._parts, arrays, strict=True):
            part.count(array)

    def _numbers(self, y: Sequence[Hashable], first: int) -> np.ndarray:
        """The labels as int32: themselves when they are whole numbers, else their places in the list of labels."""
        whole = all(isinstance(label, (int, np.integer)) and not isinstance(label, bool) for label in y)
        if first == 0 and not whole:
            self.manifest["labels"] = []
        if self.manifest["labels"] is None:
            for i, label in enumerate(y):
                if not (whole and -(2**31) <= int(label) < 2**31):  # type: ignore[call-overload]
                    raise BadInput(
                        f"row {first + i}: label is {label!r}, expected a whole number of 32 bits like those before"
                    )
            return np.asarray(y, np.int32)
        for label in y:
            if label not in self._known:
                self.manifest["labels"].append(encode(label))
                self._known[label] = len(self._known)
        return np.array([self._known[label] for label in y], np.int32)

    def commit(self) -> None:
        """Makes everything appended so far survive an interruption."""
        if self._parts is None:
            return
        for part in self._parts:
            part.sync()
        self.manifest["part_sha256"] = [part.hash.hexdigest() for part in self._parts]
        if not self.manifest["shards"]:
            self.manifest.setdefault("border", {"position": 0, "skipped": 0, "skipped_sha256": None, "labels": None})
        self._write_manifest(self.manifest)

    def finish(self) -> None:
        """Closes the last shard; the folder can be opened as a stream from now on.

        Of a folder that is finished already, it removes what a killed process has left, and makes the copy of the
        manifest again, or the manifest from its copy, where one of the two is damaged.
        """
        if self.complete:
            self._clean_up()
            return self.close()
        if self._parts is None:
            return
        if self.manifest["part"]:
            self._close_shard()
        if not self.manifest["rows"]:
            raise BadInput(f"{self.directory} got no rows, and {self.manifest['skipped']} examples were skipped")
        finished = {name: value for name, value in self.manifest.items() if name not in ("part_sha256", "border")}
        self._write_manifest({**finished, "complete": True})
        self._remove_parts()
        self.close()

    def verify(self) -> None:
        """Reads every shard and compares it with its checksum, or where an earlier version gave none, its size."""
        for shard in self.manifest["shards"]:
            for kind, dtype in (("x", np.dtype(self.manifest["dtype"])), ("y", np.dtype(np.int32))):
                path = self.directory / shard[kind]
                check_content(path, shard.get(f"{kind}_sha256"))
                check_shard(path, dtype, (shard["rows"], *([self.manifest["width"]] if kind == "x" else [])))

    def lock(self) -> None:
        """Makes sure that nobody else writes, before something in a finished folder is changed; until `close`."""
        self._lock.take()

    def close(self) -> None:
        """Lets go of the files without finishing."""
        for part in self._parts or ():
            part.close()
        self._parts = None
        self._lock.free()

    def __enter__(self) -> FeatureWriter:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        try:
            if kind is None:
                self.finish()
            elif kind is KeyboardInterrupt:
                self.commit()
        finally:
            self.close()

    def _remove_parts(self) -> None:
        for name in PARTS:
            (self.directory / name).unlink(missing_ok=True)

    def _open_parts(self) -> None:
        dtype = np.dtype(self.manifest["dtype"])
        x, y = (self.directory / name for name in PARTS)
        parts = self._parts = (PartFile(x, dtype, self.manifest["width"]), PartFile(y, np.dtype(np.int32)))
        if not self._parts_are_whole():
            self._back_to_border()
        remove_temporaries(self.directory)
        if self._damaged:
            write_sealed(self.directory / "manifest.json", self.manifest)
        sync_directory(self.directory)  # the names of the files that were made just now
        for part in parts:
            part.truncate()  # rows written after the last commit
        if self.manifest["part"] >= self.manifest["rows_per_shard"]:  # interrupted just before the shard was closed
            self._close_shard()

    def _parts_are_whole(self) -> bool:
        """Whether the part files hold what the manifest counts; takes it into their checksums."""
        rows, known = self.manifest["part"], self.manifest.get("part_sha256")
        for i, part in enumerate(self._parts or ()):
            found = part.load(rows)
            if found is None or (known is not None and rows and found != known[i]):
                if "border" not in self.manifest:  # an earlier version did not know where the last shard ends
                    raise BadInput(f"{part.path} is damaged or cut off; delete {self.directory} to extract anew")
                return False
        return True

    def _back_to_border(self) -> None:
        """Forgets the rows after the last shard, whose files are damaged; they are extracted again."""
        border = self.manifest["border"]
        self.manifest |= {"part": 0, "position": border["position"], "skipped": border["skipped"]}
        self.manifest["skipped_sha256"] = border["skipped_sha256"]
        labels = self.manifest["labels"]
        self.manifest["labels"] = None if border["labels"] is None else labels[: border["labels"]]
        self._known = {decode(code): i for i, code in enumerate(self.manifest["labels"] or [])}
        for part in self._parts or ():
            part.load(0)

    def _border(self) -> dict[str, Any]:
        """Where the last shard ends: what is after it can be extracted again."""
        labels = self.manifest["labels"]
        return {
            "position": self.manifest["position"],
            "skipped": self.manifest["skipped"],
            "skipped_sha256": self.manifest.get("skipped_sha256"),
            "labels": None if labels is None else len(labels),
        }

    def _close_shard(self) -> None:
        """Turns the part files into a shard. Interrupted anywhere, the old manifest with the part files still holds."""
        self.commit()
        assert self._parts is not None
        rows, number = self.manifest["part"], len(self.manifest["shards"])
        shard: dict[str, Any] = {"rows": rows}
        for kind, part in zip(("x", "y"), self._parts, strict=True):
            shard[kind] = f"{kind}-{number:05d}.npy"
            shard[f"{kind}_sha256"] = part.make_shard(self.directory / shard[kind])
        done = {"rows": self.manifest["rows"] + rows, "part": 0, "shards": [*self.manifest["shards"], shard]}
        self._write_manifest({**self.manifest, **done, "border": self._border()})
        for part in self._parts:
            part.clear()

    def _write_manifest(self, manifest: dict[str, Any]) -> None:
        write_sealed(self.directory / "manifest.json", manifest)
        self.manifest = manifest
        write_sealed(self.directory / COPY, manifest)  # second, so that one of the two is always whole

    def _clean_up(self) -> None:
        """Removes what a killed process has left in a finished folder, and makes both manifests whole."""
        path, copy = self.directory / "manifest.json", self.directory / COPY
        with storage(self.directory):
            data = seal(self.manifest) if self._damaged else path.read_bytes()
            old = not copy.exists() and "sha256" not in json.loads(data)  # an earlier version made no copy
            copied = old or (copy.is_file() and not copy.is_symlink() and copy.read_bytes() == data)
            left = any(is_temporary(file) or file.name in PARTS for file in self.directory.iterdir())
            if copied and not left and not self._damaged:
                return
            self.lock()
            remove_temporaries(self.directory)
            self._remove_parts()
            if self._damaged:
                write_atomically(path, data)
            if not copied:
                write_atomically(copy, data)
            self._damaged = False
