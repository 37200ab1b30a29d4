"""TOML files of settings, sweeps and comparisons, changed in their bytes, their names and their values."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

from judging import Outcome, judge

from prequential.comparisons.compare import Plan
from prequential.comparisons.compare import read_plan as read_comparison
from prequential.runs.run_settings import RunSettings, read_settings, write_settings
from prequential.settings import Settings
from prequential.sweeps.plan import read_sweep

SWEEP = """\
[sweep]
name = "small"
method = "grid"
trials = 4
objectives = ["accuracy", "macs"]
seeds = [0, 1]

[run]
stream = "digits(tasks=1, task_length=20)"
learner = "transformer"
examples = 5

[learner]
width = 8
num_query_heads = 2

[vary]
learning_rate = {low = 0.01, high = 0.3, log = true, points = 2}
num_streams = [1, 2]
learner = ["transformer", "er", "river:naive_bayes.GaussianNB"]
er.batch = [2, 4]
"""
VALUES = (
    "0", "-1", "1", "3", "nan", "inf", "-inf", "1e309", "9" * 30, "9" * 5000, "true", "false", '""', '"nan"', '"\\u0000"', '"\\uD800"', "[]", "[[]]",
    "{}", "{a = 1}", "[1, 'a', {}]", "2020-01-01", "12:00:00", "1979-05-27T07:32:00Z", "0x10", "0.5", "'a(b=c)'", "'river:x.y'", "'" + "x" * 5000 + "'",
    "{low = 1, high = 0}", "{low = 0, high = 1, points = 1000000000}", "{low = 0, high = 1, step = 1e-300}", "{low = nan, high = 1}", "[nan]",
    "[" * 200 + "]" * 200, "'none'", "'\U0001f4a5'",
)  # fmt: skip
NAMES = (
    "width",
    "widht",
    "stream",
    "seed",
    "out",
    "learner",
    "run",
    "er.rate",
    "''",
    '"a\\nb"',
    "x" * 300,
    "trials",
    "storage",
    "a.b.c.d",
    "compare",
)


class Cases:
    """Each case reads a changed file the way its command does, up to the point where work would begin."""

    block = 1

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder = seed, folder / "toml"
        self.folder.mkdir(exist_ok=True)
        tiny = Settings(width=8, num_query_heads=2, depth=1)
        plan = Plan(
            learners=("last-label", "er"), streams=("digits(tasks=2)",), seeds=(0, 1), run=RunSettings(), settings=tiny
        )
        plan.write(self.folder)
        whole = write_settings(RunSettings(examples=5, features=["a", "b"], out=Path("o")), tiny).encode()
        self.texts = [
            ("settings", whole),
            ("sweep", SWEEP.encode()),
            ("compare", (self.folder / "compare.toml").read_bytes()),
        ]

    def run(self, number: int) -> Outcome:
        rng = random.Random(f"{self.seed} toml {number}")
        kind, text = self.texts[number % len(self.texts)]
        done = []
        for _ in range(rng.choice((1, 1, 2, 3))):
            what, text = change(text, rng)
            done.append(what)
        path = self.folder / f"{kind}.toml"
        path.write_bytes(text)
        return judge(f"{kind}: {', '.join(done)}", lambda: READERS[kind](path))


def _read_settings(path: Path) -> None:
    run, learner = read_settings(path)
    RunSettings(**run)
    Settings(**learner)


def _read_sweep(path: Path) -> None:
    plan = read_sweep(path)
    plan.identity()


READERS: dict[str, Any] = {
    "settings": _read_settings,
    "sweep": _read_sweep,
    "compare": lambda path: read_comparison(path.parent),
}


def change(text: bytes, rng: random.Random) -> tuple[str, bytes]:
    """The text with one change, and what that was."""
    lines = text.split(b"\n")
    i = rng.randrange(len(lines))
    match rng.randrange(9):
        case 0:
            at = rng.randrange(len(text) + 1)
            some = rng.choice(
                (
                    b"\xff",
                    b"\x00",
                    b"[",
                    b"]",
                    b'"',
                    b"'",
                    b"=",
                    b"\n",
                    b"#",
                    b"{",
                    b"\xef\xbb\xbf",
                    b".",
                    b"\\",
                    rng.randbytes(3),
                )
            )
            return f"{some!r} inserted at {at}", text[:at] + some + text[at:]
        case 1:
            at = rng.randrange(len(text) + 1)
            return f"cut at {at}", text[:at]
        case 2:
            at = rng.randrange(max(1, len(text) - 8))
            return f"8 bytes removed at {at}", text[:at] + text[at + rng.randrange(1, 8) :]
        case 3:
            return f"line {i} removed", b"\n".join(lines[:i] + lines[i + 1 :])
        case 4:
            return f"line {i} doubled", b"\n".join([*lines[:i], lines[i], *lines[i:]])
        case 5:
            j = rng.randrange(len(lines))
            lines[i], lines[j] = lines[j], lines[i]
            return f"lines {i} and {j} swapped", b"\n".join(lines)
        case 6:
            name = rng.choice(NAMES)
            fresh = f"{name} = {rng.choice(VALUES)}".encode("utf-8", "surrogatepass")
            return f"{fresh[:60]!r} at line {i}", b"\n".join([*lines[:i], fresh, *lines[i:]])
    value = rng.choice(VALUES)
    if b"=" in lines[i]:
        lines[i] = lines[i].split(b"=")[0] + b"= " + value.encode("utf-8", "surrogatepass")
    else:
        lines[i] = re.sub(rb"\w+", rng.choice(NAMES).encode(), lines[i])
    return f"line {i} is {lines[i][:60]!r}", b"\n".join(lines)
