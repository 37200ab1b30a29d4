"""Damaged data files of every kind that is read; `files.py` makes them."""

from __future__ import annotations

import random
from pathlib import Path

import files
from judging import Outcome, judge


class Cases:
    """Each case damages the file of one kind and reads it as a run would."""

    block = 1

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder = seed, folder / "files"
        self.made = files.make_all(self.folder)
        self.names = list(self.made)
        self.whole = {name: (self.folder / name / good.file).read_bytes() for name, good in self.made.items()}

    def run(self, number: int) -> Outcome:
        name = self.names[number % len(self.names)]
        good, path = self.made[name], self.folder / name / self.made[name].file
        done, data = files.mutate(self.whole[name], random.Random(f"{self.seed} {name} {number // len(self.names)}"))
        spec = good.spec.format(self.folder / name) or str(path)
        path.write_bytes(data)
        try:
            return judge(f"{name}: {done}", lambda: files.read_all(spec, good.options))
        finally:
            path.write_bytes(self.whole[name])
