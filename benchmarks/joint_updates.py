"""Joint updates against sequential ones: can one gradient step on all streams replace one per stream?

    python benchmarks/joint_updates.py --data DIRECTORY          everything below; resumes where it stopped
    python benchmarks/joint_updates.py --data DIRECTORY --streams digits --seeds 0

The default learner on five streams, with sequential updates and with joint ones at several rates and AdamW settings.
Every finished run is a line of results.csv; the table at the end is made of all of them.

The criterion, fixed before the first run: a joint setting equals sequential on a stream where the means over the seeds
of its accuracy and of its nats are no worse than the worst seed of sequential. It can be the default if that holds on
every stream. Takes about an hour on one core; expected result: docs/native.md, "Joint updates".
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from prequential import ArrayStream, Learner, Stream, evaluate
from prequential.settings import Settings, for_digits
from prequential.streams.datasets.digits import digits
from prequential.streams.datasets.tabular import covertype, electricity, power_supply

LEARNERS: dict[str, tuple[float, dict[str, Any]]] = {  # the factor of the learning rate, and other settings
    "sequential": (1, {"updates": "sequential"}),
    "joint, rate x 1": (1, {}),
    "joint, rate x 1.5": (1.5, {}),
    "joint, rate x 2": (2, {}),
    "joint, rate x 3": (3, {}),
    "joint, rate x 2, beta2 0.995": (2, {"beta2": 0.995}),
    "joint, rate x 2, beta2 0.99": (2, {"beta2": 0.99}),
    "joint, rate x 3, beta2 0.99": (3, {"beta2": 0.99}),
    "joint, rate x 3, warm-up 1,000": (3, {"warmup_examples": 1000}),
}
STREAMS = ("digits", "electricity", "powersupply", "covertype", "electricity, labels in batches of 100")
FIELDS = ("stream", "learner", "seed", "examples", "accuracy", "log_loss", "cpu_seconds")


def load(name: str, data: Path, examples: int) -> Stream:
    """The first examples of a stream."""
    if name == "digits":
        return digits()
    files = {"electricity": (electricity, "elec2.npz"), "powersupply": (power_supply, "powersupply.npz")}
    made, file = {**files, "covertype": (covertype, "covtype.npz")}[name.split(",")[0]]
    whole = made(data / file)
    chunk = whole.read(0, min(examples, len(whole)))
    return ArrayStream(chunk.x, list(chunk.y))


def measure(stream: Stream, name: str, learner_name: str, seed: int) -> dict[str, Any]:
    """What a learner reaches on a stream."""
    settings = for_digits() if name == "digits" else Settings()
    factor, changes = LEARNERS[learner_name]
    changes = {"updates": "joint", "learning_rate": factor * settings.learning_rate, "seed": seed, **changes}
    classes = sorted(set(stream.read(0, len(stream)).y))  # type: ignore[type-var]
    learner = Learner(classes, settings=settings.changed(**changes))
    begun = time.process_time()
    protocol: Any = {"label_batches": 100} if "batches" in name else {}
    scores = evaluate(stream, learner, **protocol)
    return {
        "examples": scores.count,
        "accuracy": scores.accuracy,
        "log_loss": scores.log_loss,
        "cpu_seconds": round(time.process_time() - begun, 1),
    }


def read_results(path: Path) -> list[dict[str, Any]]:
    """The runs that are finished; a line that was cut off is left out."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["cpu_seconds"]]
    numbers = {"seed": int, "examples": int, "accuracy": float, "log_loss": float, "cpu_seconds": float}
    return [{name: numbers.get(name, str)(value) for name, value in row.items()} for row in rows]


def equals_sequential(rows: list[dict[str, Any]], sequential: list[dict[str, Any]]) -> bool:
    """The criterion, on the runs of one stream."""
    return bool(
        mean(row["accuracy"] for row in rows) >= min(row["accuracy"] for row in sequential)
        and mean(row["log_loss"] for row in rows) <= max(row["log_loss"] for row in sequential)
    )


def print_table(rows: list[dict[str, Any]]) -> None:
    """Accuracy and nats, mean over the seeds; a star where a joint setting is worse than every seed of sequential."""
    table = Table("updates", *STREAMS, "equal everywhere")
    for learner in LEARNERS:
        cells, equal = [], True
        for stream in STREAMS:
            of_stream = [row for row in rows if row["stream"] == stream]
            mine, sequential = ([row for row in of_stream if row["learner"] == who] for who in (learner, "sequential"))
            if not mine or not sequential:
                cells.append("")
                equal = False
                continue
            same = equals_sequential(mine, sequential)
            equal &= same
            scores = f"{mean(r['accuracy'] for r in mine):.4f} / {mean(r['log_loss'] for r in mine):.4f}"
            cells.append(f"{scores}{'' if same else ' *'} ({len(mine)})")
        table.add_row(learner, *cells, "yes" if equal else "no")
    Console(width=200).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="where elec2.npz, covtype.npz and powersupply.npz are")
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS))
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS))
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/joint_updates"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "results.csv"
    rows = read_results(path)
    done = {(row["stream"], row["learner"], row["seed"]) for row in rows}
    streams = {name: load(name, given.data, given.examples) for name in given.streams}
    for seed in given.seeds:
        for name, stream in streams.items():
            for learner in given.learners:
                if (name, learner, seed) in done:
                    continue
                found = measure(stream, name, learner, seed)
                rows.append({"stream": name, "learner": learner, "seed": seed, **found})
                with path.with_suffix(".tmp").open("w", newline="") as file:
                    writer = csv.DictWriter(file, FIELDS)
                    writer.writeheader()
                    writer.writerows(rows)
                path.with_suffix(".tmp").replace(path)
                print(rows[-1], flush=True)
    print_table(rows)


if __name__ == "__main__":
    main()
