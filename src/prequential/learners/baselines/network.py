"""A small network without context, and how examples become its inputs: shared by the baselines that learn by gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prequential.errors import BadCheckpoint, BadInput, BadSetting
from prequential.learners.normaliser import Normaliser
from prequential.models.extractors import make_extractor, seed_dropout


class Network(nn.Module):
    """A linear classifier, a multi-layer perceptron, or either of them behind an extractor for images.

    Each example is done on its own: there are no batch statistics. At the start all labels are equally probable.

    Parameters
    ----------
    shape
        Of one x.
    classes
        Number of outputs.
    hidden
        Widths of the hidden layers; none is a linear classifier.
    extractor
        "none", "convnet", "vgg" or "convnext"; "auto" is convnet for images and none for vectors.
    seed
        Seed of the weights.

    Examples
    --------
    >>> network = Network((8,), 3, hidden=(16,), extractor="auto", seed=0)
    >>> network(torch.zeros(5, 8)).shape
    torch.Size([5, 3])
    >>> network.macs()
    176.0
    """

    def __init__(self, shape: tuple[int, ...], classes: int, *, hidden: Sequence[int], extractor: str, seed: int) -> None:
        super().__init__()
        name = extractor if extractor != "auto" else ("none" if len(shape) == 1 else "convnet")
        if name != "none" and len(shape) == 1:
            raise BadSetting(f"extractor {name!r} needs images, but x has shape {shape}")
        with torch.random.fork_rng(devices=[]):  # leaves the user's random state alone
            torch.manual_seed(seed)
            self.extractor = None if name == "none" else make_extractor(name, shape)
            width = int(np.prod(shape)) if self.extractor is None else int(self.extractor.features)
            self.hidden = nn.ModuleList()
            for wide in hidden:
                layer = nn.Linear(width, wide)
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
                self.hidden.append(layer)
                width = wide
        self.width = width  # of the features
        self.readout = nn.Linear(width, classes)
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    def features(self, x: Tensor) -> Tensor:
        """What the readout sees, (n, width)."""
        h = x.flatten(1) if self.extractor is None else self.extractor(x)
        for layer in self.hidden:
            h = F.relu(layer(h))
        return h

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes)."""
        logits: Tensor = self.readout(self.features(x))
        return logits

    def macs(self) -> float:
        """Multiply-accumulates of a forward pass of one example."""
        linear = sum(module.weight.numel() for module in (*self.hidden, self.readout) if isinstance(module, nn.Linear))
        return float(linear + (0 if self.extractor is None else self.extractor.macs()))

    def training_pass(self, seed: int) -> Network:
        """The network ready for a training pass, with dropout that depends on this seed alone."""
        self.train()
        seed_dropout(self, seed)
        return self

    def load(self, parameters: dict[str, Any]) -> None:
        """Takes over saved parameters."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                saved = torch.tensor(parameters[name])
                if saved.shape != parameter.shape:
                    raise BadCheckpoint(f"parameter {name} has shape {tuple(saved.shape)}, expected {tuple(parameter.shape)}")
                parameter.copy_(saved)


class Inputs:
    """Turns examples into the network's inputs: bytes of images to 0..1, features standardised by the past.

    Parameters
    ----------
    shape
        Of one x.
    image_bytes
        Whether images come as bytes (0..255).
    images
        Whether the network takes images (channels first) or vectors.
    standardise
        Whether vectors are standardised.
    device
        Where the network is.
    """

    def __init__(self, shape: tuple[int, ...], *, image_bytes: bool, images: bool, standardise: bool, device: torch.device) -> None:
        self.image_bytes, self.images, self.device = image_bytes, images, device
        self.normaliser = Normaliser(int(np.prod(shape))) if standardise and not images else None

    def next(self, x: np.ndarray) -> Tensor:
        """Examples of which each could be the next one. Changes nothing."""
        return self._tensor(x if self.normaliser is None else self.normaliser.each(_flat(x)))

    def take(self, x: np.ndarray) -> Tensor:
        """The next examples, in order, which also enter the statistics."""
        if self.normaliser is None:
            return self._tensor(x)
        scaled = self.normaliser.transform(_flat(x))
        self.normaliser.update(_flat(x))
        return self._tensor(scaled)

    def past(self, x: np.ndarray) -> Tensor:
        """Examples of the past, by the statistics as they are now. Changes nothing."""
        return self._tensor(x if self.normaliser is None else self.normaliser.apply(_flat(x)))

    def check(self, x: np.ndarray, position: int) -> None:
        """Raises the sentence a user needs if bytes come where floats did, or the other way round."""
        if x.ndim > 2 and (x.dtype == np.uint8) != self.image_bytes:
            expected = "uint8" if self.image_bytes else "floats"
            raise BadInput(f"example {position}: the image is {x.dtype}, but the first one was {expected}")

    def state(self) -> dict[str, Any]:
        return {"image_bytes": self.image_bytes, "normaliser": None if self.normaliser is None else self.normaliser.state()}

    def load_state(self, state: dict[str, Any]) -> None:
        if self.normaliser is not None:
            self.normaliser.load_state(state["normaliser"])

    def _tensor(self, x: np.ndarray) -> Tensor:
        if self.image_bytes and x.dtype == np.uint8:
            tensor = torch.from_numpy(np.ascontiguousarray(x)).to(self.device).float() / 255
        else:
            tensor = torch.from_numpy(np.array(x, dtype=np.float32)).to(self.device)
        if not self.images:
            return tensor.flatten(1)
        return tensor[:, None] if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)  # (n, channels, height, width)


def make_inputs(network: Network, shape: tuple[int, ...], *, image_bytes: bool, standardise: bool | None, missing: bool) -> Inputs:
    """The inputs for a network; vectors are standardised unless told otherwise, images only when they are told to be."""
    wanted = len(shape) == 1 if standardise is None else standardise
    images = network.extractor is not None
    if missing and (images or not wanted):
        raise BadSetting("standardise must be True where features may be missing: a missing one is the mean")
    device = network.readout.weight.device
    return Inputs(shape, image_bytes=image_bytes, images=images, standardise=wanted, device=device)


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1)
