"""Replay Streams (Bornschein et al. 2022): a network without context, replay in order, averaging and calibration."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prequential.baselines.adamw import AdamW
from prequential.baselines.replay_learner import ReplayLearner
from prequential.errors import BadSetting
from prequential.renames import OPTIONS, takes_old_names


@takes_old_names(OPTIONS)
class ReplayStreams(ReplayLearner):
    """A network trained on each new chunk and on chunks of its past, that predicts with the EMA of its weights.

    For each chunk, all of which is predicted before any of it is learned,

    1. softplus(beta) * f(x; phi) gives the logits, with the EMA phi of the weights theta;
    2. beta alone takes a gradient step on the loss of that prediction: forward calibration;
    3. theta takes a gradient step on the chunk, and phi follows: phi = (1 - a) phi + a theta;
    4. the same as 3 on the chunk of each replay stream. Replay streams read the past in order and restart at random.

    Calibration is learned on new chunks only: on replayed ones the network is overconfident.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves. None: any number.
    chunk_size
        Examples per step.
    num_streams
        Number of streams: the reported one and the replay streams. 1 is no replay.
    learning_rate, weight_decay
        Of AdamW.
    ema_rate
        Weight a of the newest weights in the EMA. In the first 1/a steps it is the plain average.
    calibration_rate
        Step size for beta; 0 leaves the logits as they are.
    hidden_sizes, extractor, standardize, device, missing, seed
        As in `NetworkLearner`.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> x = random.normal(size=(1000, 3))
    >>> y = (x[:, 0] > x[:, 1]).astype(int)
    >>> learner = ReplayStreams(2, hidden_sizes=(16,), chunk_size=10, num_streams=4, learning_rate=0.01)
    >>> charges = learner.observe(x, y)
    >>> print(f"{charges.correct.mean():.2f}")
    0.94
    """

    def __init__(
        self,
        classes: int | Sequence[Hashable] | None = None,
        *,
        hidden_sizes: Sequence[int] = (256,),
        extractor: str = "auto",
        chunk_size: int = 64,
        num_streams: int = 8,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-2,
        ema_rate: float = 0.02,
        calibration_rate: float = 0.01,
        standardize: bool | None = None,
        device: str = "cpu",
        missing: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(
            classes, chunk=chunk_size, hidden_sizes=hidden_sizes, extractor=extractor, standardize=standardize,
            device=device, missing=missing, seed=seed,
        )  # fmt: skip
        if num_streams < 1:
            raise BadSetting(f"num_streams ({num_streams}) must be at least 1: the reported one counts")
        if not 0 < ema_rate <= 1:
            raise BadSetting(f"ema_rate ({ema_rate}) must be above 0 and at most 1")
        for name, value in (
            ("learning_rate", learning_rate),
            ("weight_decay", weight_decay),
            ("calibration_rate", calibration_rate),
        ):
            if not value >= 0:
                raise BadSetting(f"{name} ({value}) must be at least 0")
        self._own: dict[str, Any] = {
            "chunk_size": chunk_size, "num_streams": num_streams, "learning_rate": learning_rate,
            "weight_decay": weight_decay, "ema_rate": ema_rate, "calibration_rate": calibration_rate,
        }  # fmt: skip
        self.ema_rate = ema_rate
        self.keeps_past = num_streams > 1

    def config(self) -> dict[str, Any]:
        return {**self._network_config(), **self._own}

    def macs_per_example(self) -> float | None:
        """A forward pass to predict; forward and backward (twice a forward) in each stream."""
        if self.inputs is None:
            return None
        return (1 + 3 * (1 + len(self.replay))) * self.network.macs()

    def _build(self, shape: tuple[int, ...], extractor: str) -> None:
        own = self._own
        self.network, self.averaged = self.make_network(shape, extractor), self.make_network(shape, extractor)
        self.beta = nn.Parameter(torch.tensor([math.log(math.e - 1)], device=self.device))  # softplus of it is 1
        named = self.network.named_parameters()
        self.optimizer = AdamW(named, rate=own["learning_rate"], weight_decay=own["weight_decay"])
        self.calibrator = AdamW([("beta", self.beta)], rate=own["calibration_rate"], weight_decay=0.0)
        self.replay = self._make_replay(own["num_streams"] - 1)
        self.steps = 0

    def _log_probs(self, x: Tensor, num_seen: np.ndarray) -> Tensor:
        return torch.log_softmax(self._weighed(F.softplus(self.beta) * self.averaged.eval()(x), num_seen), dim=1)

    def _grow_model(self, capacity: int, like: int) -> None:
        for network in (self.network, self.averaged):
            network.grow(capacity, like)
        self.optimizer.grow(capacity, like)

    def _train_step(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        inputs, y = self._past(x), torch.from_numpy(class_ids).to(self.device)
        if self._own["calibration_rate"]:
            with torch.no_grad():
                logits = self.averaged.eval()(inputs)
            self.calibrator.step(self._loss(F.softplus(self.beta) * logits, y))
        self._step(inputs, y)
        for old_x, old_y in self._replayed(len(class_ids)):
            self._step(old_x, old_y)

    def _step(self, x: Tensor, y: Tensor) -> None:
        """A step of theta, and of phi towards it."""
        self.network.training_pass(self.seed + 1_000_003 * self.steps)
        self.optimizer.step(self._loss(self.network(x), y))
        self.steps += 1
        with torch.no_grad():
            for phi, theta in zip(self.averaged.parameters(), self.network.parameters(), strict=True):
                phi.lerp_(theta, max(self.ema_rate, 1 / self.steps))

    def _skipped(self) -> int:
        return self.optimizer.skipped + self.calibrator.skipped

    def _model_state(self) -> dict[str, Any]:
        return {
            "network": dict(self.network.named_parameters()),
            "averaged": dict(self.averaged.named_parameters()),
            "beta": self.beta,
            "optimizer": self.optimizer.state_dict(),
            "calibrator": self.calibrator.state_dict(),
            "readers": self.replay.state_dict(),
            "steps": self.steps,
            "skipped": self._skipped(),
        }

    def _load_model_state(self, state: dict[str, Any]) -> None:
        self.network.load(state["network"])
        self.averaged.load(state["averaged"])
        with torch.no_grad():
            self.beta.copy_(torch.as_tensor(state["beta"]))
        self.optimizer.load_state_dict(state["optimizer"])
        self.calibrator.load_state_dict(state["calibrator"])
        self.replay.load_state_dict(state["readers"])
        self.steps = int(state["steps"])
        self.optimizer.skipped = int(state.get("skipped", 0))  # an earlier version counted none
