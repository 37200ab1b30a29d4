"""The structures and functions of one_row.cpp for ctypes."""

from __future__ import annotations

import ctypes
from typing import Any

from prequential.models.kv_cache import KVCache
from prequential.native.binding import StreamStruct
from prequential.native.library import library

MORE_TO_NORMALIZE = 300  # a row has a value that is left out, so that features have to be given

_pointer, _number, _real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class NormalizeRowStruct(ctypes.Structure):
    _fields_ = (
        *((name, _pointer) for name in ("x", "count", "mean", "square", "after", "low", "high", "floor", "ceiling")),
        *((name, _pointer) for name in ("start", "limits", "same", "same_after", "features")),
        *((name, _number) for name in ("width", "columns", "starting")),
    )


class NextTokenStruct(ctypes.Structure):
    _fields_ = tuple((name, _pointer) for name in ("keys", "values", "example_keys", "example_labels"))


class KnnRowStruct(ctypes.Structure):
    _fields_ = (
        *((name, _pointer) for name in ("features", "scale", "key", "keys", "labels", "log_probs", "at")),
        *((name, _pointer) for name in ("next_key", "next_label")),
        *((name, _number) for name in ("past", "width", "nearest")),
        *((name, _real) for name in ("prior_weight", "sharpness")),
    )


class MixRowStruct(ctypes.Structure):
    _fields_ = (
        *((name, _number) for name in ("predictions", "products", "num_seen", "slows_share")),
        *((name, _pointer) for name in ("log_probs", "log_weights", "exponents", "prior", "learning_rates")),
        *((name, _real) for name in ("share", "lowest", "largest")),
        *((name, _pointer) for name in ("parts", "mixed", "next_log_weights", "next_exponents")),
    )


class OneRowStruct(ctypes.Structure):
    _fields_ = (
        ("normalizer", NormalizeRowStruct),
        ("network", StreamStruct),
        ("next", NextTokenStruct),
        ("knn", KnnRowStruct),
        ("mixer", MixRowStruct),
        *((name, _number) for name in ("num_seen", "num_classes", "heads")),
        ("uniform", ctypes.c_float),
    )


class RowAddresses:
    """Where the rows of a KV cache of one stream are; torch is asked only where the cache has other buffers.

    Parameters
    ----------
    cache
        The cache.
    value_bytes
        The size of one value row: that of a key, or of a label.
    tokens
        How many rows are added for one example.
    """

    def __init__(self, cache: KVCache, value_bytes: int, tokens: int = 1) -> None:
        self._cache, self._value_bytes, self._tokens = cache, value_bytes, tokens
        self._buffers: Any = None  # whose addresses these are
        self._keys = self._values = self.block_stride = self._key_bytes = 0

    def current(self) -> tuple[int, int, int]:
        """Where the keys and the values of the current past begin, and how many there are."""
        start, stop = self._cache.current_span()
        keys, values = self._at(start)
        return keys, values, stop - start

    def next(self) -> tuple[int, int]:
        """Where the key and the value of the next one go."""
        return self._at(self._cache.room_for(self._tokens))

    def count_added(self) -> None:
        """One was written there."""
        self._cache.count_added(self._tokens)

    def _at(self, row: int) -> tuple[int, int]:
        buffers = self._cache.buffers
        if self._buffers is None or buffers[0] is not self._buffers[0]:
            keys, values = self._buffers = buffers
            self._keys, self._values = keys.data_ptr(), values.data_ptr()
            self.block_stride, self._key_bytes = keys.stride(0), 4 * keys.shape[3]
        return self._keys + row * self._key_bytes, self._values + row * self._value_bytes


def one_row_functions() -> ctypes.CDLL:
    """The library, with the functions of one_row.cpp."""
    found = library().library
    assert found is not None
    for function in (found.one_row_normalize, found.one_row_predict, found.one_row_mix, found.one_row_append):
        function.restype = ctypes.c_int
    found.one_row_normalize.argtypes = [_pointer]
    found.one_row_predict.argtypes = [_pointer, _pointer]
    found.one_row_mix.argtypes = [_pointer]
    found.one_row_append.argtypes = [_pointer, _pointer, _number]
    return found
