"""Tiny works of each kind, as a user would do them: begun, and gone on with after whatever happened in between.

A work lives in a folder. `go` begins it or goes on with it; `result` says what came out, times left out, so that the
results of two works can be compared. Everything is small: a few chunks, a network of a few thousand parameters.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import importlib
import json
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from prequential.learners.transformer.learner import Learner
from prequential.storage.checkpoint import CheckpointFolder

SMALL: dict[str, Any] = {
    "width": 8,
    "num_query_heads": 2,
    "depth": 1,
    "window": 16,
    "chunk_size": 8,
    "num_streams": 2,
    "recent_window": 16,
}
FLAGS = [part for name, value in SMALL.items() for part in (f"--{name}", str(value))]
EXAMPLES = 60  # of a live learner
FEATURES = 5
LABELS = ("ham", "spam", "eggs", 7, 2.5)  # of several kinds; the later ones come late
KINDS = ("run", "live", "asked", "compare", "sweep", "features", "save")
Tell = Callable[[dict[str, Any]], None]


def example(t: int, seed: int = 0) -> tuple[np.ndarray, Any]:
    """Example t of a live stream."""
    random = np.random.default_rng([seed, t])
    y = int(random.integers(0, 2 + min(t // 12, 3)))
    return random.normal(y, 1.0, FEATURES), LABELS[y]


def digest(value: Any) -> str:
    """A checksum of nested dicts and lists of arrays, tensors and plain values."""
    found = hashlib.sha256()
    _feed(value, found)
    return found.hexdigest()[:16]


def _feed(value: Any, found: Any) -> None:
    if isinstance(value, dict):
        for key in value:
            found.update(f"key {key}".encode())
            _feed(value[key], found)
    elif isinstance(value, (list, tuple)):
        found.update(f"list {len(value)}".encode())
        for part in value:
            _feed(part, found)
    elif hasattr(value, "detach"):
        _feed(value.detach().cpu().numpy(), found)
    elif isinstance(value, np.ndarray):
        found.update(f"array {value.dtype} {value.shape}".encode())
        found.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, float):
        found.update(struct.pack("d", value))
    else:
        found.update(repr(value).encode())


def listing(folder: Path) -> list[str]:
    """The files below a folder, locks left out: what came and went must have left nothing behind.

    Of names that are drawn at random, as those of saved journals are, only that there is one is looked at.
    """
    found = (path for path in folder.rglob("*") if not path.is_dir() and ".lock" not in path.name)
    return sorted(re.sub("[0-9a-f]{32}", "ID", str(path.relative_to(folder))) for path in found)


class Work:
    """Work of some kind in a folder.

    Parameters
    ----------
    folder
        Where it is done.
    variant
        Which of several like it.
    shared
        A folder with what many works read: photos, a network.
    """

    kind = ""
    variants = 1

    def __init__(self, folder: Path, variant: int, shared: Path) -> None:
        self.folder, self.variant, self.shared = folder, variant, shared

    def go(self, tell: Tell) -> None:
        """Begins the work or goes on with it, to its end."""
        raise NotImplementedError

    def result(self) -> dict[str, Any]:
        """What came out."""
        raise NotImplementedError


def run_result(directory: Path) -> dict[str, Any]:
    """What came out of a run, without times."""
    from prequential.evaluation.records import read_records

    rows = [batch.to_pylist() for batch in read_records(directory / "records")]
    scores = json.loads((directory / "scores.json").read_text())
    state, refused = CheckpointFolder(directory / "checkpoints").newest()
    assert state is not None
    files = [name for name in listing(directory) if not name.startswith("checkpoints/0") and name != "log.txt"]
    return {
        "records": digest([row for batch in rows for row in batch]),
        "rows": sum(map(len, rows)),
        "scores": digest({name: scores[name] for name in scores if name not in ("seconds", "sha256")}),
        "finished": scores["finished"],
        "state": digest({name: state[name] for name in ("position", "learner", "scores", "records", "fingerprint")}),
        "refused": refused,
        "checkpoints": min(len(list((directory / "checkpoints").iterdir())), 2),
        "files": files,
    }


class RunWork(Work):
    """`prequential run`, then `prequential resume`."""

    kind = "run"
    variants = 4

    def go(self, tell: Tell) -> None:
        from prequential.cli.app import main

        out = self.folder / "run"
        if (out / "settings.toml").is_file():
            main(["resume", str(out)])
            return
        common = ["--out", str(out), "--threads", "1", "--checkpoint-seconds", "0", "--seed", str(self.variant)]
        digits = ["--tasks", "3", "--task-length", "40"]
        kinds = (
            [*digits, *FLAGS],
            [*digits, *FLAGS, "--updates", "joint", "--method", "paper"],
            [*digits, "--learner", "er(hidden_sizes=[8])"],
            [*digits, *FLAGS, "--async-steps", "--num-neighbors", "32"],
        )
        main(["run", *common, *kinds[self.variant]])

    def result(self) -> dict[str, Any]:
        return run_result(self.folder / "run")


class LiveWork(Work):
    """A live learner with a home: predict, learn, acknowledge; now and then save."""

    kind = "live"
    variants = 4
    durability: tuple[Any, ...] = ("save", "sync", 4, "save")
    examples = EXAMPLES

    def open(self) -> Learner:
        home = self.folder / "home"
        if (home / "learner.json").is_file():
            return Learner.open(home)
        more: dict[str, Any] = {"async_steps": True} if self.variant == 3 else {}
        if has_durability():
            more["durability"] = self.durability[self.variant]
        return Learner(len(LABELS), home=home, seed=self.variant, num_neighbors=16, **SMALL, **more)

    def go(self, tell: Tell) -> None:
        learner = self.open()
        tell({"opened": learner.position})
        t = learner.position
        while t < self.examples:
            several = 3 if t % 20 == 10 and t + 3 <= self.examples else 1
            xs, ys = zip(*(example(t + i, self.variant) for i in range(several)), strict=True)
            tell({"predicted": t, "log_p": learner.predict_log_proba_many(np.stack(xs[:1]))[0].tolist()})
            tell({"learning": t + several})
            if several == 1:
                learner.learn(xs[0], ys[0])
            else:
                learner.learn_many(np.stack(xs), list(ys))
            t += several
            tell({"learned": t})
            if t % 9 == 0:
                learner.save()
                tell({"saved": t})

    def result(self) -> dict[str, Any]:
        learner = Learner.open(self.folder / "home")
        length = learner.position
        kept = kept_examples(learner)
        wanted = [example(t, self.variant) for t in range(length)]
        different = [
            t for t in range(length) if kept.y[t] != wanted[t][1] or not np.array_equal(kept.x[t], wanted[t][0])
        ]
        files = [name for name in listing(self.folder) if "/saves/0" not in name]
        return {"position": length, "different": different, "state": digest(learner.state_dict()), "files": files}


def has_durability() -> bool:
    """Whether learners take a durability."""
    import inspect

    return "durability" in inspect.signature(Learner.__init__).parameters


def kept_examples(learner: Learner) -> Any:
    """All examples that a live learner has kept, read as its replay streams read them."""
    return learner._memory.read(0, learner.position)


class AskedWork(LiveWork):
    """A live learner that is asked by id; labels come late, out of order, twice, before their prediction, or never.

    After a kill the client does everything again from the start, as one that does not know what has arrived would: what
    was asked or learned before is not done twice.
    """

    kind = "asked"

    def go(self, tell: Tell) -> None:
        learner = self.open()
        tell({"opened": learner.position, "have": known_ids(learner)})
        for t in range(self.examples):
            if t % 11 == 5:  # its label comes first
                self.label(learner, t, tell)
            x, _ = example(t, self.variant)
            p = learner.predict_log_proba_one(x, id=t)
            tell({"acknowledged": f"asked {t}"})
            if learner.asked.class_id(str(t)) is None:
                tell({"predicted": t, "log_p": [*p.values(), max(p.unseen, -1e3)]})
            for late in {t - 2 - t % 5, t - 7} if t >= 7 else ():
                if late % 6:
                    self.label(learner, late, tell)
            if t % 9 == 4 and learner.asked.pending:
                learner.save()
        learner.save()

    def label(self, learner: Learner, t: int, tell: Tell) -> None:
        tell({"learning": learner.position + 1})
        learner.learn(id=t, y=example(t, self.variant)[1])
        tell({"acknowledged": f"label {t}"})

    def result(self) -> dict[str, Any]:
        learner = Learner.open(self.folder / "home")
        journal = learner._memory.journal
        assert journal is not None
        asked_at, ids = journal.arrivals(0, len(journal))
        kept = kept_examples(learner)
        different = [i for i, name in enumerate(ids) if kept.y[i] != example(int(name), self.variant)[1]]
        files = [name for name in listing(self.folder) if "/saves/0" not in name and "/asked/0" not in name]
        state = learner.state_dict()
        del state["asked"]["times"]  # when it was asked
        return {
            "position": learner.position,
            "different": different,
            "ids": [ids, asked_at.tolist()],
            "twice": sorted({name for name in ids if ids.count(name) > 1}),
            "state": digest(state),
            "files": files,
        }


def known_ids(learner: Learner) -> list[str]:
    """What a live learner knows by id."""
    journal = learner._memory.journal
    answered = journal.arrivals(0, len(journal))[1] if journal is not None and len(journal) else []
    asked = [f"asked {name}" for name in [*learner.asked.pending, *answered]]
    return [*asked, *(f"label {name}" for name in [*learner.asked.labels, *answered])]


class SaveWork(Work):
    """A learner without a home that is saved to one path again and again."""

    kind = "save"
    variants = 2

    def go(self, tell: Tell) -> None:
        path = self.folder / "learner.safetensors"
        if path.exists():
            learner = Learner.load(path)
        else:
            learner = Learner(len(LABELS), seed=self.variant, num_neighbors=16, **SMALL)
        tell({"opened": learner.position, "state": digest(learner.state_dict())})
        while learner.position < EXAMPLES:
            some = range(learner.position, min(learner.position + 1 + learner.position % 4, EXAMPLES))
            for t in some:
                learner.learn(*example(t, self.variant))
            tell({"learning": learner.position})
            learner.save(path)
            tell({"saved": learner.position, "state": digest(learner.state_dict())})

    def result(self) -> dict[str, Any]:
        learner = Learner.load(self.folder / "learner.safetensors")
        kept = kept_examples(learner)
        wanted = [example(t, self.variant) for t in range(learner.position)]
        different = [t for t in range(len(wanted)) if kept.y[t] != wanted[t][1]]
        files = listing(self.folder)
        return {
            "position": learner.position,
            "different": different,
            "state": digest(learner.state_dict()),
            "files": files,
        }


class CompareWork(Work):
    """`prequential compare`, started again with the same command; in this process, or two at a time."""

    kind = "compare"
    variants = 2

    def go(self, tell: Tell) -> None:
        from killing import fork_jobs

        from prequential.cli.app import main

        fork_jobs()
        learners = ["transformer", "last-label", "er(hidden_sizes=[8])"]
        main(["compare", "--learners", *learners, "--on", "digits(tasks=2, task_length=40)", "--seeds", "0", "1",
              "--checkpoint-seconds", "0", "--jobs", str(2 * self.variant), "--out", str(self.folder / "out"), *FLAGS])  # fmt: skip

    def result(self) -> dict[str, Any]:
        out = self.folder / "out"
        all_jobs = {str(path.parent.relative_to(out)): run_result(path.parent) for path in out.rglob("settings.toml")}
        return {"jobs": all_jobs, "table": table_without_times(out / "table.csv"), "files": _outside_jobs(out)}


class SweepWork(Work):
    """`prequential sweep`, started again with the same command."""

    kind = "sweep"
    variants = 2

    def go(self, tell: Tell) -> None:
        from killing import fork_jobs

        from prequential.cli.app import main

        fork_jobs()
        method = 'method = "grid"' if self.variant else 'method = "random"\ntrials = 4'
        rates = "[0.01, 0.1]" if self.variant else "{ low = 0.01, high = 0.1, log = true }"
        settings = "".join(f"{name} = {value}\n" for name, value in SMALL.items() if name != "num_streams")
        file = self.folder / "sweep.toml"
        file.write_text(
            f'[sweep]\nname = "small"\n{method}\n[run]\ntasks = 2\ntask_length = 40\ncheckpoint_seconds = 0.0\n'
            f"[learner]\n{settings}[vary]\nlearning_rate = {rates}\nnum_streams = [1, 2]\n"
        )
        main(["sweep", str(file), "--jobs", str(2 * self.variant), "--out", str(self.folder / "out")])

    def result(self) -> dict[str, Any]:
        out = self.folder / "out"
        all_jobs = {str(path.parent.relative_to(out)): run_result(path.parent) for path in out.rglob("settings.toml")}
        return {
            "jobs": dict(sorted(all_jobs.items())),
            "trials": trials_without_times(out),
            "files": _outside_jobs(out),
        }


def table_without_times(path: Path) -> list[list[str]]:
    """The table of a comparison."""
    rows = list(csv.reader(path.read_text().splitlines()))
    timed = [i for i, name in enumerate(rows[0]) if "seconds" in name or "time" in name]
    return [[field for i, field in enumerate(row) if i not in timed] for row in rows]


def trials_without_times(out: Path) -> list[dict[str, Any]]:
    """The trials of a sweep; their numbers say how often it was begun."""
    rows = json.loads((out / "trials.json").read_text())["rows"]
    for row in rows:
        for of_seed in row["results"].values():
            of_seed.pop("seconds", None)
    return [{name: row[name] for name in ("state", "point", "values", "results")} for row in rows]


def _outside_jobs(out: Path) -> list[str]:
    all_jobs = {path.parent for path in out.rglob("settings.toml")}
    return [name for name in listing(out) if not any(job in (out / name).parents for job in all_jobs)]


class FeaturesWork(Work):
    """`prequential features` of a folder of photos, two of them broken."""

    kind = "features"
    variants = 2

    def go(self, tell: Tell) -> None:
        from prequential.cli.app import main

        size = ["--dtype", "float16" if self.variant else "float32", "--batch", "3"]
        photos, network = f"images:{self.shared / 'photos'}", ["--network", str(self.shared / "network")]
        main(["features", photos, str(self.folder / "out"), *network, *size])

    def result(self) -> dict[str, Any]:
        from prequential.streams.formats.feature_folder import FeatureStream

        out = self.folder / "out"
        stream = FeatureStream(out)
        stream.verify()
        content = {name: hashlib.sha256((out / name).read_bytes()).hexdigest()[:16] for name in listing(out)}
        return {"rows": len(stream), "files": content}


WORKS: dict[str, type[Work]] = {
    work.kind: work for work in (RunWork, LiveWork, AskedWork, CompareWork, SweepWork, FeaturesWork, SaveWork)
}


def make_shared(folder: Path) -> None:
    """Photos and a small network with random weights, for works that extract features."""
    import torch
    from PIL import Image
    from transformers import ResNetConfig, ResNetModel

    random = np.random.default_rng(0)
    for i in range(24):
        path = folder / "photos" / ("cat" if i % 2 else "dog") / f"{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (24 + i, 30, 3), dtype=np.uint8)).save(path)
        if i in (0, 9):
            path.write_bytes(path.read_bytes()[: 100 * i])
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    network: Any = ResNetModel
    network(config).save_pretrained(folder / "network")
    (folder / "network" / "preprocessor_config.json").write_text('{"size": 24}')


def import_everything(kinds: tuple[str, ...] = KINDS) -> None:
    """Imports what works need, without starting a thread: forked processes then have it."""
    import matplotlib
    import pyarrow.parquet  # noqa: F401
    import safetensors.numpy  # noqa: F401
    import torch

    import prequential.baselines
    import prequential.cli.app
    import prequential.comparisons.compare
    import prequential.runs.progress
    import prequential.runs.run
    import prequential.runs.show

    matplotlib.use("agg")
    torch.set_num_threads(1)
    if torch.get_num_interop_threads() != 1:  # it may be set once
        torch.set_num_interop_threads(1)
    if "sweep" in kinds:
        import optuna.samplers
        import optuna.storages._rdb.storage  # noqa: F401

        import prequential.sweeps.sweep
    if "features" in kinds:
        import transformers.models.resnet  # noqa: F401

        import prequential.features
        import prequential.features.command  # noqa: F401


def console() -> Console:
    """Where tables are printed, in full."""
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=160)


def memory_folder() -> str | None:
    """Where files are kept in memory, if there is such a place: nothing is measured that a disk would change."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def import_like(told: list[dict[str, Any]]) -> None:
    """Imports what a forked process had to import besides, so that the next need not."""
    for name in next((message["modules"] for message in told if "modules" in message), []):
        if name not in sys.modules and not name.startswith("_"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def without_pictures() -> None:
    """Leaves out pictures in this process: they take most of the time of a small run."""
    from prequential.comparisons import compare
    from prequential.runs import run, show

    patches: list[tuple[Any, str]] = [(run, "draw_run"), (compare, "_draw")]
    patches += [(show, name) for name in ("draw_run", "draw_calibration", "draw_tasks")]
    with contextlib.suppress(ImportError):  # sweeps are an extra
        from prequential.sweeps import trial_tables as sweep_tables

        patches += [(sweep_tables, name) for name in ("draw_settings", "draw_history", "draw_fronts")]
    for module, name in patches:
        setattr(module, name, _nothing)


def _nothing(*_: Any, **__: Any) -> None:
    pass


def commit_often() -> None:
    """Extraction saves after every batch, in this process, and closes a shard after some rows."""
    module: Any = importlib.import_module("prequential.features.extract")
    module.SECONDS_BETWEEN_COMMITS = -1.0


def _write_in_place() -> None:
    """A new file is no longer written under another name first."""
    from prequential.storage import files

    files.temporary_name = lambda path: path


def _acknowledge_before_writing() -> None:
    """The journal acknowledges an example and writes it with the next one."""
    from prequential.streams.journal.journal import Journal

    append: Any = Journal.append
    late: dict[int, tuple[np.ndarray, list[Any]]] = {}

    def append_late(journal: Journal, x: np.ndarray, y: Any, **_: Any) -> None:
        before = late.pop(id(journal), None)
        if before is None:
            late[id(journal)] = x, list(y)
        else:
            append(journal, np.concatenate([before[0], x]), [*before[1], *y])

    setattr(Journal, "append", append_late)  # noqa: B010


def _write_twice() -> None:
    """The journal writes every example a second time."""
    from prequential.streams.journal.journal import Journal

    append = Journal.append

    def append_twice(journal: Journal, x: np.ndarray, y: Any, **more: Any) -> None:
        append(journal, x, y, **more)
        append(journal, x, y, **more)

    setattr(Journal, "append", append_twice)  # noqa: B010


def _remember_in_memory() -> None:
    """What a learner is asked by id is written down nowhere."""
    from prequential.learners.home import Home

    setattr(Home, "write_events", _nothing)  # noqa: B010


def _forget_answers() -> None:
    """A learner that is opened again does not see which of its examples were the labels of what it was asked."""
    from prequential.learners import by_id

    setattr(by_id, "relearned", _nothing)  # noqa: B010


# Writers that are broken on purpose: the kills must find each of them out.
MUTANTS = {
    "write-in-place": _write_in_place,
    "acknowledge-before-writing": _acknowledge_before_writing,
    "write-twice": _write_twice,
    "remember-in-memory": _remember_in_memory,
    "forget-answers": _forget_answers,
}
