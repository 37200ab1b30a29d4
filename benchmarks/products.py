"""The matrix products and convolutions that a piece of work consists of, and nothing else of it.

They are written down while the work runs, forward and backward, with their shapes, memory layouts and number formats;
run again on their own, they are the limit that the work is compared with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
# bias and scale are left out: a plain product has none
PLAIN = {
    aten.mm.default: (aten.mm.default, 0),
    aten.addmm.default: (aten.mm.default, 1),
    aten.bmm.default: (aten.bmm.default, 0),
    aten.baddbmm.default: (aten.bmm.default, 1),
    aten.convolution.default: (aten.convolution.default, 0),
    aten.convolution_backward.default: (aten.convolution_backward.default, 0),
}


@dataclass(frozen=True)
class Like:
    """What is needed to make a tensor that is as fast to compute with as another one."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Like:
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def make(self) -> Tensor:
        # numbers as large as a network's: with zeros, infinities or denormals products can take another time
        length = 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        numbers = torch.empty(max(length, 0), dtype=self.dtype).uniform_(-1, 1)
        return numbers.as_strided(self.shape, self.strides)  # some may lie in one place


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down the products of what runs inside its block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PLAIN:
            plain, skipped = PLAIN[func]
            self.calls.append((plain, tuple(Like.of(a) if isinstance(a, Tensor) else a for a in args[skipped:])))
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Products:
    """A list of products that can be run again."""

    calls: list[tuple[Any, tuple[Any, ...]]]

    @classmethod
    def of(cls, work: Callable[[], object]) -> Products:
        """Those of a piece of work, which is run once."""
        with Recorder() as recorder:
            work()
        return cls(recorder.calls)

    def macs(self) -> float:
        """Their multiply-accumulates."""
        return float(sum(_macs(op, args) for op, args in self.calls))

    def runner(self) -> Callable[[], None]:
        """Runs them all once, on numbers made beforehand; each shape is made once."""
        made = {like: like.make() for _, args in self.calls for like in args if isinstance(like, Like)}
        ready = [(op, tuple(made[a] if isinstance(a, Like) else a for a in args)) for op, args in self.calls]

        def run() -> None:
            for op, args in ready:
                op(*args)

        return run

    def kinds(self) -> Counter[str]:
        """How many of each kind there are."""
        return Counter(str(op).split(".")[1] for op, _ in self.calls)


def _macs(op: Any, args: tuple[Any, ...]) -> int:
    if op in (aten.mm.default, aten.bmm.default):
        return int(prod(args[0].shape) * args[1].shape[-1])
    if op is aten.convolution.default:
        x, weight, stride, padding, dilation = args[0], args[1], args[3], args[4], args[5]
        sides = [
            (side + 2 * pad - (dil * (kernel - 1) + 1)) // step + 1
            for side, pad, dil, kernel, step in zip(
                x.shape[2:], padding, dilation, weight.shape[2:], stride, strict=True
            )
        ]
        return int(x.shape[0] * prod(sides) * prod(weight.shape))
    gradient, weight, wanted = args[0], args[2], args[-1]  # for the input and for the weights, as far as wanted
    return int(gradient.shape[0] * prod(gradient.shape[2:]) * prod(weight.shape) * sum(wanted[:2]))
