"""Labels that come late: accuracy and nats over how late they come, for the default learner and for others.

    python benchmarks/late_labels.py --data DIRECTORY                          everything below; resumes where it stopped
    python benchmarks/late_labels.py --data DIRECTORY --streams electricity --delays 0 100 --learners transformer
    python benchmarks/late_labels.py --data DIRECTORY --batches 100 --examples 150000 --streams covertype

Every learner goes through the same protocol (`prequential.evaluation.late_labels`): the label of row t is given after the
prediction of row t + delay. What is finished is kept in results.json; the figure is drawn from all of it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from rich.console import Console
from rich.table import Table

from prequential import ArrayStream, Stream, evaluate, make_learner
from prequential.plots.style import colors, save, styled
from prequential.storage.sealed import write_sealed
from prequential.streams.datasets.tabular import covertype, electricity, power_supply

STREAMS = {
    "electricity": (electricity, "elec2.npz"),
    "covertype": (covertype, "covtype.npz"),
    "powersupply": (power_supply, "powersupply.npz"),
}
LEARNERS = ("transformer", "river:forest.ARFClassifier", "river:neighbors.KNNClassifier", "last-label")
NAMES = {
    "transformer": "prequential",
    "river:forest.ARFClassifier": "adaptive random forest (River)",
    "river:neighbors.KNNClassifier": "kNN (River)",
    "last-label": "last label",
}


def measure(stream: Stream, learner: str, protocol: dict[str, int], seed: int) -> dict[str, Any]:
    """What a learner reaches on a stream under a protocol."""
    made = make_learner(learner, len(set(stream.read(0, len(stream)).y)), seed=seed)
    begun = time.process_time()
    scores = evaluate(stream, made, **protocol)  # type: ignore[arg-type]
    return {
        "accuracy": scores.accuracy,
        "log_loss": scores.log_loss,
        "milliseconds": 1e3 * (time.process_time() - begun) / scores.count,
        "macs": made.macs_per_example(),
    }


@styled
def draw(rows: list[dict[str, Any]]) -> Figure:
    """Accuracy above nats, a column for each stream, a line for each learner."""
    late = [row for row in rows if "delay" in row["protocol"]]
    streams = list(dict.fromkeys(row["stream"] for row in late))
    learners = list(dict.fromkeys(row["learner"] for row in late))
    figure = Figure(figsize=(4.2 * len(streams), 5.2), layout=ConstrainedLayoutEngine())
    axes = figure.subplots(2, len(streams), sharex=True, squeeze=False)
    for column, stream in enumerate(streams):
        for line, (what, label) in enumerate((("accuracy", "accuracy"), ("log_loss", "nats per example"))):
            axis = axes[line][column]
            for color, learner in zip(colors(learners), learners, strict=True):
                points = {
                    row["protocol"]["delay"]: row[what]
                    for row in late
                    if row["stream"] == stream and row["learner"] == learner
                }
                at = sorted(points)
                axis.plot(at, [points[x] for x in at], "o-", color=color, label=NAMES.get(learner, learner))
            axis.set_xscale("symlog", linthresh=1)
            marks = sorted({row["protocol"]["delay"] for row in late})
            axis.set_xticks(marks, [f"{mark:,}" for mark in marks])
            axis.set_xlim(-0.15, 1.4 * max(1, *marks))
            axis.grid(axis="y")
            axis.set_title(f"{stream}, first {late[0]['examples']:,} rows" if not line else "")
            axis.set_ylabel(label if not column else "")
            if line:
                axis.set_xlabel("rows between a prediction and its label")
                axis.set_ylim(bottom=0)
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="where elec2.npz, covtype.npz and powersupply.npz are")
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=["electricity", "covertype"])
    parser.add_argument("--learners", nargs="+", default=list(LEARNERS))
    parser.add_argument("--delays", nargs="*", type=int, default=[0, 1, 10, 100, 1000])
    parser.add_argument("--batches", nargs="*", type=int, default=[], help="labels that arrive together")
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--out", type=Path, default=Path("runs/late_labels"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "results.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    console = Console()
    protocols = [{"delay": delay} for delay in given.delays] + [{"label_batches": n} for n in given.batches]
    for name in given.streams:
        load, file = STREAMS[name]
        whole = load(given.data / file)
        chunk = whole.read(0, min(given.examples, len(whole)))
        stream = ArrayStream(chunk.x, list(chunk.y))
        for protocol in protocols:
            for learner in given.learners:
                for seed in given.seeds:
                    key = {
                        "stream": name,
                        "examples": len(chunk),
                        "learner": learner,
                        "protocol": protocol,
                        "seed": seed,
                    }
                    if not any(all(row[part] == key[part] for part in key) for row in rows):
                        rows.append({**key, **measure(stream, learner, protocol, seed)})
                        write_sealed(path, {"rows": rows})
                        console.print(rows[-1])
    table = Table("stream", "labels", "learner", "accuracy", "nats", "ms of CPU per row")
    for row in rows:
        numbers = [f"{row[what]:.4f}" for what in ("accuracy", "log_loss")]
        said = " ".join(f"{kind} {number:,}" for kind, number in row["protocol"].items())
        table.add_row(row["stream"], said, row["learner"], *numbers, f"{row['milliseconds']:.2f}")
    console.print(table)
    if any("delay" in row["protocol"] for row in rows):
        save(draw(rows), given.out / "late_labels.png")


if __name__ == "__main__":
    main()
