"""Both transformers in C++: passes and gradient steps, in place on a model's parameters and its optimizer's moments.

What it gives is what `models.pi`, `models.two_token` and `learners.transformer.trainer` give, up to rounding. Shape
letters: L blocks, M heads, S new examples, T their tokens, P past ones, F features, K classes (in the C++ files NC), C
window.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from prequential.models.kv_cache import Context, KVState
from prequential.models.lookback import LookBack
from prequential.models.pi import PiTransformer
from prequential.models.transformer import Transformer
from prequential.models.two_token import TwoTokenTransformer
from prequential.native.binding import (
    HEADS,
    Bound,
    StepStruct,
    StreamStruct,
    address_of,
    bind,
    parameters_in_order,
    transformer_functions,
)
from prequential.native.kv_addresses import (
    buffer_addresses,
    current_addresses,
    next_addresses,
)
from prequential.native.library import library
from prequential.native.streams import ChunkInput, Filled, NativePass, StreamFiller, StreamInput

SPLIT_MACS = 2e7  # multiply-accumulates of a block: about half a millisecond


class StepResult(NamedTuple):
    """What a gradient step gives."""

    passes: list[NativePass]  # of each stream that is a `StreamInput`, from before the step
    finite: bool  # False: a gradient was not finite, so the step was not taken
    loss: float  # mean over streams of their mean losses, summed over heads


def unsupported(model: Transformer) -> str | None:
    """Why the native core cannot compute this model, in words that end a sentence; None: it can."""
    settings = model.settings
    if type(model) not in (PiTransformer, TwoTokenTransformer):
        return f"the native core has the pi- and the 2-token transformer only, not {settings.model}"
    if type(model) is TwoTokenTransformer and not model.blocks:
        # torch gives the embeddings of labels no gradient then, and AdamW leaves them out
        return "the native core does the 2-token transformer only with blocks, which see the tokens of labels"
    unknown = {**model.output_heads}.keys() - HEADS.keys()
    if unknown:
        return f"the native core does not know the output head {min(unknown)}"
    if model.extractor is not None:
        return "the native core takes vectors only, not images"
    if settings.precision != "float32":
        return f"the native core computes in float32 only, not in {settings.precision}"
    if model.rotary.table.device.type != "cpu":
        return f"the native core computes on the CPU only, not on {model.rotary.table.device}"
    if any(parameter.dtype != torch.float32 for parameter in model.parameters()):
        return "the native core takes parameters in float32 only"
    found = library()
    return None if found.library is not None else found.reason


class NativeTransformer:
    """A model that predicts and learns in the native core.

    It owns nothing: parameters are the model's, moments the optimizer's. Where they have been replaced by others, as
    when classes are added or a state is loaded, the next call finds the new ones.

    Parameters
    ----------
    model
        One for which `unsupported` gives None.
    adamw
        What trains it, for `step`.
    """

    def __init__(self, model: Transformer, adamw: torch.optim.AdamW | None = None) -> None:
        reason = unsupported(model)
        if reason is not None:
            raise ValueError(reason)
        self.model, self.adamw = model, adamw
        self._functions = transformer_functions()
        self._lock = threading.Lock()
        self._local = threading.local()
        self._parameters = parameters_in_order(model)
        self.streams = StreamFiller(model)
        self._num_heads, self._key_width = self.streams.num_heads, self.streams.key_width
        self._attention, self._shape = self.streams.attention, self.streams.shape
        self._tokens_per_example = model.tokens_per_example
        self._block_macs = max((block.macs(model.settings.window) for block in model.all_blocks), default=0.0)
        self._bound = bind(self.model, self._parameters, self._pointers())
        self._trained: Bound | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> NativeTransformer:
        return NativeTransformer(deepcopy(self.model, memo), deepcopy(self.adamw, memo))

    @property
    def address(self) -> int:
        """Where the structure of the model is, for one_row.cpp; found anew only where classes were added."""
        return self._recent().address

    def forward(
        self,
        x: np.ndarray,
        y: np.ndarray,
        num_seen: np.ndarray,
        past: KVState,
        look: LookBack | None = None,
        *,
        threads: int = 1,
    ) -> NativePass:
        """A pass over consecutive labeled examples of one stream: log-probabilities, and their keys and values."""
        threads = threads if self._may_split(len(x)) else 1
        return self._forward(StreamInput(x, y, num_seen, past, look), state=True, threads=threads)

    def predict_next(self, x: np.ndarray, num_seen: np.ndarray, past: KVState) -> NativePass:
        """n examples (n, F), every one as the next after the past. Of one alone also the keys and values."""
        return self._forward(StreamInput(x, None, num_seen, past), state=len(x) == 1)

    def predict_late(self, x: np.ndarray, num_seen: np.ndarray, past: KVState, look: LookBack) -> NativePass:
        """n examples (n, F), of which `look` says what each of them sees."""
        return self._forward(StreamInput(x, None, num_seen, past, look), state=False)

    def predict_one(self, x: np.ndarray, num_seen: int, context: Context) -> tuple[np.ndarray, np.ndarray]:
        """One example (1, F) as the next of a context: log-probabilities (M, 1, K), and what `append_one` takes.

        As `predict_next`, but with less work around the call.
        """
        one = self._of_thread()
        stream, (L, width), K = one.stream, self._shape, self.model.num_classes
        if one.x is not None:
            one.x[:] = x
        if self._attention:
            stream.keys, stream.values, stream.block_stride, stream.past = current_addresses(
                context.tokens, L, width, 4 * width
            )
        if self._key_width:
            stream.example_keys, stream.example_labels, _, stream.past_examples = current_addresses(
                context.examples, 1, self._key_width, 8
            )
        one.num_seen[0] = num_seen
        stream.num_seen = one.num_seen_address if num_seen < K else None
        log_probs = np.empty((self._num_heads, 1, K), np.float32)
        state = np.empty(2 * L * width + self._key_width, np.float32)
        stream.log_probs, at = address_of(log_probs), address_of(state)
        stream.new_keys, stream.new_values, stream.new_example_keys = (
            (at, at + 4 * L * width, at + 8 * L * width) if self._attention else (None, None, at)
        )
        self._check(self._functions.transformer_forward(self._recent().address, one.address, 1))
        return log_probs, state

    def pass_late(
        self,
        x: np.ndarray,
        y: np.ndarray | None,
        num_seen: np.ndarray,
        context: Context,
        visible: np.ndarray,
        *,
        current: bool = True,
        keep: int = 0,
    ) -> np.ndarray:
        """Log-probabilities (M, S, K) of a few examples (S, F) of which `visible` says what each of them sees.

        As `predict_late` and `forward`, but with less work around the call: what is seen lies in a context, from its
        latest example on (`current`) or from its last chunk boundary on. The last `keep` are then in the context, too.
        """
        stream, (L, width), K, S = StreamStruct(), self._shape, self.model.num_classes, len(x)
        if self.model.settings.use_input:
            x = np.ascontiguousarray(x, dtype=np.float32)
            if x.shape != (S, self.model.features):
                raise ValueError(f"x has shape {x.shape}, expected {(S, self.model.features)}")
            stream.x = address_of(x)
        if y is not None:
            stream.y = address_of(y)
        if num_seen[0] < K:
            stream.num_seen = address_of(num_seen)
        log_probs = np.empty((self._num_heads, S, K), np.float32)
        stream.length, stream.visible, stream.log_probs = S, address_of(visible), address_of(log_probs)
        copies: list[tuple[int, int, int]] = []  # from, to, bytes: of what is kept of a longer pass
        state = np.empty((2 * L * width + self._key_width) * S if keep else 0, np.float32)
        at = address_of(state)
        if self._attention:
            to = context.tokens.room_for(keep)  # first, as it may move the others
            start, stop = (context.tokens.current_span if current else context.tokens.committed_span)(beyond=True)
            keys, values, room = buffer_addresses(context.tokens, L, width)
            row = 4 * width
            stream.keys, stream.values, stream.past = keys + row * start, values + row * start, stop - start
            stream.block_stride = room * width
            if keep:
                stream.new_keys, stream.new_values, stream.new_block_stride = at, at + row * L * S, S * width
                for block in range(L):
                    last, next_row = row * (block * S + S - keep), row * (block * room + to)
                    copies.append((at + last, keys + next_row, row * keep))
                    copies.append((at + row * L * S + last, values + next_row, row * keep))
        if self._key_width:
            cache, row = context.examples, 4 * self._key_width
            to = cache.room_for(keep)
            start, stop = (cache.current_span if current else cache.committed_span)(beyond=True)
            keys, labels, _ = buffer_addresses(cache, 1, self._key_width)
            stream.example_keys, stream.example_labels = keys + row * start, labels + 8 * start
            stream.past_examples = stop - start
            if keep:
                assert y is not None
                new = stream.new_example_keys = at + (8 * L * S * width if self._attention else 0)
                copies.append((new + row * (S - keep), keys + row * to, row * keep))
                copies.append((address_of(y) + 8 * (S - keep), labels + 8 * to, 8 * keep))
        self._check(self._functions.transformer_forward(self._recent().address, ctypes.addressof(stream), 1))
        for source, to, size in copies:
            ctypes.memmove(to, source, size)
        if keep and self._attention:
            context.tokens.count_added(keep)
        if keep and self._key_width:
            context.examples.count_added(keep)
        return log_probs

    def append_one(self, state: np.ndarray, y: int, context: Context) -> None:
        """Adds an example from `predict_one` to its context, with its label: to the bit what a pass would add."""
        L, width = self._shape
        at = address_of(state)
        new = at, at + 4 * L * width, at + 8 * L * width
        k = v = ek = el = None
        block_stride, past, tokens = width, 0, self._tokens_per_example
        if self._attention:
            k, v = next_addresses(context.tokens, L, width, 4 * width, tokens)
            block_stride = context.tokens.buffers[0].stride(0)
            start, stop = context.tokens.current_span()
            past = stop - start
        else:
            new = None, None, at  # type: ignore[assignment]
        if self._key_width:
            ek, el = next_addresses(context.examples, 1, self._key_width, 8)
        to = k, v, block_stride, past, ek, el
        self._check(self._functions.transformer_append(self._recent().address, y, *new, *to))
        if self._attention:
            context.tokens.count_added(tokens)
        if self._key_width:
            context.examples.count_added(1)

    def step(
        self,
        streams: Sequence[StreamInput],
        *,
        log_probs: bool = True,
        threads: int = 1,
        split: bool | None = None,
    ) -> StepResult:
        """One step of AdamW on the mean loss of some streams, which may have any lengths.

        Parameters
        ----------
        streams
            Labeled examples of each.
        log_probs
            Whether log-probabilities are asked for.
        threads
            How many threads share the streams. The result is the same for any number.
        split
            Whether threads may share one stream, too. By default where a block is so large that waiting for each other
            in each of them hardly counts.
        """
        return self.train([streams], log_probs=log_probs, threads=threads, split=split)[0]

    def train(
        self,
        steps: Sequence[Sequence[StreamInput | ChunkInput]],
        *,
        log_probs: bool = True,
        threads: int = 1,
        split: bool | None = None,
        average: NativeTransformer | None = None,
        decay: float = 0.0,
    ) -> list[StepResult]:
        """Several steps one after the other, in one call; those of `ChunkInput` are in their contexts afterwards.

        Parameters
        ----------
        steps
            The streams of each step.
        log_probs, threads, split
            As for `step`.
        average, decay
            What follows the parameters after the last step, as by its `update_ema`.
        """
        return self.prepare(steps, log_probs=log_probs, threads=threads, split=split)(average, decay)

    def prepare(
        self,
        steps: Sequence[Sequence[StreamInput | ChunkInput]],
        *,
        log_probs: bool = True,
        threads: int = 1,
        split: bool | None = None,
    ) -> _Training:
        """What `train` does, up to the one call. That can be made in another thread, in which hardly any Python runs."""
        assert self.adamw is not None
        group = self.adamw.param_groups[0]
        structs = (StreamStruct * sum(len(streams) for streams in steps))()
        made: list[Filled] = []
        for one in (stream for streams in steps for stream in streams):
            to = structs[len(made)]
            made.append(
                self.streams.stream(one, to, log_probs) if isinstance(one, StreamInput) else self.streams.chunk(one, to)
            )
        longest = max((len(one.x) for streams in steps for one in streams), default=0)
        return _Training(
            self,
            steps,
            made,
            self._fresh_trained(),
            structs,
            StepStruct(group["lr"], *group["betas"], group["eps"]),
            threads,
            self._may_split(longest) if split is None else split,
        )

    def update_ema(self, model: NativeTransformer, decay: float) -> None:
        """Moves the parameters towards those of another model: decay × these + (1 - decay) × those."""
        self._check(self._functions.transformer_lerp(self._fresh().address, model._fresh().address, 1 - decay))

    def rebind(self) -> None:
        """Finds parameters and moments anew. Every call does so by itself where they have been replaced."""
        with self._lock:
            self._bound, self._trained = bind(self.model, self._parameters, self._pointers()), None

    def _may_split(self, examples: int) -> bool:
        """Whether a block computes long enough on so many examples for threads to share them."""
        return examples * self._tokens_per_example * self._block_macs >= SPLIT_MACS

    def _of_thread(self) -> _One:
        """What `predict_one` uses again and again, of each thread."""
        one: _One | None = getattr(self._local, "one", None)
        if one is None:
            x = np.zeros((1, self.model.features), np.float32) if self.model.settings.use_input else None
            num_seen = np.zeros(1, np.int64)
            stream = StreamStruct(x=None if x is None else x.ctypes.data, length=1, new_block_stride=self._shape[1])
            one = _One(x, num_seen, num_seen.ctypes.data, stream, ctypes.addressof(stream))
            self._local.one = one
        return one

    def _forward(self, stream: StreamInput, *, state: bool, threads: int = 1) -> NativePass:
        struct = StreamStruct()
        made = self.streams.stream(stream, struct, log_probs=True, state=state)
        self._check(self._functions.transformer_forward(self._fresh().address, ctypes.addressof(struct), threads))
        assert made.given is not None
        return made.given

    def _check(self, code: int) -> None:
        if code:
            raise ValueError(f"the native core: {self._functions.transformer_error(code).decode()}")

    def _pointers(self) -> list[int]:
        # the number of classes too: without a head or a block that has a row for each, no parameter changes with it
        return [self.model.num_classes, *map(Tensor.data_ptr, self._parameters)]

    def _fresh(self) -> Bound:
        """What the parameters are bound to, found anew where one has been replaced."""
        bound, pointers = self._bound, self._pointers()
        if bound.pointers != pointers:
            bound = self._bound = bind(self.model, self._parameters, pointers)
        return bound

    def _recent(self) -> Bound:
        """The same, found anew only where classes were added. Every pass and step looks more closely.

        Until then, parameters that were replaced in another way are still those from before.
        """
        bound = self._bound
        return bound if bound.pointers[0] == self.model.num_classes else self._fresh()

    def _fresh_trained(self) -> Bound:
        """The same with the moments. Whoever replaces those of some parameters only has to call `rebind`."""
        assert self.adamw is not None
        trained, pointers, state = self._trained, self._pointers(), self.adamw.state
        first = state.get(self._parameters[0])
        if trained is not None and trained.pointers == pointers and trained.alive[0] is first:
            return trained
        if not all(state.get(parameter) for parameter in self._parameters):
            for parameter in self._parameters:  # as AdamW does in its first step
                state[parameter] = {
                    "step": torch.zeros(()),
                    "exp_avg": torch.zeros_like(parameter.data),
                    "exp_avg_sq": torch.zeros_like(parameter.data),
                }
        names = "exp_avg", "exp_avg_sq", "step"
        moments = [state[parameter][name] for parameter in self._parameters for name in names]
        bound = bind(self.model, self._parameters, pointers, moments, self.adamw)
        self._trained = bound._replace(alive=[state[self._parameters[0]], *bound.alive])
        return self._trained


class _Training(NamedTuple):
    """Steps to be taken by a call, once."""

    native: NativeTransformer
    steps: Sequence[Sequence[StreamInput | ChunkInput]]
    made: list[Filled]
    bound: Bound
    structs: ctypes.Array[StreamStruct]
    step: StepStruct
    threads: int
    split: bool

    def __call__(self, average: NativeTransformer | None = None, decay: float = 0.0) -> list[StepResult]:
        """Takes the steps; `average` then follows the parameters."""
        native, steps = self.native, self.steps
        sizes = np.array([len(streams) for streams in steps], np.int32)
        finite, loss = np.zeros(len(steps), np.int32), np.zeros(len(steps))
        code = native._functions.transformer_train(
            self.bound.address,
            ctypes.addressof(self.structs),
            address_of(sizes),
            len(steps),
            ctypes.addressof(self.step),
            None if average is None else average._fresh().address,
            1 - decay,
            self.threads,
            self.split,
            address_of(finite),
            address_of(loss),
        )
        native._check(code)
        results, rest = [], iter(self.made)
        for i, streams in enumerate(steps):
            passes = []
            for one in streams:
                passed = next(rest).given
                if isinstance(one, ChunkInput):
                    native.streams.commit(one)
                elif passed is not None:
                    passes.append(passed)
            results.append(StepResult(passes, bool(finite[i]), float(loss[i])))
        return results


class _One(NamedTuple):
    x: np.ndarray | None  # (1, F); None: the model does not use it
    num_seen: np.ndarray  # (1,)
    num_seen_address: int
    stream: StreamStruct
    address: int
