"""The VGG-like network for small natural images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prequential.errors import BadInput, BadSetting
from prequential.models.extractors.dropout import Dropout

CHANNELS = (64, 128, 256, 512)  # of the stages
GROUPS = 32


class VGG(nn.Module):
    """Four stages of two 3×3 convolutions with GroupNorm and ReLU, max-pooling between them, a global average.

    Called VGG++ in the papers on prequential learning, which add normalization and dropout to a VGG and leave their
    places open. Here the norm follows each convolution (32 groups, so no statistics are shared between images) and
    dropout follows each pooling, the global average included. A side that has shrunk to a single pixel is not
    pooled any further, so images of every size can be used.

    Parameters
    ----------
    channels_in
        Channels of an image.
    height
        Rows of an image.
    width
        Columns of an image.
    dropout
        The probability of dropping a number while training; `seed_dropout` must then be called before each pass.

    Examples
    --------
    >>> net = VGG(3, 32, 32).eval()
    >>> net(torch.zeros(5, 3, 32, 32)).shape
    torch.Size([5, 512])
    >>> net.macs()
    209387520
    """

    features: int = CHANNELS[-1]

    def __init__(self, channels_in: int, height: int, width: int, dropout: float = 0.1) -> None:
        super().__init__()
        if min(channels_in, height, width) < 1:
            raise BadSetting(
                f"VGG: channels_in ({channels_in}), height ({height}) and width ({width}) must be at least 1"
            )
        self.shape = (channels_in, height, width)
        self.dropout = dropout
        self.memory_format = torch.channels_last  # of the activations; the faster one on a CPU
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for wider in CHANNELS:
            for channels in (channels_in, wider):
                conv = nn.Conv2d(channels, wider, 3, padding=1, bias=False)  # the norm has one
                nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
                self.convs.append(conv)
                self.norms.append(nn.GroupNorm(GROUPS, wider))
            channels_in = wider
        self.drops = nn.ModuleList(Dropout(dropout) for _ in CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        """The features (N, 512) of images (N, channels, height, width)."""
        if x.shape[1:] != self.shape:
            raise BadInput(f"images have shape {tuple(x.shape[1:])}, expected {self.shape} (channels, height, width)")
        x = x.to(memory_format=self.memory_format)
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = norm(conv(x).float())  # in bfloat16 the norms would take longer than all convolutions
            between = i in (1, 3, 5)  # the last convolution of a stage that is not the last one
            if between:  # pooling before the ReLU gives the same numbers, and the ReLU a quarter of the work
                x = F.max_pool2d(x, (min(2, x.shape[2]), min(2, x.shape[3])))
            x = F.relu(x, inplace=True)  # (N, channels, height, width)
            if between:
                x = self.drops[i // 2](x)
        pooled: Tensor = self.drops[-1](x.mean((2, 3)))  # (N, features)
        return pooled

    def macs(self) -> int:
        """Multiply-accumulates of one forward pass for one image, convolutions only.

        Training costs three times that, less the first convolution once: nobody needs the gradient of the pixels.
        """
        channels, height, width = self.shape
        total = 0
        for wider in CHANNELS:
            total += 9 * (channels + wider) * wider * height * width
            channels, height, width = wider, max(height // 2, 1), max(width // 2, 1)
        return total
