"""Results of experiments as they are stored, to decide claims again without the runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prequential.errors import BadInput, BadSetting
from prequential.experiments import NAMES, find_experiment
from prequential.experiments.experiment import Outcome, Request, Results
from prequential.experiments.result_pages import read_results
from prequential.experiments.verdicts import Claim
from prequential.registry import current_spec
from prequential.streams.spec import StreamSpec

SIZES = ("small", "medium", "paper")


def read_all(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """The stored results in these folders or in the folders there, each with its `folder`, in the order of `NAMES`.

    An experiment on other data than its usual kind stands by itself, behind the one on this. Of several results on one
    kind of data those with more than one seed go first, as one seed decides nothing; of these the one of the largest
    scale is taken, and then the one with most runs.
    """
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for saved in read_every(folders):
        key = saved["experiment"], other_data(saved)
        if key not in best or _size(saved) > _size(best[key]):
            best[key] = saved
    return [best[key] for key in sorted(best, key=lambda key: (NAMES.index(key[0]), key[1]))]


def other_data(saved: dict[str, Any]) -> str:
    """The kind of data of stored results; empty where it is the usual one of the experiment."""
    kind = StreamSpec.parse(saved.get("stream", "")).name
    return "" if kind in ("", find_experiment(saved["experiment"]).STREAM) else kind


def heading(saved: dict[str, Any]) -> str:
    """The experiment, and on which data if it is not the usual one."""
    kind = other_data(saved)
    return f"{saved['experiment']} on {kind}" if kind else str(saved["experiment"])


def read_every(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """All stored results in these folders or in the folders there, each with its `folder`."""
    folders = list(folders)
    directories = sorted(
        {
            path.parent
            for folder in folders
            for path in (folder / "results.json", *folder.glob("*/results.json"))
            if path.is_file()
        }
    )
    if not directories:
        raise BadInput(f"there are no results of experiments in {', '.join(map(str, folders))}")
    return [read_results(directory) | {"folder": directory} for directory in directories]


def _size(saved: dict[str, Any]) -> tuple[bool, int, int]:
    seeds = {outcome["tags"].get("seed") for outcome in saved["outcomes"]}
    return len(seeds) > 1, SIZES.index(saved.get("scale", "small")), len(saved["outcomes"])


def stored_results(saved: dict[str, Any]) -> Results:
    """What came out of an experiment, without its records: figures cannot be drawn from it."""
    request = Request(scale=saved.get("scale", "small"), seeds=saved.get("seeds", 1), stream=saved.get("stream", ""))
    outcomes = []
    for numbers in saved["outcomes"]:
        tags = {tag: _current(value) if tag == "learner" else value for tag, value in numbers["tags"].items()}
        parts = {name: numbers[name] for name in ("first_tasks", "last_tasks") if name in numbers}
        loss, bits = (float("nan") if numbers[name] is None else numbers[name] for name in ("log_loss", "bits"))
        outcomes.append(
            Outcome(
                tags=tags,
                accuracy=numbers["accuracy"],
                log_loss=loss,
                bits=bits,
                seconds=numbers["seconds"],
                macs=numbers["macs"],
                summary={"count": numbers["examples"], **parts},
                directory=saved["folder"],
                measures=numbers.get("measures", {}),
            )
        )
    return Results(tuple(outcomes), request)


def _current(learner: str) -> str:
    """A tag of a learner with the names that its options have now; some tags are names for people."""
    try:
        return current_spec(learner)
    except BadSetting:
        return learner


def decided(saved: dict[str, Any]) -> list[Claim]:
    """The claims of an experiment, decided by today's criteria from the numbers that are stored."""
    claims: list[Claim] = find_experiment(saved["experiment"]).claims(stored_results(saved))
    return claims
