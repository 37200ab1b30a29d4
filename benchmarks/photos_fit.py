"""How well the made-up photo stream fits what it was fitted to: real photo records, and what is known of CLOC.

    PREQUENTIAL_DATA=folder python benchmarks/photos_fit.py      with yfcc_poi9.npz in the folder
    python benchmarks/photos_fit.py --examples 200000            without the records, and shorter
    python benchmarks/photos_fit.py --fit 1                      the stream of earlier versions
    python benchmarks/photos_fit.py --draw docs/images/photos-neighbors.png

A few minutes on one core for 500,000 examples. Times in the stream are positions times the seconds between photos.
A photographer's numbers are low in the stream, whose 500,000 photos are 38 days where the records are 18 years. The
records are counted twice: by spot, the 434 places that they come with, and by cell of 0.15 degrees (24 of them in nine
cities). Spots are what albums were fitted to, cells what the places of the stream were fitted to. How CLOC's 713 cells
cut a city is not known here; they lie between spots and cities, and so do these.

"Image alone" is a linear classifier and a small network of the current photo's features, trained online without
context, and the transformer of the paper's row, which sees the current photo alone; "labels alone" mixes counts of past
labels with eight half-lives, the mixture learned online. 1-NN is how often the most similar photo (by cosine) among the
last M has the same place.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from prequential import evaluate
from prequential.registry import make_learner
from prequential.streams.datasets.photos import FITS, PhotoStream
from prequential.streams.datasets.yfcc import END, FIRST, YfccStream
from prequential.streams.stream import Stream

CELL = 0.15  # degrees
MEMORIES = (16, 64, 256, 512, 1024, 4096, 16384, 65536, 262144)
OWN_GAPS = {"8 to 24 hours": (28800, 86400), "1 to 7 days": (86400, 604800), "7 to 30 days": (604800, 2592000)}
NO_ATTENTION = (
    "no-attention(method=paper,recent_window=0,width=128,depth=2,chunk_size=64,num_streams=4,learning_rate=0.18)"
)
LAGS = {
    "10 minutes": (0, 600),
    "1 hour": (600, 3600),
    "6 hours": (3600, 21600),
    "a day": (21600, 86400),
    "a week": (86400, 604800),
}


def statistics(place: np.ndarray, user: np.ndarray, time: np.ndarray) -> Iterator[tuple[str, float]]:
    """What is compared between the records and the stream; time is in seconds and rises."""
    order = np.argsort(user, kind="stable")
    u, t, y = user[order], time[order], place[order]
    gap = np.diff(t)
    again = (u[1:] == u[:-1]) & (gap <= 28800)  # the same outing
    outing = np.concatenate([[0], np.cumsum(~again)])
    size = np.bincount(outing)
    yield "photos of an outing, mean", size.mean()
    for q in (0.5, 0.75, 0.9, 0.95, 0.99):
        yield f"photos of an outing, {100 * q:.0f} %", np.quantile(size, q)
    yield "outings of one photo", (size == 1).mean()
    for q in (0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
        yield f"seconds between photos of an outing, {100 * q:.0f} %", np.quantile(gap[again], q)
    for low, high in ((2, 5), (6, 20), (21, 100), (101, 10**9)):
        inside = again & (size[outing[1:]] >= low) & (size[outing[1:]] <= high)
        yield f"… median in outings of {low} to {min(high, 999)}", np.median(gap[inside])
    both = again[1:] & again[:-1]
    logs = np.log1p(np.where(again, gap, 0))
    yield "correlation of successive log gaps", np.corrcoef(logs[1:][both], logs[:-1][both])[0, 1]
    length = np.bincount(outing[1:][again], gap[again], minlength=len(size))
    for q in (0.5, 0.9, 0.99):
        yield f"seconds of an outing of two or more, {100 * q:.0f} %", np.quantile(length[size > 1], q)
    same = y[1:] == y[:-1]
    yield "same place as before in the outing", same[again].mean()
    for low, high in ((0, 60), (60, 300), (300, 1200), (1200, 5000), (5000, 28800)):
        yield f"… after {low} to {high} s", same[again & (gap >= low) & (gap < high)].mean()
    own = u[1:] == u[:-1]
    for name, (low, high) in OWN_GAPS.items():
        yield f"same place as before, same photographer, after {name}", same[own & (gap >= low) & (gap < high)].mean()
    yield "places of an outing", len(np.unique(outing * 1000 + y)) / len(size)
    counts = np.unique(u, return_counts=True)[1]
    for q in (0.5, 0.75, 0.9, 0.99):
        yield f"photos of a photographer, {100 * q:.0f} %", np.quantile(counts, q)
    ends = np.cumsum(counts)
    entropies = []
    for i in np.flatnonzero(counts >= 20)[:4000]:
        p = np.unique(y[ends[i] - counts[i] : ends[i]], return_counts=True)[1] / counts[i]
        entropies.append(-(p * np.log2(p)).sum())
    for q in (0.25, 0.5, 0.75):
        yield f"bits of place of a photographer of 20 photos, {100 * q:.0f} %", np.quantile(entropies, q)
    distance = _own_return(u, y)
    for name, low, high in (("1", 1, 1), ("2 to 10", 2, 10), ("11 to 100", 11, 100), ("never", 0, 0)):
        yield f"photographer was there {name} own photos ago", ((distance >= low) & (distance <= high)).mean()
    random = np.random.default_rng(0)
    for name, (low, high) in LAGS.items():  # strangers at one place at nearly the same time
        i = random.integers(0, len(time), 300_000)
        a, b = np.searchsorted(time, time[i] + low), np.searchsorted(time, time[i] + high)
        i, a, b = i[b > a], a[b > a], b[b > a]
        j = (a + random.random(len(a)) * (b - a)).astype(int)
        strangers = user[i] != user[j]
        yield f"two strangers at the same place, within {name}", (place[i] == place[j])[strangers].mean()
    share = np.sort(np.bincount(place) / len(place))[::-1]
    yield "share of the most popular place", share[0]
    yield "share of the tenth place", share[9]


def _own_return(user: np.ndarray, place: np.ndarray) -> np.ndarray:
    """How many of the photographer's own photos ago the place was the same; 0 for never."""
    last: dict[tuple[int, int], int] = {}
    found = np.zeros(len(user), np.int64)
    for i, key in enumerate(zip(user.tolist(), place.tolist(), strict=True)):
        found[i] = i - last.get(key, i)
        last[key] = i
    return found


def oracle(y: np.ndarray, window: int) -> float:
    """How often the label is among the last `window` labels."""
    last: dict[int, int] = {}
    hits = 0
    for t, label in enumerate(y.tolist()):
        hits += t - last.get(label, -window - 1) <= window
        last[label] = t
    return hits / len(y)


def labels_alone(y: np.ndarray, classes: int) -> float:
    """Accuracy of a mixture of decayed counts, its weights learned online."""
    decay = 0.5 ** (1 / np.array([2, 8, 16, 32, 64, 192, 1024, 32768]))[:, None]
    counts, totals = np.zeros((len(decay), classes)), np.zeros((len(decay), 1))
    weights = np.full(len(decay) + 1, 1 / (len(decay) + 1))
    parts = np.full((len(decay) + 1, classes), 1 / classes)  # the last stays uniform
    hits = 0
    for label in y.tolist():
        parts[:-1] = counts / np.maximum(totals, 1e-12)
        hits += int((weights @ parts).argmax()) == label
        blame = weights * parts[:, label]
        weights = 0.999 * weights + 0.001 * blame / blame.sum()
        counts *= decay
        totals *= decay
        counts[:, label] += 1
        totals += 1
    return hits / len(y)


def image_alone(stream: PhotoStream, examples: int, hidden: int, rate: float, replays: int) -> tuple[float, float]:
    """Accuracy of a classifier of the current photo, over all examples and over the last quarter."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        width, classes = stream.width, stream.classes
        assert isinstance(classes, int)
        if hidden:
            layers = [torch.nn.Linear(width, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, classes)]
        else:
            layers = [torch.nn.Linear(width, classes)]
        model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-2)
    random = np.random.default_rng(0)
    right = []
    for n, start in enumerate(range(0, examples, 256)):
        for turn, position in enumerate([start, *(256 * random.integers(0, n + 1, replays))]):
            chunk = stream.read(int(position), int(position) + 256)
            logits, y = model(torch.as_tensor(chunk.x)), torch.as_tensor(chunk.y)
            if turn == 0:
                right.append(float((logits.argmax(1) == y).float().mean()))
            optimizer.zero_grad()
            F.cross_entropy(logits, y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return float(np.mean(right)), float(np.mean(right[-len(right) // 4 :]))


def neighbors_in(stream: PhotoStream, examples: int) -> dict[int, tuple[float, float]]:
    behind = stream.latent(0, examples)
    return neighbors(read_x(stream, examples), behind.place, behind.album)


def read_x(stream: Stream, examples: int) -> np.ndarray:
    """The features of the first examples. (examples, features)"""
    parts = [np.asarray(stream.read(at, min(at + 8192, examples)).x) for at in range(0, examples, 8192)]
    return np.concatenate(parts).astype(np.float32)


def neighbors(
    x: np.ndarray, place: np.ndarray, album: np.ndarray, queries: int = 1000
) -> dict[int, tuple[float, float]]:
    """By size of the memory: how often the most similar photo in it has the same place, and the same album."""
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    memories = [size for size in MEMORIES if size < len(x)]
    hits: dict[int, list[tuple[bool, bool]]] = {size: [] for size in memories}
    for t in np.random.default_rng(0).integers(memories[-1], len(x), queries).tolist():
        similarity, nearest, done = -2.0, -1, t
        for size in memories:
            some = x[t - size : done] @ x[t]
            if some.max() > similarity:
                similarity, nearest = float(some.max()), t - size + int(some.argmax())
            done = t - size
            same = (place[nearest] == place[t], album[nearest] == album[t])
            hits[size].append((bool(same[0]), bool(same[1])))
    return {size: (float(np.mean(found, 0)[0]), float(np.mean(found, 0)[1])) for size, found in hits.items()}


def draw(path: Path, examples: int, seed: int) -> None:
    """The agreement of the nearest neighbor by the size of the memory, for both fits."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for fit, color in ((1, "tab:gray"), (2, "tab:blue")):
        curve = neighbors_in(PhotoStream(40_000_000, seed=seed, fit=fit), examples)
        axes.plot(
            list(curve), [place for place, _ in curve.values()], "o-", color=color, label=f"same place, fit {fit}"
        )
        axes.plot(list(curve), [album for _, album in curve.values()], ":", color=color, label=f"same album, fit {fit}")
    axes.axhline(0.26, color="tab:red", lw=1)
    axes.text(MEMORIES[0], 0.265, "ACM on CLOC, all of the past in memory: 26 %", color="tab:red", va="bottom")
    axes.set(xscale="log", xlabel="photos in memory", ylabel="the nearest neighbor has it", ylim=(0, 0.8))
    axes.legend(frameon=False, ncols=2, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=500_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fit", type=int, default=2)
    parser.add_argument("--draw", type=Path, help="only draw the 1-NN agreement to this file")
    settings = parser.parse_args()
    torch.set_num_threads(1)
    n = settings.examples
    if settings.draw:
        draw(settings.draw, n, settings.seed)
        return
    stream = PhotoStream(40_000_000, seed=settings.seed, fit=settings.fit)
    behind = stream.latent(0, n)
    users = np.unique(behind.user, return_inverse=True)[1]
    made = dict(statistics(behind.place, users, np.arange(n) * FITS[settings.fit].seconds_per_photo))
    spots: dict[str, float] = {}
    cells: dict[str, float] = {}
    if folder := os.environ.get("PREQUENTIAL_DATA"):
        path = Path(folder) / "yfcc_poi9.npz"
        records = YfccStream(path)
        time = records._time.astype(np.float64)
        spots = dict(statistics(records._y, records._user, time))
        cells = dict(statistics(cells_of(path), records._user, time))
    print(f"{'':62}{'by spot':>10}{'by cell':>10}{'stream':>10}")
    for name, value in made.items():
        print(f"{name:62}{spots.get(name, np.nan):10.4g}{cells.get(name, np.nan):10.4g}{value:10.4g}")

    y = behind.place
    print(f"\n{'':62}{'CLOC':>10}{'stream':>10}")
    print(f"{'seconds between photos':62}{6.5:10.3g}{FITS[settings.fit].seconds_per_photo:10.3g}")
    print(f"{'P(y_t = y_t-1)':62}{0.12:10.3f}{(y[1:] == y[:-1]).mean():10.3f}")
    print(f"{'labels alone':62}{0.18:10.3f}{labels_alone(y, 713):10.3f}")
    for name, hidden, rate, replays in (
        ("linear", 0, 3e-3, 0), ("linear, 3 replays", 0, 1e-3, 3), ("256 hidden units", 256, 1e-3, 0)
    ):  # fmt: skip
        whole, end = image_alone(stream, n, hidden, rate, replays)
        print(f"{f'image alone, {name} (last quarter {end:.3f})':62}{0.19:10.3f}{whole:10.3f}")
    scores = evaluate(stream, make_learner(NO_ATTENTION, 713), stop=n)
    print(f"{'image alone, the transformer without attention':62}{0.19:10.3f}{scores.accuracy:10.3f}")
    for size, (place, album) in neighbors_in(stream, n).items():
        told = f"1-NN in the last {size:,} has the place (the album: {album:.3f})"
        print(f"{told:62}{'0.26' if size == MEMORIES[-1] else '':>10}{place:10.3f}")
    for window in (1, 2, 5, 10, 20, 50, 100, 200, 512, 2048):
        print(f"{f'oracle({window})':62}{'':10}{oracle(y, window):10.3f}")
    for start in (0, 1_000_000, 10_000_000, 30_000_000):
        part = stream.latent(start, start + 100_000).place
        told = f"places among 100,000 photos from {start:,}; P(y_t = y_t-1) {(part[1:] == part[:-1]).mean():.3f}"
        print(f"{told:72}{len(np.unique(part)):10}")


def cells_of(path: Path) -> np.ndarray:
    """The records that `YfccStream` keeps, by cells of `CELL` degrees in place of the places they come with."""
    with np.load(path) as arrays:
        time, corner = arrays["time"], np.stack([arrays["lat"], arrays["lon"]]) // CELL
    kept = corner[:, (time >= FIRST) & (time < END)]
    return np.unique(kept, axis=1, return_inverse=True)[1].ravel()


if __name__ == "__main__":
    main()
