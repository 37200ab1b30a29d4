"""Making a model from settings."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from prequential.models.extractors import make_extractor
from prequential.models.extractors.own import OwnExtractor
from prequential.models.pi import PiTransformer
from prequential.models.transformer import Transformer
from prequential.models.two_token import TwoTokenTransformer
from prequential.settings import Settings


class OwnNetwork(NamedTuple):
    """An extractor of one's own: a module, or what makes one, and the arguments for that."""

    network: nn.Module | Callable[..., nn.Module]
    options: dict[str, Any]


MODELS: dict[str, type[Transformer]] = {"pi": PiTransformer, "two-token": TwoTokenTransformer}


def make_model(
    settings: Settings,
    *,
    features: int,
    extractor: str,
    shape: tuple[int, ...],
    num_classes: int,
    own: OwnNetwork | None = None,
) -> Transformer:
    """A new transformer; its weights depend on the seed of the settings alone.

    Parameters
    ----------
    settings
        What it is made of.
    features
        The length of input vectors; ignored where an extractor makes them.
    extractor
        The name of the network that makes features of images, or "none".
    shape
        The shape of one input as the user gave it, channels last.
    num_classes
        How many labels there can be.
    own
        An extractor of one's own, in place of one by name.
    """
    cuda = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices=cuda):  # reproducible, and nobody else's random numbers are touched
        torch.manual_seed(settings.seed)
        network: nn.Module | None = None
        if extractor != "none" and settings.use_input:
            if own is None:
                network = make_extractor(extractor, shape)
            else:
                height, width, channels = (*shape, 1)[:3]
                given = copy.deepcopy(own.network) if isinstance(own.network, nn.Module) else own.network
                network = OwnExtractor(given, (channels, height, width), own.options)
            features = int(network.features)
        return MODELS[settings.model](settings, features=features, num_classes=num_classes, extractor=network)
