"""What an experiment leaves behind: `results.json` with all numbers, `result.md` to read."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from prequential.errors import BadInput
from prequential.experiments.experiment import CaptionedFigure, Outcome, Request, Results
from prequential.experiments.published import without_folders
from prequential.experiments.verdicts import Claim, claim_from_json
from prequential.runs.pool import available_cores
from prequential.storage.files import write_atomically
from prequential.storage.sealed import read_json, write_sealed


def show(directory: Path, console: Console) -> None:
    """Prints the results and the claims of an experiment that was run."""
    saved = read_results(directory)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in _headings(saved):
        table.add_column(heading, justify="right")
    for row in _rows(saved):
        table.add_row(*row)
    console.print(table)
    for claim in map(claim_from_json, saved["claims"]):
        console.print(f"{say_verdict(claim)}: {claim.says} {claim.found}", markup=False, soft_wrap=True)
    for failure in saved["failures"]:
        console.print(f"failed: {failure}", markup=False, soft_wrap=True)
    if missing := saved.get("missing"):
        console.print(f"not finished: {len(missing)} runs", markup=False, soft_wrap=True)
    names = ", ".join(f"{name}.png" for name in saved["figures"])
    console.print(f"results in {directory}: result.md, results.json, {names}", markup=False, soft_wrap=True)


def read_results(directory: Path) -> dict[str, Any]:
    """What an experiment has left behind as `results.json`."""
    path = directory / "results.json"
    if not path.is_file():
        raise BadInput(f"{directory} holds no results of an experiment: there is no results.json in it")
    saved = read_json(path)
    missing = [
        name for name in ("experiment", "outcomes", "claims", "figures", "failures", "command") if name not in saved
    ]
    if missing:
        raise BadInput(f"{path} is damaged: it holds no {missing[0]}")
    return saved


def write_results(
    name: str,
    experiment: ModuleType,
    results: Results,
    figures: dict[str, CaptionedFigure],
    claims: list[Claim],
    *,
    failures: list[str],
    missing: list[str],
    options: dict[str, Any],
    directory: Path,
) -> None:
    """Writes `results.json` and `result.md`."""
    request = results.request
    stream = without_folders(request.stream)
    saved = {
        "experiment": name,
        "scale": request.scale,
        "stream": stream,
        "seeds": request.seeds,
        "options": options,
        "command": _command(name, experiment, request, stream, options),
        "versions": {package: version(package) for package in ("prequential", "torch")},
        "commit": describe_commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "cores": available_cores(),
        "seconds": sum(o.seconds for o in results.outcomes),
        "outcomes": [_numbers(o) for o in results.outcomes],
        "figures": {figure: captioned.caption for figure, captioned in figures.items()},
        "claims": [asdict(claim) | {"holds": claim.holds} for claim in claims],
        "failures": failures,
        "missing": missing,
    }
    write_sealed(directory / "results.json", saved)
    write_atomically(directory / "result.md", _page(str(experiment.__doc__), saved, request).encode())


def describe_commit() -> str:
    """The commit of the package's code if it is a checkout, else its version."""
    folder = Path(__file__).parent
    try:
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--tags"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return version("prequential")
    return said.stdout.strip() if said.returncode == 0 and said.stdout.strip() else version("prequential")


def _numbers(outcome: Outcome) -> dict[str, Any]:
    kept = {name: getattr(outcome, name) for name in ("tags", "accuracy", "log_loss", "bits", "seconds", "macs")}
    tasks: dict[str, Any] = {n: outcome.summary[n] for n in ("first_tasks", "last_tasks") if n in outcome.summary}
    numbers: dict[str, Any] = {**kept, "examples": outcome.examples, **tasks, "measures": outcome.measures}
    # JSON has no NaN: learners that give no probabilities have no loss
    return {key: None if value != value else value for key, value in numbers.items()}


def _command(name: str, experiment: ModuleType, request: Request, stream: str, options: dict[str, Any]) -> str:
    parts = ["prequential experiment", name, f"--scale {request.scale}", f"--seeds {request.seeds}"]
    parts += [_flag(option, value) for option, value in request.reading.items()]
    if stream != experiment.STREAM:
        parts.append(f"--stream {shlex.quote(stream)}")
    parts += [f"--{option.replace('_', '-')} {value}" for option, value in options.items()]
    return " ".join(parts)


def _flag(option: str, value: Any) -> str:
    """An option of a stream as it is written on the command line.

    >>> _flag("label_batches", 100), _flag("features", ["a", "b"]), _flag("download", True)
    ('--label-batches 100', '--features a b', '--download')
    """
    values = value if isinstance(value, list) else [] if value is True else [value]
    return " ".join([f"--{option.replace('_', '-')}", *map(str, values)])


def _page(about: str, saved: dict[str, Any], request: Request) -> str:
    title, _, rest = about.strip().partition("\n")
    minutes = saved["seconds"] / 60
    data = request.data if "photos" in saved["stream"] else f"`{saved['stream']}`"
    cores = f"{saved['cores']} core{'s' * (saved['cores'] != 1)}"
    count = len(saved["outcomes"])
    runs = f"{count} runs" if not saved["missing"] else f"{count} of {count + len(saved['missing'])} runs finished"
    lines = [
        f"# {title}",
        "",
        rest.strip(),
        "",
        f"Run on {data}, scale {saved['scale']}:",
        "",
        "```text",
        saved["command"],
        "```",
        "",
        f"{runs}, {minutes:.0f} minutes of runs in sum, {cores}; {saved['date']}, commit {saved['commit']}.",
        "",
    ]
    for figure, says in saved["figures"].items():
        lines += [f"![{says}]({figure}.png)", "", says, ""]
    if saved["claims"]:
        lines += ["## What the paper says, and what was found", ""]
        lines += [*claims_table([claim_from_json(claim) for claim in saved["claims"]]), ""]
    headings = _headings(saved)
    lines += ["## All runs", "", f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    lines += [f"| {' | '.join(row)} |" for row in _rows(saved)]
    lines += [f"\nFailed: {failure}" for failure in saved["failures"]]
    if saved["missing"]:
        lines += ["", f"Not run yet: {'; '.join(saved['missing'])}."]
    return "\n".join(lines) + "\n"


def claims_table(claims: Sequence[Claim]) -> list[str]:
    """Claims as lines of a Markdown table."""
    lines = ["| claim | measure, and when it holds | found here | verdict |", "|---|---|---|---|"]
    for claim in claims:
        said = f"{claim.says}<br>“{claim.paper}”" if claim.paper else claim.says
        how = f"{claim.measure}: {claim.criterion}" if claim.criterion else ""
        lines.append(f"| {said} | {how} | {claim.found}{_say_effect(claim)} | {say_verdict(claim)} |")
    return lines


def _say_effect(claim: Claim) -> str:
    """The number that decides, with its interval over the seeds."""
    effect = claim.effect
    if not effect or effect.get("mean") is None:
        return ""
    mean, low, high, least = (effect[name] for name in ("mean", "low", "high", "least"))
    over = f" over {effect['seeds']} {effect.get('of', 'seeds')}"
    interval = "" if low is None else f" [{low:.3g}, {high:.3g}]{over}"
    return f"; effect {mean:.3g}{interval}, needed {least:g}"


def say_verdict(claim: Claim) -> str:
    return f"{claim.verdict}: {claim.reason}" if claim.reason else claim.verdict


def _tags(saved: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(tag for outcome in saved["outcomes"] for tag in outcome["tags"]))


def _headings(saved: dict[str, Any]) -> list[str]:
    tasks = ["first ten tasks", "last ten"] if any("first_tasks" in o for o in saved["outcomes"]) else []
    return [*_tags(saved), "examples", "accuracy", "nats", *tasks, "MACs", "seconds"]


def _rows(saved: dict[str, Any]) -> list[list[str]]:
    rows = []
    for outcome in saved["outcomes"]:
        loss, macs = outcome["log_loss"], outcome["macs"]
        row = [str(outcome["tags"].get(tag, "")) for tag in _tags(saved)]
        row += [f"{outcome['examples']:,}", f"{outcome['accuracy']:.3f}", "" if loss is None else f"{loss:.3f}"]
        if "first ten tasks" in _headings(saved):
            parts = [outcome.get(part) for part in ("first_tasks", "last_tasks")]
            row += ["" if part is None else f"{part['accuracy']:.3f}" for part in parts]
        rows.append([*row, "" if macs is None else f"{macs:.1e}", f"{outcome['seconds']:.0f}"])
    return rows
