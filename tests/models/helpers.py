"""Small transformers with weights that do something, and ways to run them over a stream."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prequential.models.pi import PiTransformer
from prequential.models.transformer import Transformer
from prequential.models.two_token import TwoTokenTransformer
from prequential.settings import Settings

CLASSES, FEATURES = 5, 3


def small(model: str, *, chunk_size: int, window: int, depth: int = 2, **changes: object) -> Transformer:
    """a model whose output depends on everything it can see; the same weights for any chunk size."""
    torch.manual_seed(0)
    settings = Settings(
        model=model, width=16, num_query_heads=2, depth=depth, window=window, chunk_size=chunk_size
    ).changed(**changes)
    kind = PiTransformer if model == "pi" else TwoTokenTransformer
    made = kind(settings, features=FEATURES, num_classes=CLASSES)
    torch.manual_seed(1)
    for name, parameter in made.named_parameters():
        if name in ("output_heads.copy.log_temperature", "output_heads.copy.recency_slope"):
            nn.init.zeros_(parameter)  # so that a label in the window cannot be too faint to be seen
    if "softmax" in made.output_heads:
        nn.init.normal_(made.output_heads["softmax"].readout.weight)
    return made


def example(length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(1, length, FEATURES, generator=generator)
    return x, torch.randint(CLASSES, (1, length), generator=generator)


@torch.no_grad()
def run(model: Transformer, x: Tensor, y: Tensor, size: int, head: str = "softmax") -> Tensor:
    """Log-probabilities (T, classes) by one head of a stream read in pieces of a size, through the context."""
    context = model.new_context()
    out = []
    for start in range(0, x.shape[1], size):
        outs, new = model(x[:, start : start + size], y[:, start : start + size], context.committed())
        context.commit(new)
        out.append(log_p(model, outs, head)[0])
    return torch.cat(out)


def log_p(model: Transformer, outs: list[Tensor], head: str) -> Tensor:
    """The log-probabilities (..., classes) of one of the heads, all labels having been met."""
    out = outs[list(model.output_heads).index(head)]
    return model.output_heads[head].log_probs(out, None)  # type: ignore[operator]
