"""How much faster the image extractors train with their activations in channels-last memory.

Run: `python benchmarks/extractors.py`. It takes less than a minute on two free cores; the two layouts take turns in
the same run and the fastest pass of each counts, so the ratio holds on a busy machine where the times do not.
Expected on a 2-core x86 CPU: ConvNet and ConvNeXt 1.2 to 1.4, VGG about 1.0 (its group norms pay for it).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from prequential.models.extractors import VGG, ConvNet, ConvNeXt, Extractor, seed_dropout

LAYOUTS = {"default": torch.contiguous_format, "channels-last": torch.channels_last}


def extractor_pass(model: Extractor, x: Tensor, layout: torch.memory_format) -> None:
    """Forward and backward pass of the whole network."""
    model.memory_format = layout
    seed_dropout(model, 0)
    model.zero_grad()
    model(x).sum().backward()


def layer_pass(layer: Callable[[Tensor], Tensor], x: Tensor, layout: torch.memory_format) -> None:
    """Forward and backward pass of one layer, with the gradient of its input."""
    out = layer(x.to(memory_format=layout).requires_grad_())
    torch.autograd.backward(out, torch.ones_like(out))


def over_pixels(norm: nn.LayerNorm) -> Callable[[Tensor], Tensor]:
    """A layer norm over the channels of each pixel, by permuted views."""

    def apply(x: Tensor) -> Tensor:
        return norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # type: ignore[no-any-return]

    return apply


def fastest(work: Callable[[torch.memory_format], None], seconds: float) -> dict[str, float]:
    """The fastest pass in each layout, taking turns for about this long and at least twice."""
    best = dict.fromkeys(LAYOUTS, float("inf"))
    end = time.perf_counter() + seconds
    turns = 0
    while turns < 2 or time.perf_counter() < end:
        for name, layout in LAYOUTS.items():
            start = time.perf_counter()
            work(layout)
            best[name] = min(best[name], time.perf_counter() - start)
        turns += 1
    return best


def main() -> None:
    torch.manual_seed(0)
    rows: list[tuple[str, Callable[[torch.memory_format], None], float]] = []
    networks: list[tuple[str, Extractor, int, float]] = [
        ("ConvNet 50 × 28×28×1", ConvNet(1, 28, 28), 50, 5.0),
        ("ConvNet 400 × 28×28×1", ConvNet(1, 28, 28), 400, 8.0),
        ("VGG 50 × 32×32×3", VGG(3, 32, 32), 50, 6.0),
        ("ConvNeXt-T 16 × 160×160×3", ConvNeXt(3, 160, 160), 16, 15.0),
    ]
    for title, model, batch, seconds in networks:
        rows.append((title, partial(extractor_pass, model, torch.randn(batch, *model.shape)), seconds))
    for channels, side in [(96, 40), (384, 10)]:
        x = torch.randn(16, channels, side, side)
        shape = f"16 × {side}×{side}×{channels}"
        depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        rows.append((f"depthwise 7×7 {shape}", partial(layer_pass, depthwise, x), 1.5))
        rows.append((f"layer norm {shape}", partial(layer_pass, over_pixels(nn.LayerNorm(channels)), x), 0.5))
    print(f"forward + backward, milliseconds, {torch.get_num_threads()} threads")
    print(f"{'':32}{'default':>10}{'channels-last':>15}{'ratio':>8}")
    for title, work, seconds in rows:
        best = fastest(work, seconds)
        plain, last = best["default"], best["channels-last"]
        print(f"{title:32}{1e3 * plain:10.1f}{1e3 * last:15.1f}{plain / last:8.2f}", flush=True)


if __name__ == "__main__":
    main()
