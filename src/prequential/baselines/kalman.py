"""The Kalman filter on features that are given (Titsias et al. 2023)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch

from prequential.baselines.calibration import NOMINAL_CLASSES, Calibration
from prequential.baselines.kalman_filter import KalmanFilter, label_variance
from prequential.errors import BadInput, BadSetting
from prequential.labels import Labels, num_seen_before
from prequential.learners.base import OnlineLearner, check_missing, check_seed
from prequential.learners.chunked import chunk_slices
from prequential.learners.log_proba import uniform_log_proba
from prequential.learners.normalizer import Normalizer, bounded
from prequential.learners.outliers import Hint
from prequential.memory_limits import check_fits
from prequential.renames import OPTIONS, takes_old_names


@takes_old_names(OPTIONS)
class Kalman(OnlineLearner):
    """A Bayesian linear classifier whose weights drift, tracked by a Kalman filter.

    Features are standardized by past statistics and get a constant 1. Labels are one-hot targets; all classes share one
    covariance. The drift rate is learned by gradient ascent on the log-likelihood of the labels. Probabilities are the
    mean of softmax(alpha * output) over the outputs' uncertainty, by Monte Carlo, with alpha learned too. Images are
    flattened to vectors of pixels.

    Time and memory grow with the square of the number of features, not with the stream.

    A block is `block` examples. Drift and alpha are frozen inside a block; the weights are not: each prediction uses
    every label before it, whether the examples come one by one or together.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves. None: any number.
    block
        Examples between two drift steps.
    gamma
        Drift at the start: weights shrink by this factor at every block. 1: none; 0: nothing is remembered.
    drift_rate
        Step size of the drift's learning (of delta = -2 log(gamma), per example and class). 0 keeps gamma.
    noise
        Variance of a one-hot label around its prediction; by default that of a uniformly drawn label.
    prior
        Variance of each weight before learning; by default such that outputs vary as much as the labels do.
    samples
        Monte Carlo samples for the probabilities; an even number.
    calibrate
        Whether alpha is learned.
    standardize
        Whether features are standardized by past statistics.
    precision
        "float64", or "float32" with half the memory and three quarters of the time. Without drift the covariance
        shrinks below what float32 can hold: with gamma 1 and dependent features it was no longer positive definite
        after 640,000 examples, which float64 took without harm.
    missing
        Whether features may be NaN; needs `standardize`, which puts the mean there.
    seed
        Seed of the Monte Carlo samples.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> x = random.normal(size=(500, 3))
    >>> y = (x[:, 0] > x[:, 1]).astype(int)
    >>> learner = Kalman(2, block=10)
    >>> charges = learner.observe(x, y)
    >>> print(f"{charges.correct.mean():.2f}")
    0.93
    """

    def __init__(
        self,
        classes: int | Sequence[Hashable] | None = None,
        *,
        block: int = 64,
        gamma: float = 1.0,
        drift_rate: float = 1e-2,
        noise: float | None = None,
        prior: float | None = None,
        samples: int = 8,
        calibrate: bool = True,
        standardize: bool = True,
        precision: str = "float64",
        missing: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(classes, missing=missing)
        check_kalman(block=block, gamma=gamma, drift_rate=drift_rate, noise=noise, prior=prior, precision=precision)
        check_seed(seed)
        check_missing(missing, standardize)
        self._config: dict[str, Any] = {
            "block": block, "gamma": gamma, "drift_rate": drift_rate, "noise": noise, "prior": prior,
            "samples": samples, "calibrate": calibrate, "standardize": standardize, "precision": precision,
            "missing": missing, "seed": seed,
        }  # fmt: skip
        self.stride = block
        self.standardize = standardize
        self.normalizer: Normalizer | None = None
        self.filter: KalmanFilter | None = None  # made when the first example tells the number of features
        self.calibration = Calibration(self.labels.classes, samples=samples, learn=calibrate, block=block, seed=seed)

    def config(self) -> dict[str, Any]:
        return {"classes": self.labels.classes, **self._config}

    def macs_per_example(self) -> float | None:
        if self.filter is None:
            return None
        return self.filter.macs_per_example() + self.calibration.macs_per_example(self.labels.capacity)

    def _prepare(self, x: np.ndarray) -> None:
        if self.filter is None:
            self._begin(int(np.prod(x.shape[1:])))

    def _begin(self, features: int) -> KalmanFilter:
        """The parts whose size depends on the number of features."""
        c = self._config
        check_fits(4.0 * features**2, f"x of {features} features", BadInput)
        self.normalizer = Normalizer(features) if self.standardize else None
        self.filter = make_filter(features + 1, self.labels, c)
        return self.filter

    def _features(self, x: np.ndarray, consecutive: bool) -> torch.Tensor:
        """Phi (n, m): standardized where wanted, with a constant 1; changes nothing."""
        flat = x.reshape(len(x), -1)
        if self.normalizer is None:
            flat = bounded(flat)
        else:
            flat = self.normalizer.transform(flat) if consecutive else self.normalizer.transform_each(flat)
        phi = np.concatenate([flat, np.ones((len(flat), 1))], axis=1)
        return torch.from_numpy(phi).to(getattr(torch, str(self._config["precision"])))

    def _predict(self, x: np.ndarray) -> np.ndarray:
        if self.filter is None:
            return uniform_log_proba(len(x), self.labels.capacity)
        mean, variance = self.filter.predict(self._features(x, consecutive=False))
        # the filter gets columns for new class ids when it learns; until then they would be 0
        mean = torch.nn.functional.pad(mean, (0, self.labels.capacity - mean.shape[1]))
        return self.calibration.predict(mean, variance, self.num_seen)

    def _learn(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        self._observe(x, class_ids)

    def _observe(self, x: np.ndarray, class_ids: np.ndarray) -> np.ndarray:
        kalman = self.filter
        assert kalman is not None
        self._changing = False  # the filter may refuse a block, before it changes anything
        rows, num_seen = [], num_seen_before(class_ids, self.num_seen)
        for part in chunk_slices(len(x), kalman.pending, kalman.block):
            piece, labels = x[part], torch.from_numpy(class_ids[part])
            active = 1 + max(int(num_seen[part][-1]), int(class_ids[part][-1]) + 1)  # the labels seen, and one more
            phi = self._features(piece, consecutive=True)
            y = torch.nn.functional.one_hot(labels, self.labels.capacity).to(phi.dtype)
            mean, variance = kalman.observe(phi, y, min(active, self.labels.capacity))
            self._changing = True
            rows.append(self.calibration.observe(mean, variance, labels, num_seen[part]))
            if self.normalizer is not None:
                self.normalizer.update(piece.reshape(len(piece), -1))
        return np.concatenate(rows)

    def _needs_snapshot(self, count: int) -> bool:
        # where a call crosses the border of a block, the second block may be refused after the first was learned
        return self.filter is None or count > self.filter.block - self.filter.pending

    def _hints(self) -> list[Hint]:
        return [] if self.normalizer is None else self.normalizer.hints()

    def _state_dict(self) -> dict[str, Any]:
        return {
            "filter": None if self.filter is None else self.filter.state_dict(),
            "normalizer": None if self.normalizer is None else self.normalizer.state_dict(),
            "calibration": self.calibration.state_dict(),
        }

    def _load_state_dict(self, state: dict[str, Any]) -> None:
        self.filter = self.normalizer = None
        if state["filter"] is not None:
            kalman = self._begin(len(state["filter"]["mean"]) - 1)
            kalman.load_state_dict(state["filter"])
        if self.normalizer is not None:
            self.normalizer.load_state_dict(state["normalizer"])
        self.calibration.load_state_dict(state["calibration"])


def check_kalman(
    *, block: int, gamma: float, drift_rate: float, noise: float | None, prior: float | None, precision: str
) -> None:
    """Raises the sentence a user needs if a setting of the filter is out of range."""
    if block < 1:
        raise BadSetting(f"block ({block}) must be at least 1")
    if not 0 <= gamma <= 1:
        raise BadSetting(f"gamma ({gamma}) must be from 0 to 1")
    if not drift_rate >= 0:
        raise BadSetting(f"drift_rate ({drift_rate}) must be at least 0")
    for name, value in (("noise", noise), ("prior", prior)):
        if value is not None and not value > 0:
            raise BadSetting(f"{name} ({value}) must be above 0")
    if precision not in ("float64", "float32"):
        raise BadSetting(f"precision ({precision!r}) must be float64 or float32")


def make_filter(features: int, labels: Labels, c: dict[str, Any]) -> KalmanFilter:
    """The filter with the settings c; where noise or prior are not given, they follow from the number of classes.

    An entry of a one-hot label drawn uniformly has variance (1/K)(1 - 1/K): that is the noise, and the prior gives the
    output of a standardized example the same variance. Where K is not given, it is taken to be 10 here.
    """
    classes = labels.classes or NOMINAL_CLASSES
    entry = label_variance(classes)
    return KalmanFilter(
        features=features,
        classes=labels.capacity,
        block=c["block"],
        noise=c["noise"] or entry,
        prior=c["prior"] or entry / features,
        gamma=c["gamma"],
        drift_rate=c["drift_rate"],
        dtype=getattr(torch, c["precision"]),
        noise_of=None if c["noise"] or c["prior"] else classes,
    )
