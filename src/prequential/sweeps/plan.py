"""What a sweep varies, and how that is read from its file."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import typing
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import tomli_w

from prequential.errors import BadSetting, MissingExtra
from prequential.registry import TRANSFORMERS, make_learner
from prequential.renames import OPTIONS, SETTINGS, current_names, one_warning
from prequential.runs.run_settings import MAY_CHANGE, RunSettings, placed_settings
from prequential.settings import Settings, for_digits
from prequential.specs import fits, nearest, parse_call, say_kind
from prequential.storage.migrations import FORMAT, defaults_since
from prequential.storage.toml import read_toml
from prequential.streams.open import check_spec
from prequential.streams.spec import StreamSpec
from prequential.sweeps.stored_names import OF_FORMAT_2, stored_name

METHODS = ("grid", "random", "tpe", "nsga2")
# What can be an objective, and whether more of it is better.
OBJECTIVES = {
    "accuracy": True,
    "log_loss": False,
    "bits": False,
    "compression": False,
    "calibration_error": False,
    "seconds": False,
    "macs": False,
}
SYNONYMS = {"loss": "log_loss", "nats": "log_loss", "time": "seconds", "calibration": "calibration_error"}
IN_THE_FILE = ("name", "method", "trials", "objectives", "seeds", "seed", "storage", "out")
NOT_VARIED = {"seed": "give the seeds as [sweep] seeds", "out": "each run has a directory of its own"}
RUN, LEARNER = typing.get_type_hints(RunSettings), typing.get_type_hints(Settings)
HINTS = {**LEARNER, **RUN}

Point = dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    def grid(self, name: str) -> list[Any]:
        return list(self.values)


@dataclass(frozen=True)
class Range:
    """A number from `low` to `high`."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    points: int | None = None
    whole: bool = False

    def grid(self, name: str) -> list[Any]:
        """The values that a grid takes: `points` of them, or one each `step`."""
        if self.points is not None:
            low, high = (math.log(end) if self.log else end for end in (self.low, self.high))
            at = [low + (high - low) * i / max(self.points - 1, 1) for i in range(self.points)]
            values = [math.exp(value) if self.log else value for value in at]
            values = (
                [self.low, *values[1:-1], self.high] if self.points > 1 else [self.low]
            )  # the ends without rounding
        elif self.step is not None:
            values = [self.low + i * self.step for i in range(int((self.high - self.low) / self.step + 1e-9) + 1)]
        else:
            raise BadSetting(f"[vary] {name}: a grid needs a list of values, or points or step besides low and high")
        even = [round(value) if self.whole else float(f"{value:.12g}") for value in values]
        return list(dict.fromkeys(min(max(value, self.low), self.high) for value in even))


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """What is varied, how, and what it is all for."""

    name: str
    vary: dict[str, Choice | Range]
    method: str = "tpe"
    trials: int | None = None
    objectives: tuple[str, ...] = ("accuracy",)
    seeds: tuple[int, ...] = (0,)
    seed: int = 0
    run: dict[str, Any]
    learner: dict[str, Any]
    storage: str | None = None
    out: Path | None = None

    def identity(self) -> dict[str, Any]:
        """What must stay the same for as long as trials are added."""
        kept = {name: value for name, value in self.run.items() if name not in MAY_CHANGE}
        return {
            "method": self.method,
            "objectives": list(self.objectives),
            "seeds": list(self.seeds),
            "seed": self.seed,
            **{f"[run] {name}": value for name, value in kept.items()},
            **{f"[learner] {name}": value for name, value in self.learner.items()},
            **{f"[vary] {name}": json.loads(json.dumps(asdict(domain))) for name, domain in self.vary.items()},
        }

    def matters(self, name: str, point: Point) -> bool:
        """Whether a setting makes a difference to the learner at this point.

        The settings of the transformers make none to others, and the options of a learner only to itself.
        """
        kind = parse_call(point.get("learner", self.run.get("learner", "transformer")))[0]
        if name in RUN:
            return True
        return kind in TRANSFORMERS if name in LEARNER else name.rpartition(".")[0] == kind

    def order(self) -> list[str]:
        """The names of what is varied, the learner first: what else matters depends on it."""
        return sorted(self.vary, key=lambda name: name != "learner")

    def points(self) -> list[Point]:
        """All points of the grid, each once."""
        names = self.order()
        found: dict[str, Point] = {}
        for values in itertools.product(*(self.vary[name].grid(name) for name in names)):
            point = dict(zip(names, values, strict=True))
            point = {name: value for name, value in point.items() if self.matters(name, point)}
            found.setdefault(json.dumps(point, sort_keys=True), point)
        return list(found.values())

    def settings_of(
        self, point: Point, seed: int, version: int = FORMAT, *, names: int = FORMAT
    ) -> tuple[RunSettings, Settings]:
        """The settings of one run, with the defaults of a format; options of its learner have the names of another."""
        run = {"threads": 1, **self.run, **{name: value for name, value in point.items() if name in RUN}}
        inside = {stored_name(n, names): v for n, v in point.items() if n not in RUN and n not in LEARNER}
        options = {name.rpartition(".")[2]: value for name, value in inside.items()}
        if options:
            run["learner"] = with_options(run.get("learner", "transformer"), options)
        digits = run.get("stream", "digits") == "digits"
        base = for_digits() if digits else Settings()
        base = base.changed(**defaults_since(version, digits=digits))
        given = {**self.learner, **{name: value for name, value in point.items() if name in LEARNER}}
        if run.get("images") is not None:
            run["images"] = Path(run["images"])
        return RunSettings(**run), base.changed(**{**given, "seed": seed})

    def folder(self, point: Point, version: int = FORMAT) -> str:
        """The name of the folder for a point in a study of a format: the same for the same settings, and for no others.

        Settings that have their defaults are left out, so that it stays the same when there are new ones.
        """
        run, learner = self.settings_of(point, 0, version, names=version)
        whole = {**asdict(run), **asdict(learner)}
        defaults = {**asdict(RunSettings()), **asdict(Settings()), **defaults_since(version)}
        kept = {name: value for name, value in whole.items() if name not in MAY_CHANGE or name in self.vary}
        if version >= 3:
            kept = {name: value for name, value in kept.items() if value != defaults[name]}
        else:  # it had all of them, under their old names
            known = {name: value for name, value in kept.items() if name in OF_FORMAT_2 or value != defaults[name]}
            kept = {stored_name(name, version): value for name, value in known.items()} | {"graphs": False}
        text = json.dumps(kept, sort_keys=True, default=str)
        short = ",".join(f"{stored_name(name, version)}={say_value(value)}" for name, value in point.items())
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        return f"{re.sub(r'[^A-Za-z0-9.=,+-]+', '-', short)[:60].strip('-.,')}-{digest}"


def say_value(value: Any) -> str:
    """A value as it stands in a table.

    >>> [say_value(v) for v in (0.0123456, 4, "kalman", True)]
    ['0.01235', '4', 'kalman', 'true']
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)


def with_options(spec: str, options: dict[str, Any]) -> str:
    """A learner's name with these options added to its brackets.

    >>> with_options("er(batch=8)", {"momentum": 0.5})
    'er(batch=8,momentum=0.5)'
    """
    for name in parse_call(spec)[1]:
        if name in options:
            raise BadSetting(f"{name} is varied, but {spec!r} gives it a value; leave it out there")
    name, bracket, rest = spec.rstrip().removesuffix(")").partition("(")
    more = [f"{option}={json.dumps(value)}" for option, value in options.items()]
    return f"{name}({','.join([rest, *more] if bracket and rest.strip() else more)})"


def read_sweep(path: Path, run: dict[str, Any] | None = None) -> SweepPlan:
    """The sweep that a TOML file describes; anything wrong in it is one error.

    `run` are settings of the runs that win over the file.
    """
    content = read_toml(path, "sweep")
    _put(content, run or {})
    try:
        with one_warning():
            return _plan(content, path)
    except BadSetting as error:
        raise BadSetting(f"{path}: {error}") from None


def sweep_file(path: Path, run: dict[str, Any] | None = None) -> bytes:
    """The file of a sweep as it is, or where settings of the runs win over it, with these in it."""
    if not run:
        return path.read_bytes()
    content = read_toml(path, "sweep")
    _put(content, run)
    return tomli_w.dumps(content).encode()


def _put(content: dict[str, Any], run: dict[str, Any]) -> None:
    """Puts settings of the runs into what a file holds, in place of those that it has itself."""
    table = content.setdefault("run", {}) if run else {}
    for name, value in run.items():
        for written in (name, name.replace("_", "-")):
            for place in (content, table) if isinstance(table, dict) else (content,):
                if written in place and not isinstance(place[written], dict):
                    del place[written]
        if isinstance(table, dict):
            table[name] = str(value) if isinstance(value, Path) else value


def _plan(content: dict[str, Any], path: Path) -> SweepPlan:
    sweep, vary = _table(content, "sweep"), _table(content, "vary")
    for name in sweep:
        if name not in IN_THE_FILE:
            raise BadSetting(f"unknown setting [sweep] {name!r}{nearest(name, IN_THE_FILE)}")
    run, learner = _fixed(content)
    domains = dict(_domains(vary, [run.get("learner", "transformer")]))
    if not domains:
        raise BadSetting("there is nothing to vary: [vary] has 0 settings, expected at least 1")
    for name in domains:
        if name in run or name in learner:
            raise BadSetting(f"{name} is varied and also fixed at {(run | learner)[name]!r}; leave out one of the two")
    method = sweep.get("method", "tpe")
    if method not in METHODS:
        raise BadSetting(f"[sweep] method is {method!r}, expected one of {', '.join(METHODS)}")
    trials = sweep.get("trials")
    if trials is None and method != "grid":
        raise BadSetting(f"[sweep] trials is missing: give the number of trials for method {method!r}")
    if trials is not None and (not fits(trials, int) or trials < 1):
        raise BadSetting(f"[sweep] trials is {trials!r}, expected a whole number of at least 1")
    name = sweep.get("name", path.stem)
    if not isinstance(name, str) or not re.fullmatch(r"[\w][\w. -]*", name):
        raise BadSetting(f"[sweep] name is {name!r}, expected letters, digits, '-', '_', '.' and spaces")
    for key in ("storage", "out"):
        if not isinstance(sweep.get(key, ""), str):
            raise BadSetting(f"[sweep] {key} is {sweep[key]!r}, expected text")
    plan = SweepPlan(
        name=name,
        vary=domains,
        method=method,
        trials=trials,
        objectives=_objectives(sweep.get("objectives", ["accuracy"])),
        seeds=_seeds(sweep.get("seeds", [learner.pop("seed", 0)])),
        seed=_seeds([sweep.get("seed", 0)])[0],
        run=run,
        learner={name: value for name, value in learner.items() if name != "seed"},
        storage=sweep.get("storage"),
        out=Path(sweep["out"]) if "out" in sweep else None,
    )
    _check_points(plan)
    return plan


def _table(content: dict[str, Any], name: str) -> dict[str, Any]:
    table = content.pop(name, {})
    if not isinstance(table, dict):
        raise BadSetting(f"{name} is {table!r}, expected a table [{name}]")
    return {key.replace("-", "_") if name == "sweep" else key: value for key, value in table.items()}


def _fixed(content: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings that all runs share, under [run] and [learner] or at the top level."""
    run: dict[str, Any] = {}
    learner: dict[str, Any] = {}
    for _, name, value in placed_settings(content, ""):
        if name == "out":
            raise BadSetting("out belongs under [sweep]: each run has a directory of its own in it")
        (run if name in RUN else learner)[name] = _checked(name, value)
    if "stream" in run:
        run["stream"] = _whole(run["stream"])
    return run, learner


def _whole(stream: str) -> str:
    """A stream with its path whole, so that the sweep can be resumed from any directory."""
    spec = StreamSpec.parse(stream)
    check_spec(spec)
    return spec.absolute()


def _known(raw: str) -> str:
    name = raw.replace("-", "_")
    if name not in HINTS:
        raise BadSetting(f"unknown setting {raw!r}{nearest(name, HINTS)}")
    return name


def _checked(name: str, value: Any) -> Any:
    """A value of the right kind; "none" stands for none, which TOML does not know."""
    hint = HINTS[name]
    if value == "none" and type(None) in typing.get_args(hint):
        return None
    if not fits(value, str | None if name == "images" else hint):
        raise BadSetting(f"{name} is {value!r}, expected {say_kind(hint)}")
    return value


def _domains(vary: dict[str, Any], learners: list[str]) -> Iterator[tuple[str, Choice | Range]]:
    flat: dict[str, Any] = {}
    for key, value in vary.items():
        inside = isinstance(value, dict) and not {"low", "high"} & value.keys()
        if inside and (key in ("run", "learner") or key.replace("-", "_") not in HINTS):
            prefix = "" if key in ("run", "learner") else f"{key}."
            flat |= {f"{prefix}{name}": inner for name, inner in value.items()}
        else:
            flat[key] = value
    flat = _current_keys(flat)
    if isinstance(flat.get("learner"), list):
        learners = [str(value) for value in flat["learner"]]
    kinds = {parse_call(spec)[0]: spec for spec in learners}
    for key, value in flat.items():
        kind, _, option = key.rpartition(".")
        if not kind:
            name = _known(key)
            if name in NOT_VARIED:
                raise BadSetting(f"[vary] {name} cannot be varied: {NOT_VARIED[name]}")
            yield name, _domain(name, value, HINTS[name])
            continue
        if kind not in kinds:
            raise BadSetting(f"[vary] {key}: {kind!r} is no learner of this sweep{nearest(kind, kinds)}")
        domain = _domain(key, value, None)
        for one in domain.values if isinstance(domain, Choice) else (domain.low, domain.high):
            with suppress(MissingExtra):
                make_learner(with_options(kinds[kind], {option: one}), 2)
        yield key, domain


def _current_keys(flat: dict[str, Any]) -> dict[str, Any]:
    """What is varied under the names that settings and options have now."""
    found: dict[str, Any] = {}
    for key, value in flat.items():
        kind, dot, option = key.rpartition(".")
        table = SETTINGS if kind in ("", *TRANSFORMERS) else OPTIONS
        for name in current_names({option if kind else option.replace("-", "_"): value}, table):
            if f"{kind}{dot}{name}" in found:
                raise BadSetting(f"[vary] {kind}{dot}{name} is given twice; leave out {key}")
            found[f"{kind}{dot}{name}"] = value
    return found


def _domain(name: str, value: Any, hint: Any) -> Choice | Range:
    if isinstance(value, dict):
        return _range(name, value, hint)
    if not isinstance(value, list):
        raise BadSetting(
            f"[vary] {name} is {value!r}, expected a list of values or {{low = ..., high = ...}}; "
            "what does not vary belongs under [run] or [learner]"
        )
    values = [value if hint is None else _checked(name, value) for value in value]
    if not values:
        raise BadSetting(f"[vary] {name} has 0 values, expected at least 1")
    if name == "learner":
        for spec in values:
            with suppress(MissingExtra):  # its trials will say so, and the others run
                make_learner(spec, 2)
    if name == "stream":
        values = [_whole(value) for value in values]
    return Choice(tuple(value for i, value in enumerate(values) if value not in values[:i]))


def _range(name: str, given: dict[str, Any], hint: Any) -> Range:
    names = [field.name for field in fields(Range) if field.name != "whole"]
    for key, value in given.items():
        if key not in names:
            raise BadSetting(f"[vary] {name}: unknown {key!r}{nearest(key, names)}")
        kind: Any = bool if key == "log" else int if key == "points" else float
        if not fits(value, kind) or value != value:
            raise BadSetting(f"[vary] {name}: {key} is {value!r}, expected {say_kind(kind)}")
    for key in ("low", "high"):
        if key not in given:
            raise BadSetting(f"[vary] {name}: {key} is missing, expected {{low = ..., high = ...}}")
    ends = (given["low"], given["high"])
    whole = all(isinstance(end, int) for end in (*ends, given.get("step", 1))) if hint is None else not fits(0.5, hint)
    if hint is not None and not fits(1, hint):
        raise BadSetting(f"[vary] {name} is {say_kind(hint)}: it has no range, expected a list of values")
    if whole and not all(isinstance(number, int) for number in (*ends, given.get("step", 1))):
        raise BadSetting(
            f"[vary] {name} is a whole number, but goes from {ends[0]} to {ends[1]} by {given.get('step', 1)}"
        )
    if not ends[0] < ends[1]:
        raise BadSetting(f"[vary] {name}: low ({ends[0]}) must be below high ({ends[1]})")
    if given.get("log") and (ends[0] <= 0 or "step" in given):
        why = "a step" if "step" in given else f"low = {ends[0]}"
        raise BadSetting(f"[vary] {name}: log = true does not go with {why}")
    for key in ("step", "points"):
        if key in given and given[key] <= 0:
            raise BadSetting(f"[vary] {name}: {key} ({given[key]}) must be above 0")
    return Range(**given, whole=whole)


def canonical(objective: str) -> str:
    """An objective under the name it is kept under.

    >>> canonical("loss")
    'log_loss'
    """
    return SYNONYMS.get(objective, objective).replace("-", "_")


def _objectives(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not given or not all(isinstance(name, str) for name in given):
        raise BadSetting(
            f'[sweep] objectives is {given!r}, expected a list such as ["accuracy"] or ["accuracy", "macs"]'
        )
    names = [canonical(name) for name in given]
    for name in names:
        if name not in OBJECTIVES:
            raise BadSetting(f"unknown objective {name!r}{nearest(name, [*OBJECTIVES, *SYNONYMS])}")
        if names.count(name) > 1:
            raise BadSetting(f"the objective {name!r} is given {names.count(name)} times, expected once")
    return tuple(names)


def _seeds(given: Any) -> tuple[int, ...]:
    seeds = given if isinstance(given, list) else [given]
    if not seeds or not all(fits(seed, int) and seed >= 0 for seed in seeds) or len(set(seeds)) < len(seeds):
        raise BadSetting(f"[sweep] seeds is {given!r}, expected different whole numbers of at least 0")
    return tuple(seeds)


def _check_points(plan: SweepPlan) -> None:
    """Refuses a sweep where nothing can run; points that do not fit together fail one by one."""
    problem: BadSetting | None = None
    ends = {n: d.values if isinstance(d, Choice) else (d.low, d.high) for n, d in plan.vary.items()}
    some = plan.points() if plan.method == "grid" else [{n: v[i % len(v)] for n, v in ends.items()} for i in range(8)]
    for point in some:
        try:
            plan.settings_of({name: value for name, value in point.items() if plan.matters(name, point)}, 0)
            return
        except BadSetting as error:
            problem = problem or error
    if problem is not None:
        raise problem
