"""Real photo records laid over each other, beside what is known of CLOC: density, labels, and nearest neighbors.

    python benchmarks/geo_images_fit.py yfcc_poi9.npz cifar100-features      with features, or without them
    python benchmarks/geo_images_fit.py yfcc_poi9.npz --days 0 182 13 --seeds 3

Two minutes on one core. `--days` are those of `overlay_days`; 0 are the records as they are. "Labels alone" and 1-NN are
those of `photos_fit.py`. Nothing of this was fitted: 13 days were chosen for the density alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from photos_fit import labels_alone, neighbors, oracle, read_x

from prequential.streams.datasets.geo_images import album_numbers
from prequential.streams.datasets.yfcc import YfccStream
from prequential.streams.open import open_stream
from prequential.streams.spec import write_spec

CLOC = {"seconds between photos": 6.5, "P(y_t = y_t-1)": 0.12, "labels alone": 0.18}


def of_labels(records: YfccStream) -> Iterator[tuple[str, float]]:
    """What the records tell without images."""
    y, time = records._y, records._time
    yield "seconds between photos", float(time[-1] - time[0]) / len(time)
    yield "P(y_t = y_t-1)", float((y[1:] == y[:-1]).mean())
    yield "labels alone", labels_alone(y, int(y.max()) + 1)
    for window in (10, 100, 512, 2048):
        yield f"oracle({window})", oracle(y, window)


def of_images(features: Path, records: Path, days: int, seed: int) -> Iterator[tuple[str, float]]:
    """How often the most similar of the last photos has the same place, and the same album."""
    spec = write_spec(f"geo-images:features:{features}", {"records": str(records), "overlay_days": days})
    stream = open_stream(spec, seed=seed)
    behind = YfccStream(records, overlay_days=days, seed=seed if days else 0)
    album = album_numbers(behind._user, behind._y, behind._time, 3600.0)
    for size, (place, same) in neighbors(read_x(stream, len(behind)), behind._y, album).items():
        yield f"1-NN in the last {size:,} has the place", place
        yield "  ... the album", same


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("records", type=Path)
    parser.add_argument("features", type=Path, nargs="?")
    parser.add_argument("--days", type=int, nargs="+", default=[0, 182, 13])
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    found = []
    for days in given.days:
        rows: dict[str, list[float]] = {}
        for seed in range(given.seeds):
            of_seed = list(of_labels(YfccStream(given.records, overlay_days=days, seed=seed if days else 0)))
            of_seed += of_images(given.features, given.records, days, seed) if given.features else []
            for i, (name, value) in enumerate(of_seed):
                rows.setdefault(f"{i:02} {name}", []).append(value)
        found.append(rows)
    print(f"{'':44}{'CLOC':>10}" + "".join(f"{f'{days} days' if days else 'as it is':>14}" for days in given.days))
    for name in found[0]:
        cloc = CLOC.get(name[3:])
        known = "" if cloc is None else f"{cloc:g}"
        print(f"{name[3:]:44}{known:>10}" + "".join(f"{np.mean(rows[name]):14.4g}" for rows in found))


if __name__ == "__main__":
    main()
