"""kNN, mixer, normalizer and moving average of the native core, on the arrays of those that use them."""

from __future__ import annotations

import ctypes
from ctypes import addressof
from typing import Any

import numpy as np

from prequential.native.library import library

_INT, _NUMBER, _REAL, _POINTER = ctypes.c_int, ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
_Nothing = ctypes.c_char * 0
_F32, _F64, _I64 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)


def address(array: np.ndarray | bytearray) -> int:
    """Where the numbers of a writable array in C order begin; `array.ctypes.data` takes three times as long.

    The array must be held by a name until the address was used.
    """
    return addressof(_Nothing.from_buffer(array))  # type: ignore[arg-type]


def _fitted(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """The array as the library reads it, or a copy that is so."""
    return array if array.dtype == dtype and array.flags.carray else np.require(array, dtype, ["C", "A", "W"])


def as_float64(array: np.ndarray) -> np.ndarray:
    """The array, or where it is not writable float64 in C order, a copy that is."""
    return _fitted(array, _F64)


def as_int64(array: np.ndarray) -> np.ndarray:
    """The same of int64."""
    return _fitted(array, _I64)


class NativeExperts:
    """The functions of `experts.cpp`, `normalizer.cpp` and `recent_labels.cpp`.

    Rows that come one by one and rows that come at once give the same bits.

    Parameters
    ----------
    loaded
        The library.

    Examples
    --------
    >>> native = native_experts()
    >>> if native is not None:
    ...     log_probs = np.log(np.float32([[[0.9, 0.1]], [[0.5, 0.5]]]))
    ...     mixed, _ = native.mix(log_probs, None, np.log([0.5, 0.5]), np.empty((0, 2)), lowest=-12.0)
    ...     assert np.allclose(np.exp(mixed), [[0.7, 0.3]])
    """

    def __init__(self, loaded: ctypes.CDLL) -> None:
        self._knn = loaded.prequential_knn
        self._knn.restype = _INT
        self._knn.argtypes = [
            _POINTER, _NUMBER, _NUMBER, _INT, _POINTER, _POINTER, _NUMBER, _POINTER, _POINTER, _POINTER, _INT, _REAL,
            _REAL, _POINTER, _NUMBER, _POINTER, _POINTER,
        ]  # fmt: skip
        self._metric_gradient = loaded.prequential_metric_gradient
        self._metric_gradient.restype = _INT
        self._metric_gradient.argtypes = [
            *[_POINTER] * 2, _NUMBER, _INT, *[_NUMBER] * 2, _INT, *[_POINTER] * 2, *[_REAL] * 2, _POINTER,
        ]  # fmt: skip
        self._scale_rows = loaded.prequential_scale_rows
        self._scale_rows.restype = None
        self._scale_rows.argtypes = [_POINTER, *[_NUMBER] * 2, _POINTER]
        self._mix = loaded.prequential_mix
        self._mix.restype = _INT
        self._mix.argtypes = [*[_NUMBER] * 4, *[_POINTER] * 2, _NUMBER, *[_POINTER] * 2, _REAL, *[_POINTER] * 2]
        self._mix_learn = loaded.prequential_mix_learn
        self._mix_learn.restype = _INT
        self._mix_learn.argtypes = [
            *[_NUMBER] * 3, _POINTER, *[_NUMBER] * 2, *[_REAL] * 2, _INT, *[_POINTER] * 2, *[_REAL] * 2, *[_POINTER] * 2,
        ]  # fmt: skip
        self._mix_sequence = loaded.prequential_mix_sequence
        self._mix_sequence.restype = _INT
        self._mix_sequence.argtypes = [
            *[_NUMBER] * 4, *[_POINTER] * 4, _REAL, _INT, *[_POINTER] * 2, *[_REAL] * 2, *[_POINTER] * 3,
        ]  # fmt: skip
        self._recent_labels = loaded.prequential_recent_labels
        self._recent_labels.restype = _INT
        self._recent_labels.argtypes = [_POINTER, *[_NUMBER] * 2, *[_POINTER] * 4]
        self._count_followers = loaded.prequential_count_followers
        self._count_followers.restype = _INT
        self._count_followers.argtypes = [_POINTER, _NUMBER]
        self._widen = loaded.prequential_widen
        self._widen.restype = _INT
        self._widen.argtypes = [_POINTER, *[_NUMBER] * 2, _POINTER, *[_REAL] * 2, _POINTER]
        self._normalize = loaded.prequential_normalize
        self._normalize.restype = _NUMBER
        self._normalize.argtypes = [
            _POINTER, *[_NUMBER] * 3, *[_POINTER] * 9,
        ]  # fmt: skip

    def __deepcopy__(self, memo: dict[int, Any]) -> NativeExperts:
        return self  # it has no state

    def knn(
        self,
        x: np.ndarray,
        past: tuple[int, int, int],
        own: np.ndarray | None,
        visible: np.ndarray | None,
        num_seen: np.ndarray,
        *,
        width: int,
        num_classes: int,
        nearest: int,
        prior_weight: float,
        sharpness: float = 1.0,
        at: np.ndarray | None = None,
    ) -> np.ndarray:
        """Log-probabilities (n, K) by the labels of the nearest examples; of equally near ones, the latest count.

        Parameters
        ----------
        x
            Float32 (n, at least `width`), of which the first `width` are compared.
        past
            Where the keys (P, width) float32 and the labels (P,) int64 of past examples are, and P.
        own
            The labels (n,) of x, where rows are neighbors of later ones.
        visible
            (2, n) the first column that each may use and the one behind the last; the past's come before those of x.
            None: all use the whole past.
        num_seen
            (n,) how many labels had been seen when each was asked.
        width, num_classes
            What is compared, and how many class ids there are.
        nearest, prior_weight
            How many neighbors vote, and how many average votes the prior of the labels has.
        sharpness
            How fast votes fall with the distance.
        at
            If given, (n, nearest) int64, it gets the columns of the neighbors, and -1 where there are fewer.
        """
        x, num_seen = _fitted(x, _F32), _fitted(num_seen, _I64)
        n, stride = x.shape
        out = np.empty((n, num_classes), np.float32)
        keys, labels, count = past
        lo = hi = None
        if visible is not None:
            lo = address(visible)
            hi = lo + 8 * n
        own_at = None if own is None else address(own := _fitted(own, _I64))
        failed = self._knn(
            address(x), n, stride, width, keys, labels, count, own_at, lo, hi, nearest, prior_weight,
            sharpness, address(num_seen), num_classes, address(out), None if at is None else address(at),
        )  # fmt: skip
        if failed:
            raise IndexError("a label of the past is none of the classes" if failed == 2 else "kNN of impossible sizes")
        return out

    def metric_gradient(
        self,
        memory: tuple[int, int, int],
        first: int,
        ages: np.ndarray,
        prior: np.ndarray,
        *,
        width: int,
        prior_weight: float,
        sharpness: float,
    ) -> np.ndarray:
        """The gradient (width + 1,) of the loss of examples by the logarithms of a metric's scales and its sharpness.

        Parameters
        ----------
        memory
            Where the scaled keys (room, width) float32 and the labels (room,) int64 are, and how large the room is.
        first
            The row of the first example in it; the others follow.
        ages
            (n, k) how many rows before each example its neighbors are; 0: there is none.
        prior
            (n,) the probability of each label where neighbors say nothing.
        width, prior_weight, sharpness
            How many features there are, and how votes fall with the distance, as in `knn`.
        """
        ages, prior = _fitted(ages, _I64), _fitted(prior, _F64)
        keys, labels, room = memory
        gradient = np.empty(width + 1)
        if self._metric_gradient(
            keys, labels, room, width, first, len(ages), ages.shape[1], address(ages), address(prior), prior_weight,
            sharpness, address(gradient),
        ):  # fmt: skip
            raise IndexError("neighbors that are not in memory")
        return gradient

    def scale_rows(self, rows: int, count: int, factor: np.ndarray) -> None:
        """Multiplies so many rows of float32 numbers, which begin at this address, by factors (width,)."""
        factor = _fitted(factor, _F32)
        self._scale_rows(rows, count, len(factor), address(factor))

    def mix(
        self,
        log_probs: np.ndarray,
        num_seen: np.ndarray | None,
        log_weights: np.ndarray,
        exponents: np.ndarray,
        *,
        lowest: float,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """The mixture (n, K) of log-probabilities (M, n, K); for one row also what `mix_learn` needs of it.

        With `num_seen` (n,), the class ids from there on are mixed as one label. Weights (M + R,) and exponents (R, M)
        may also be those of each row, (n, M + R) and (n, R, M).
        """
        log_probs = _fitted(log_probs, _F32)
        M, n, K = log_probs.shape
        R = exponents.shape[-2]
        mixed, parts = np.empty((n, K)), np.empty((1, M + 2 * R, K)) if n == 1 else None
        seen_at = None if num_seen is None else address(num_seen := _fitted(num_seen, _I64))
        failed = self._mix(
            M, R, n, K, address(log_probs), seen_at, 1 if log_weights.ndim == 1 else len(log_weights),
            address(log_weights), address(exponents), lowest, None if parts is None else address(parts), address(mixed),
        )  # fmt: skip
        if failed:
            raise MemoryError(f"a mixture of {M} experts over {K} classes")
        return mixed, parts

    def mix_learn(
        self,
        parts: np.ndarray,
        class_id: int,
        num_seen: int | None,
        log_weights: np.ndarray,
        exponents: np.ndarray,
        *,
        share: float,
        slows_share: bool,
        prior: np.ndarray,
        learning_rates: np.ndarray,
        lowest: float,
        largest: float,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Weights and exponents after the label of a row of which `mix` gave the parts.

        What is not in the share that each keeps is spread by `prior` (M + R,); with `slows_share`, less of it where labels
        are late.
        """
        R, M = exponents.shape
        log_weights, exponents = log_weights.copy(), exponents.copy()
        failed = self._mix_learn(
            M, R, parts.shape[2], address(parts), class_id, -1 if num_seen is None else num_seen, 1.0, share, slows_share,
            address(prior), address(learning_rates), lowest, largest, address(log_weights), address(exponents),
        )  # fmt: skip
        if failed:
            raise IndexError(f"class id {class_id} of {parts.shape[2]}")
        return log_weights, exponents

    def mix_sequence(
        self,
        log_probs: np.ndarray,
        class_ids: np.ndarray,
        num_seen: np.ndarray | None,
        speed: np.ndarray | None,
        log_weights: np.ndarray,
        exponents: np.ndarray,
        *,
        share: float,
        slows_share: bool,
        prior: np.ndarray,
        learning_rates: np.ndarray,
        lowest: float,
        largest: float,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The mixture (n, K) of log-probabilities (M, n, K), each row after the labels of those before it.

        Also the weights (n + 1, M + R) and exponents (n + 1, R, M) before each row and after the last one. `speed` (n,)
        is by how much each label moves them; the others are those of `mix_learn`.
        """
        log_probs, class_ids = _fitted(log_probs, _F32), _fitted(class_ids, _I64)
        M, n, K = log_probs.shape
        R = len(exponents)
        weights, powers = np.empty((n + 1, M + R)), np.empty((n + 1, R, M))
        weights[0], powers[0] = log_weights, exponents
        mixed = np.empty((n, K))
        seen_at = None if num_seen is None else address(num_seen := _fitted(num_seen, _I64))
        failed = self._mix_sequence(
            M, R, n, K, address(log_probs), seen_at, address(class_ids), None if speed is None else address(speed),
            share, slows_share, address(prior), address(learning_rates), lowest, largest, address(weights),
            address(powers), address(mixed),
        )  # fmt: skip
        if failed:
            raise IndexError(f"a class id is none of the {K}")
        return mixed, weights, powers

    def recent_labels(
        self, recent: RecentLabels, count: int, stop: np.ndarray, lag: np.ndarray, num_seen: np.ndarray
    ) -> np.ndarray:
        """Log-probabilities (D + 1, n, K) by the latest labels alone, as `RecentLabelsExpert` makes them.

        Parameters
        ----------
        recent
            The labels and the table of what followed.
        count
            How many labels there are.
        stop, lag, num_seen
            (n,) which labels each row may use, how many rows without a label are between them and it, and how many labels
            had been seen.
        """
        stop, lag, num_seen = _fitted(stop, _I64), _fitted(lag, _I64), _fitted(num_seen, _I64)
        out = np.empty((recent.D + 1, len(stop), recent.K), np.float32)
        failed = self._recent_labels(
            addressof(recent), count, len(stop), address(stop), address(lag), address(num_seen), address(out)
        )
        if failed:
            raise IndexError("a recent label is none of the classes" if failed == 2 else "labels of impossible sizes")
        return out

    def count_followers(self, recent: RecentLabels, count: int) -> None:
        """Counts the labels after the boundary in the table of what followed, in place."""
        if failed := self._count_followers(addressof(recent), count):
            raise IndexError("a recent label is none of the classes" if failed == 2 else "labels of impossible sizes")

    def normalize(
        self,
        x: np.ndarray,
        statistics: np.ndarray,
        ranges: tuple[int, int, int | None, int | None],
        start: Start,
        left: LeftOut | None,
        limits: Limits,
    ) -> tuple[np.ndarray, int]:
        """Float32 (n, columns): rows normalized up to the first one in which more is to be done, and how many were.

        Parameters
        ----------
        x
            Float64 (n, width).
        statistics
            (3, columns) counts, means and sums of squares; they move on in place.
        ranges
            Where four arrays (width,) are: the range of the first values of each feature, which is set where a start
            ends, and that within which the statistics of the latest examples take all values, or None.
        start
            The first values of features that have shown few yet.
        left
            What became of values that were left out; None: none was lately, and it stops before the first one.
        limits
            What is far, and how large values and results are at most.
        """
        n, width = x.shape
        columns = statistics.shape[1]
        out = np.empty((n, columns), np.float32)
        done: int = self._normalize(
            address(x), n, width, columns, address(statistics), *ranges, addressof(start),
            None if left is None else addressof(left), addressof(limits), address(out),
        )  # fmt: skip
        if done < 0:
            raise IndexError("statistics of impossible sizes")
        return out, done

    def widen(self, x: np.ndarray, state: np.ndarray, *, rate: float, bound: float, out: np.ndarray) -> None:
        """What `MovingAverage.widen` does with rows (n, width) float64; the state (3, width) moves on in place."""
        n, width = x.shape
        if not n or not width:
            return
        if self._widen(address(x), n, width, address(state), rate, bound, address(out)):
            raise IndexError("a moving average of impossible sizes")


class RecentLabels(ctypes.Structure):
    """Where the arrays of a `RecentLabelsExpert` are, and its constants, as `recent_labels.cpp` takes them."""

    _fields_ = (
        ("labels", _POINTER),
        ("lags", _POINTER),
        ("followers", _POINTER),
        ("counts", _POINTER),
        ("decays", _POINTER),
        ("boundary", _NUMBER),
        ("slots", _NUMBER),
        ("K", _NUMBER),
        ("D", _NUMBER),
        ("smallest", _REAL),
        ("prior_weight", _REAL),
        ("keep", _REAL),
        ("follower_prior_weight", _REAL),
    )


class Start(ctypes.Structure):
    """The first values of k features that have shown few yet, as `normalizer.cpp` takes them."""

    _fields_ = (
        ("features", _POINTER),
        ("first", _POINTER),
        ("same", _POINTER),
        ("others", _POINTER),
        ("filled", _POINTER),
        ("cut", _POINTER),
        ("k", _NUMBER),
        ("room", _NUMBER),
        ("looks", ctypes.c_uint64),
        ("spread", _REAL),
    )


class LeftOut(ctypes.Structure):
    """What became of values that were left out, as `normalizer.cpp` takes it."""

    _fields_ = (
        ("run", _POINTER),
        ("last", _POINTER),
        ("value", _POINTER),
        ("repeats", _POINTER),
        ("lead", _POINTER),
        ("level", _NUMBER),
    )


class Limits(ctypes.Structure):
    """What is far, and how large values and results are at most, as `normalizer.cpp` takes it."""

    _fields_ = (("far", _REAL), ("most", _REAL), ("clip", _REAL), ("shown", _REAL))

    def __deepcopy__(self, memo: dict[int, Any]) -> Limits:
        return self  # nobody changes it


NO_START = Start()


_made: NativeExperts | None = None


def native_experts() -> NativeExperts | None:
    """The native functions; None where the library is not there."""
    global _made
    if _made is None:
        found = library().library
        _made = None if found is None else NativeExperts(found)
    return _made
