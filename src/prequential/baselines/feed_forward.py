"""A small network without context, shared by the baselines that learn by gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prequential.errors import BadCheckpoint
from prequential.models.extractors import make_extractor, seed_dropout
from prequential.models.grow import copied_rows


class Network(nn.Module):
    """A linear classifier, a multi-layer perceptron, or either of them on top of an extractor for images.

    There are no batch statistics: each example is processed on its own. Initially all labels are equally probable.

    Parameters
    ----------
    shape
        Of one x.
    classes
        Number of outputs.
    hidden_sizes
        Widths of the hidden layers; none is a linear classifier.
    extractor
        "none", or for images "convnet", "vgg" or "convnext".
    seed
        Seed of the weights.

    Examples
    --------
    >>> network = Network((8,), 3, hidden_sizes=(16,), extractor="none", seed=0)
    >>> network(torch.zeros(5, 8)).shape
    torch.Size([5, 3])
    >>> network.macs()
    176.0
    """

    def __init__(
        self, shape: tuple[int, ...], classes: int, *, hidden_sizes: Sequence[int], extractor: str, seed: int
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):  # leaves the user's random state alone
            torch.manual_seed(seed)
            self.extractor = None if extractor == "none" else make_extractor(extractor, shape)
            width = int(np.prod(shape)) if self.extractor is None else int(self.extractor.features)
            self.hidden = nn.ModuleList()
            for wide in hidden_sizes:
                layer = nn.Linear(width, wide)
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
                self.hidden.append(layer)
                width = wide
            self.readout = nn.Linear(width, classes)
        self.width = width  # of the features
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    def features(self, x: Tensor) -> Tensor:
        """Inputs of the readout, (n, width)."""
        h = x.flatten(1) if self.extractor is None else self.extractor(x)
        for layer in self.hidden:
            h = F.relu(layer(h))
        return h

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes)."""
        logits: Tensor = self.readout(self.features(x))
        return logits

    def grow(self, classes: int, like: int) -> None:
        """Adds outputs that are copies of this one; the parameters stay the same objects."""
        weight, bias = (copied_rows(parameter.data, classes, like) for parameter in self.readout.parameters())
        self.readout.weight.data, self.readout.bias.data, self.readout.out_features = weight, bias, classes

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
        """Loads saved parameters."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                saved = torch.as_tensor(parameters[name])
                if saved.shape != parameter.shape:
                    raise BadCheckpoint(
                        f"parameter {name} has shape {tuple(saved.shape)}, expected {tuple(parameter.shape)}"
                    )
                parameter.copy_(saved)
