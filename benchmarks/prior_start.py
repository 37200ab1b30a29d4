"""What another start of the default learner is worth: by what `prior.py` trained, or by likeness alone.

python benchmarks/prior_start.py --starts random likeness PRIOR.safetensors --tables FOLDER --data FOLDER
    [--streams phoneme electricity ...] [--rows 2000] [--seeds 0 1 2] [--label-batches 1 100]
    [--settings num_neighbors=0 freeze_at=0] --out FILE.jsonl

`likeness` trains nothing: two query heads of each block begin as its keys, so that attention begins by looking for rows
like this one. Tables (CSV with a column `label`) are put into a random order that is the same for all. Every run is
appended to FILE, a run that is in it is not done again, and the differences from `random` are printed at the end.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from prior import label_codes, load_prior

from prequential import ArrayStream, Learner, TableStream, evaluate, open_stream
from prequential.learners.charges import Charges
from prequential.learners.transformer import parts
from prequential.models.make import make_model
from prequential.models.transformer import Transformer
from prequential.settings import Settings
from prequential.specs import parse_call

ARRAYS = {"electricity": "elec2.npz", "covertype": "covtype.npz", "powersupply": "powersupply.npz"}
RIVER = ("Bananas", "Phishing", "ImageSegments")
FIRST = (200, 1000, 10**9)  # rows over which scores are taken

Row = dict[str, Any]


def started(start: str) -> Callable[..., Transformer]:
    """What makes a model that starts this way, in place of `make_model`."""

    def make(settings: Settings, *, num_classes: int, **kinds: Any) -> Transformer:
        model = make_model(settings, num_classes=num_classes, **kinds)
        if start == "likeness":
            _likeness(model, settings)
        elif start != "random":
            codes = torch.from_numpy(label_codes(np.random.default_rng(settings.seed), num_classes))
            load_prior(Path(start)).apply_to(model, codes)
        return model

    return make


@torch.no_grad()
def _likeness(model: Transformer, settings: Settings) -> None:
    D, K = settings.width, settings.key_width
    for block in model.all_blocks:
        for head in range(2):
            block.in_proj.weight[head * K : (head + 1) * K] = (head + 1) * block.in_proj.weight[D : D + K]


def read(name: str, rows: int, *, tables: Path, data: Path) -> tuple[np.ndarray, np.ndarray]:
    """The first rows of a stream, and their labels as numbers."""
    if name in RIVER:
        from river import datasets

        pairs = [(list(map(float, x.values())), y) for x, y in getattr(datasets, name)()]
        x, y = np.array([x for x, _ in pairs]), np.array([y for _, y in pairs])
    elif name in ARRAYS:
        examples = open_stream(f"{name}:{data / ARRAYS[name]}").read(0, rows)
        x, y = np.asarray(examples.x, np.float64), np.array(list(examples.y))
    else:
        table = TableStream(tables / f"{name}.csv", label="label")
        examples = table.read(0, len(table))
        order = np.random.default_rng(0).permutation(len(table))
        x, y = np.asarray(examples.x, np.float64)[order], np.array(list(examples.y))[order]
    return x[:rows], np.unique(y, return_inverse=True)[1][:rows]


def run(start: str, x: np.ndarray, y: np.ndarray, *, label_batches: int, settings: dict[str, Any]) -> Row:
    """Scores of one run: accuracy and nats over the first rows."""
    losses: list[np.ndarray] = []
    correct: list[np.ndarray] = []

    def keep(position: int, chunk: Any, charges: Charges) -> None:
        losses.append(charges.log_loss)
        correct.append(charges.correct)

    cpu = time.process_time()
    with patch.object(parts, "make_model", started(start)):
        learner = Learner(int(y.max()) + 1, missing=True, **settings)
        evaluate(ArrayStream(x, y.tolist()), learner, label_batches=label_batches, after=keep)
    both = (np.concatenate(correct), np.concatenate(losses))
    accuracy, nats = ([float(values[:first].mean()) for first in FIRST] for values in both)
    return {"accuracy": accuracy, "nats": nats, "cpu": time.process_time() - cpu}


def differences(rows: list[Row]) -> list[str]:
    """For each start, settings and way labels arrive: the mean difference from `random`, and the worst stream's."""
    keys = ("stream", "seed", "rows", "label_batches", "settings")
    random = {tuple(row[key] for key in keys): row for row in rows if row["start"] == "random"}
    of: dict[tuple[str, str, int], dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        base = random.get(tuple(row[key] for key in keys))
        if row["start"] != "random" and base is not None:
            gained = [a - b for m in ("accuracy", "nats") for a, b in zip(row[m], base[m], strict=True)]
            of[row["start"], row["settings"], row["label_batches"]][row["stream"]].append(gained)
    lines = []
    for (start, settings, late), by_stream in sorted(of.items()):
        per = {name: np.mean(runs, 0) for name, runs in by_stream.items()}
        mean = np.mean(list(per.values()), 0)
        numbers = " ".join(f"{value:+.4f}" for value in mean)
        low = min(per, key=lambda name: per[name][2])
        high = max(per, key=lambda name: per[name][5])
        lines.append(
            f"{Path(start).stem} [{settings}] labels in batches of {late}: {len(per)} streams, "
            f"{sum(map(len, by_stream.values()))} runs; {numbers}; worst {per[low][2]:+.4f} ({low}), "
            f"{per[high][5]:+.4f} ({high})"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", nargs="+", default=["random", "likeness"])
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--streams", nargs="+")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--label-batches", nargs="+", type=int, default=[1, 100])
    parser.add_argument("--settings", nargs="*", default=[])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    settings = parse_call(f"transformer({','.join(args.settings)})")[1]
    streams = args.streams or [*RIVER, *ARRAYS, *sorted(file.stem for file in args.tables.glob("*.csv"))]
    rows = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    for name in streams:
        x, y = read(name, args.rows, tables=args.tables, data=args.data)
        for seed in args.seeds:
            for late in args.label_batches:
                for start in args.starts:
                    what: Row = {"start": start, "stream": name, "seed": seed, "rows": len(y), "label_batches": late}
                    what["settings"] = ",".join(args.settings)
                    if any(all(row[key] == value for key, value in what.items()) for row in rows):
                        continue
                    done = {**what, **run(start, x, y, label_batches=late, settings={**settings, "seed": seed})}
                    rows.append(done)
                    with args.out.open("a") as file:
                        file.write(json.dumps(done) + "\n")
    print("accuracy over the first 200 rows, 1,000 rows and all, then nats; differences from random")
    print("\n".join(differences(rows)))


if __name__ == "__main__":
    main()
