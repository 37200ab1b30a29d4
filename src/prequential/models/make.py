"""Making a model from settings."""

from __future__ import annotations

import torch
from torch import nn

from prequential.models.extractors import make_extractor
from prequential.models.pi import PiTransformer
from prequential.models.transformer import Transformer
from prequential.models.two_token import TwoTokenTransformer
from prequential.settings import Settings

MODELS: dict[str, type[Transformer]] = {"pi": PiTransformer, "two-token": TwoTokenTransformer}


def make_model(
    settings: Settings, *, features: int, extractor: str, shape: tuple[int, ...], num_classes: int
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
        The shape of one input as the user gave it.
    num_classes
        How many labels there can be.
    """
    cuda = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices=cuda):  # reproducible, and nobody else's random numbers are touched
        torch.manual_seed(settings.seed)
        network: nn.Module | None = None
        if extractor != "none" and settings.use_input:
            network = make_extractor(extractor, shape)
            features = int(network.features)
        return MODELS[settings.model](settings, features=features, num_classes=num_classes, extractor=network)
