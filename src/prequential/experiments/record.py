"""The record of the reproduction: the paper's figures and tables with ours beside them, and all numbers in one file."""

from __future__ import annotations

import json
import os
import textwrap
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prequential.experiments import NAMES, find_experiment
from prequential.experiments.costs import GPU_MACS_PER_SECOND, gpu_hours, macs_of
from prequential.experiments.experiment import Request
from prequential.experiments.remaining import remaining_table
from prequential.experiments.result_pages import say_verdict
from prequential.experiments.stored import decided, other_data, read_all
from prequential.storage.files import write_atomically


@dataclass(frozen=True)
class Exhibit:
    """A figure or a table of the paper."""

    number: str
    shows: str
    size: str
    """The size of the paper's."""
    experiment: str = ""
    figures: tuple[str, ...] = ()
    """Ours, by name."""
    why_not: str = ""
    """Why there is none of ours."""


CLOC = "37,093,769 photographs of CLOC, ResNet-50 features, 4 blocks, D 1024, C 512, S 256"
EMNIST = "100 tasks of 1000, 4 blocks, D 256, E 8"
EXHIBITS = (
    Exhibit(
        "Figure 1, and its log-loss in the appendix",
        "Instantaneous and averaged error and log-loss in the first and the last ten tasks of Split-EMNIST.",
        f"{EMNIST}, 200 data seeds",
        "split-emnist",
        ("examples",),
    ),
    Exhibit(
        "Figure 2",
        "Performance per task, and within a task by the number of the task.",
        f"{EMNIST}, 200 data seeds",
        "split-emnist",
        ("tasks", "within"),
    ),
    Exhibit(
        "Figure 3",
        "Average accuracy by the amount of replay and the learning rate on Split-EMNIST.",
        "100 tasks of 1000",
        "split-emnist-replay",
        ("replay",),
    ),
    Exhibit(
        "Section 4, 2-token on Split-EMNIST",
        "2-token learns in the same way, but slower (text; the paper draws no figure).",
        EMNIST,
        "split-emnist-two-token",
        ("curves", "tasks"),
    ),
    Exhibit(
        "Figure 4",
        "Average accuracy over CLOC with frozen features: the transformer, without images, without attention, an oracle.",
        f"{CLOC}; the best of a cube of 250",
        "cloc-features",
        ("curves", "latest"),
    ),
    Exhibit("Table 1", "Average accuracy on CLOC of all methods.", CLOC, "cloc-table", ("table", "latest", "tuning")),
    Exhibit(
        "Figure 5",
        "Gradient updates stopped at several positions.",
        f"{CLOC}; 6 positions",
        "cloc-stopping",
        ("stopping",),
    ),
    Exhibit(
        "Figure 6, left; Figure 9; 2-token in the appendix",
        "Sensitivity to the attention window C, by learning rate and at the best of seven rates, for pi and 2-token.",
        f"{CLOC}; seven rates",
        "cloc-window",
        ("rates", "best", "rates-two-token"),
    ),
    Exhibit(
        "Figure 6, right; Figure 10; 2-token in the appendix",
        "Sensitivity to the number of replay streams E, by learning rate and at the best of seven rates.",
        f"{CLOC}; seven rates",
        "cloc-streams",
        ("rates", "best", "rates-two-token"),
    ),
    Exhibit(
        "Figure 7",
        "Pareto fronts of average accuracy over multiply-accumulates.",
        "37,093,769 photographs, 250 settings a method",
        "cloc-pareto",
        ("pareto",),
    ),
    Exhibit(
        "Figure 8",
        "2-token improves in steps that depend on the seed, pi smoothly.",
        "10,000,000 photographs, 8 and 4 blocks, D 1024",
        "cloc-two-token",
        ("phases",),
    ),
    Exhibit(
        "Figure 11",
        "CLOC with the image network learned from scratch, beside frozen features.",
        "37,093,769 photographs of 160 × 160, ConvNeXt-T, D 1024, C 2048, E 8",
        "cloc-scratch",
        ("scratch", "variants"),
    ),
    Exhibit("Figure 12, left", "Larger models are better.", f"{CLOC}; seven rates", "cloc-width", ("rates", "best")),
    Exhibit(
        "Figure 12, right", "The chunk size matters little.", f"{CLOC}; seven rates", "cloc-chunk", ("rates", "best")
    ),
    Exhibit(
        "Figure 12, left: the base model",
        "The paper's base model beside a small one.",
        f"{CLOC}; seven rates",
        "cloc-base",
        ("curves", "latest"),
    ),
    Exhibit(
        "Appendix, CIFAR-100 (three figures)",
        "Split-CIFAR-100: performance over time, per task, and within a task.",
        "100 tasks of 5000, VGG++, E 20",
        "split-cifar",
        ("examples", "tasks", "within"),
    ),
    Exhibit(
        "Appendix, oracle",
        "How often the label is among the last W.",
        "37,093,769 photographs",
        "cloc-oracle",
        ("oracle",),
    ),
    Exhibit(
        "Appendix, other features",
        "The same sensitivities with features of MAE ViT-B.",
        "37,093,769 photographs, four sweeps",
        why_not="`photos` has one kind of features, and CLOC's photographs are not here.",
    ),
    Exhibit(
        "Appendix, other task lengths",
        "Split-EMNIST with tasks of other lengths (text and captions).",
        "100 tasks of 300, 1000 and 3000",
        "split-emnist-lengths",
        ("lengths", "tasks"),
    ),
)
NOT_IN_THE_PAPER = ("split-emnist-mixed", "description-length")
HEAD = """\
# The paper's figures and tables, and ours

`prequential experiment record results --out docs/reproduction.md` writes this page from the stored results; all numbers
are in `all.json` beside them. Nothing here ran on CLOC, whose photographs were not at hand: `photos` is a stand-in for
it ([streams.md](streams.md#the-papers-streams)), and so are real images on real photo records
([streams.md](streams.md#real-images-on-real-records)). The criteria and the numbers behind the verdicts are in
[claims.md](claims.md).
"""


def write_record(folders: list[Path], page: Path) -> Path:
    """Writes the page, and all numbers to `all.json` in the first folder; returns where they are."""
    found = read_all(folders)
    stored = {saved["experiment"]: saved for saved in found if not other_data(saved)}
    lines, shown = [HEAD], set()
    for exhibit in EXHIBITS:
        saved = stored.get(exhibit.experiment)
        lines += _exhibit(exhibit, saved, page, claims=exhibit.experiment not in shown)
        shown.add(exhibit.experiment)
    of_experiment = {exhibit.experiment: exhibit for exhibit in reversed(EXHIBITS)}
    for saved in found:
        if (kind := other_data(saved)) and saved["experiment"] in of_experiment:
            exhibit = of_experiment[saved["experiment"]]
            lines += _exhibit(replace(exhibit, number=f"{exhibit.number}: on {kind}"), saved, page)
    lines += ["## Beyond the paper", ""]
    for name in NOT_IN_THE_PAPER:
        if name in stored:
            shows = " ".join(str(find_experiment(name).__doc__).split("\n\n")[0].split())
            figures = tuple(stored[name]["figures"])
            lines += _exhibit(
                Exhibit(f"`{name}`", shows, "not in the paper", name, figures), stored[name], page, level=3
            )
    lines += remaining_table(folders)
    lines += _costs(stored)
    write_atomically(page, ("\n".join(map(_wrapped, lines)).rstrip() + "\n").encode())
    numbers = folders[0] / "all.json"
    write_atomically(numbers, (json.dumps(_numbers(found), indent=1, ensure_ascii=False) + "\n").encode())
    return numbers


def _exhibit(
    exhibit: Exhibit, saved: dict[str, Any] | None, page: Path, *, level: int = 2, claims: bool = True
) -> list[str]:
    lines = [f"{'#' * level} {exhibit.number}", "", exhibit.shows, ""]
    if saved is None:
        why = exhibit.why_not or f"`{exhibit.experiment}` has not been run."
        return [*lines, f"- the paper: {exhibit.size}", f"- ours: none. {why}", ""]
    folder = Path(os.path.relpath(saved["folder"], page.parent))
    for figure in exhibit.figures:
        if (saved["folder"] / f"{figure}.png").is_file():
            lines += [f"![{figure}]({(folder / figure).as_posix()}.png)", ""]
            lines += [saved["figures"][figure], ""] if figure in saved["figures"] else []
    lines += [
        f"- the paper: {exhibit.size}",
        f"- ours: {_size(saved)} ([{exhibit.experiment}]({(folder / 'result.md').as_posix()}))",
    ]
    for claim in decided(saved) if claims else ():
        lines.append(f"- {claim.says} **{claim.verdict}**{': ' if claim.reason else ''}{claim.reason}")
    return [*lines, ""]


def _wrapped(line: str) -> str:
    """A paragraph or the item of a list in lines of the usual width; rows of tables and pictures stay as they are."""
    if "\n" in line or line.startswith(("|", "!", "#")):
        return line
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _size(saved: dict[str, Any]) -> str:
    """How large our experiment was, in words."""
    lengths = sorted({outcome["examples"] for outcome in saved["outcomes"]})
    examples = " to ".join(dict.fromkeys((f"{lengths[0]:,}", f"{lengths[-1]:,}")))
    seeds = len({outcome["tags"].get("seed", 0) for outcome in saved["outcomes"]})
    count = len(saved["outcomes"])
    missing = f" of {count + len(saved['missing'])}" if saved.get("missing") else ""
    hours = sum(outcome["seconds"] for outcome in saved["outcomes"]) / 3600
    when = f", {saved['date']}, commit {saved['commit']}" if "commit" in saved else ", an earlier version"
    return (
        f"`{saved['command']}`: {examples} examples, {seeds} seed{'s' * (seeds > 1)}, {count}{missing} run{'s' * (count > 1)}, "
        f"{hours:.1f} hours of a core{when}"
    )


def _costs(stored: dict[str, dict[str, Any]]) -> list[str]:
    """What was not run at the paper's size, and what it would cost."""
    lines = [
        "## What was not run at the paper's size, and what it would cost",
        "",
        "Multiply-accumulates of the transformers, by the counter of the models, one seed; GPU hours at the rate of the",
        f"paper, which names 12 hours for 10¹⁷ ({GPU_MACS_PER_SECOND:.1e} a second). Baselines are not counted.",
        "",
        "| experiment | runs | MACs in all | GPU hours | of the largest run | run here |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name in (name for name in NAMES if name not in NOT_IN_THE_PAPER):
        experiment = find_experiment(name)
        saved = stored.get(name)
        if saved is not None and saved["scale"] == "paper" and not saved.get("missing"):
            continue
        request = Request(scale="paper", seeds=1, stream=experiment.STREAM)
        macs = [cost for trial in experiment.trials(request) if (cost := macs_of(trial, request)) is not None]
        if not macs:
            continue
        here = (
            "no" if saved is None else f"{saved['scale']}, {max(o['examples'] for o in saved['outcomes']):,} examples"
        )
        total, largest = gpu_hours(sum(macs)), gpu_hours(max(macs))
        lines.append(f"| `{name}` | {len(macs)} | {sum(macs):.1e} | {total:,.2f} | {largest:,.2f} | {here} |")
    return [*lines, ""]


def _numbers(found: list[dict[str, Any]]) -> dict[str, Any]:
    """All numbers of all experiments."""
    kept = ("experiment", "scale", "stream", "seeds", "command", "commit", "date", "versions", "cores", "seconds")
    return {
        "experiments": [
            {
                **{name: saved[name] for name in kept if name in saved},
                "missing": saved.get("missing", []),
                "failures": saved["failures"],
                "claims": [asdict(claim) | {"verdict_in_words": say_verdict(claim)} for claim in decided(saved)],
                "runs": saved["outcomes"],
            }
            for saved in found
        ]
    }
