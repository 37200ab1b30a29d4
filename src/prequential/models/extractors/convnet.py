"""The small convolutional network for characters and digits."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prequential.errors import BadInput, BadSetting

CHANNELS = (32, 32, 64, 64, 128, 128, 256, 256)


class ConvNet(nn.Module):
    """Eight 3×3 convolutions, 2×2 max-pooling after every second one, then two fully connected layers.

    Every layer is followed by a ReLU, the last one too: the transformer begins with a linear map, and two linear
    maps in a row would be one. A side that has shrunk to a single pixel is not pooled any further, so images of
    every size can be used; below 16×16 some of the poolings do nothing.

    Parameters
    ----------
    channels_in
        Channels of an image.
    height
        Rows of an image.
    width
        Columns of an image.
    features
        Numbers that come out for one image.

    Examples
    --------
    >>> net = ConvNet(1, 28, 28)
    >>> net(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 256])
    >>> net.macs()
    37220864
    """

    dropout: float = 0.0

    def __init__(self, channels_in: int, height: int, width: int, features: int = 256) -> None:
        super().__init__()
        if min(channels_in, height, width, features) < 1:
            raise BadSetting(
                f"ConvNet: channels_in ({channels_in}), height ({height}), width ({width}) and features ({features}) must be at least 1"
            )
        self.shape = (channels_in, height, width)
        self.features = features
        self.memory_format = torch.channels_last  # of the activations; the faster one on a CPU
        widths = (channels_in, *CHANNELS)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(widths))
        for _ in range(4):
            height, width = max(height // 2, 1), max(width // 2, 1)
        self.full1 = nn.Linear(CHANNELS[-1] * height * width, features)
        self.full2 = nn.Linear(features, features)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """The features (N, features) of images (N, channels, height, width)."""
        if x.shape[1:] != self.shape:
            raise BadInput(f"images have shape {tuple(x.shape[1:])}, expected {self.shape} (channels, height, width)")
        x = x.to(memory_format=self.memory_format)
        for i, conv in enumerate(self.convs):
            x = conv(x)
            if i % 2:  # pooling before the ReLU gives the same numbers, and the ReLU a quarter of the work
                x = F.max_pool2d(x, (min(2, x.shape[2]), min(2, x.shape[3])))
            x = F.relu(x, inplace=True)  # (N, channels, height, width)
        x = F.relu(self.full1(x.flatten(1)), inplace=True)
        return F.relu(self.full2(x), inplace=True)  # (N, features)

    def macs(self) -> int:
        """Multiply-accumulates of one forward pass for one image, convolutions and linear maps only.

        Training costs three times that, less the first convolution once: nobody needs the gradient of the pixels.
        """
        channels, height, width = self.shape
        total = 0
        for i, wider in enumerate(CHANNELS):
            total += 9 * channels * wider * height * width
            channels = wider
            if i % 2:
                height, width = max(height // 2, 1), max(width // 2, 1)
        return total + channels * height * width * self.features + self.features**2
