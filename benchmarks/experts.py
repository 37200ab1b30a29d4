"""What each expert adds: sets of settings over streams, both protocols of labels and several seeds.

    python benchmarks/experts.py --data DIRECTORY --tables DIRECTORY            everything below; resumes where it stopped
    python benchmarks/experts.py --data DIRECTORY --streams electricity ImageSegments --sets "" "num_trees=100" --seeds 0 1

A set of settings is written as NAME=VALUE,...; "" is the default learner. The first set is what the others are compared
with. Streams are those of `--data` (electricity, covertype, powersupply), River's ImageSegments, Bananas and Phishing,
and every CSV file in `--tables`, whose label column is named `label`. What is finished is kept in results.json.
"""

from __future__ import annotations

import argparse
import ast
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from prequential import ArrayStream, Learner, Stream, TableStream, evaluate
from prequential.storage.sealed import write_sealed
from prequential.streams.datasets.tabular import covertype, electricity, power_supply

FILES = {
    "electricity": (electricity, "elec2.npz"),
    "covertype": (covertype, "covtype.npz"),
    "powersupply": (power_supply, "powersupply.npz"),
}
RIVER = ("ImageSegments", "Bananas", "Phishing")


def parse(text: str) -> dict[str, Any]:
    """Settings from NAME=VALUE,...; a value that is no Python literal is a string."""
    settings = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        try:
            settings[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[name] = value
    return settings


def load(name: str, given: argparse.Namespace) -> Stream:
    """The first rows of a stream."""
    if name in FILES:
        make, file = FILES[name]
        stream: Stream = make(given.data / file)
    elif name in RIVER:
        from river import datasets

        rows = list(getattr(datasets, name)())
        stream = ArrayStream(np.array([[float(v) for v in x.values()] for x, _ in rows]), [y for _, y in rows])
    else:
        stream = TableStream(given.tables / f"{name}.csv", label="label")
    chunk = stream.read(0, min(given.examples, len(stream)))
    return ArrayStream(chunk.x, list(chunk.y))


def measure(stream: Stream, settings: dict[str, Any], protocol: dict[str, int], seed: int) -> dict[str, Any]:
    """What the learner reaches on a stream under a protocol."""
    chunk = stream.read(0, len(stream))
    learner = Learner(len(set(chunk.y)), seed=seed, missing=bool(np.isnan(chunk.x).any()), **settings)
    begun = time.process_time()
    scores = evaluate(stream, learner, **protocol)  # type: ignore[arg-type]
    return {
        "accuracy": scores.accuracy,
        "log_loss": scores.log_loss,
        "milliseconds": 1e3 * (time.process_time() - begun) / scores.count,
    }


def summary(rows: list[dict[str, Any]], sets: list[str]) -> Iterator[list[str]]:
    """Lines of the table: means over seeds that all sets have, and differences from the first set."""
    streams = dict.fromkeys((row["stream"], row["protocol"]) for row in rows)
    differences: dict[tuple[str, str], list[np.ndarray]] = {}
    for stream, protocol in streams:
        of = {
            name: {
                row["seed"]: row
                for row in rows
                if (row["stream"], row["protocol"], row["set"]) == (stream, protocol, name)
            }
            for name in sets
        }
        seeds = sorted(set.intersection(*(set(found) for found in of.values())))
        if not seeds:
            continue
        means = {
            name: np.mean(
                [[found[seed][what] for what in ("accuracy", "log_loss", "milliseconds")] for seed in seeds], 0
            )
            for name, found in of.items()
        }
        for name in sets:
            more = means[name] - means[sets[0]]
            differences.setdefault((protocol, name), []).append(more)
            yield [stream, protocol, name, str(len(seeds)), *_numbers(means[name]), *_signed(more[:2])]
    for (protocol, name), found in differences.items():
        yield ["mean", protocol, name, "", "", "", "", *_signed(np.mean(found, 0)[:2])]
        worst = [min(d[0] for d in found), max(d[1] for d in found)]
        yield ["worst", protocol, name, "", "", "", "", *_signed(np.array(worst))]


def _numbers(means: np.ndarray) -> list[str]:
    return [f"{means[0]:.4f}", f"{means[1]:.4f}", f"{means[2]:.2f}"]


def _signed(values: np.ndarray) -> list[str]:
    return [f"{value:+.4f}" for value in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="where elec2.npz, covtype.npz and powersupply.npz are")
    parser.add_argument("--tables", type=Path, default=None, help="a directory of CSV files")
    parser.add_argument("--streams", nargs="+", default=None)
    parser.add_argument("--sets", nargs="+", default=["", "num_trees=100"])
    parser.add_argument(
        "--batches", nargs="+", type=int, default=[0, 100], help="labels that arrive together; 0: at once"
    )
    parser.add_argument("--examples", type=int, default=15_000)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/experts"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "results.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    tables = [] if given.tables is None else sorted(file.stem for file in given.tables.glob("*.csv"))
    console = Console()
    for seed in given.seeds:
        for name in given.streams or [*RIVER, *FILES, *tables]:
            stream = load(name, given)
            for batch in given.batches:
                for text in given.sets:
                    protocol = f"batches of {batch}" if batch else "at once"
                    key = {"stream": name, "examples": len(stream), "protocol": protocol, "set": text, "seed": seed}
                    if not any(all(row[part] == key[part] for part in key) for row in rows):
                        found = measure(stream, parse(text), {"label_batches": batch} if batch else {}, seed)
                        rows.append({**key, **found})
                        write_sealed(path, {"rows": rows})
                        console.print(rows[-1])
    table = Table("stream", "labels", "settings", "seeds", "accuracy", "nats", "ms of CPU per row", "more", "more nats")
    for line in summary(rows, given.sets):
        table.add_row(*line)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
