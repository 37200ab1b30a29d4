"""Whether two commits give the same losses: every learner over a few streams, compared to the last bit.

A change that should not alter results shows it with this:

    python benchmarks/same_losses.py --before REV --after HEAD --data PATH

Both commits are unpacked and run in processes of their own, with one thread. PATH holds elec2.npz and emnist47.npz;
without it, only streams that need no files are used. The table gives the largest difference in nats of any single
example; with --tolerance 0 (the default) the script fails unless every difference is exactly 0.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
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
    "vgg": "transformer(extractor=vgg, depth=1, width=32, streams=2)",
    "convnext": "transformer(extractor=convnext, depth=1, width=32, streams=2)",
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
    arguments.add_argument("--before", default="HEAD~1", help="the commit to compare with")
    arguments.add_argument("--after", default=None, help="the commit to compare; by default the working tree")
    arguments.add_argument("--data", type=Path, default=os.environ.get("PREQUENTIAL_DATA"), help="where the data is")
    arguments.add_argument("--tolerance", type=float, default=0.0, help="the largest difference in nats that passes")
    arguments.add_argument("--only", nargs="*", help="streams or STREAM/LEARNER to run")
    arguments.add_argument("--out", type=Path, help="a JSON file for the table")
    given = arguments.parse_args()
    jobs = [
        {"stream": stream, "spec": spec.format(data=given.data), "examples": examples, "name": name, "learner": learner}
        for stream, (spec, examples, learners) in STREAMS.items()
        for name, learner in learners.items()
        if ("{data}" not in spec or given.data) and (not given.only or {stream, f"{stream}/{name}"} & set(given.only))
    ]
    with tempfile.TemporaryDirectory() as folder:
        found = [
            run(Path(folder), side, revision, jobs)
            for side, revision in (("before", given.before), ("after", given.after))
        ]
    rows: list[dict[str, Any]] = []
    for number, job in enumerate(jobs):
        a, b = (losses.get(f"{number}") for losses in found)
        difference = float("inf")
        if a is not None and b is not None and a.shape == b.shape:
            difference = float(np.abs(a - b).max())
        nats = [float("nan") if losses is None else float(losses.mean()) for losses in (a, b)]
        rows.append(
            {
                "stream": job["stream"],
                "learner": job["name"],
                "before": nats[0],
                "after": nats[1],
                "difference": difference,
            }
        )
        same = "same to the bit" if difference == 0 else f"differs by {difference:.2e}"
        print(f"{job['stream']:14s} {job['name']:18s} {nats[0]:.6f} {nats[1]:.6f}  {same}")
    worst = max(row["difference"] for row in rows)
    print(
        f"{len(rows)} pairs, {sum(row['difference'] == 0 for row in rows)} the same to the bit, largest difference {worst:.2e} nats"
    )
    if given.out:
        given.out.write_text(json.dumps({"before": given.before, "after": given.after, "rows": rows}, indent=1) + "\n")
    return int(not worst <= given.tolerance)


def run(folder: Path, side: str, revision: str | None, jobs: list[dict[str, object]]) -> dict[str, np.ndarray]:
    """The losses of every job by one commit, unpacked in a folder; None is the working tree."""
    root = Path(__file__).resolve().parent.parent
    if revision is not None:
        tree = folder / side
        tree.mkdir()
        archive = subprocess.run(
            ["git", "-C", str(root), "archive", revision, "src"], check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
        root = tree
    out = folder / f"{side}.npz"
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    subprocess.run(
        [sys.executable, __file__, "--child", str(out)], input=json.dumps(jobs).encode(), env=environment, check=True
    )
    with np.load(out) as losses:
        return dict(losses)


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
    losses: dict[str, Any] = {}
    for number, job in enumerate(json.loads(sys.stdin.read())):
        begun = time.monotonic()
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


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    else:
        sys.exit(main())
