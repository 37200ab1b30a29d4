"""Networks that turn images into feature vectors and are trained together with the transformer.

Their activations are kept in channels-last memory, which is faster on a CPU (`benchmarks/extractors.py`). Their weights
are not: it gains nothing more, and torch's fused AdamW silently mixes up the numbers of a weight, a gradient and a
restored moment whose memory layouts differ.
"""

from collections.abc import Callable
from functools import partial

from prequential.errors import BadSetting
from prequential.models.extractors.convnet import ConvNet
from prequential.models.extractors.convnext import ConvNeXt
from prequential.models.extractors.dropout import Dropout, has_dropout, seed_dropout
from prequential.models.extractors.vgg import VGG

__all__ = [
    "EXTRACTORS",
    "VGG",
    "ConvNeXt",
    "ConvNet",
    "Dropout",
    "Extractor",
    "has_dropout",
    "make_extractor",
    "seed_dropout",
]

Extractor = ConvNet | VGG | ConvNeXt
EXTRACTORS: dict[str, Callable[[int, int, int], Extractor]] = {
    "convnet": ConvNet,
    "vgg": VGG,
    "convnext": ConvNeXt,
    "convnext-atto": partial(ConvNeXt, size="atto"),
}


def make_extractor(name: str, shape: tuple[int, ...]) -> Extractor:
    """A new extractor with its usual settings; its initial weights come from torch's global random state.

    Parameters
    ----------
    name
        "convnet", "vgg", "convnext" or "convnext-atto".
    shape
        Of one image: (height, width) or (height, width, channels).

    Examples
    --------
    >>> make_extractor("convnet", (28, 28)).features
    256
    """
    if name not in EXTRACTORS:
        raise BadSetting(f"extractor is {name!r}, expected one of {', '.join(EXTRACTORS)}")
    if len(shape) not in (2, 3):
        raise BadSetting(
            f"extractor {name!r} needs images of shape (height, width) or (height, width, channels), but x has shape {tuple(shape)}"
        )
    height, width, channels = (*shape, 1)[:3]
    return EXTRACTORS[name](channels, height, width)
