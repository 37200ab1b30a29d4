"""A 3×3 convolution whose weights' gradient, for small images on a CPU, is one matrix product."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

LARGEST = 64  # pixels; beyond, copying every pixel's neighbourhood costs more than the product gains


class Conv3x3(nn.Conv2d):
    """A 3×3 convolution that keeps the size of its image; the numbers are those of `nn.Conv2d`.

    On a CPU the library's gradient of the weights runs at half the rate of the convolution itself where images are
    small and channels many, as in the late layers here. There it is taken as the product of the gradient with every
    pixel's neighbourhood, a product at the full rate. It gains most in the VGG, little in the ConvNet
    (`python benchmarks/run.py gains`).

    Examples
    --------
    >>> conv = Conv3x3(64, 128, bias=False)
    >>> conv(torch.zeros(5, 64, 4, 4)).shape
    torch.Size([5, 128, 4, 4])
    """

    def __init__(self, channels_in: int, channels: int, bias: bool = True) -> None:
        super().__init__(channels_in, channels, 3, padding=1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if _pays(x) and self.weight.requires_grad and torch.is_grad_enabled():
            out: Tensor = _ByProduct.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
            return out
        return super().forward(x)


def _pays(x: Tensor) -> bool:
    """Whether the product is the faster way for these images (N, channels, height, width)."""
    small = x.shape[2] * x.shape[3] <= LARGEST and x.shape[1] >= 64
    return small and x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


class _ByProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, bias, padding=1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x = conv2d_input(x.shape, weight, grad, padding=1) if ctx.needs_input_grad[0] else None  # type: ignore[no-untyped-call]
        of_bias = grad.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None
        return of_x, _of_weight(x, grad), of_bias


def _of_weight(x: Tensor, grad: Tensor) -> Tensor:
    """The gradient (channels out, channels in, 3, 3) of the weights."""
    n, channels, height, width = x.shape
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1)).contiguous()  # (N, H + 2, W + 2, channels in)
    image, row, pixel, _ = padded.stride()
    # the three pixels of a row of the neighbourhood lie side by side in memory
    around = padded.as_strided((n, height, width, 3, 3 * channels), (image, row, pixel, row, 1))
    of_pixels = grad.permute(0, 2, 3, 1).reshape(n * height * width, -1)  # (pixels, channels out)
    product = of_pixels.t() @ around.reshape(n * height * width, 9 * channels)
    return product.view(-1, 3, 3, channels).permute(0, 3, 1, 2).contiguous()
