"""The context of one stream: what the blocks keep of its tokens, and what the heads remember of its examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from prequential.models.attention import Past
from prequential.models.kv_cache import KVCache


@dataclass(frozen=True)
class Seen:
    """What a pass looks back on, or what it leaves behind, of B streams.

    Where streams have pasts of unequal length, they are aligned at their ends, and `filled` says how much of each counts.
    """

    tokens: Past  # keys and values (L, B, P, K) in the blocks
    examples: Past  # keys (1, B, P, W) of all heads that remember, side by side, and labels (1, B, P, 1)
    filled: list[tuple[int, int]] | None = None  # of each stream, tokens and examples; None: all of it

    def stream(self, b: int) -> Seen:
        """The part of one stream, where nothing of it is filler."""
        (k, v), (keys, labels) = self.tokens, self.examples
        at = slice(b, b + 1)
        return Seen((k[:, at], v[:, at]), (keys[:, at], labels[:, at]))

    def repeated(self, n: int) -> Seen:
        """The past of one stream, for n examples each of which is the next."""
        return self if n == 1 else Seen(_repeated(self.tokens, n), _repeated(self.examples, n))


class Context:
    """Two caches that move together: tokens in the blocks, and examples in the heads."""

    def __init__(self, tokens: KVCache, examples: KVCache) -> None:
        self.tokens, self.examples = tokens, examples

    def past(self) -> Seen:
        """What a whole chunk can look back on."""
        return Seen(self.tokens.past(), self.examples.past())

    def recent(self) -> Seen:
        """What the next example can look back on, those since the chunk border included."""
        return Seen(self.tokens.recent(), self.examples.recent())

    def append(self, new: Seen) -> None:
        """Adds examples since the chunk border."""
        if new.tokens[0].shape[2]:  # none where there are no blocks
            self.tokens.append(new.tokens)
        if new.examples[0].shape[2]:
            self.examples.append(new.examples)

    def finish_chunk(self, new: Seen) -> None:
        """Replaces the examples since the chunk border by those of the whole chunk, and moves the border behind them."""
        self.tokens.finish_chunk(new.tokens)
        self.examples.finish_chunk(new.examples)

    def clear(self) -> None:
        self.tokens.clear()
        self.examples.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"tokens": self.tokens.state_dict(), "examples": self.examples.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tokens.load_state_dict(state["tokens"])
        self.examples.load_state_dict(state["examples"])


def stacked(contexts: list[Context]) -> Seen:
    """The pasts of several streams as a batch."""
    pasts = [context.past() for context in contexts]
    filled = [(past.tokens[0].shape[2], past.examples[0].shape[2]) for past in pasts]
    return Seen(_aligned([past.tokens for past in pasts]), _aligned([past.examples for past in pasts]), filled)


def _aligned(pasts: list[Past]) -> Past:
    longest = max(past[0].shape[2] for past in pasts)
    k, v = ([F.pad(past[i], (0, 0, longest - past[i].shape[2], 0)) for past in pasts] for i in (0, 1))
    return torch.cat(k, 1), torch.cat(v, 1)


def _repeated(past: Past, n: int) -> Past:
    k, v = past
    return k.expand(-1, n, -1, -1), v.expand(-1, n, -1, -1)
