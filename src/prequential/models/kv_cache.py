"""What blocks and heads remember of a stream: keys and values of its most recent tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from prequential.models.attention import Past


class KVCache:
    """The keys and values of the C most recent tokens of one stream, and of the tokens since the last chunk border.

    They are what the parameters of their time made of the tokens: stale and detached. The buffer has room for more
    than C tokens, so that most pushes move nothing but the new ones. With `labels`, the values are labels, one each.
    """

    def __init__(
        self, *, depth: int, window: int, chunk_tokens: int, key_width: int, device: torch.device, labels: bool = False
    ) -> None:
        self.window = window
        room = window + max(window, 2 * chunk_tokens)
        self._k = torch.zeros(depth, 1, room, key_width, device=device)
        self._v = (
            torch.zeros(depth, 1, room, 1, device=device, dtype=torch.int64) if labels else torch.zeros_like(self._k)
        )
        self._end = 0  # where the next token goes
        self.filled = 0  # tokens of finished chunks, at most C
        self.fresh = 0  # tokens since the last chunk border

    def past(self) -> Past:
        """What a whole chunk can look back on: the last C tokens before the chunk border, (L, 1, P, K) each."""
        return self._view(self._end - self.fresh - self.filled, self._end - self.fresh)

    def recent(self) -> Past:
        """What the next token can look back on: the last C tokens, those since the chunk border included."""
        return self._view(self._end - min(self.window, self.filled + self.fresh), self._end)

    def append(self, new: Past) -> None:
        """Adds tokens since the chunk border."""
        tokens = new[0].shape[2]
        if self._end + tokens > self._k.shape[2]:
            self._make_room()
        self._k[:, :, self._end : self._end + tokens] = new[0]
        self._v[:, :, self._end : self._end + tokens] = new[1]
        self._end += tokens
        self.fresh += tokens

    def finish_chunk(self, new: Past) -> None:
        """Replaces the tokens since the chunk border by those of the whole chunk, and moves the border behind them."""
        self._end -= self.fresh
        self.fresh = 0
        tokens = min(self.window, new[0].shape[2])
        if tokens:
            self.append((new[0][:, :, -tokens:], new[1][:, :, -tokens:]))
        self.filled, self.fresh = min(self.window, self.filled + tokens), 0

    def clear(self) -> None:
        self._end = self.filled = self.fresh = 0

    def state_dict(self) -> dict[str, Tensor | int]:
        k, v = self._view(self._end - self.fresh - self.filled, self._end)
        return {"k": k.clone(), "v": v.clone(), "fresh": self.fresh}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        k, v = torch.as_tensor(state["k"]), torch.as_tensor(state["v"])
        self.clear()
        self.append((k, v))
        self.fresh = int(state["fresh"])
        self.filled = k.shape[2] - self.fresh

    def _view(self, start: int, stop: int) -> Past:
        return self._k[:, :, start:stop], self._v[:, :, start:stop]

    def _make_room(self) -> None:
        k, v = self._view(self._end - self.fresh - self.filled, self._end)
        k, v = k.clone(), v.clone()
        self._end = k.shape[2]
        self._k[:, :, : self._end], self._v[:, :, : self._end] = k, v
