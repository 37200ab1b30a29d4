"""Makes the files of this version that tests/storage/test_migrations.py opens with every later one.

    python tests/data/make_stored.py

writes tests/data/format-N.tar.xz, where N is `storage.migrations.FORMAT`. Run it once, before the format changes, and keep
the archive forever: learners stopped halfway, and the losses and tables that they reach without interruption.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import prequential.runs.run
import prequential.sweeps.trial_tables
from prequential import Learner, make_learner
from prequential.comparisons.compare import Plan, compare
from prequential.runs.job import ProgressWriter
from prequential.runs.run import Run
from prequential.runs.run_settings import RunSettings
from prequential.settings import Settings
from prequential.storage.migrations import FORMAT
from prequential.storage.sealed import read_sealed, write_sealed
from prequential.sweeps.sweep import sweep

TINY: dict[str, Any] = {
    "width": 8, "num_query_heads": 2, "depth": 1, "window": 16, "chunk_size": 8, "num_streams": 2, "learning_rate": 0.06,
    "num_neighbors": 16, "recent_window": 16, "mlp_width": 12, "ema_decay": 0.9,
}  # fmt: skip
ASYNC = {
    **TINY, "method": "paper", "warmup_examples": 20, "lr_decay": "cosine", "lr_decay_examples": 80, "label_init_std": 0.5,
    "standardize": True,
}  # fmt: skip
RUN: dict[str, Any] = {"tasks": 2, "task_length": 48, "threads": 1, "checkpoint_seconds": 0.0, "device": "cpu"}
LEARNERS = {
    "transformer": ("transformer", TINY),
    "async": ("transformer(async_steps=true)", ASYNC),
    "er": ("er(hidden_sizes=[4], batch=16, learning_rate=0.02)", TINY),
    "replay-streams": ("replay-streams(hidden_sizes=[4], chunk_size=16, num_streams=2, ema_rate=0.1)", TINY),
}
SWEEP = """
[sweep]
name = "small"
method = "grid"
[run]
tasks = 2
task_length = 16
checkpoint_seconds = 0.0
[learner]
width = 8
num_query_heads = 2
depth = 1
window = 8
chunk_size = 8
recent_window = 0
num_neighbors = 0
[vary]
learner = ["transformer", "er(hidden_sizes=[4])"]
learning_rate = [0.01, 0.1]
num_streams = [1, 2]
er.learning_rate = [0.01]
"""


def make_run(directory: Path, learner: str, settings: dict[str, Any], stop: int | None = None) -> Path:
    run = Run(directory, RunSettings(learner=learner, **RUN), Settings(**settings))
    run.begin()

    def stop_there(running: Run) -> None:
        running.stopped = stop is not None and running.position >= stop

    run.execute(stop_there)
    return directory


@contextmanager
def stopping(after: int) -> Iterator[None]:
    """Stops the run at hand when runs have reported their progress so many times."""
    count, real = 0, ProgressWriter.__call__

    def stop(writer: ProgressWriter, run: Run) -> None:
        nonlocal count
        count += 1
        run.stopped = count == after

    ProgressWriter.__call__ = stop  # type: ignore[method-assign]
    try:
        yield
    finally:
        ProgressWriter.__call__ = real  # type: ignore[method-assign]


def make_all(out: Path) -> None:
    for name, (learner, settings) in LEARNERS.items():
        whole = make_run(out / "finished", learner, settings)
        np.save(out / f"{name}-losses.npy", pq.read_table(whole / "records")["log_loss"].to_numpy())
        if name != "transformer":
            shutil.rmtree(whole)
        else:
            whole.rename(out / "kept")
        make_run(out / f"stopped-{name}", learner, settings, stop=40)
    (out / "kept").rename(out / "finished")

    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    y = ["abc"[int(k)] for k in (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)]
    np.save(out / "home-x.npy", x)
    (out / "home-y.json").write_text(json.dumps(y))
    live = Learner(3, home=out / "home", device="cpu", **TINY)
    live.learn_many(x[:20], y[:20])
    live.save()
    live.learn_many(x[20:29], y[20:29])
    live.close()
    for name, losses, learner in (
        ("learner", "home-losses.npy", Learner(3, device="cpu", **TINY)),
        ("kalman-network", "kalman-network-losses.npy",
         make_learner("kalman-network(hidden_sizes=[4], chunk_size=8, num_streams=2)", 3)),
    ):  # fmt: skip
        learner.learn_many(x[:29], y[:29])
        learner.save(out / name)
        np.save(out / losses, learner.observe(x[29:], y[29:]).log_loss)

    (out / "small.toml").write_text(SWEEP)
    sweep(out / "small.toml", out=out / "whole", jobs=0)
    shutil.move(out / "whole" / "table.csv", out / "sweep-table.csv")
    shutil.rmtree(out / "whole")
    with stopping(6):
        assert sweep(out / "small.toml", out=out / "sweep", jobs=0) is None
    plan = Plan(
        learners=("transformer(learning_rate=0.1)", "er(hidden_sizes=[4], batch=8)"),
        streams=("digits(tasks=2,task_length=16)",),
        run=RunSettings(checkpoint_seconds=0.0),
        settings=Settings(**{**TINY, "window": 8, "recent_window": 0, "num_neighbors": 0}),
    )
    compare(plan, out / "whole", jobs=0)
    shutil.move(out / "whole" / "table.csv", out / "comparison-table.csv")
    shutil.rmtree(out / "whole")
    with stopping(6):
        assert compare(plan, out / "comparison", jobs=0) is None


def tidy(out: Path) -> None:
    """Removes what nobody opens: locks, pictures, all checkpoints but the newest, where they were made."""
    for pattern in (".lock", "*.png", "*.svg"):
        for path in out.rglob(pattern):
            path.unlink()
    for folder in out.rglob("checkpoints"):
        for path in sorted(folder.iterdir())[:-1]:
            path.unlink()
    for path in out.rglob("environment.json"):
        write_sealed(path, {**read_sealed(path), "command": ["prequential", "run"]})


def anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.mtime, info.uname, info.gname = 0, "", ""
    return info


def main() -> None:
    prequential.runs.run.draw_run = lambda *_, **__: None  # type: ignore[assignment]
    for name in ("draw_settings", "draw_history", "draw_fronts"):
        setattr(prequential.sweeps.trial_tables, name, lambda *_, **__: None)
    archive = Path(__file__).parent / f"format-{FORMAT}.tar.xz"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / f"format-{FORMAT}"
        out.mkdir()
        make_all(out)
        tidy(out)
        with tarfile.open(archive, "w:xz") as file:
            file.add(out, out.name, filter=anonymous)
    print(f"{archive}: {archive.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
