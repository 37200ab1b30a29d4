"""Whether two commits give the same losses: every learner over a few streams, compared to the last bit.

A change that should not alter results shows it with this:

    python benchmarks/same_losses.py --before REV --after HEAD --data PATH

Both commits are unpacked and run in processes of their own, with one thread. PATH holds elec2.npz and emnist47.npz;
without it, only streams that need no files are used. The table gives the largest difference in nats of any single
example; with --tolerance 0 (the default) the script fails unless every difference is exactly 0.

Two ways to compute the same sum differ in the last bit, and training amplifies such a difference exponentially. So for
a learner whose losses differ, the table says at which example they first do and by how much, and from which example on
by more than 1e-6. As a control, the earlier commit runs once more with its initial weights multiplied by 1 + 2**-23,
a change of the last bit: what rounding alone does to these losses. To show that one deliberate change is the only
difference, undo it in a copy of the earlier commit and give the copy's path as REV.

Both run with torch, whose bits stay the same. The native core is compared with torch, with the same control, by

    python benchmarks/same_losses.py --before HEAD --engine auto --tolerance inf --data PATH
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

# options by the names of version 0.1, which every version knows
TRANSFORMERS = {
    "transformer": "transformer",
    "paper": "transformer(method=paper)",
    "copy": "transformer(method=copy)",
    "two-token": "two-token(depth=2)",
    "two-token paper": "two-token(method=paper, depth=2)",
    "no-image": "no-image(depth=1)",
    "no-attention": "no-attention(depth=1)",
    "joint": "transformer(updates=joint, depth=2)",
    "steps behind": "transformer(behind=true, depth=2)",
    "no averaging": "transformer(average=0, depth=1, recent=0, neighbours=0)",
    "schedule": "transformer(depth=1, warmup=200, decay=cosine, decay_examples=2000)",
}
BASELINES = {
    "last-label": "last-label",
    "majority": "majority(window=100)",
    "er": "er(hidden=[32])",
    "er-polrs-adrep": "er-polrs-adrep",
    "acm": "acm",
    "replay-streams": "replay-streams(hidden=[32])",
    "kalman": "kalman",
    "kalman-network": "kalman-network(hidden=[32])",
    "river": "river:naive_bayes.GaussianNB",
    "sklearn": "sklearn:linear_model.SGDClassifier",
}
IMAGES = {
    "transformer": "transformer(depth=2, width=64, streams=2)",
    "paper": "transformer(method=paper, depth=2, width=64, streams=3)",
    "vgg": "transformer(extractor=vgg, depth=1, width=64, streams=2)",
    "er": "er",
    "replay-streams": "replay-streams(streams=2)",
}
# stream: how it is opened, how many examples, and which learners run over it
STREAMS: dict[str, tuple[str, int, dict[str, str]]] = {
    "digits": ("digits", 2000, {**TRANSFORMERS, **BASELINES}),
    "electricity": ("electricity:{data}/elec2.npz", 2000, {**TRANSFORMERS, **BASELINES}),
    "photos": ("photos", 1024, {**TRANSFORMERS, "acm": "acm", "kalman": "kalman(block=64)"}),
    "split-emnist": ("emnist:{data}/emnist47.npz(task_length=100)", 300, IMAGES),
}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument(
        "--before", default="HEAD~1", help="the commit to compare with, or a directory with its src/"
    )
    arguments.add_argument("--after", default=None, help="the commit to compare; by default the working tree")
    arguments.add_argument("--data", type=Path, default=os.environ.get("PREQUENTIAL_DATA"), help="where the data is")
    arguments.add_argument("--tolerance", type=float, default=0.0, help="the largest difference in nats that passes")
    arguments.add_argument("--only", nargs="*", help="streams or STREAM/LEARNER to run")
    arguments.add_argument("--out", type=Path, help="a JSON file for the table")
    arguments.add_argument(
        "--engine", default="torch", choices=["torch", "auto"], help="of the commit to compare; that before has torch"
    )
    given = arguments.parse_args()
    jobs = [
        {"stream": stream, "spec": spec.format(data=given.data), "examples": examples, "name": name, "learner": learner}
        for stream, (spec, examples, learners) in STREAMS.items()
        for name, learner in learners.items()
        if ("{data}" not in spec or given.data) and (not given.only or {stream, f"{stream}/{name}"} & set(given.only))
    ]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        before, after = (
            run(Path(folder), side, revision, jobs, engine)
            for side, revision, engine in (("before", given.before, "torch"), ("after", given.after, given.engine))
        )
        for job, a, b in zip(jobs, before, after, strict=True):
            means = [float("nan") if losses is None else float(losses.mean()) for losses in (a, b)]
            row: dict[str, Any] = {
                "stream": job["stream"],
                "learner": job["name"],
                "before": means[0],
                "after": means[1],
            }
            rows.append({**row, **compare(a, b)})
        differing = [number for number, row in enumerate(rows) if 0 < row["difference"] < np.inf]
        if differing:
            control = run(Path(folder), "control", given.before, [{**jobs[n], "last_bit": True} for n in differing])
            for number, losses in zip(differing, control, strict=True):
                rows[number]["control"] = compare(before[number], losses)
    for row in rows:
        print(f"{row['stream']:14s} {row['learner']:18s} {row['before']:.6f} {row['after']:.6f}  {in_words(row)}")
        if "control" in row:
            print(f"{'':14s} {'control':18s} {'':17s}  {in_words(row['control'])}")
    worst = max(row["difference"] for row in rows)
    same = sum(row["difference"] == 0 for row in rows)
    print(f"{len(rows)} pairs, {same} the same to the bit, largest difference {worst:.2e} nats")
    if given.out:
        given.out.write_text(json.dumps({"before": given.before, "after": given.after, "rows": rows}, indent=1) + "\n")
    return int(not worst <= given.tolerance)


def compare(a: np.ndarray | None, b: np.ndarray | None) -> dict[str, Any]:
    """The largest difference of two series of losses, the first one and where it is, and where 1e-6 is passed."""
    if a is None or b is None or a.shape != b.shape:
        return {"difference": float("inf")}
    differences = np.abs(a - b)
    found: dict[str, Any] = {"difference": float(differences.max())}
    if found["difference"]:
        first = int(np.argmax(differences > 0))
        found |= {"first_example": first, "first_difference": float(differences[first])}
        found["above_1e-6_from"] = int(np.argmax(differences > 1e-6)) if found["difference"] > 1e-6 else None
    return found


def in_words(row: dict[str, Any]) -> str:
    if row["difference"] == 0:
        return "same to the bit"
    if "first_example" not in row:
        return "no losses to compare"
    passed = row["above_1e-6_from"]
    later = "never by more than 1e-6" if passed is None else f"by more than 1e-6 from example {passed}"
    start = f"first at example {row['first_example']} by {row['first_difference']:.0e}"
    return f"differs by {row['difference']:.1e}: {start}, {later}"


def run(
    folder: Path, side: str, revision: str | None, jobs: list[dict[str, Any]], engine: str = "torch"
) -> list[np.ndarray | None]:
    """The losses of every job by one commit, unpacked in a folder; a path is used as it is, None is the working tree."""
    root = Path(__file__).resolve().parent.parent
    if revision is not None and Path(revision).is_dir():
        root = Path(revision)
    elif revision is not None:
        tree = folder / side
        tree.mkdir()
        archive = subprocess.run(
            ["git", "-C", str(root), "archive", revision, "src"], check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
        root = tree
    out = folder / f"{side}.npz"
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    environment["PREQUENTIAL_ENGINE"] = engine
    subprocess.run(
        [sys.executable, __file__, "--child", str(out)], input=json.dumps(jobs).encode(), env=environment, check=True
    )
    with np.load(out) as losses:
        return [losses.get(f"{number}") for number in range(len(jobs))]


def child(out: str) -> None:
    """Runs the jobs given on standard input with the package that is on the path."""
    import torch

    import prequential
    from prequential.errors import PrequentialError

    try:
        from prequential import make_learner  # type: ignore[attr-defined,unused-ignore]
    except ImportError:  # commits before it was public
        from prequential.learners.registry import make_learner  # type: ignore[import-not-found,no-redef,unused-ignore]
    torch.set_num_threads(1)
    initializers = {name: getattr(torch.nn.init, name) for name in ("normal_", "kaiming_normal_")}
    losses: dict[str, Any] = {}
    for number, job in enumerate(json.loads(sys.stdin.read())):
        begun = time.monotonic()
        for name, initialize in initializers.items():
            setattr(torch.nn.init, name, last_bit_changed(initialize) if job.get("last_bit") else initialize)
        stream = prequential.open_stream(job["spec"])
        learner = make_learner(job["learner"], stream.classes or 100, missing=stream.missing)
        found: list[np.ndarray] = []

        def keep(_: int, __: Any, charges: Any, found: list[np.ndarray] = found) -> None:
            found.append(charges.log_loss)

        try:
            prequential.evaluate(stream, learner, stop=job["examples"], after=keep)
        except PrequentialError as error:
            print(f"{job['stream']} {job['name']}: {error}", file=sys.stderr)
            continue
        losses[f"{number}"] = np.concatenate(found)
        print(f"{job['stream']} {job['name']}: {time.monotonic() - begun:.1f} s", file=sys.stderr)
    np.savez(out, **losses)


def last_bit_changed(initialize: Callable[..., Any]) -> Callable[..., Any]:
    """An initializer whose result is multiplied by 1 + 2**-23."""

    def changed(tensor: Any, *arguments: Any, **options: Any) -> Any:
        initialize(tensor, *arguments, **options)
        tensor.data.mul_(1 + 2**-23)
        return tensor

    return changed


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    else:
        sys.exit(main())
