"""What came out of a sweep: tables, a file for `prequential pareto`, and pictures."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from pathlib import Path

from prequential.plots.pareto import Group, draw_fronts, draw_history, draw_settings, front_of
from prequential.runs.formatting import format_metric
from prequential.storage.files import write_atomically
from prequential.storage.sealed import write_sealed
from prequential.sweeps.plan import OBJECTIVES, Range, SweepPlan, say_value
from prequential.sweeps.study import Row

FORMAT = "prequential-trials-1"


def write_results(plan: SweepPlan, rows: list[Row], directory: Path) -> None:
    """Writes `table.md`, `table.csv`, `trials.json` and the pictures."""
    kept = {
        "format": FORMAT,
        "name": plan.name,
        "objectives": list(plan.objectives),
        "rows": [asdict(row) for row in rows],
    }
    files = {
        "table.md": markdown(plan, rows),
        "table.csv": comma_separated(plan, rows),
    }
    for name, text in files.items():
        write_atomically(directory / name, text.encode())
    write_sealed(directory / "trials.json", kept)
    done = [row for row in rows if row.state == "done"]
    if not done:
        return
    logs = [name for name, domain in plan.vary.items() if isinstance(domain, Range) and domain.log]
    points = [row.point for row in done]
    for suffix in ("png", "svg"):
        if len(plan.objectives) == 1:
            (objective,) = plan.objectives
            values = [row.values[0] for row in done]
            draw_settings(points, values, objective, directory / f"settings.{suffix}", names=plan.order(), logs=logs)
            more = OBJECTIVES[objective]
            draw_history([r.number for r in done], values, objective, directory / f"history.{suffix}", more=more)
        else:
            draw_fronts(groups_of(plan.name, done), plan.objectives, directory / f"pareto.{suffix}")


def groups_of(name: str, rows: list[Row]) -> dict[str, Group]:
    """The values of trials under the name of their study, or where its learner is varied, under that of the learner."""
    groups: dict[str, Group] = {}
    for row in rows:
        groups.setdefault(str(row.point.get("learner", name)), []).append(row.values)
    return groups


def best_first(plan: SweepPlan, rows: list[Row]) -> list[Row]:
    """The trials that are done, sorted by the first objective."""
    done = [row for row in rows if row.state == "done"]
    return sorted(done, key=lambda row: row.values[0], reverse=OBJECTIVES[plan.objectives[0]])


def markdown(plan: SweepPlan, rows: list[Row]) -> str:
    """The trials as a Markdown table, the best first; what is best or on the front is bold."""
    done = best_first(plan, rows)
    more = [OBJECTIVES[name] for name in plan.objectives]
    front = front_of([row.values for row in done], more)
    seeds = f"mean of {len(plan.seeds)} seeds" if len(plan.seeds) > 1 else f"seed {plan.seeds[0]}"
    about = f"{len(done)} of {len(rows)} trials done, {plan.method}, {seeds}"
    what = "the best is bold" if len(more) == 1 else f"the {len(front)} on the Pareto front are bold"
    lines = [f"## {plan.name}", "", f"{about}; {what}.", ""]
    lines += ["| trial | " + " | ".join([*plan.order(), *plan.objectives]) + " |"]
    lines += ["|---:|" + "---:|" * (len(plan.vary) + len(more))]
    for i, row in enumerate(done):
        values = [format_metric(name, value) for name, value in zip(plan.objectives, row.values, strict=True)]
        values = [f"**{value}**" for value in values] if i in front else values
        lines.append(f"| {row.number} | " + " | ".join([*_settings(plan, row), *values]) + " |")
    rest = [row for row in rows if row.state != "done"]
    if rest:
        lines += [
            "",
            "| trial | " + " | ".join(plan.order()) + " | state |",
            "|---:|" + "---:|" * len(plan.vary) + "---|",
        ]
    for row in rest:
        state = f"failed: {row.why}" if row.state == "failed" else row.state
        lines.append(f"| {row.number} | " + " | ".join([*_settings(plan, row), state.replace("|", r"\|")]) + " |")
    return "\n".join(lines) + "\n"


def comma_separated(plan: SweepPlan, rows: list[Row]) -> str:
    """The trials as CSV, in their order and unrounded, with every number of every seed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    of_seeds = [(name, str(seed)) for name in OBJECTIVES for seed in plan.seeds]
    means = [f"mean_{name}" for name in plan.objectives]
    writer.writerow(["trial", "state", *plan.order(), *means, *(f"{n}_{s}" for n, s in of_seeds), "failed", "folder"])
    for row in rows:
        values = row.values or ("",) * len(means)
        found = [row.results.get(seed, {}).get(name) for name, seed in of_seeds]
        point = [row.point.get(name, "") for name in plan.order()]
        writer.writerow([row.number, row.state, *point, *values, *found, row.why, row.folder])
    return text.getvalue()


def _settings(plan: SweepPlan, row: Row) -> list[str]:
    return [say_value(row.point[name]).replace("|", r"\|") if name in row.point else "–" for name in plan.order()]
