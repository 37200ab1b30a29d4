"""Runs that several experiments need are made once: each looks for them in the folders beside its own."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prequential.errors import PrequentialError
from prequential.registry import TRANSFORMERS
from prequential.runs.job import read_result
from prequential.runs.run_settings import MAY_CHANGE, RunSettings, read_stored_settings
from prequential.settings import Settings
from prequential.specs import parse_call


def key_of(run: RunSettings, learner: Settings) -> str:
    """What a run's results depend on, as text: two runs with the same key have the same results.

    >>> plain = Settings(method="paper", recent_window=0)
    >>> with_options = RunSettings(stream="digits", learner="no-attention(method=paper,recent_window=0)")
    >>> key_of(RunSettings(stream="digits"), plain.changed(window=0)) == key_of(with_options, Settings())
    True
    """
    name, options = parse_call(run.learner)
    depends: dict[str, Any] = {"seed": learner.seed}
    if name in TRANSFORMERS:
        depends = asdict(learner.changed(**TRANSFORMERS[name], **options))
        name, options = "transformer", {}
    settings = {**asdict(run), **depends, "learner": name, "options": options}
    return json.dumps({k: v for k, v in settings.items() if k not in MAY_CHANGE}, sort_keys=True, default=str)


def finished_runs(directory: Path) -> dict[str, Path]:
    """The finished runs of the experiments beside this one, by what their results depend on."""
    found = {}
    for settings in sorted(directory.resolve().parent.glob("*/runs/*/settings.toml")):
        folder = settings.parent
        if folder.parent.parent == directory.resolve() or folder.resolve() != folder:
            continue
        try:
            if read_result(folder)["state"] == "finished":
                run, learner = read_stored_settings(settings)
                found[key_of(RunSettings(**run), Settings(**learner))] = folder
        except PrequentialError:  # damaged, or of a version that is not known: it is run again
            continue
    return found
