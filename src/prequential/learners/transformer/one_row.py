"""One row at a time in the native core: one call to predict it, and one to add it with its label."""

from __future__ import annotations

import ctypes
from copy import deepcopy
from typing import Any

import numpy as np

from prequential.learners.normalizer import After, Normalizer
from prequential.learners.outliers import Guard
from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.experts import Expert, KNNExpert, NetworkExpert, Predicted
from prequential.learners.transformer.experts.knn import NEAREST, PRIOR_WEIGHT
from prequential.learners.transformer.mixer import LARGEST, LOWEST, Weights
from prequential.learners.transformer.native_engine import NativePasses
from prequential.learners.transformer.native_mixer import NativeMixer
from prequential.native.experts import NO_START, address
from prequential.native.one_row import MORE_TO_NORMALIZE, OneRowStruct, RowAddresses, one_row_functions


class OneRow:
    """What `Ensemble.predict` and `Ensemble.extend` do for one example with all labels before it, with the same bits.

    The structure that the core reads is made once. Before a call only what may have moved is written into it: where
    the rows of the caches are, and which weights the mixer has. Results are kept in memory of its own until the next
    prediction; one thread at a time may use it, as a learner's lock provides.

    Experts other than the network and kNN predict by their own methods, and are mixed in the same call.

    Parameters
    ----------
    network, others, mixer
        Those of the ensemble, in the native core.
    joins_free
        Whether class ids without a label are mixed as one.
    """

    def __init__(
        self, network: NetworkExpert, others: dict[str, Expert], mixer: NativeMixer, *, joins_free: bool
    ) -> None:
        assert isinstance(network.passes, NativePasses)
        self._network, self._others, self._mixer, self._joins_free = network, others, mixer, joins_free
        self._native = network.passes.native
        self._functions = one_row_functions()
        self._num_classes = 0  # for which there is memory
        self._knn: KNNExpert | None = None
        self._rest: list[tuple[Expert, slice]] = []  # and which of all predictions are theirs
        first = network.num_predictions
        for expert in others.values():
            at = slice(first, first + expert.num_predictions)
            if isinstance(expert, KNNExpert) and self._knn is None:
                self._knn, self._knn_at = expert, at
            else:
                self._rest.append((expert, at))
            first = at.stop
        self._num_predictions = first
        self._predicted_rest: list[Predicted] = []
        # of which the addresses are in the structure
        self._weights: Weights | None = None
        self._scale: np.ndarray | None = None
        self._normalizer: Normalizer | None = None
        self._x: Any = None
        self._start_at: tuple[int, ...] = ()  # what the structure of first values was made of
        self._same: np.ndarray | None = None  # how often constant features had their value, with the last row
        # where the rows of the caches are; None: there is no such cache
        self._tokens: RowAddresses | None = None
        self._examples: RowAddresses | None = None
        self._neighbors: RowAddresses | None = None
        self._past = 0  # examples that the kNN expert compared the last row with

    def __deepcopy__(self, memo: dict[int, Any]) -> OneRow:
        parts = deepcopy((self._network, self._others, self._mixer), memo)
        return OneRow(*parts, joins_free=self._joins_free)

    def predict(self, x: np.ndarray, num_seen: int, raw: np.ndarray | None = None) -> np.ndarray:
        """Log-probabilities (1, K) of features (1, F), after so many labels; valid until the next call.

        `raw` is the example as it came, for experts that use it.
        """
        if self._num_classes != self._native.model.num_classes:
            self._allocate()
        self._features[:] = x
        self._normalize.x = self._normalizer = None
        self._check(self._predict(num_seen, raw))
        return self._mixed

    def normalize_and_predict(self, x: np.ndarray, normalizer: Normalizer, num_seen: int) -> np.ndarray | None:
        """The same for x (1, width), which is normalized on the way; None: x has a value that is left out.

        Then `predict` has to be given its features.
        """
        if self._num_classes != self._native.model.num_classes:
            self._allocate()
        row = self._normalize
        if self._x is None:
            self._allocate_normalizer(normalizer)
        self._x[:] = x.reshape(1, -1)
        row.x = self._x_address
        if normalizer is not self._normalizer:
            row.count, row.mean, row.square = map(address, (normalizer.count, normalizer.mean, normalizer.square))
            self._bind_guard(normalizer.guard)
            self._normalizer = normalizer
        code = 0
        if self._rest:  # experts that only Python has need the features
            code = self._functions.one_row_normalize(self._address)
            row.x = None
        code = code or self._predict(num_seen, x)
        if code == MORE_TO_NORMALIZE:
            return None
        self._check(code)
        return self._mixed

    def normalized(self) -> tuple[np.ndarray, After]:
        """What `Normalizer.peek` gives for the x that was normalized last."""
        assert self._normalizer is not None
        count, mean, square = self._after.copy()[:, None]
        guard = self._normalizer.guard
        if self._same is not None:
            guard = guard.after_rows({"same": self._same.copy()})
        return self._features.copy(), After((count, mean, square), guard)

    def _bind_guard(self, guard: Guard) -> None:
        row, k = self._normalize, len(guard.starting)
        row.low, row.high, row.floor, row.ceiling = guard.addresses
        row.starting = k
        if not k:
            self._start, self._same = NO_START, None
        elif self._same is None or self._start_at != (k, *guard.start_addresses):
            self._start, _, changes = guard.for_native(full=False, n=1)
            self._start_at, self._same = (k, *guard.start_addresses), changes["same"]
            row.same_after = address(self._same)
        row.start = ctypes.addressof(self._start)
        if k:
            row.same = address(guard.same)

    def _predict(self, num_seen: int, raw: np.ndarray | None) -> int:
        """Writes into the structure what may have moved, and predicts; gives the core's code."""
        row, stream = self._row, self._stream
        row.num_seen = num_seen
        stream.num_seen = self._num_seen_address if num_seen < self._num_classes else None
        if self._tokens is not None:
            stream.keys, stream.values, stream.past = self._tokens.current()
            stream.block_stride = self._tokens.block_stride
        if self._examples is not None:
            stream.example_keys, stream.example_labels, stream.past_examples = self._examples.current()
        if self._neighbors is not None:
            self._bind_knn()
        weights = self._mixer.weights
        if weights is not self._weights:
            self._mix.log_weights, self._mix.exponents = address(weights.log_weights), address(weights.exponents)
            self._weights = weights
        self._mix.num_seen = num_seen if self._joins_free else -1
        if self._rest:
            queries = Queries(self._features.copy(), np.array([num_seen]), raw=raw)
            self._predicted_rest = [expert.predict(queries) for expert, _ in self._rest]
            for (_, at), predicted in zip(self._rest, self._predicted_rest, strict=True):
                self._log_probs[at] = predicted.log_probs
        code: int = self._functions.one_row_predict(self._native.address, self._address)
        return code

    def append(self, x: np.ndarray, class_id: int, num_seen: int) -> np.ndarray:
        """Adds the example that was predicted last, with its label; its log-probabilities (1, K), as for `predict`."""
        self._extend_rest(x, class_id, num_seen)
        to, mix = self._next, self._mix
        if self._tokens is not None:
            to.keys, to.values = self._tokens.next()
        if self._examples is not None:
            to.example_keys, to.example_labels = self._examples.next()
        if self._neighbors is not None:
            self._neighbor_row.next_key, self._neighbor_row.next_label = self._neighbors.next()
        weights = Weights(*map(np.empty_like, self._mixer.weights))
        mix.next_log_weights, mix.next_exponents = address(weights.log_weights), address(weights.exponents)
        self._check(self._functions.one_row_append(self._native.address, self._address, class_id))
        for rows in (self._tokens, self._examples, self._neighbors):
            if rows is not None:
                rows.count_added()
        if self._knn is not None:
            self._knn.remember_found(x, num_seen, self._log_probs[self._knn_at].copy(), self._at, self._past)
        if self._num_predictions > 1:
            self._mixer.move_on(weights)
        return self._mixed

    def _extend_rest(self, x: np.ndarray, class_id: int, num_seen: int) -> None:
        if not self._rest:
            return
        batch, changed = Batch(x, np.array([class_id]), np.array([num_seen])), False
        for (expert, at), predicted in zip(self._rest, self._predicted_rest, strict=True):
            found = expert.extend(batch, predicted)
            if found is not predicted.log_probs and not np.array_equal(found, predicted.log_probs):
                self._log_probs[at], changed = found, True
        if changed:  # computed anew, it may differ in the last bits
            self._check(self._functions.one_row_mix(self._address))

    def _bind_knn(self) -> None:
        assert self._knn is not None
        assert self._neighbors is not None
        knn, metric = self._neighbor_row, self._knn.metric
        knn.keys, knn.labels, self._past = self._neighbors.current()
        knn.past = self._past
        if metric is not None and metric.scale is not self._scale:
            self._scale = metric.scale
            knn.scale, knn.sharpness = address(self._scale), metric.sharpness

    def _allocate(self) -> None:
        """Makes the structure, and memory for results of as many classes as there are."""
        sizes, context, K = self._native.streams.sizes, self._network.context, self._native.model.num_classes
        M, R = self._num_predictions, len(self._mixer.weights.exponents)
        state = 2 * sizes.depth * sizes.key_width
        self._row = row = OneRowStruct(num_classes=K, heads=self._network.num_predictions, uniform=-np.log(K))
        self._address = ctypes.addressof(row)
        self._num_seen_address = self._address + OneRowStruct.num_seen.offset
        self._stream, self._next, self._neighbor_row, self._mix = row.network, row.next, row.knn, row.mixer
        self._normalize, self._normalizer, self._x = row.normalizer, None, None
        self._features = np.empty((1, self._native.model.features), np.float32)
        self._log_probs = np.empty((M, 1, K), np.float32)
        self._state = np.empty(state + sizes.example_key_width, np.float32)  # keys and values of the row
        self._stream.length = 1
        if self._native.model.settings.use_input:
            self._stream.x = address(self._features)
        self._stream.log_probs, at = address(self._log_probs), address(self._state)
        if sizes.attention:
            self._tokens = RowAddresses(context.tokens, 4 * sizes.key_width, sizes.tokens)
            self._stream.new_keys, self._stream.new_values = at, at + 2 * state
            self._stream.new_block_stride = sizes.key_width
        if sizes.example_key_width:
            self._examples = RowAddresses(context.examples, 8)
            self._stream.new_example_keys = at + (4 * state if sizes.attention else 0)
        self._at: np.ndarray | None = None  # the columns of the nearest neighbors, where a metric learns from them
        self._scale = self._weights = None
        if self._knn is not None:
            self._allocate_knn(self._knn)
        self._mixed: np.ndarray = self._log_probs[0]
        if M > 1:
            self._mixed, self._parts = np.empty((1, K)), np.empty((M + 2 * R, K))
            mix, self._rates = self._mix, self._mixer.learning_rates
            mix.log_probs, mix.parts, mix.mixed = self._stream.log_probs, address(self._parts), address(self._mixed)
            mix.learning_rates, mix.share = address(self._rates), self._mixer.share
            mix.prior, mix.slows_share = address(self._mixer.prior), self._mixer.slows_share
            mix.lowest, mix.largest = LOWEST, LARGEST
        self._mix.predictions, self._mix.products = M, R
        self._num_classes = K

    def _allocate_normalizer(self, normalizer: Normalizer) -> None:
        row, columns = self._normalize, len(normalizer.count)
        self._x, self._after = np.empty((1, normalizer.width)), np.empty((3, columns))
        self._limits, self._x_address = normalizer.limits, address(self._x)
        row.after, row.features, row.width, row.columns = (
            *(address(self._after), address(self._features)), *(normalizer.width, columns),
        )  # fmt: skip
        row.limits = ctypes.addressof(self._limits)
        self._same = None

    def _allocate_knn(self, expert: KNNExpert) -> None:
        row, metric = self._neighbor_row, expert.metric
        self._neighbors = RowAddresses(expert.past, 8)
        self._key = np.empty(expert.width, np.float32)
        row.features, row.key = address(self._features), address(self._key)
        row.width, row.nearest, row.prior_weight, row.sharpness = expert.width, NEAREST, PRIOR_WEIGHT, 1.0
        row.log_probs = address(self._log_probs) + 4 * self._knn_at.start * self._log_probs.shape[2]
        if metric is not None:
            self._at = np.empty((1, NEAREST), np.int64)
            row.at = address(self._at)

    def _check(self, code: int) -> None:
        if code >= 100:
            raise ValueError(f"the native core: {'kNN' if code < 200 else 'the mixer'} refuses its sizes or labels")
        if code:
            raise ValueError(f"the native core: {self._functions.transformer_error(code).decode()}")
