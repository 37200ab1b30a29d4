"""What came out of a comparison, as tables: Markdown, CSV, LaTeX, and on the screen."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from prequential.evaluation.scores import Scores
from prequential.runs.formatting import format_metric
from prequential.runs.job import read_result

# The columns: heading, key, and whether more is better (None: neither).
COLUMNS: tuple[tuple[str, str, bool | None], ...] = (
    ("accuracy", "accuracy", True),
    ("balanced", "balanced_accuracy", True),
    ("kappa", "kappa", True),
    ("kappa T", "kappa_temporal", True),
    ("log-loss", "log_loss", False),
    ("bits", "bits", False),
    ("of uniform", "compression", False),
    ("time", "seconds", None),
    ("MACs", "macs", None),
)
# Columns that are left out on a terminal narrower than so many characters.
NARROW = {125: ("compression",), 110: ("balanced_accuracy",), 95: ("kappa", "bits")}


@dataclass(frozen=True)
class Row:
    """A learner on a stream, over its seeds."""

    stream: str
    learner: str
    results: list[dict[str, Any]]  # of the jobs that finished
    failures: list[str]  # why the others did not

    def spread(self, key: str) -> tuple[float, float, float] | None:
        """Mean, lowest and highest of a number over the seeds; None where a seed does not have it."""
        values: list[Any] = [result.get(key) for result in self.results]
        if not values or None in values:
            return None
        return sum(values) / len(values), min(values), max(values)


def make_row(
    stream: str, learner: str, directories: dict[int, Path], scores: Mapping[Path, Scores] | None = None
) -> Row:
    """The row of a learner on a stream from the directories of its seeds.

    Where `scores.json` was written by an earlier version, what it lacks is taken from the scores, if they are given.
    """
    results, reasons = [], {}
    for seed, directory in directories.items():
        result = read_result(directory)
        if result["state"] == "finished":
            found = (scores or {}).get(directory)
            results.append(result if found is None else {**found.to_dict(), **result})
        else:
            failed = result["state"] in ("failed", "damaged")
            reasons[seed] = f"failed: {result['why']}" if failed else "not finished"
    if not results and len(set(reasons.values())) == 1:  # all for the same reason
        return Row(stream, learner, results, list(set(reasons.values())))
    return Row(stream, learner, results, [f"seed {seed} {why}" for seed, why in reasons.items()])


def cells_of(row: Row) -> list[str]:
    """The texts of a row after the learner's name; one text where there is nothing but a failure."""
    if not row.results:
        return ["; ".join(row.failures)]
    texts = []
    for _, key, _ in COLUMNS:
        spread = row.spread(key)
        if spread is None:
            texts.append("not counted" if key == "macs" else "–")
            continue
        mean, low, high = (format_metric(key, value) for value in spread)
        wide = key in ("accuracy", "log_loss") and len(row.results) > 1  # the others' ranges are in the CSV table
        texts.append(f"{mean} ({low.removesuffix(' %')}–{high.removesuffix(' %')})" if wide else mean)
    texts[0] += "".join(f" [{failure}]" for failure in row.failures)
    return texts


def best_of(rows: list[Row]) -> dict[str, str]:
    """The learner with the best number in each column that has a better and a worse; only where there are several."""
    best = {}
    for _, key, more in COLUMNS:
        means = {row.learner: spread[0] for row in rows if (spread := row.spread(key)) is not None}
        means = {name: mean for name, mean in means.items() if not name.startswith("oracle")}  # it cheats
        if more is not None and len(means) > 1:
            best[key] = (max if more else min)(means, key=means.__getitem__)
    return best


def by_stream(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows of each stream."""
    streams: dict[str, list[Row]] = {}
    for row in rows:
        streams.setdefault(row.stream, []).append(row)
    return streams


def markdown(rows: list[Row], notes: dict[str, list[str]] | None = None) -> str:
    """The tables as Markdown, one per stream, each followed by the notes on it."""
    lines = []
    for stream, some in by_stream(rows).items():
        best = best_of(some)
        lines += [f"## {stream}", "", _about(some), ""]
        lines += ["| learner | " + " | ".join(heading for heading, _, _ in COLUMNS) + " |"]
        lines += ["|---|" + "---:|" * len(COLUMNS)]
        for row in some:
            texts = [text.replace("|", r"\|") for text in cells_of(row)]
            if row.results:
                texts = [
                    f"**{t}**" if best.get(c[1]) == row.learner else t for t, c in zip(texts, COLUMNS, strict=True)
                ]
            lines.append(f"| {row.learner} | " + " | ".join(texts + [""] * (len(COLUMNS) - len(texts))) + " |")
        lines += [""]
        for note in (notes or {}).get(stream, []):
            lines += [f"- {note}"]
        lines += [""] if notes else []
    return "\n".join(lines).rstrip() + "\n"


def comma_separated(rows: list[Row]) -> str:
    """The tables as one CSV table: mean, lowest and highest of everything, unrounded."""
    keys = [key for _, key, _ in COLUMNS]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    spreads = [f"{key}{suffix}" for key in keys for suffix in ("", "_min", "_max")]
    writer.writerow(["stream", "learner", "seeds", "examples", *spreads, "failed"])
    for row in rows:
        numbers: list[Any] = []
        for key in keys:
            numbers += row.spread(key) or ("", "", "")
        examples = row.results[0]["count"] if row.results else ""
        writer.writerow([row.stream, row.learner, len(row.results), examples, *numbers, "; ".join(row.failures)])
    return text.getvalue()


def latex(rows: list[Row]) -> str:
    """The tables as LaTeX, for the package booktabs."""
    lines = []
    for stream, some in by_stream(rows).items():
        best = best_of(some)
        lines += [f"% {stream}: {_about(some)}", rf"\begin{{tabular}}{{l{'r' * len(COLUMNS)}}}", r"\toprule"]
        lines += [" & ".join(["Learner", *(heading for heading, _, _ in COLUMNS)]) + r" \\", r"\midrule"]
        for row in some:
            texts = [_latex(text) for text in cells_of(row)]
            if row.results:
                pairs = zip(texts, COLUMNS, strict=True)
                texts = [rf"\textbf{{{t}}}" if best.get(c[1]) == row.learner else t for t, c in pairs]
            else:
                texts = [rf"\multicolumn{{{len(COLUMNS)}}}{{l}}{{{texts[0]}}}"]
            lines.append(" & ".join([_latex(row.learner), *texts]) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(lines)


def screen(rows: list[Row], width: int = 120) -> list[RenderableType]:
    """The tables for a terminal of this width, one per stream, with the failures below it."""
    shown: list[RenderableType] = []
    left_out = [key for least, keys in NARROW.items() if width < least for key in keys]
    kept = [i for i, (_, key, _) in enumerate(COLUMNS) if key not in left_out]
    for stream, some in by_stream(rows).items():
        best = best_of(some)
        lines = {row.learner: [text.replace(" %", "%") for text in cells_of(replace(row, failures=[]))] for row in some}
        table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("learner", overflow="fold", min_width=min(14, max(map(len, lines))))
        for i in kept:
            # names are folded where there is little room, numbers never
            words = [word for texts in lines.values() if len(texts) > 1 for word in texts[i].split()]
            table.add_column(COLUMNS[i][0], justify="right", min_width=max(map(len, words), default=0))
        for learner, texts in lines.items():
            marked = ["[red]failed[/]"]
            if len(texts) > 1:
                marked = [f"[bold]{texts[i]}[/]" if best.get(COLUMNS[i][1]) == learner else texts[i] for i in kept]
            table.add_row(escape(learner), *marked)
        shown += [f"{escape(stream)}: {_about(some)}", table]
        shown += [f"{escape(row.learner)}: [red]{escape(failure)}[/]" for row in some for failure in row.failures]
    return shown


def _about(rows: list[Row]) -> str:
    """How much the numbers of a table stand for."""
    counts = {result["count"] for row in rows for result in row.results}
    seeds = max((len(row.results) for row in rows), default=0)
    if not counts:
        return "no results"
    examples = " or ".join(f"{count:,}" for count in sorted(counts))
    classes = next(result["classes"] for row in rows for result in row.results)
    over = f", mean (min–max) over {seeds} seeds" if seeds > 1 else ""
    return f"{examples} examples, {classes} classes{over}{_references(rows)}"


def _references(rows: list[Row]) -> str:
    """What the majority class and the last label reach on the stream of a table."""
    known = [result for row in rows for result in row.results if result.get("majority_accuracy") is not None]
    if not known:
        return ""
    means = [sum(r[f"{name}_accuracy"] for r in known) / len(known) for name in ("majority", "last_label")]
    majority, last = (format_metric("accuracy", mean) for mean in means)
    return f"; majority class {majority}, last label {last}"


def _latex(text: str) -> str:
    for sign in "&%$#_{}":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("–", "--").replace(" \\%", r"\,\%")
