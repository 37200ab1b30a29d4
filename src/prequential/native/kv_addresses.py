"""Where a KV cache is in memory, and which of its examples each new one sees, as the native core takes both."""

from __future__ import annotations

import numpy as np

from prequential.models.kv_cache import KVCache
from prequential.models.lookback import LookBack


def current_addresses(cache: KVCache, depth: int, width: int, value_bytes: int) -> tuple[int, int, int, int]:
    """Where the current keys and values of a cache begin, how far apart blocks are, and how many there are of each."""
    start, stop = cache.current_span()
    keys, values, room = buffer_addresses(cache, depth, width)
    return keys + 4 * width * start, values + value_bytes * start, room * width, stop - start


def next_addresses(cache: KVCache, depth: int, width: int, value_bytes: int, tokens: int = 1) -> tuple[int, int]:
    """Where the keys and the values of the next tokens of a cache go."""
    row = cache.room_for(tokens)
    keys, values, room = buffer_addresses(cache, depth, width)
    if row + tokens > room:
        raise ValueError(f"the KV cache has room for {room} tokens, and all are in use")
    return keys + 4 * width * row, values + value_bytes * row


def committed_addresses(
    cache: KVCache, tokens: int, depth: int, width: int, value_bytes: int, beyond: bool
) -> tuple[int, int, int, int, int, int]:
    """Where the committed keys and values of a cache begin and where new ones go, and as `current_addresses` the rest."""
    row = cache.room_for(tokens)  # first, as it may move the others
    start, stop = cache.committed_span(beyond=beyond)
    keys, values, room = buffer_addresses(cache, depth, width)
    if row + tokens > room or row != stop:
        raise ValueError(
            f"the KV cache has room for {room} tokens; {row} are in use, {row - stop} of an unfinished chunk"
        )
    past = keys + 4 * width * start, values + value_bytes * start
    return *past, keys + 4 * width * row, values + value_bytes * row, room * width, stop - start


def buffer_addresses(cache: KVCache, depth: int, width: int) -> tuple[int, int, int]:
    """Where the keys and values of a cache are, and for how many tokens there is room."""
    keys, values = cache.buffers
    found, _, room, key_width = keys.shape
    if found != depth or key_width != width:
        raise ValueError(f"the KV cache has keys of shape {tuple(keys.shape)}, expected {(depth, 1, room, width)}")
    return keys.data_ptr(), values.data_ptr(), room


def visible_ranges(look: LookBack, window: int) -> np.ndarray:
    """Int32 (S, 5) what each example sees, counted from the end of the past: `Visible` in model.h."""
    if len(look.bound) != 1:
        raise ValueError("a look back must be of one stream")
    bound = look.bound[0] if look.labeled else np.minimum(look.bound[0], 0)
    visible = np.zeros((len(bound), 5), dtype=np.int32)
    visible[:, 0], visible[:, 1], visible[:, 4] = bound - window, bound, look.position
    if len(bound) > 1:
        visible[:, 2], visible[:, 3] = look.first_unlabeled[0], np.arange(len(bound))
    return visible
