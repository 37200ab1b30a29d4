"""The sampler: how the settings of the next trial are drawn."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from prequential.sweeps.plan import SweepPlan

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial


def is_duplicate(trial: FrozenTrial) -> bool:
    """Whether a trial is a duplicate of another, and is never run."""
    return bool(trial.user_attrs.get("spare"))


def attempt_after(trial: FrozenTrial) -> int | None:
    """The number of the failed trial that this one repeats; None where it is a first attempt."""
    before = trial.user_attrs.get("again")
    # a storage may say anything: only an earlier trial can have failed before
    return before if isinstance(before, int) and before < trial.number else None


def originals(trials: list[FrozenTrial]) -> list[FrozenTrial]:
    """The trials that are no second attempt at another."""
    return [trial for trial in trials if "again" not in trial.user_attrs and not is_duplicate(trial)]


def make_sampler(plan: SweepPlan, total: int) -> BaseSampler:
    """A sampler whose choices depend only on the seed, on the index of the trial and on the results so far.

    So a sweep that was killed resumes with the same choices.
    """
    import numpy as np
    import optuna
    from optuna.samplers import NSGAIISampler, RandomSampler, TPESampler

    def make(place: int) -> BaseSampler:
        seed = int(np.random.SeedSequence([plan.seed, place]).generate_state(1)[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            if plan.method == "tpe":
                return TPESampler(seed=seed)
            if plan.method == "nsga2":
                return NSGAIISampler(seed=seed, population_size=max(6, min(50, total // 4)))
            return RandomSampler(seed=seed)

    class ByPlace(optuna.samplers.BaseSampler):
        current: tuple[int, BaseSampler] = (-1, make(0))

        def of(self, study: Study, trial: FrozenTrial) -> BaseSampler:
            if self.current[0] != trial.number:
                trials = {t.number: t for t in study.get_trials(deepcopy=False)}
                first = trial
                while (before := attempt_after(first)) in trials:
                    first = trials[before]
                place = sum(t.number < first.number for t in originals(list(trials.values())))
                self.current = (trial.number, make(place))
            return self.current[1]

        def before_trial(self, study: Study, trial: FrozenTrial) -> None:
            self.of(study, trial).before_trial(study, trial)

        def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
            return self.of(study, trial).infer_relative_search_space(study, trial)

        def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, Any]) -> dict[str, Any]:
            return self.of(study, trial).sample_relative(study, trial, search_space)

        def sample_independent(self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any) -> Any:
            return self.of(study, trial).sample_independent(study, trial, param_name, param_distribution)

        def after_trial(self, study: Study, trial: FrozenTrial, state: Any, values: Any) -> None:
            self.of(study, trial).after_trial(study, trial, state, values)

    return ByPlace()
