"""What the native core reads and writes of a stream: the structure of it, filled in with addresses.

Shape letters as in `native.transformer`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from prequential.models.heads import CopyHead
from prequential.models.kv_cache import Context, KVState
from prequential.models.lookback import LookBack
from prequential.models.transformer import Transformer
from prequential.native.binding import StreamStruct, address_of
from prequential.native.kv_addresses import committed_addresses, visible_ranges


class StreamInput(NamedTuple):
    """Consecutive examples of one stream, and what they look back on."""

    x: np.ndarray  # (S, F)
    y: np.ndarray | None  # (S,) class ids; None: they are to be predicted
    num_seen: np.ndarray  # (S,) how many labels had been seen before each
    past: KVState  # of this stream alone
    look: LookBack | None = None  # what each may see, where labels come late; not for the 2-token transformer
    visible: np.ndarray | None = None  # (S, 5) the same in the numbers of `Visible` in model.h, in place of `look`


class ChunkInput(NamedTuple):
    """A chunk of one stream, whose keys and values a step adds to a context, behind its last chunk boundary."""

    x: np.ndarray  # (S, F)
    y: np.ndarray  # (S,) class ids
    num_seen: np.ndarray  # (S,) how many labels had been seen before each
    context: Context
    look: LookBack | None = None  # as for `StreamInput`
    visible: np.ndarray | None = None


class Sizes(NamedTuple):
    """What a KV cache holds of one example."""

    depth: int
    key_width: int  # in each block
    example_key_width: int  # of all copy heads
    attention: bool  # False: nothing in blocks
    tokens: int  # in each block


class NativePass(NamedTuple):
    """What a pass gives of one stream."""

    log_probs: Tensor | None  # (M, S, K); None: not asked for
    new: KVState  # the keys and values of the examples


class Filled(NamedTuple):
    """What a structure was filled with."""

    given: NativePass | None  # None: the results are in a context
    alive: tuple[Any, ...]  # what the addresses point into


class StreamFiller:
    """Fills the structures of streams, for one model.

    Attributes
    ----------
    shape
        Blocks, and the width of the keys in each.
    key_width
        Of all copy heads.
    attention
        Whether blocks have keys and values at all.
    takes_late_labels
        Whether examples may see less than all before them (`look`).
    """

    def __init__(self, model: Transformer) -> None:
        self.model, settings = model, model.settings
        heads = list(model.output_heads.values())
        self.num_heads = len(heads)
        self.key_width = sum(head.key_width for head in heads if isinstance(head, CopyHead))
        self.attention = bool(settings.window and len(model.blocks))
        self.shape = len(model.blocks), settings.key_width
        self.tokens_per_example = model.tokens_per_example
        self.takes_late_labels = model.tokens_per_example == 1

    @property
    def sizes(self) -> Sizes:
        """What a KV cache holds of one example."""
        return Sizes(*self.shape, self.key_width, self.attention, self.tokens_per_example)

    def _rows(self, given: StreamInput | ChunkInput, stream: StreamStruct) -> tuple[Any, ...]:
        """Fills in the examples of a stream; what must stay alive for it."""
        x: np.ndarray | None = None
        S = len(given.x)
        if self.model.settings.use_input:
            x = np.ascontiguousarray(given.x, dtype=np.float32)
            if x.shape != (S, self.model.features):
                raise ValueError(f"x has shape {x.shape}, expected {(S, self.model.features)}")
            stream.x = address_of(x)
        y = None if given.y is None else np.ascontiguousarray(given.y, dtype=np.int64)
        num_seen = np.ascontiguousarray(given.num_seen, dtype=np.int64)
        if num_seen.shape != (S,) or (y is not None and y.shape != (S,)):
            raise ValueError(f"{S} examples have {num_seen.shape} counts and {None if y is None else y.shape} labels")
        if y is not None:
            stream.y = address_of(y)
        if S > 0 and num_seen[0] < self.model.num_classes:
            stream.num_seen = address_of(num_seen)
        visible = given.visible
        if not self.takes_late_labels and (given.look is not None or visible is not None):
            raise ValueError("the native core does the 2-token transformer only without late labels")
        if given.look is not None:
            if given.look.labeled != (y is not None):
                raise ValueError("a look back must be labeled where the examples are")
            visible = visible_ranges(given.look, self.model.settings.window)
        if visible is not None:
            visible = np.ascontiguousarray(visible, dtype=np.int32)
            if visible.shape != (S, 5):
                raise ValueError(f"{len(visible)} ranges are given for {S} examples")
            stream.visible = address_of(visible)
        stream.length = S
        return x, y, num_seen, visible

    def stream(self, given: StreamInput, stream: StreamStruct, log_probs: bool, state: bool = True) -> Filled:
        """Fills the structure of one stream, and makes the tensors that its results go to."""
        alive = self._rows(given, stream)
        past, S, y = given.past, len(given.x), alive[1]
        (keys, values), (example_keys, labels) = past.tokens, past.examples
        L, width = self.shape
        out = torch.empty(self.num_heads, S, self.model.num_classes) if log_probs else None
        stream.log_probs = None if out is None else out.data_ptr()
        new_tokens, new_examples = past.tokens, past.examples
        if self.attention:
            P = keys.shape[2]
            if keys.shape != (L, 1, P, width) or values.shape != keys.shape:
                raise ValueError(f"past keys have shape {tuple(keys.shape)}, expected {(L, 1, P, width)}")
            strides = keys.stride()
            if strides[2:] != (width, 1) or values.stride() != strides:  # rows must lie next to each other
                keys, values = keys.contiguous(), values.contiguous()
            stream.keys, stream.values, stream.past = keys.data_ptr(), values.data_ptr(), P
            stream.block_stride = keys.stride(0) if L > 1 else P * width
            if state:
                T = S if y is None else S * self.tokens_per_example
                new_tokens = torch.empty(L, 1, T, width), torch.empty(L, 1, T, width)
                stream.new_keys, stream.new_values = new_tokens[0].data_ptr(), new_tokens[1].data_ptr()
                stream.new_block_stride = T * width
        if self.key_width:
            PE = example_keys.shape[2]
            if example_keys.shape != (1, 1, PE, self.key_width) or labels.shape != (1, 1, PE, 1):
                shapes = tuple(example_keys.shape), tuple(labels.shape)
                raise ValueError(f"past examples have shapes {shapes}, expected (1, 1, {PE}, {self.key_width})")
            if example_keys.stride()[2:] != (self.key_width, 1) or labels.stride(2) != 1:
                example_keys, labels = example_keys.contiguous(), labels.contiguous()
            stream.example_keys, stream.example_labels = example_keys.data_ptr(), labels.data_ptr()
            stream.past_examples = PE
            if state:
                of_y = torch.zeros(S, dtype=torch.int64) if y is None else torch.from_numpy(y)
                new_examples = torch.empty(1, 1, S, self.key_width), of_y.view(1, 1, S, 1)
                stream.new_example_keys = new_examples[0].data_ptr()
        alive = (*alive, keys, values, example_keys, labels)
        return Filled(NativePass(out, KVState(new_tokens, new_examples)), alive)

    def chunk(self, given: ChunkInput, stream: StreamStruct) -> Filled:
        """Fills the structure of a stream whose keys and values go right behind those of the past."""
        alive = self._rows(given, stream)
        S, (L, width), beyond = len(given.x), self.shape, given.look is not None
        if self.attention:
            cache = given.context.tokens
            at = committed_addresses(cache, S * self.tokens_per_example, L, width, 4 * width, beyond)
            stream.keys, stream.values, stream.new_keys, stream.new_values, stream.block_stride, stream.past = at
            stream.new_block_stride = stream.block_stride
            alive = (*alive, cache.buffers)
        if self.key_width:
            cache = given.context.examples
            at = committed_addresses(cache, S, 1, self.key_width, 8, beyond)
            stream.example_keys, stream.example_labels, stream.new_example_keys, stream.new_example_labels = at[:4]
            stream.past_examples = at[5]
            alive = (*alive, cache.buffers)
        return Filled(None, alive)

    def commit(self, given: ChunkInput) -> None:
        """Moves the chunk boundary behind what a step has written."""
        S, context = len(given.x), given.context
        caches = [(context.tokens, S * self.tokens_per_example)] * self.attention
        caches += [(context.examples, S)] * bool(self.key_width)
        for cache, added in caches:
            cache.count_added(added)
            cache.commit_added()
