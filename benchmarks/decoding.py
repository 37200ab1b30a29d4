"""Whether decoding JPEG photos keeps up with training ConvNeXt-T on them, and whether threads decode as fast as processes.

    python benchmarks/decoding.py                  400 photos of 500×375 in a temporary folder
    python benchmarks/decoding.py --workers 1      one worker instead of one for each processor

The photos are synthetic but as hard to decode as real ones: smooth shapes, edges and noise, about 70 kB each. An
`ImageStream` reads them at 160×160, as training does; the same function runs in worker processes for comparison; then
the learner with ConvNeXt-T trains on what was read. The three take turns in one run and the fastest turn of each
counts. With replay streams both figures fall alike: each stream decodes and trains on its own examples. Expected on two
x86 cores, in about a minute: decoding is 100 times as fast as training or more, and threads and processes are within a
fifth of each other.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from prequential.learners.transformer.learner import Learner
from prequential.streams.formats.image_decoding import decode
from prequential.streams.formats.images import ImageStream

WIDTH, HEIGHT, SIDE, CLASSES, CHUNK = 500, 375, 160, 10, 16


def photo(random: np.random.Generator) -> Image.Image:
    """Noise of many scales, as in the pictures cameras take, and a few hard edges."""
    total = np.full((HEIGHT, WIDTH, 3), 128.0)
    for cells, strength in ((3, 60), (12, 35), (50, 20), (200, 12)):
        coarse = random.integers(0, 256, (cells * HEIGHT // WIDTH + 1, cells, 3), np.uint8)
        smooth = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        total += (np.asarray(smooth, np.float64) - 128) * strength / 64
    for _ in range(8):
        top, left = random.integers(HEIGHT - 40), random.integers(WIDTH - 40)
        total[top : top + random.integers(20, 200), left : left + random.integers(20, 200)] += random.normal(0, 40, 3)
    total += random.normal(0, 6, total.shape)
    return Image.fromarray(np.clip(total, 0, 255).astype(np.uint8))


def write(folder: Path, photos: int) -> float:
    """The photos in class folders; their average size in kB."""
    random = np.random.default_rng(0)
    for i in range(photos):
        (folder / f"class {i % CLASSES}").mkdir(exist_ok=True)
        photo(random).save(folder / f"class {i % CLASSES}" / f"{i}.jpg", quality=90)
    return sum(file.stat().st_size for file in folder.rglob("*.jpg")) / photos / 1000


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def read_all(stream: ImageStream) -> None:
    for start in range(0, len(stream), CHUNK):
        stream.read(start, start + CHUNK)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--photos", type=int, default=400)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--chunk", type=int, default=4, help="examples in a training step")
    parser.add_argument("--turns", type=int, default=3)
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        size = write(Path(name), settings.photos)
        stream = ImageStream(name, size=SIDE, workers=settings.workers)
        workers = stream.decoder.workers
        files = sorted(Path(name).rglob("*.jpg"))
        learner = Learner(CLASSES, extractor="convnext", chunk_size=settings.chunk_size, num_streams=1, window=64)
        few = stream.read(0, settings.chunk_size)
        best = dict.fromkeys(("threads", "processes", "training"), float("inf"))
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as processes:

            def in_processes() -> None:
                for _ in processes.map(partial(decode, size=(SIDE, SIDE)), files, chunksize=CHUNK):
                    pass

            in_processes()  # starts them
            learner.learn_many(few.x, few.y)  # builds the network
            for _ in range(settings.turns):
                best["threads"] = min(best["threads"], seconds(partial(read_all, stream)) / settings.photos)
                best["processes"] = min(best["processes"], seconds(in_processes) / settings.photos)
                took = seconds(partial(learner.learn_many, few.x, few.y)) / settings.chunk_size
                best["training"] = min(best["training"], took)
    rates = {name: 1 / each for name, each in best.items()}
    print(
        f"{settings.photos} photos of {WIDTH}×{HEIGHT}, {size:.0f} kB each, read at {SIDE}×{SIDE} with {workers} workers"
    )
    print(f"threads (ImageStream):   {rates['threads']:8.1f} photos/s")
    print(
        f"processes:               {rates['processes']:8.1f} photos/s, threads are {rates['threads'] / rates['processes']:.2f} times as fast"
    )
    print(f"ConvNeXt-T, training:    {rates['training']:8.1f} photos/s")
    ratio = rates["threads"] / rates["training"]
    verdict = "keeps up" if ratio > 1 else "does not keep up"
    print(
        f"Decoding {verdict}: it is {ratio:.0f} times as fast as training and takes {100 / (1 + ratio):.1f} % of the time."
    )


if __name__ == "__main__":
    main()
