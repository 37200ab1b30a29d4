"""The command line, in this process: changed arguments, and directories in which something is changed."""

from __future__ import annotations

import hashlib
import io
import os
import random
import shutil
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import files
import fuzz_toml
import numpy as np
from judging import TEXTS, Outcome, judge_sentence, place, safe

from prequential.cli.app import main

TINY = [
    "--width",
    "8",
    "--num-query-heads",
    "2",
    "--depth",
    "1",
    "--window",
    "8",
    "--chunk-size",
    "5",
    "--num-streams",
    "2",
    "--threads",
    "1",
]
DIGITS = ["--tasks", "1", "--task-length", "10"]
NOT_TOUCHED = (".lock", "log.txt", "progress.json")  # what a refused command may write: that it was there
SWEEP = """\
[sweep]
name = "small"
method = "grid"
objectives = ["accuracy"]

[run]
stream = "digits(tasks=1, task_length=10)"
learner = "majority"
threads = 1

[vary]
majority.window = [2, 5]
"""
FLAGS = (
    "--width", "--learning-rate", "--depth", "--num-query-heads", "--window", "--num-streams", "--classes", "--examples", "--label", "--features", "--time", "--group", "--seed",
    "--learner", "--stream", "--device", "--method", "--ema-decay", "--beta1", "--precision", "--on-bad-row", "--checkpoint-seconds", "--config", "--out",
    "--learners", "--on", "--seeds", "--trials", "--storage", "--figures", "--objectives", "--batch", "--dtype", "--unknown", "--help", "--version", "-x",
    "--no-async-steps", "--use-input", "--ways", "--images", "--threads", "--trust",
)  # fmt: skip
VALUES = (
    *TEXTS, "\udcff", "kalmann", "river:linear_model.LogisticRegression(l2=nan)", "river:utils.Window", "sklearn:utils.Bunch", "sklearn:svm.SVC",
    "majority(window=0)", "majority(window=1e9)", "er(hidden_sizes=[-1])", "er(batch=2", "kalman(precision=float8)", "digits(tasks=-1)", "digits(order=none)",
    "emnist:nowhere", "cifar100:.", "features:.", "photos(length=-5)", "sqlite:///nowhere/x.db", "journal:/dev/full", "redis://localhost:1",
    "nowhere.csv", ".", "run", "cmp", "a.csv", "a.npz", "a.csv(delimiter=';;')", "/dev/null", "/proc/self/mem", "/dev/full", "table1", "cuda:99", "auto",
    "accuracy", "float32", "transformer(width=7)", "2", "5",
)  # fmt: skip


class Cases:
    """Each case runs one command; where it is refused, all files are as before."""

    block = 1

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder, self.kept = seed, folder / "work", folder / "kept"
        os.environ.update(HF_HUB_OFFLINE="1", COLUMNS="200")
        without_pictures()
        self.folder.mkdir(exist_ok=True)
        os.chdir(self.folder)
        np.savez("a.npz", x=np.random.default_rng(0).normal(size=(12, 3)), y=np.arange(12) % 3)
        Path("a.csv").write_text("age,city,label\n" + "".join(f"{i},town {i % 3},{i % 2}\n" for i in range(12)))
        Path("sweep.toml").write_text(SWEEP)
        Path("settings.toml").write_text("learner = 'majority'\ntasks = 1\ntask_length = 10\n[learner]\nwidth = 8\n")
        for arguments in (
            ["run", *TINY, *DIGITS, "--out", "run"],
            ["run", "--stream", "a.csv", "--learner", "majority", "--out", "csv"],
            [
                "compare",
                "--learners",
                "last-label",
                "majority",
                "--on",
                "digits(tasks=1, task_length=10)",
                "--jobs",
                "0",
                "--out",
                "cmp",
            ],
            ["sweep", "sweep.toml", "--jobs", "0", "--out", "swept"],
        ):
            code, said = command(arguments)
            assert code == 0, f"{arguments}: {code} {said}"
        shutil.copytree(self.folder, self.kept)
        self.before = contents(self.folder)

    def run(self, number: int) -> Outcome:
        rng = random.Random(f"{self.seed} cli {number}")
        arguments = list(rng.choice(COMMANDS))
        done = []
        if rng.random() < 0.5:
            done.append(self._damage(rng, arguments))
        if not done or rng.random() < 0.3:
            for _ in range(rng.choice((1, 1, 1, 2))):
                change(arguments, rng)
        what = f"{' '.join(arguments)[:300]!r} {' '.join(done)}"
        before = contents(self.folder)
        try:
            code, said = command(arguments)
            outcome = judged(what, code, said)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            outcome = Outcome("failed", what, f"raw {type(error).__name__}: {safe(error)[:200]} {place(error)}")
        after = contents(self.folder)
        if outcome.kind == "refused" and before != after:
            changed = sorted(set(before.items()) ^ set(after.items()))
            outcome = Outcome(
                "failed", what, f"refused ({outcome.why}), but changed {[str(name) for name, _ in changed][:6]}"
            )
        if after != self.before:
            shutil.rmtree(self.folder)
            shutil.copytree(self.kept, self.folder, symlinks=True)
            os.chdir(self.folder)
        return outcome

    def _damage(self, rng: random.Random, arguments: list[str]) -> str:
        """Changes one file, most likely one that the command reads."""
        root = next((self.folder / name for name in arguments if name in ("run", "csv", "cmp", "swept")), self.folder)
        paths = sorted(path for path in root.rglob("*") if path.is_file() and path.suffix not in (".png", ".svg"))
        path = rng.choice(paths)
        name = path.relative_to(self.folder)
        match rng.randrange(8):
            case 0:
                path.unlink()
                return f"{name} removed"
            case 1:
                path.write_bytes(b"")
                return f"{name} emptied"
            case 2:
                path.unlink()
                path.mkdir()
                return f"{name} is a directory"
            case 3:
                other = rng.choice(paths)
                path.write_bytes(other.read_bytes())
                return f"{name} is {other.relative_to(self.folder)}"
        data = path.read_bytes()
        if path.suffix == ".toml":
            said, data = fuzz_toml.change(data, rng)
        elif data:
            said, data = files.mutate(data, rng)
        else:
            said, data = "filled", rng.randbytes(20)
        path.write_bytes(data)
        return f"{name}: {said}"


COMMANDS: tuple[list[str], ...] = (
    ["run", *TINY, *DIGITS, "--out", "new"],
    ["run", *DIGITS, "--learner", "majority", "--out", "new"],
    ["run", "--stream", "a.csv", "--learner", "kalman", "--out", "new"],
    ["run", "--stream", "a.npz", "--learner", "er", "--out", "new"],
    ["run", "--config", "settings.toml", "--out", "new"],
    ["resume", "run"],
    ["resume", "csv"],
    ["show", "run"],
    ["show", "csv"],
    ["compare", "--out", "cmp", "--jobs", "0"],
    ["compare", "--learners", "last-label", "--on", "a.npz", "--jobs", "0", "--out", "new"],
    ["sweep", "sweep.toml", "--jobs", "0", "--out", "swept"],
    ["report", "run"],
    ["report", "cmp", "csv", "--out", "new.html"],
    ["pareto", "swept"],
    ["pareto", "cmp", "--objectives", "accuracy", "seconds"],
    ["features", "digits(images=true)", "new", "--network", "nowhere"],
    ["features", "a.csv", "new", "--network", "nowhere"],
    ["experiment", "list"],
    ["experiment", "claims", ".", "--out", "new.md"],
    ["experiment", "nothing"],
)


def change(arguments: list[str], rng: random.Random) -> None:
    """One change of the arguments behind the command."""
    if arguments[0] == "experiment":  # the real ones take minutes
        arguments.insert(rng.randrange(2, len(arguments) + 1), rng.choice(("--seeds", "--scale", "--unknown", *VALUES)))
        return
    i = rng.randrange(1, len(arguments) + 1)
    match rng.randrange(6):
        case 0 if i < len(arguments) and arguments[i] not in ("--jobs", "--network"):
            del arguments[i]
        case 1:
            arguments.insert(i, rng.choice(VALUES))
        case 2 if i < len(arguments) and arguments[i - 1] not in ("--jobs", "--network"):
            arguments[i] = rng.choice(VALUES)
        case 3:
            arguments.append(rng.choice(FLAGS))
        case _:
            arguments += [rng.choice(FLAGS), rng.choice(VALUES)]


def command(arguments: list[str]) -> tuple[Any, str]:
    """Runs a command; its exit code and what it said on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            main(arguments)
            code: Any = 0
        except SystemExit as end:
            code = end.code
    return code, err.getvalue() or ("rows failed" if code == 1 and "failed" in out.getvalue() else "")


def judged(what: str, code: Any, said: str) -> Outcome:
    if code in (0, None):
        return Outcome("accepted", what)
    if code == 1 and said == "rows failed":
        return Outcome("accepted", what)  # the table says why
    if code not in (1, 2):
        return Outcome("failed", what, f"exit code {code}: {said[-600:]}")
    return judge_sentence(what, said.rstrip("\n"))


def contents(folder: Path) -> dict[Path, str]:
    """A digest of each file."""
    found = {}
    for path in folder.rglob("*"):
        if path.name not in NOT_TOUCHED and not path.name.endswith((".db", ".db-journal")):
            found[path] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return found


def without_pictures() -> None:
    """Drawing takes most of the time of a small run, and takes no input."""
    from prequential.comparisons import compare
    from prequential.runs import run, show
    from prequential.sweeps import trial_tables as sweep_tables

    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    for module, names in (
        (run, ("draw_run",)),
        (show, ("draw_run",)),
        (compare, ("_draw",)),
        (sweep_tables, ("draw_settings", "draw_history", "draw_fronts")),
    ):
        for name in names:
            if hasattr(module, name):
                setattr(module, name, nothing)
