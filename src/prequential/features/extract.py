"""From a stream of images to a folder of features, once, with a frozen network; resumable."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np

from prequential.errors import BadInput, BadSetting
from prequential.features.image_records import Records, as_records, check_still_there
from prequential.features.metadata_files import (
    BadList,
    SkippedList,
    damaged_files,
    first_reason,
    keep_columns,
    make_list_again,
)
from prequential.features.network import Network
from prequential.features.networks import load_network
from prequential.storage.files import storage
from prequential.streams.formats.feature_folder import FeatureStream
from prequential.streams.formats.feature_writer import SKIPPED, FeatureWriter
from prequential.streams.stream import Stream

SECONDS_BETWEEN_COMMITS = 20.0  # what an interruption can lose


def extract(
    source: Stream | Records,
    network: str | Network,
    out_dir: str | Path,
    *,
    batch: int = 64,
    dtype: str = "float16",
    rows_per_shard: int = 65536,
    device: str = "cpu",
    progress: Callable[[int, int, int], None] | None = None,
) -> FeatureStream:
    """Runs a frozen network over all images and writes its features to a folder.

    Started again after an interruption it resumes, and the finished files are those of an uninterrupted run to the last
    bit. Started again when finished, it reads all files and compares their checksums: what is damaged beside the
    features is made again from the source, damaged features are refused. Images that are missing or cannot be decoded
    are skipped, counted, and listed in skipped.jsonl with the reason; no pass over the images is needed for that.
    Beside the features lie position.npy (the position in the source of each row), what else the source knows of its
    examples (CLOC: time.npy and user.npy) and, where it knows tasks, task_starts.npy.

    Parameters
    ----------
    source
        A stream of images, or `Records`. Images of another size than the network's are scaled, so open image files
        with `size=network.size`: they are then decoded at that size, which is faster and sharper.
    network
        A name for `load_network`, or a network.
    out_dir
        The folder for the features, to be opened with `FeatureStream`.
    batch
        How many images the network gets at once.
    dtype
        "float16" or "float32".
    rows_per_shard
        About how many rows a file has.
    device
        Where the network computes, if it is given by name.
    progress
        Called after each batch with the images done, the images there are, and the images skipped.

    Examples
    --------
    >>> import tempfile
    >>> from prequential.streams.datasets.digits import digits
    >>> mean = Network("mean", lambda images: images.mean((2, 3)), width=3, size=8)
    >>> features = extract(digits(tasks=2, images=True), mean, tempfile.mkdtemp())
    >>> len(features), features.read(0, 100).x.shape
    (400, (100, 3))
    """
    if batch < 1:
        raise BadSetting(f"batch ({batch}) must be at least 1")
    net = network if isinstance(network, Network) else load_network(network, device=device)
    records = as_records(source)
    about = {
        "source": source.fingerprint(),
        "network": net.name,
        "weights": net.checksum,
        "size": net.size,
        "batch": batch,  # the last bits of a row depend on which rows it is computed with
        "skipped by the source": int(getattr(source, "skipped", 0)),
    }
    classes = getattr(source, "classes", None)
    writer = FeatureWriter(
        out_dir, width=net.width, dtype=dtype, rows_per_shard=rows_per_shard, classes=classes, about=about
    )
    with writer:
        if writer.complete:
            with storage(writer.directory):
                _verify(writer, records, batch)
        else:
            with closing(_skipped(writer, records, batch)) as skipped:
                try:
                    _extract(records, net, writer, skipped, batch, progress)
                finally:
                    skipped.sync()  # before the manifest that counts its entries, also of an interruption
            rows = writer.manifest["rows"] + writer.manifest["part"]
            if not rows:
                reason = first_reason(writer.directory)
                raise BadInput(f"none of the {len(records)} images can be used; the first: {reason}")
            writer.manifest["columns"] = keep_columns(writer.directory, records, rows)
    return FeatureStream(out_dir)


def _verify(writer: FeatureWriter, records: Records, batch: int) -> None:
    """Reads all that a finished folder lists; what is damaged beside the features is made again from the source."""
    writer.verify()
    directory, manifest = writer.directory, writer.manifest
    checksum = manifest.get("skipped_sha256")  # earlier versions gave none for the files beside the features
    if checksum is not None and damaged_files(directory, {SKIPPED: checksum}):
        writer.lock()
        make_list_again(directory, records, writer.position, manifest["skipped"], checksum, batch)
    columns: dict[str, str] = manifest.get("columns", {})
    if damaged_files(directory, {f"{name}.npy": expected for name, expected in columns.items()}):
        writer.lock()
        keep_columns(directory, records, manifest["rows"], columns)


def _skipped(writer: FeatureWriter, records: Records, batch: int) -> SkippedList:
    """The list of skipped images; a damaged one is made again by trying the images up to here once more."""
    position, count, checksum = writer.position, writer.manifest["skipped"], writer.manifest.get("skipped_sha256")
    try:
        return SkippedList(writer.directory, position, count, checksum)
    except BadList:
        make_list_again(writer.directory, records, position, count, checksum, batch)
        return SkippedList(writer.directory, position, count, checksum)


def _extract(
    records: Records,
    net: Network,
    writer: FeatureWriter,
    skipped: SkippedList,
    batch: int,
    progress: Callable[[int, int, int], None] | None,
) -> None:
    """Appends the features that are not there yet."""
    total, committed = len(records), time.monotonic()

    def fetch(start: int) -> tuple[np.ndarray, Sequence[Hashable], dict[int, str]]:
        return records.attempt(start, min(start + batch, total))

    with ThreadPoolExecutor(1, "images") as reader:
        coming = reader.submit(fetch, writer.position) if writer.position < total else None
        while coming is not None:
            images, labels, bad = coming.result()
            following = writer.position + len(labels) + len(bad)
            coming = reader.submit(fetch, following) if following < total else None  # decoded meanwhile
            if bad and not len(labels):
                check_still_there(records)
            rows = net(images) if len(labels) else np.empty((0, net.width), np.float32)
            skipped.add(bad)
            due = time.monotonic() - committed > SECONDS_BETWEEN_COMMITS
            if due or writer.manifest["part"] + len(labels) >= writer.manifest["rows_per_shard"]:
                skipped.sync()  # the manifest that counts the entries may be written next
            writer.append(rows, labels, skipped=len(bad), skipped_sha256=skipped.checksum)
            if due:
                writer.commit()
                committed = time.monotonic()
            if progress is not None:
                progress(writer.position, total, writer.manifest["skipped"])
