"""KV caches: the keys and values that blocks and heads keep of a stream's most recent tokens.

Every cache holds two pasts at once. The *committed* one ends at the last chunk boundary; a whole chunk is computed from
it in one pass. The *current* one also has the examples since then; single predictions look back on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from prequential.models.attention import Past


class KVCache:
    """The keys and values of the C most recent tokens of one stream, and of the tokens since the last chunk boundary.

    They are what the parameters of their time made of the tokens: stale and detached. The buffer has room for more
    than C tokens, so that most writes move nothing but the new ones. With `labels`, the values are labels, one each.

    Where labels come late, an example that is learned now was asked when fewer had arrived: `reserve` keeps tokens
    beyond the last C, for these to see the C before that moment.
    """

    def __init__(
        self, *, depth: int, window: int, chunk_tokens: int, key_width: int, device: torch.device, labels: bool = False
    ) -> None:
        self.window = window
        self._kept = window  # tokens that are kept, at least C
        self._slack = max(window, 2 * chunk_tokens)  # room for new ones, so that few writes move the others
        room = window + self._slack
        self._k = torch.zeros(depth, 1, room, key_width, device=device)
        self._v = (
            torch.zeros(depth, 1, room, 1, device=device, dtype=torch.int64) if labels else torch.zeros_like(self._k)
        )
        self._end = 0  # where the next token goes
        self._num_committed = 0  # tokens of whole chunks, as many as are kept
        self._num_fresh = 0  # tokens since the last chunk boundary

    def committed(self, *, beyond: bool = False) -> Past:
        """The last C tokens before the chunk boundary, (L, 1, P, K) each; with `beyond` all that are kept."""
        return self._view(*self.committed_span(beyond=beyond))

    def current(self, *, beyond: bool = False) -> Past:
        """The last C tokens, those since the chunk boundary included; with `beyond` all that are kept."""
        return self._view(*self.current_span(beyond=beyond))

    # What `committed`, `current` and `extend` do, in pieces, for those that read and write the buffers themselves.

    @property
    def buffers(self) -> Past:
        """Where keys and values are kept, (L, 1, room, K) each; others after the next `reserve`."""
        return self._k, self._v

    def committed_span(self, *, beyond: bool = False) -> tuple[int, int]:
        """From where to where in the buffers `committed` is."""
        stop = self._end - self._num_fresh
        return stop - min(self._kept if beyond else self.window, self._num_committed), stop

    def current_span(self, *, beyond: bool = False) -> tuple[int, int]:
        """From where to where in the buffers `current` is."""
        most = self._kept + self._num_fresh if beyond else self.window
        return self._end - min(most, self._num_committed + self._num_fresh), self._end

    def room_for(self, tokens: int) -> int:
        """Where in the buffers the next tokens go; there is room for so many."""
        if self._end + tokens > self._k.shape[2]:
            self._make_room()
        return self._end

    def count_added(self, tokens: int) -> None:
        """So many tokens were written there: they are after the chunk boundary."""
        self._end += tokens
        self._num_fresh += tokens

    def reserve(self, beyond: int) -> None:
        """Keeps so many tokens beyond the last C from now on."""
        if self.window + beyond > self._kept:
            self._kept = self.window + beyond
            k, v = self._view(self._end - self._num_fresh - self._num_committed, self._end)
            more = self._kept + self._slack - k.shape[2]
            # not F.pad, which torch 2.6 refuses for a cache without keys
            self._k, self._v = (
                torch.cat([part, part.new_zeros(*part.shape[:2], more, part.shape[3])], 2) for part in (k, v)
            )
            self._end = k.shape[2]

    def extend(self, new: Past) -> None:
        """Adds tokens after the chunk boundary."""
        tokens = new[0].shape[2]
        start = self.room_for(tokens)
        self._k[:, :, start : start + tokens] = new[0]
        self._v[:, :, start : start + tokens] = new[1]
        self.count_added(tokens)

    def commit(self, new: Past) -> None:
        """Replaces the tokens since the chunk boundary by those of the whole chunk; moves the boundary behind them."""
        self._end -= self._num_fresh
        self._num_fresh = 0
        tokens = min(self._kept, new[0].shape[2])
        if tokens:
            self.extend((new[0][:, :, -tokens:], new[1][:, :, -tokens:]))
        self._num_committed, self._num_fresh = min(self._kept, self._num_committed + tokens), 0

    def commit_added(self) -> None:
        """Moves the chunk boundary behind the tokens that were added since, as they are."""
        self._num_committed, self._num_fresh = min(self._kept, self._num_committed + self._num_fresh), 0

    def scale_keys(self, factor: Tensor) -> None:
        """Multiplies all keys by factors (K,)."""
        self._k *= factor

    def clear(self) -> None:
        self._end = self._num_committed = self._num_fresh = 0

    def state_dict(self) -> dict[str, Tensor | int]:
        k, v = self._view(self._end - self._num_fresh - self._num_committed, self._end)
        state: dict[str, Tensor | int] = {"k": k.clone(), "v": v.clone(), "num_fresh": self._num_fresh}
        if self._kept > self.window:
            state["num_beyond"] = self._kept - self.window
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        k, v = torch.as_tensor(state["k"]), torch.as_tensor(state["v"])
        self.clear()
        self.reserve(int(state.get("num_beyond", 0)))
        self.extend((k, v))
        self._num_fresh = int(state["num_fresh"])
        self._num_committed = k.shape[2] - self._num_fresh

    def _view(self, start: int, stop: int) -> Past:
        return self._k[:, :, start:stop], self._v[:, :, start:stop]

    def _make_room(self) -> None:
        k, v = self._view(self._end - self._num_fresh - self._num_committed, self._end)
        k, v = k.clone(), v.clone()
        self._end = k.shape[2]
        self._k[:, :, : self._end], self._v[:, :, : self._end] = k, v


@dataclass(frozen=True)
class KVState:
    """The keys and values that a pass looks back on, or that it leaves behind, of B streams.

    Where streams have pasts of unequal length, they are padded at the front, and `lengths` says how much of each counts.
    """

    tokens: Past  # keys and values (L, B, P, K) in the blocks
    examples: Past  # keys (1, B, P, W) of all heads that have some, side by side, and labels (1, B, P, 1)
    lengths: list[tuple[int, int]] | None = None  # of each stream, tokens and examples; None: no padding

    def stream(self, b: int) -> KVState:
        """The part of one stream, where there is no padding."""
        (k, v), (keys, labels) = self.tokens, self.examples
        at = slice(b, b + 1)
        return KVState((k[:, at], v[:, at]), (keys[:, at], labels[:, at]))

    def part(self, tokens: slice, examples: slice) -> KVState:
        """Some of the tokens and examples."""
        (k, v), (keys, labels) = self.tokens, self.examples
        of_heads = (keys[:, :, examples], labels[:, :, examples])
        return KVState((k[:, :, tokens], v[:, :, tokens]), of_heads, self.lengths)

    def latest(self, tokens: int, examples: int) -> KVState:
        """That of so many latest tokens and examples."""
        return self.part(slice(-tokens, None), slice(-examples, None))

    def expand(self, n: int) -> KVState:
        """The past of one stream, for n examples each of which is the next."""
        return self if n == 1 else KVState(_expand(self.tokens, n), _expand(self.examples, n))


class Context:
    """The KV caches of one stream: of its tokens in the blocks, and of its examples in the heads."""

    def __init__(self, tokens: KVCache, examples: KVCache, tokens_per_example: int = 1) -> None:
        self.tokens, self.examples, self._tokens_per_example = tokens, examples, tokens_per_example

    def committed(self, *, beyond: bool = False) -> KVState:
        """What a whole chunk looks back on; with `beyond` also what is kept for late labels."""
        return KVState(self.tokens.committed(beyond=beyond), self.examples.committed(beyond=beyond))

    def current(self, *, beyond: bool = False) -> KVState:
        """What the next example looks back on; with `beyond` also what is kept for late labels."""
        return KVState(self.tokens.current(beyond=beyond), self.examples.current(beyond=beyond))

    def reserve(self, examples: int) -> None:
        """Keeps so many examples beyond the window from now on."""
        if self.tokens.window:
            self.tokens.reserve(examples * self._tokens_per_example)
            self.examples.reserve(examples)

    def extend(self, new: KVState) -> None:
        """Adds examples after the chunk boundary."""
        if new.tokens[0].shape[2]:  # none where there are no blocks
            self.tokens.extend(new.tokens)
        if new.examples[0].shape[2]:
            self.examples.extend(new.examples)

    def commit(self, new: KVState) -> None:
        """Replaces the examples since the chunk boundary by the whole chunk; moves the boundary behind it."""
        self.tokens.commit(new.tokens)
        self.examples.commit(new.examples)

    def clear(self) -> None:
        self.tokens.clear()
        self.examples.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"tokens": self.tokens.state_dict(), "examples": self.examples.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tokens.load_state_dict(state["tokens"])
        self.examples.load_state_dict(state["examples"])


def stack_contexts(contexts: list[Context], *, beyond: bool = False) -> KVState:
    """The committed pasts of several streams as a batch."""
    pasts = [context.committed(beyond=beyond) for context in contexts]
    lengths = [(past.tokens[0].shape[2], past.examples[0].shape[2]) for past in pasts]
    return KVState(_pad_front([past.tokens for past in pasts]), _pad_front([past.examples for past in pasts]), lengths)


def _pad_front(pasts: list[Past]) -> Past:
    longest = max(past[0].shape[2] for past in pasts)
    k, v = ([F.pad(past[i], (0, 0, longest - past[i].shape[2], 0)) for past in pasts] for i in (0, 1))
    return torch.cat(k, 1), torch.cat(v, 1)


def _expand(past: Past, n: int) -> Past:
    k, v = past
    return k.expand(-1, n, -1, -1), v.expand(-1, n, -1, -1)
