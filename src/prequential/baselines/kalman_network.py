"""The Kalman filter on top of a network that is learned online (Titsias et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from prequential.baselines.adamw import AdamW
from prequential.baselines.calibration import Calibration
from prequential.baselines.kalman import check_kalman, make_filter
from prequential.baselines.replay_learner import ReplayLearner
from prequential.errors import BadSetting
from prequential.labels import num_seen_before
from prequential.renames import OPTIONS, takes_old_names


@takes_old_names(OPTIONS)
class KalmanNetwork(ReplayLearner):
    """A network whose last layer is a Kalman filter; the other layers are trained by gradient descent.

    The inputs of the filter are the network's features, layer-normalized, and a constant 1; see `Kalman` for the
    filter. When a block is full, the network takes a gradient step on CE(softmax(alpha * features * gamma M), y), with
    the filter's weights M, drift gamma and alpha from before the block, and one on the chunk of each replay stream,
    with their current values. All three are constants in these steps. The filter learned old labels from features that
    have changed since; its drift, which is learned too, forgets them.

    A block is `chunk_size` examples. The network, the drift and alpha are frozen inside a block, the filter is not:
    each prediction uses every label before it.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves. None: any number.
    hidden_sizes
        Widths of hidden layers; the last one is the number of features. At least one, unless there is an extractor.
    extractor
        For images: "convnet", "vgg", "convnext", or "none" for a network of pixels. "auto": convnet.
    chunk_size
        Examples per step.
    num_streams
        Number of streams the network learns from: the reported one and the replay streams. 1 is no replay.
    learning_rate, weight_decay
        Of AdamW, on the network.
    gamma, drift_rate, noise, prior, samples, calibrate, precision
        Of the filter; as in `Kalman`.
    device
        Where the network is: cpu, cuda, ... The filter is always on the cpu.
    seed
        Seed of the weights, of the replay and of the Monte Carlo samples.
    standardize, missing
        As in `NetworkLearner`.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> x = random.normal(size=(1000, 2))
    >>> y = (x[:, 0] * x[:, 1] > 0).astype(int)
    >>> learner = KalmanNetwork(2, hidden_sizes=(32,), chunk_size=20, num_streams=4)
    >>> charges = learner.observe(x, y)
    >>> print(f"{charges.correct.mean():.2f}")
    0.96
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
        gamma: float = 1.0,
        drift_rate: float = 1e-2,
        noise: float | None = None,
        prior: float | None = None,
        samples: int = 8,
        calibrate: bool = True,
        precision: str = "float64",
        standardize: bool | None = None,
        device: str = "cpu",
        missing: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(
            classes, chunk=chunk_size, hidden_sizes=hidden_sizes, extractor=extractor, standardize=standardize,
            device=device, missing=missing, seed=seed,
        )  # fmt: skip
        check_kalman(
            block=chunk_size, gamma=gamma, drift_rate=drift_rate, noise=noise, prior=prior, precision=precision
        )
        if num_streams < 1:
            raise BadSetting(f"num_streams ({num_streams}) must be at least 1: the reported one counts")
        for name, value in (("learning_rate", learning_rate), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise BadSetting(f"{name} ({value}) must be at least 0")
        self._own: dict[str, Any] = {
            "chunk_size": chunk_size, "num_streams": num_streams, "learning_rate": learning_rate,
            "weight_decay": weight_decay, "gamma": gamma, "drift_rate": drift_rate, "noise": noise, "prior": prior,
            "samples": samples, "calibrate": calibrate,
            "precision": precision,
        }  # fmt: skip
        self.keeps_past = num_streams > 1
        self._calibration()  # complains now, not at the first example

    def config(self) -> dict[str, Any]:
        return {**self._network_config(), **self._own}

    def macs_per_example(self) -> float | None:
        """A forward pass to predict; forward and backward (twice a forward) in each stream; the filter."""
        if self.inputs is None:
            return None
        network = (1 + 3 * (1 + len(self.replay))) * self.network.macs()
        return network + self.filter.macs_per_example() + self.calibration.macs_per_example(self.labels.capacity)

    def _calibration(self) -> Calibration:
        c = self._own
        return Calibration(
            self.labels.classes, samples=c["samples"], learn=c["calibrate"], block=self.stride, seed=self.seed
        )

    def _build(self, shape: tuple[int, ...], extractor: str) -> None:
        self.network = self.make_network(shape, extractor)
        trained = [(name, p) for name, p in self.network.named_parameters() if not name.startswith("readout.")]
        if not trained:
            raise BadSetting(
                "hidden_sizes ([]) must name a layer where there is no extractor: nothing would be learned by gradient"
            )
        self.optimizer = AdamW(trained, rate=self._own["learning_rate"], weight_decay=self._own["weight_decay"])
        self.filter = make_filter(self.network.width + 1, self.labels, {**self._own, "block": self.stride})
        self.calibration = self._calibration()
        self.readout = self._readout()  # as it was before the block
        self.replay = self._make_replay(self._own["num_streams"] - 1)
        self.steps = 0

    def _phi(self, x: Tensor) -> Tensor:
        """What the filter sees, (n, m)."""
        h = F.layer_norm(self.network.features(x), (self.network.width,))
        return torch.cat([h, torch.ones_like(h[:, :1])], dim=1)

    def _for_filter(self, x: Tensor) -> Tensor:
        self.network.eval()
        return self._phi(x).detach().cpu().to(self.filter.mean.dtype)

    def _needs_snapshot(self, count: int) -> bool:
        return True  # the filter may refuse any chunk; beside training on one, the copy costs little (0.3 %)

    def _log_probs(self, x: Tensor, num_seen: np.ndarray) -> Tensor:
        mean, variance = self.filter.predict(self._for_filter(x))
        return torch.from_numpy(self.calibration.predict(mean, variance, int(num_seen[0])))

    def _observe_inputs(self, x: Tensor, class_ids: np.ndarray) -> Tensor:
        phi, labels = self._for_filter(x), torch.from_numpy(class_ids)
        num_seen = num_seen_before(class_ids, self.num_seen)
        active = 1 + max(int(num_seen[-1]), int(class_ids[-1]) + 1)  # the labels seen, and one for all others
        y = F.one_hot(labels, self.labels.capacity).to(phi.dtype)
        mean, variance = self.filter.observe(phi, y, min(active, self.labels.capacity))
        return torch.from_numpy(self.calibration.observe(mean, variance, labels, num_seen))

    def _grow_model(self, capacity: int, like: int) -> None:
        self.network.grow(capacity, like)  # nothing is read out of it here
        more = (0, capacity - self.filter.mean.shape[1])  # a label that has never come has weights of 0
        self.filter.mean, self.filter.white = F.pad(self.filter.mean, more), F.pad(self.filter.white, more)
        self.readout = F.pad(self.readout, more)

    def _train_step(self, x: np.ndarray, class_ids: np.ndarray) -> None:
        self._step(self._past(x), torch.from_numpy(class_ids).to(self.device), self.readout)
        for old_x, old_y in self._replayed(len(class_ids)):
            self._step(old_x, old_y, self._readout())
        self.readout = self._readout()

    def _readout(self) -> Tensor:
        """What makes logits of features at the start of the next block: alpha M-, with M- = gamma M."""
        return math.exp(self.calibration.log_alpha) * self.filter.gamma * self.filter.mean

    def _step(self, x: Tensor, y: Tensor, readout: Tensor) -> None:
        self.network.training_pass(self.seed + 1_000_003 * self.steps)
        self.optimizer.step(self._loss(self._phi(x) @ readout.float().to(self.device), y))
        self.steps += 1

    def _skipped(self) -> int:
        return self.optimizer.skipped

    def _model_state(self) -> dict[str, Any]:
        return {
            "network": dict(self.network.named_parameters()),
            "filter": self.filter.state_dict(),
            "readout": self.readout,
            "calibration": self.calibration.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "readers": self.replay.state_dict(),
            "steps": self.steps,
            "skipped": self._skipped(),
        }

    def _load_model_state(self, state: dict[str, Any]) -> None:
        self.network.load(state["network"])
        self.filter.load_state_dict(state["filter"])
        self.readout = torch.as_tensor(state["readout"]).clone()
        self.calibration.load_state_dict(state["calibration"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.replay.load_state_dict(state["readers"])
        self.steps = int(state["steps"])
        self.optimizer.skipped = int(state.get("skipped", 0))  # an earlier version counted none
