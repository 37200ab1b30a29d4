"""ConvNeXt, the large network for photographs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prequential.errors import BadInput, BadSetting

SIZES = {  # blocks and channels of the four stages
    "atto": ((2, 2, 6, 2), (40, 80, 160, 320)),
    "tiny": ((3, 3, 9, 3), (96, 192, 384, 768)),
    "small": ((3, 3, 27, 3), (96, 192, 384, 768)),
    "base": ((3, 3, 27, 3), (128, 256, 512, 1024)),
}
SMALLEST = 32  # the stem divides a side by 4 and three more convolutions by 2


class Block(nn.Module):
    """h + gain · W2 gelu(W1 LayerNorm(depthwise 7×7(h))); the norm and the linear maps act on the channels of a pixel."""

    def __init__(self, channels: int, skip_gain: float) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.up = nn.Linear(channels, 4 * channels)
        self.down = nn.Linear(4 * channels, channels)
        self.skip_gain = nn.Parameter(torch.full((channels,), skip_gain))

    def forward(self, h: Tensor) -> Tensor:  # (N, C, H, W)
        x: Tensor = self.depthwise(h).permute(0, 2, 3, 1)  # (N, H, W, C); in channels-last memory this moves nothing
        x = self.down(F.gelu(self.up(self.norm(x)))) * self.skip_gain
        return h + x.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """A ConvNeXt without its output layer: the features are the normalized averages of the last stage's channels.

    There are only layer norms inside, over the channels of one pixel, so images of a batch do not see each other.

    Parameters
    ----------
    channels_in
        Channels of an image.
    height
        Rows of an image, at least 32; those beyond a multiple of 32 may be cut off.
    width
        Columns of an image, likewise.
    size
        "tiny" is the network of the paper (27.8 million parameters); there are "atto" (3.4), "small" (49.5) and
        "base" (87.6).
    skip_gain
        What the blocks' outputs are multiplied by at the beginning; a learned number per channel from then on.
        ConvNeXt itself starts at 1e-6, which switches the blocks off until hundreds of steps have raised it; a
        learner that is charged from the first example should not wait. On the first 2,560 to 12,000 images of a
        20-class CIFAR-100 stream (one run each), 0.1 lost less than 1e-6 three times out of three; 1 lost still less
        with "atto" and more with "tiny".

    Examples
    --------
    >>> net = ConvNeXt(3, 64, 64, size="atto")
    >>> net(torch.zeros(5, 3, 64, 64)).shape
    torch.Size([5, 320])
    """

    dropout: float = 0.0

    def __init__(self, channels_in: int, height: int, width: int, size: str = "tiny", skip_gain: float = 0.1) -> None:
        super().__init__()
        if size not in SIZES:
            raise BadSetting(f"ConvNeXt: size is {size!r}, expected one of {', '.join(SIZES)}")
        if channels_in < 1:
            raise BadSetting(f"ConvNeXt: channels_in ({channels_in}) must be at least 1")
        if min(height, width) < SMALLEST:
            raise BadSetting(f"ConvNeXt: an image has {height}×{width} pixels, expected at least {SMALLEST}×{SMALLEST}")
        self.shape = (channels_in, height, width)
        self.depths, self.widths = SIZES[size]
        self.features = self.widths[-1]
        self.memory_format = torch.channels_last  # of the activations; the faster one on a CPU
        before = (channels_in, *self.widths)
        self.shrinks = nn.ModuleList(
            nn.Conv2d(before[i], channels, 2 if i else 4, stride=2 if i else 4)
            for i, channels in enumerate(self.widths)
        )
        # the stem is followed by its norm, the other three come after theirs
        self.norms = nn.ModuleList(nn.LayerNorm(before[max(i, 1)], eps=1e-6) for i in range(len(self.widths)))
        self.stages = nn.ModuleList(
            nn.Sequential(*(Block(channels, skip_gain) for _ in range(depth)))
            for channels, depth in zip(self.widths, self.depths, strict=True)
        )
        self.last_norm = nn.LayerNorm(self.features, eps=1e-6)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """The features (N, features) of images (N, channels, height, width)."""
        if x.shape[1:] != self.shape:
            raise BadInput(f"images have shape {tuple(x.shape[1:])}, expected {self.shape} (channels, height, width)")
        x = x.contiguous(memory_format=self.memory_format)
        for i, (shrink, norm, stage) in enumerate(zip(self.shrinks, self.norms, self.stages, strict=True)):
            x = shrink(self._normalise(norm, x)) if i else self._normalise(norm, shrink(x))
            x = stage(x)  # (N, C, H, W)
        pooled: Tensor = self.last_norm(x.mean((2, 3)))  # (N, features)
        return pooled

    def _normalise(self, norm: nn.Module, x: Tensor) -> Tensor:
        """A layer norm over the channels of each pixel; in channels-last memory nothing is moved for it."""
        normal: Tensor = norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return normal.contiguous(memory_format=self.memory_format)

    def macs(self) -> int:
        """Multiply-accumulates of one forward pass for one image, convolutions and linear maps only.

        Training costs three times that, less the stem once: nobody needs the gradient of the pixels.
        """
        channels, height, width = self.shape
        total = 0
        for i, (depth, wider) in enumerate(zip(self.depths, self.widths, strict=True)):
            step = 2 if i else 4
            height, width = height // step, width // step
            total += step**2 * channels * wider * height * width
            total += depth * (49 + 8 * wider) * wider * height * width
            channels = wider
        return total
