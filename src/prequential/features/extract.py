"""From a stream of images to a folder of features, once, with a frozen network; interrupted, it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np

from prequential.errors import BadSetting
from prequential.features.networks import Network, load_network
from prequential.streams.features import FeatureStream, FeatureWriter
from prequential.streams.stream import Stream

SECONDS_BETWEEN_COMMITS = 20.0  # what an interruption can lose


class ImageSource(Protocol):
    """Images some of which may be bad: `ClocRecords` is one."""

    def __len__(self) -> int: ...

    def attempt(self, start: int, stop: int) -> tuple[np.ndarray, Sequence[Hashable], int]:
        """The good images of start..stop-1, their labels, and how many were bad."""

    def fingerprint(self) -> str: ...


def extract(
    source: Stream | ImageSource,
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

    Started again after an interruption it goes on, and the finished files are those of an uninterrupted run to the last
    bit. Started again when finished, it does nothing. Bad images of an `ImageSource` are skipped and counted.

    Parameters
    ----------
    source
        A stream of images, or an `ImageSource`.
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
    >>> from prequential.streams.digits import digits
    >>> mean = Network("mean", lambda images: images.mean((2, 3)), width=3, size=8)
    >>> features = extract(digits(tasks=2, images=True), mean, tempfile.mkdtemp())
    >>> len(features), features.read(0, 100).x.shape
    (400, (100, 3))
    """
    if batch < 1:
        raise BadSetting(f"batch ({batch}) must be at least 1")
    net = network if isinstance(network, Network) else load_network(network, device=device)
    about = {
        "source": source.fingerprint(),
        "network": net.name,
        "weights": net.checksum,
        "size": net.size,
        "batch": batch,  # the last bits of a row depend on which rows it is computed with
        "skipped by the source": int(getattr(source, "skipped", 0)),
    }
    total = len(source)
    classes = getattr(source, "classes", None)
    writer = FeatureWriter(
        out_dir, width=net.width, dtype=dtype, rows_per_shard=rows_per_shard, classes=classes, about=about
    )

    def fetch(start: int) -> tuple[np.ndarray, Sequence[Hashable], int]:
        if isinstance(source, Stream):
            chunk = source.read(start, start + batch)
            return chunk.x, chunk.y, 0
        return source.attempt(start, min(start + batch, total))

    if not writer.complete:
        with writer, ThreadPoolExecutor(1, "images") as reader:
            committed = time.monotonic()
            coming = reader.submit(fetch, writer.position) if writer.position < total else None
            while coming is not None:
                images, labels, skipped = coming.result()
                following = writer.position + len(labels) + skipped
                coming = reader.submit(fetch, following) if following < total else None  # decoded meanwhile
                rows = net(images) if len(labels) else np.empty((0, net.width), np.float32)
                writer.append(rows, labels, skipped=skipped)
                if time.monotonic() - committed > SECONDS_BETWEEN_COMMITS:
                    writer.commit()
                    committed = time.monotonic()
                if progress is not None:
                    progress(writer.position, total, writer.manifest["skipped"])
    return FeatureStream(out_dir)
