"""Real images on real photo records, beside what is known of CLOC: density, labels, the image alone, neighbors.

    python benchmarks/geo_images_fit.py yfcc_poi9.npz cifar100-features
    python benchmarks/geo_images_fit.py yfcc_poi9.npz --variants 0:1 182:1 13:1 --seeds 3      without images
    python benchmarks/geo_images_fit.py yfcc_poi9.npz --draw docs/images/geo-images-oracle.png

Seven minutes on one core. A variant is `overlay_days`:`typical_share` of `geo-images`, 500,000 examples; 0:1 are the
records as they are, once. "Labels alone", "image alone" and 1-NN are those of `photos_fit.py`; the seed is that of the
tuning stream, which is not reported. 13 days were chosen for the density alone, and a share of 0.38 for what the image
alone has; nothing else was fitted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from photos_fit import NO_ATTENTION, labels_alone, neighbors, oracle, read_x

from prequential import evaluate
from prequential.experiments.tuning import TUNING_WORLD
from prequential.registry import make_learner
from prequential.streams.datasets.geo_images import album_numbers
from prequential.streams.datasets.photos import PhotoStream
from prequential.streams.datasets.yfcc import YfccStream
from prequential.streams.open import open_stream
from prequential.streams.spec import write_spec

CLOC = {
    "seconds between photos": 6.5,
    "P(y_t = y_t-1)": 0.12,
    "labels alone": 0.18,
    "image alone": 0.19,
}
EXAMPLES = 500_000  # of overlaid records


def of_labels(records: YfccStream) -> Iterator[tuple[str, float]]:
    """What the records tell without images."""
    y, time = records._y, records._time
    yield "seconds between photos", float(time[-1] - time[0]) / len(time)
    yield "P(y_t = y_t-1)", float((y[1:] == y[:-1]).mean())
    yield "labels alone", labels_alone(y, int(y.max()) + 1)
    for window in (10, 100, 512, 2048):
        yield f"oracle({window})", oracle(y, window)


def of_images(features: Path, behind: YfccStream, options: dict[str, float], seed: int) -> Iterator[tuple[str, float]]:
    """What the images tell, and how often the most similar of the last photos has the same place, or the same album."""
    spec = write_spec(f"geo-images:features:{features}", {"records": str(behind.path), **options})
    stream = open_stream(spec, seed=seed)
    scores = evaluate(stream, make_learner(NO_ATTENTION, behind.classes, seed=seed), stop=EXAMPLES)
    yield "image alone", scores.accuracy
    album = album_numbers(behind._user, behind._y, behind._time, 3600.0)
    for size, (place, same) in neighbors(read_x(stream, len(behind)), behind._y, album).items():
        yield f"1-NN in the last {size:,} has the place", place
        yield "  ... the album", same


def draw(path: Path, records: Path) -> None:
    """How often the label is among the last W: records as they are and overlaid, and `photos`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    curves = {"photos": PhotoStream(40_000_000, seed=0).latent(0, EXAMPLES).place}
    for days in (0, 182, 13):
        dense: dict[str, int] = {"overlay_days": days, "length": EXAMPLES} if days else {}
        name = f"records, pieces of {days} days overlaid" if days else "records as they are"
        curves[name] = YfccStream(records, **dense)._y
    figure, axes = pyplot.subplots(figsize=(7, 4))
    windows = [2**i for i in range(12)]
    for (name, y), color in zip(curves.items(), ("tab:gray", "#9ecae1", "#4292c6", "#08519c"), strict=True):
        axes.plot(windows, [oracle(y, window) for window in windows], "o-", ms=3, color=color, label=name)
    axes.plot([1], [CLOC["P(y_t = y_t-1)"]], "*", ms=14, color="tab:red", label="CLOC", zorder=3)
    axes.set(xlabel="last W labels", ylabel="the label is among them", ylim=(0, 1))
    axes.set_xscale("log", base=2)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("records", type=Path)
    parser.add_argument("features", type=Path, nargs="?")
    parser.add_argument("--variants", nargs="+", default=["0:1", "13:1", "13:0.38"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--draw", type=Path, help="only draw the oracle of the labels to this file")
    given = parser.parse_args()
    if given.draw:
        draw(given.draw, given.records)
        return
    torch.set_num_threads(1)
    found = []
    for variant in given.variants:
        days, share = variant.split(":")
        rows: dict[int, tuple[str, list[float]]] = {}
        for seed in range(TUNING_WORLD, TUNING_WORLD + given.seeds):
            dense: dict[str, int] = {"overlay_days": int(days), "length": EXAMPLES} if int(days) else {}
            behind = YfccStream(given.records, **dense, seed=seed if dense else 0)
            options = {**dense, "typical_share": float(share)}
            of_seed = [
                *of_labels(behind),
                *(of_images(given.features, behind, options, seed) if given.features else ()),
            ]
            for i, (name, value) in enumerate(of_seed):
                rows.setdefault(i, (name, []))[1].append(value)
        found.append(rows)
    print(f"{'':44}{'CLOC':>8}" + "".join(f"{variant:>12}" for variant in given.variants))
    for i, (name, _) in found[0].items():
        known = f"{CLOC[name]:g}" if name in CLOC else ""
        print(f"{name:44}{known:>8}" + "".join(f"{np.mean(rows[i][1]):12.4g}" for rows in found))


if __name__ == "__main__":
    main()
