"""Experience replay (Cai et al. 2021), with its searches for the learning rate (PoLRS) and the buffer (ADRep)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from prequential.baselines.feed_forward import Network
from prequential.baselines.fifo import FIFOBuffer
from prequential.baselines.network_learner import NetworkLearner
from prequential.errors import BadSetting
from prequential.learners.transformer.optimizer import all_finite
from prequential.models.grow import copied_rows
from prequential.renames import OPTIONS, takes_old_names

FACTORS = (2.0, 1.0, 0.5)  # of the learning rate, in the three copies of PoLRS
MIDDLE = 1
GAP = 0.005  # a difference of 0.5 % between replay and next-batch accuracy changes nothing


@takes_old_names(OPTIONS)
class ExperienceReplay(NetworkLearner):
    """A network trained on each new batch together with a batch drawn from a buffer of recent examples.

    Each gradient step uses `batch` new examples (a chunk: all are predicted before the step) and as many drawn
    uniformly from the buffer, with loss 1/2 CE(new) + 1/2 CE(replayed). The new ones enter the buffer after the step,
    so no example is in both halves; while the buffer is empty the loss is CE(new).

    With `polrs` there are three copies with 2, 1 and 1/2 times the learning rate. The copy with the highest next-batch
    accuracy since the last selection predicts. At a selection, every `period` steps, all copies get its weights, its
    learning rate becomes the middle one, and momentum is reset. (The paper selects every 5 of 90 segments of its
    stream, about 32,000 steps on CLOC.)

    With `adrep` the buffer size is doubled every `period` steps if accuracy on replayed batches was more than 0.5 %
    above that on new batches (the buffer is overfitted), and halved if it was as much below, down to a batch.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves. None: any number.
    batch
        New examples per step, and replayed ones.
    buffer
        Examples in the buffer.
    learning_rate, momentum, weight_decay
        Of the gradient descent.
    polrs
        Whether to search for the learning rate.
    adrep
        Whether to adapt the size of the buffer.
    buffer_limit
        The largest size of an adapted buffer; by default eight times `buffer`.
    period
        Steps between two selections.
    hidden_sizes, extractor, standardize, device, missing, seed
        As in `NetworkLearner`.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> x = random.normal(size=(2000, 3))
    >>> y = (x[:, 0] > x[:, 1]).astype(int)
    >>> learner = ExperienceReplay(2, batch=10, buffer=500, learning_rate=0.1)
    >>> charges = learner.observe(x, y)
    >>> print(f"{charges.correct.mean():.2f}")
    0.98
    """

    names: ClassVar = {
        "er": {},
        "er-polrs": {"polrs": True},
        "er-adrep": {"adrep": True},
        "er-polrs-adrep": {"polrs": True, "adrep": True},
    }

    def __init__(
        self,
        classes: int | Sequence[Hashable] | None = None,
        *,
        hidden_sizes: Sequence[int] = (),
        extractor: str = "auto",
        batch: int = 64,
        buffer: int = 40_000,
        learning_rate: float = 0.0125,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        polrs: bool = False,
        adrep: bool = False,
        buffer_limit: int | None = None,
        period: int = 500,
        standardize: bool | None = None,
        device: str = "cpu",
        missing: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(
            classes, chunk=batch, hidden_sizes=hidden_sizes, extractor=extractor, standardize=standardize,
            device=device, missing=missing, seed=seed,
        )  # fmt: skip
        for name, value, low in (
            ("learning_rate", learning_rate, 0),
            ("momentum", momentum, 0),
            ("weight_decay", weight_decay, 0),
            ("period", period, 1),
        ):
            if not value >= low:
                raise BadSetting(f"{name} ({value}) must be at least {low}")
        if momentum >= 1:
            raise BadSetting(f"momentum ({momentum}) must be below 1: otherwise old gradients never fade")
        if buffer_limit is not None and buffer_limit < buffer:
            raise BadSetting(f"buffer_limit ({buffer_limit}) must be at least the buffer ({buffer}) it starts with")
        self._own: dict[str, Any] = {
            "batch": batch, "buffer": buffer, "learning_rate": learning_rate, "momentum": momentum,
            "weight_decay": weight_decay, "polrs": polrs, "adrep": adrep, "buffer_limit": buffer_limit,
            "period": period,
        }  # fmt: skip
        self.polrs, self.adrep, self.period = polrs, adrep, period
        self.momentum, self.weight_decay = momentum, weight_decay
        self.buffer_limit = 8 * buffer if buffer_limit is None else buffer_limit
        self.buffer = FIFOBuffer(buffer)
        self.copies: list[Network] = []

    def config(self) -> dict[str, Any]:
        return {**self._network_config(), **self._own}

    def macs_per_example(self) -> float | None:
        """One forward pass to predict; forward and backward (twice a forward) for a new and a replayed example."""
        return (1 + 6 * len(self.copies)) * self.copies[0].macs() if self.copies else None

    def _build(self, shape: tuple[int, ...], extractor: str) -> None:
        self.copies = [self.make_network(shape, extractor) for _ in range(len(FACTORS) if self.polrs else 1)]
        self._reset_momentum()
        self.buffer = FIFOBuffer(self._own["buffer"])
        self.learning_rate = float(self._own["learning_rate"])
        self.steps = self.skipped = 0
        self.right = np.zeros(len(FACTORS), dtype=np.int64)  # next-batch hits of each copy since the last selection
        self.fit = np.zeros(4, dtype=np.int64)  # since then: hits and examples, replayed and new, of the best copy

    @property
    def _best_copy(self) -> int:
        """Index of the copy that predicts: the best since the last selection, the middle one if none is better."""
        if not self.polrs:
            return 0
        return int(self.right.argmax()) if self.right.max() > self.right[MIDDLE] else MIDDLE

    def _log_probs(self, x: Tensor, num_seen: np.ndarray) -> Tensor:
        return torch.log_softmax(self._weighed(self.copies[self._best_copy].eval()(x), num_seen), dim=1)

    def _grow_model(self, capacity: int, like: int) -> None:
        for network, velocity in zip(self.copies, self.velocity, strict=True):
            network.grow(capacity, like)
            velocity[-2:] = [copied_rows(v, capacity, like) for v in velocity[-2:]]  # of the readout

    def _train_step(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        parts = [(self._past(x), torch.from_numpy(class_ids).to(self.device))]
        if len(self.buffer):
            random = np.random.default_rng([self.seed, self.steps])
            old_x, old_ids = self.buffer.draw(random, len(class_ids))
            parts.append((self._past(old_x), torch.from_numpy(old_ids).to(self.device)))
        best = self._best_copy
        for i, network in enumerate(self.copies):
            hits = self._step(
                network, self.velocity[i], self.learning_rate * (FACTORS[i] if self.polrs else 1.0), parts
            )
            self.right[i] += hits[0]
            if i == best and len(parts) == 2:
                self.fit += (hits[1], len(class_ids), hits[0], len(class_ids))
        self.buffer.push(x, class_ids)
        self.steps += 1
        if self.steps % self.period == 0:
            self._select()

    def _step(
        self, network: Network, velocity: list[Tensor], rate: float, parts: list[tuple[Tensor, Tensor]]
    ) -> list[int]:
        """One step on the mean loss of the batches; how many of each were right before it."""
        network.training_pass(self.seed + 1_000_003 * self.steps)
        logits = [self._weighed(network(x), self._num_learned) for x, _ in parts]
        loss = sum(F.cross_entropy(z, y) for z, (_, y) in zip(logits, parts, strict=True)) / len(parts)
        parameters = list(network.parameters())
        gradients = torch.autograd.grad(loss, parameters)  # type: ignore[arg-type]
        if not all_finite(list(gradients)):
            self.skipped += 1
        else:
            with torch.no_grad():
                for parameter, gradient, v in zip(parameters, gradients, velocity, strict=True):
                    v.mul_(self.momentum).add_(gradient).add_(parameter, alpha=self.weight_decay)
                    parameter.sub_(v, alpha=rate)
        return [int((z.argmax(1) == y).sum()) for z, (_, y) in zip(logits, parts, strict=True)]

    def _select(self) -> None:
        if self.polrs:
            best = self._best_copy
            weights = dict(self.copies[best].named_parameters())
            for i, network in enumerate(self.copies):
                if i != best:
                    with torch.no_grad():
                        for name, parameter in network.named_parameters():
                            parameter.copy_(weights[name])
            self.learning_rate *= FACTORS[best]
            self._reset_momentum()
        if self.adrep and self.fit[1]:
            gap = self.fit[0] / self.fit[1] - self.fit[2] / self.fit[3]
            if gap > GAP:
                self.buffer.resize(min(2 * self.buffer.size, self.buffer_limit))
            elif gap < -GAP:
                # no smaller than a batch, and a buffer that is smaller than that stays as it is
                self.buffer.resize(max(self.buffer.size // 2, min(self.buffer.size, self.stride)))
        self.right[:] = 0
        self.fit[:] = 0

    def _reset_momentum(self) -> None:
        self.velocity = [[torch.zeros_like(p) for p in network.parameters()] for network in self.copies]

    def _skipped(self) -> int:
        return self.skipped

    def _snapshot(self) -> tuple[dict[str, Any], FIFOBuffer]:
        # the buffer is most of the state: instead of a copy it records what is overwritten
        buffer, self.buffer = self.buffer, FIFOBuffer(self.buffer.size)
        try:
            state = self._state_dict()
        finally:
            self.buffer = buffer
        buffer.begin_undo()
        return state, buffer

    def _restore(self, snapshot: tuple[dict[str, Any], FIFOBuffer]) -> None:
        state, buffer = snapshot
        self._load_state_dict(state)
        buffer.undo()
        self.buffer = buffer

    def _release_snapshot(self) -> None:
        self.buffer.end_undo()

    def _model_state(self) -> dict[str, Any]:
        return {
            "copies": [dict(network.named_parameters()) for network in self.copies],
            "velocity": self.velocity,
            "buffer": self.buffer.state_dict(),
            "rate": np.array([self.learning_rate]),
            "steps": self.steps,
            "skipped": self.skipped,
            "right": self.right.copy(),
            "fit": self.fit.copy(),
        }

    def _load_model_state(self, state: dict[str, Any]) -> None:
        for network, saved in zip(self.copies, state["copies"], strict=True):
            network.load(saved)
        self.velocity = [[torch.as_tensor(v).clone().to(self.device) for v in copy] for copy in state["velocity"]]
        self.buffer.load_state_dict(state["buffer"])
        self.learning_rate, self.steps = float(state["rate"][0]), int(state["steps"])
        self.skipped = int(state.get("skipped", 0))  # an earlier version counted none
        self.right, self.fit = state["right"].copy(), state["fit"].copy()
