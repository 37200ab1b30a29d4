"""Files of earlier versions, brought up to date while they are read.

Everything the program writes carries one format number: checkpoints and saved learners, homes, the settings of runs and
comparisons. `STEPS[n]` brings what format n - 1 held to format n; a reader applies all steps from the number in the file
up to `FORMAT`. To change what is stored:

1. raise `FORMAT` and add a step to `STEPS`, with functions only for what changed;
2. store files of the version before in tests/data, so that tests/storage/test_migrations.py opens them forever.

A new setting needs no step when its default is what the program did before: a file without it gets the default. Where
the default changes what an older learner does, the step sets the old value.

| format | what changed |
|---|---|
| 1 | one checksum for a whole checkpoint, homes without one |
| 2 | a checksum for every array; a journal in one log |
| 3 | settings and options have the names that the field uses |
| 4 | the kNN expert learns its metric; learners from before go on with a fixed one |
| 5 | by default trees, recent labels, changes of inputs, a steady mixer, 25 digits a chunk; old learners go on without |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from prequential.renames import OPTIONS, SETTINGS, current_names

FORMAT = 5  # of what is written

Content = dict[str, Any]


def _same(content: Content) -> Content:
    return content


def _same_of(kind: str, content: Content) -> Content:
    return content


@dataclass(frozen=True)
class Step:
    """What changed from one format to the next."""

    settings: Callable[[Content], Content] = _same
    """The settings of the transformer, as settings.toml and compare.toml hold them under [learner]."""
    config: Callable[[str, Content], Content] = _same_of
    """Class name of a learner and the arguments that it is made with."""
    state: Callable[[str, Content], Content] = _same_of
    """Class name of a learner and what its `_state_dict` gave."""


def _renamed_settings(settings: Content) -> Content:
    return current_names(settings, SETTINGS, warn=False)


def _renamed_config(kind: str, config: Content) -> Content:
    return current_names(config, SETTINGS if kind == "Learner" else OPTIONS, warn=False)


PARTS = {  # of the states of baselines
    "normaliser": "normalizer",
    "optimiser": "optimizer",
    "slots": "class_ids",
    "done": "num_committed",
    "pending_slots": "pending_class_ids",
}


def _renamed_state(kind: str, state: Content) -> Content:
    """The state of a baseline; a transformer, whose state has a trainer, renames its parts itself.

    (The state in a run's checkpoint does not name its kind.)
    """
    if "trainer" in state:
        return state
    renamed = {PARTS.get(name, name): value for name, value in state.items()}
    return {name: _renamed_state(kind, value) if isinstance(value, dict) else value for name, value in renamed.items()}


# What settings were before the version in which they came, or before another default: by format.
OLD_DEFAULTS: dict[int, Content] = {
    4: {"neighbor_metric": "fixed"},
    5: {"change_half_life": 0, "num_trees": 0, "recent_labels": False, "mixing": "quick"},
}
OLD_DIGITS: dict[int, Content] = {5: {"chunk_size": 50}}  # the same of the settings for the digits


def defaults_since(version: int, *, digits: bool = False) -> Content:
    """Settings whose defaults, or those for the digits, have changed since a format, with those they had then."""
    tables = (OLD_DEFAULTS, OLD_DIGITS) if digits else (OLD_DEFAULTS,)
    changed = [old for table in tables for number, old in table.items() if number > version]
    return {name: value for old in changed for name, value in old.items()}


def _old_defaults(version: int) -> Step:
    """Learners of an earlier format go on with the defaults of that time."""

    def settings(found: Content) -> Content:
        return {**OLD_DEFAULTS[version], **found}

    def config(kind: str, found: Content) -> Content:
        is_transformer = "num_neighbors" in found  # a run's checkpoint does not name the kind
        return settings(found) if is_transformer else found

    return Step(settings=settings, config=config)


STEPS: dict[int, Step] = {
    2: Step(),
    3: Step(settings=_renamed_settings, config=_renamed_config, state=_renamed_state),
    4: _old_defaults(4),
    5: _old_defaults(5),
}


def migrate_settings(settings: Content, version: int) -> Content:
    """The settings of the transformer that a file of an earlier format holds, as they are called now."""
    for step in _steps(version):
        settings = step.settings(settings)
    return settings


def migrate_home(made: Content, version: int) -> Content:
    """What a home says of its learner, which is always a `Learner`."""
    for step in _steps(version):
        made = {**made, "config": step.config("Learner", made["config"])}
    return made


def migrate_checkpoint(content: Content, version: int) -> Content:
    """What a checkpoint holds: of a run, of a home, or a saved learner; parts that were not read are left out."""
    kind = content.get("kind", "Learner")  # the saves of a home do not name it
    for step in _steps(version):
        if isinstance(config := content.get("config"), dict):
            content = {**content, "config": step.config(kind, config)}
        content = _with_state(content, kind, step)
        if isinstance(home := content.get("home"), dict) and isinstance(made := home.get("made"), dict):
            made = {**made, "config": step.config("Learner", made["config"])} if "config" in made else made
            content = {**content, "home": {**home, "made": made}}
    return content


def _with_state(content: Content, kind: str, step: Step) -> Content:
    """A saved learner has its state under "state", a run under "learner"; a home's save is the state itself."""
    for name in ("state", "learner"):
        whole = content.get(name)
        if isinstance(whole, dict) and isinstance(whole.get("learner"), dict):
            return {**content, name: {**whole, "learner": step.state(kind, whole["learner"])}}
    if "labels" in content and isinstance(content.get("learner"), dict):
        return {**content, "learner": step.state(kind, content["learner"])}
    return content


def _steps(version: int) -> Iterator[Step]:
    for number in range(version + 1, FORMAT + 1):
        yield STEPS[number]
