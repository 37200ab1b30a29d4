"""Output heads: ways to predict labels from one pass of the network.

A new one is a file here and a line in `make_heads`.
"""

from torch import nn

from prequential.models.heads.copy import CopyHead
from prequential.models.heads.head import Head, HeadInput, mix_with_prior
from prequential.models.heads.softmax import SoftmaxHead
from prequential.settings import Settings

__all__ = ["CopyHead", "Head", "HeadInput", "SoftmaxHead", "make_heads", "mix_with_prior"]


def make_heads(settings: Settings, *, num_classes: int) -> nn.ModuleDict:
    """The heads of a method, by name. Without a window there is nothing to copy from."""
    heads: dict[str, nn.Module] = {}
    if settings.method != "copy":
        heads["softmax"] = SoftmaxHead(width=settings.width, num_classes=num_classes)
    if settings.method != "paper" and settings.window_examples:
        heads["copy"] = CopyHead(width=settings.width, num_classes=num_classes, deep=False)
    if settings.method == "mixed" and settings.window_examples:
        heads["deep-copy"] = CopyHead(width=settings.width, num_classes=num_classes, deep=True)
    return nn.ModuleDict(heads)
