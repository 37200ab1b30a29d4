"""The battery: what every learner must do, as checks that any learner can be put through.

Each check takes a function that makes a new learner: `make(classes)`, where classes is a number of labels or a list
of them. The learner must accept vectors of `FEATURES` numbers. A check that fails raises AssertionError with a
sentence. The docstring of a check is its specification.

    from prequential.testing import check_learner
    check_learner(lambda classes: MyLearner(classes))
"""

from __future__ import annotations

import copy
import gc
import itertools
import math
import pickle
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prequential.errors import BadInput, PrequentialError
from prequential.evaluation.evaluate import evaluate
from prequential.learners.base import OnlineLearner
from prequential.storage.checkpoint import same_state
from prequential.streams.stream import Chunk, Stream
from prequential.testing.hostile import hostile_inputs

FEATURES = 4
TOLERANCE = 2e-4  # between ways of computing the same thing; between equal computations there is none

Make = Callable[[int | Sequence[Hashable]], OnlineLearner]


def check_learner(make: Make) -> None:
    """Puts a learner through every check."""
    for check in CHECKS:
        check(make)


def check_predict_is_pure(make: Make) -> None:
    """Predicting must not change the learner, before the first example, inside a chunk or after it."""
    learner, (x, y) = make(3), _examples(37)
    for t in range(len(y)):
        before = learner.state_dict()
        first = learner.predict_proba(x[t])
        learner.predict_log_proba_many(x)
        again = learner.predict_proba(x[t])
        assert same_state(before, learner.state_dict()), f"predicting example {t} changed the learner"
        assert first == again, f"predicting example {t} twice gave {first} and {again}"
        learner.learn(x[t], y[t])


def check_probabilities(make: Make) -> None:
    """Probabilities of all labels, seen and unseen, must sum to one, and none of them may be zero."""
    learner, (x, y) = make(5), _examples(40)
    for t in range(len(y)):
        p = learner.predict_proba(x[t])
        unseen = 5 - len(p)
        total = sum(p.values()) + unseen * p["a label never seen"]
        assert abs(total - 1) < 1e-4, f"example {t}: the probabilities sum to {total}"
        assert min([*p.values(), *([p.unseen] if unseen else [])]) > 0, f"example {t}: a label has probability 0: {p}"
        learner.learn(x[t], y[t])


def check_one_and_many(make: Make) -> None:
    """An example must get the same prediction alone and among others, under each name that predicts."""
    learner, (x, y) = make(4), _examples(40)
    for learned in (0, 30):
        if learned:
            learner.learn_many(x[:learned], y[:learned])
        log_p, p = learner.predict_log_proba_many(x[30:]), learner.predict_proba_many(x[30:])
        known = learner.labels.known
        assert log_p.shape == (10, 4), f"10 examples and 4 classes gave log-probabilities of shape {log_p.shape}"
        assert np.allclose(np.exp(log_p), p, atol=1e-6), "predict_proba_many is not exp(predict_log_proba_many)"
        labels = learner.predict_many(x[30:])
        for i, row in enumerate(x[30:]):
            one, log_one = learner.predict_proba_one(row), learner.predict_log_proba_one(row)
            worst = max([abs(one[label] - p[i, k]) for k, label in enumerate(known)], default=0.0)
            assert worst < TOLERANCE, f"alone, a probability of example {30 + i} differs by {worst} from among others"
            assert all(math.isclose(math.exp(log_one[k]), one[k], abs_tol=1e-6) for k in (*known, "a label never seen"))
            assert one == learner.predict_proba(row), "predict_proba and predict_proba_one differ"
            assert learner.predict_one(row) == learner.predict(row), "predict and predict_one differ"
            best = sorted(one.values())[-2:]
            if not known or len(best) == 1 or best[1] - best[0] > TOLERANCE:  # otherwise it may round either way
                assert labels[i] == learner.predict_one(row), (
                    f"alone, example {30 + i} is predicted to be another label"
                )


def check_no_future(make: Make) -> None:
    """Nothing of y_t, nor anything later, may reach the prediction of y_t, however the examples are handed over."""
    x, y = _examples(60)
    before = make(3).observe(x, y)
    for t in (0, 1, 17, 30, 59):
        other_y = [*y[:t], *((label + 1) % 3 for label in y[t:])]
        other_x = x.copy()
        other_x[t + 1 :] += 1
        after = make(3).observe(other_x, other_y)
        same = np.array_equal(before.predicted[: t + 1], after.predicted[: t + 1])
        same &= np.allclose(before.confidence[: t + 1], after.confidence[: t + 1], atol=1e-7, rtol=0)
        assert same, f"the prediction of example {t} or before changed with what came later"
        assert np.array_equal(before.log_loss[:t], after.log_loss[:t]), f"the loss before example {t} changed"


def check_past_counts(make: Make) -> None:
    """After many examples of one label, this label must be more probable than at the start."""
    learner, (x, _) = make(3), _examples(200)
    learner.learn_many(x, [0] * 199 + [1])
    p = learner.predict_proba(x[0])
    assert p[0] > 1 / 3, f"after 199 examples of one label its probability is {p[0]}, no more than at the start"


def check_no_future_replay(make: Make) -> None:
    """While it runs over a stream, a learner may read again what it has learned, and nothing else.

    (Inside its first chunk, where there is no past, it may read what it was just handed.)
    """
    learner = make(3)
    stride = learner.stride
    x, y = _examples(max(150, 4 * stride))
    stream = _Recorded(x, y)
    stream.present = 0
    learner.replay_from(stream)
    start = 0
    for size in itertools.cycle((stride, 1, max(stride - 1, 1))):  # ends of chunks fall on ends of calls and inside
        piece = slice(start, start + size)
        stream.present = start if start else len(y[piece])
        learner.predict_log_proba_many(x[piece])
        learner.observe(x[piece], y[piece])
        start += size
        if start >= len(y):
            break
    learner.state_dict()  # waits for steps that run in a thread
    assert not stream.violations, (
        f"example {stream.violations[0][0]} was read from the stream when only those before "
        f"{stream.violations[0][1]} had been learned"
    )


def check_one_by_one(make: Make) -> None:
    """Handing examples over one by one, in pieces, or all at once must give the same predictions."""
    x, y = _examples(90)
    whole = make(3).observe(x, y)
    learner = make(3)
    for t in range(len(y)):
        p = learner.predict_proba(x[t])
        loss = -np.log(p[y[t]])
        assert abs(loss - whole.log_loss[t]) < TOLERANCE * max(1, loss), (
            f"example {t} costs {loss} one by one and {whole.log_loss[t]} in a chunk"
        )
        learner.learn(x[t], y[t])
    learner, pieces, start = make(3), [], 0
    for size in (1, 7, 2, 25, 13, 42):
        pieces.append(learner.observe(x[start : start + size], y[start : start + size]).log_loss)
        start += size
    worst = float(np.abs(np.concatenate(pieces) - whole.log_loss).max())
    assert worst < TOLERANCE, f"in uneven pieces the losses differ by up to {worst}"


def check_state_is_a_snapshot(make: Make) -> None:
    """A state must not change while the learner learns on, and loading it, once or twice, must restore that moment."""
    learner, (x, y) = make(3), _examples(80)
    learner.replay_from(_Recorded(x, y))
    learner.observe(x[:40], y[:40])
    taken = learner.state_dict()
    then = copy.deepcopy(taken)  # what it was, whatever the learner still holds of it
    first = learner.observe(x[40:], y[40:])
    assert same_state(taken, then), "a state changed while the learner learned on"
    assert not same_state(taken, learner.state_dict()), "learning changed nothing"
    for time in ("once", "twice"):
        learner.load_state_dict(taken)
        assert same_state(learner.state_dict(), then), f"loading a state {time} gave another state"
        again = learner.observe(x[40:], y[40:])
        assert np.array_equal(first.log_loss, again.log_loss), f"after loading a state {time} it goes on otherwise"
        assert same_state(taken, then), "a loaded state changed while the learner learned on"


def check_same_again(make: Make) -> None:
    """Two learners made alike and given the same examples must be equal to the last bit."""
    x, y = _examples(70)
    first, second = make(3), make(3)
    a, b = first.observe(x, y), second.observe(x, y)
    assert np.array_equal(a.log_loss, b.log_loss), "the same examples gave other losses"
    assert same_state(first.state_dict(), second.state_dict()), "the same examples gave another state"


def check_learners_share_nothing(make: Make) -> None:
    """What happens to one learner must not reach another, nor NumPy's or PyTorch's own random numbers."""
    x, y = _examples(60)
    alone = make(3).observe(x, y)
    first, second = make(3), make(3)
    np.random.seed(5)  # noqa: NPY002 (the global generator is what is checked)
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    torch_before = torch.random.get_rng_state()
    losses = []
    for t in range(0, 60, 10):
        losses.append(first.observe(x[t : t + 10], y[t : t + 10]).log_loss)
        second.observe(-x[t : t + 10], y[::-1][t : t + 10])
    assert np.allclose(np.concatenate(losses), alone.log_loss, atol=TOLERANCE), "another learner changed the losses"
    assert np.random.random() == expected, "NumPy's global generator was used"  # noqa: NPY002
    assert torch.equal(torch.random.get_rng_state(), torch_before), "PyTorch's global generator was used"


def check_inputs_are_copied(make: Make) -> None:
    """Changing an array after it was learned must not change the learner."""
    x, y = _examples(35)
    kept, given = make(3), make(3)
    buffer = np.empty_like(x[:1])
    for t in range(len(y)):
        kept.learn(x[t], y[t])
        buffer[:] = x[t]
        given.learn(buffer[0], y[t])
        buffer[:] = 1e6
    assert same_state(kept.state_dict(), given.state_dict()), "the learner kept hold of an array it was given"


def check_save_load(make: Make) -> None:
    """A learner saved at any moment and loaded must go on exactly as the one that was not."""
    x, y = _examples(100)
    for cut in (0, 1, 33, 64):
        learner = make(3)
        if cut:
            learner.observe(x[:cut], y[:cut])
        with tempfile.TemporaryDirectory() as folder:
            learner.save(Path(folder) / "learner")
            loaded = type(learner).load(Path(folder) / "learner")
        assert same_state(learner.state_dict(), loaded.state_dict()), f"what was loaded at example {cut} differs"
        a, b = learner.observe(x[cut:], y[cut:]), loaded.observe(x[cut:], y[cut:])
        assert np.array_equal(a.log_loss, b.log_loss), f"loaded at example {cut}, it goes on otherwise"
        assert same_state(learner.state_dict(), loaded.state_dict()), f"loaded at example {cut}, it ends otherwise"


def check_new_classes(make: Make) -> None:
    """Labels may be any hashable values, come at any time and in any order; names must not matter."""
    x, y = _examples(80)
    y = [0] * 20 + [label % 2 for label in y[20:40]] + y[40:]
    names: list[Hashable] = [("a", 1), "b", b"c"]
    plain = make(3).observe(x, y)
    named = make(3).observe(x, [names[label] for label in y])
    assert np.array_equal(plain.log_loss, named.log_loss), "the names of the labels changed the losses"
    assert np.isfinite(plain.log_loss).all(), "a label cost an infinite loss"
    learner = make(3)
    learner.learn_many(x, y)
    before = [learner.predict_proba(row) for row in x[:5]]
    assert all(set(p) == {0, 1, 2} for p in before), "a label that was seen has no probability"
    wide = make(4)
    wide.learn_many(x, y)
    assert 0 < wide.predict_proba(x[0])["new"] < 1, "a label that may still come has no probability"


def check_bad_input(make: Make) -> None:
    """Bad input must give one sentence that names the example and both values, and change nothing."""
    x, y = _examples(45)
    learner = make(3)
    learner.observe(x, y)
    before = learner.state_dict()
    broken = x[:3].copy()
    broken[1, 2] = np.nan
    cases: list[tuple[Any, list[Any], str]] = [
        (x[:2, :-1], [0, 1], f"shape ({FEATURES},)"),
        (x[:2].reshape(2, 2, 2), [0, 1], "(2, 2)"),
        (np.full((1, FEATURES), np.inf), [0], "inf"),
        ([["a"] * FEATURES], [0], "dtype"),
        (x[:2], [0, "a fourth label"], "all 3 classes are taken"),
        (x[:2], [0, [1]], "hashable"),
        (x[:2], [0], "2 inputs and 1 labels"),
        (x[:0], [], "0 inputs"),
    ]
    if not learner.missing:
        cases.append((broken, [0, 1, 2], "example 46: feature 2 is nan"))
    for xs, ys, words in cases:
        for call in (learner.observe, learner.learn_many):
            try:
                call(xs, ys)
            except BadInput as error:
                assert words in str(error), f"{str(error)!r} does not say {words!r}"
                assert "\n" not in str(error), f"{str(error)!r} is more than one sentence"
            else:
                raise AssertionError(f"no error was raised where {words!r} was expected")
    assert same_state(before, learner.state_dict()), "bad input changed the learner"


def check_gate(make: Make) -> None:
    """What is no example must be refused in one short sentence and change nothing, before the first example and later."""
    x, y = _examples(40)
    fresh, later = make(3), make(3)
    later.observe(x, y)
    x_two = x[:2]
    for learner in (fresh, later):
        before = learner.state_dict()
        for what, xs, ys in hostile_inputs(x_two):
            for call in (learner.observe, learner.learn_many):
                _refused(lambda call=call, xs=xs, ys=ys: call(xs, ys), what)  # type: ignore[misc]
            if xs is not x_two:
                _refused(lambda learner=learner, xs=xs: learner.predict_log_proba_many(xs), what)  # type: ignore[misc]
        for what, one in (("a word", "no"), ("nothing", None), ("a number", 1.0), ("a dict", {"a": 1.0})):
            _refused(lambda learner=learner, one=one: learner.learn(one, 0), what)  # type: ignore[misc]
            _refused(lambda learner=learner, one=one: learner.predict_proba(one), what)  # type: ignore[misc]
        assert same_state(before, learner.state_dict()), "what was refused changed the learner"
    fresh.learn_many(x[:2, :3], [0, 1])
    assert fresh.shape == (3,), f"after what was refused, the first example has shape {fresh.shape}"


def check_conversions(make: Make) -> None:
    """The same numbers must be the same example, whatever holds them and however they lie in memory."""
    x, y = _examples(12)
    labels: list[Any] = [np.asarray(y), torch.tensor(y)]
    expected = make(3)
    expected.learn_many(x, y)
    backward = x[::-1].copy()[::-1]
    ways: dict[str, Any] = {
        "a tensor that requires grad": torch.tensor(x, requires_grad=True),
        "a list of tensors": [torch.tensor(row, requires_grad=True) for row in x],
        "Fortran order": np.asfortranarray(x),
        "negative strides": backward,
        "big-endian numbers": x.astype(">f4"),
        "an array of arrays": [row for row in x],
        "a masked array without a mask": np.ma.MaskedArray(x),
    }
    for what, xs in ways.items():
        learner = make(3)
        learner.learn_many(xs, labels[0])
        assert same_state(expected.state_dict(), learner.state_dict()), f"{what} gave another state"
    rounded = torch.tensor(x).bfloat16()
    first, second = make(3), make(3)
    first.learn_many(rounded, labels[1])
    second.learn_many(rounded.float().numpy(), y)
    assert same_state(first.state_dict(), second.state_dict()), "a bfloat16 tensor gave another state"


def _refused(call: Callable[[], Any], what: str) -> None:
    """Asserts that a call raises one short sentence."""
    try:
        call()
    except PrequentialError as error:
        assert len(str(error)) <= 300, f"{what}: a message of {len(str(error))} characters"
        assert "\n" not in str(error), f"{what}: {str(error)!r} is more than one line"
    else:
        raise AssertionError(f"{what} was accepted")


def check_broken_values(make: Make, *, most: float = 20.0) -> None:
    """A value that is absurd but finite must disturb little: all that follows is finite, and costs at most `most`."""
    x, y = _examples(300)
    for row in (0, 40):
        broken = x.copy()
        broken[row, 1] = 1e30
        learner = make(3)
        losses = learner.observe(broken, y).log_loss
        assert np.isfinite(losses).all(), (
            f"after a feature of 1e30 example {int(np.argmin(np.isfinite(losses)))} costs {losses}"
        )
        assert losses[-100:].mean() < most, f"after a feature of 1e30 an example costs {losses[-100:].mean()} nats"
        p = learner.predict_proba(x[0])
        assert abs(sum(p.values()) - 1) < 1e-4, f"after a feature of 1e30 the probabilities are {p}"
        assert np.isfinite(learner.predict_log_proba_many(broken[row : row + 1])).all(), (
            "a feature of 1e30 is not predicted"
        )
        where = _not_a_number(learner.state_dict(), "")
        assert where is None, f"after a feature of 1e30 the state holds NaN in {where}"


def _not_a_number(state: Any, name: str) -> str | None:
    """Where in a state there is a NaN."""
    if isinstance(state, dict | list):
        parts = state.items() if isinstance(state, dict) else enumerate(state)
        return next((found for key, part in parts if (found := _not_a_number(part, f"{name}/{key}"))), None)
    if isinstance(state, torch.Tensor):
        state = state.detach().cpu().float().numpy()
    broken = isinstance(state, np.ndarray) and state.dtype.kind == "f" and bool(np.isnan(state).any())
    return name if broken else None


def check_all_or_nothing(make: Make) -> None:
    """Whatever is wrong with one of several examples, none of them may have been learned, also where labels were new."""
    x, y = _examples(50)
    learner, other = make(3), make(3)
    bad: list[Hashable] = [*y[:25], object(), *y[26:]]
    for start in (0, 20):
        before = learner.state_dict()
        for call in (learner.learn_many, learner.observe):
            try:
                call(x[start:], bad[start:])
            except BadInput as error:
                assert f"example {25}:" in str(error), f"{str(error)!r} does not name example 25"
            else:
                raise AssertionError("a label that cannot be kept was taken")
            assert same_state(before, learner.state_dict()), f"a refused label changed the learner at example {start}"
        for one in (learner, other):
            one.learn_many(x[start : start + 20], y[start : start + 20])
    assert same_state(other.state_dict(), learner.state_dict()), "after refused labels it goes on otherwise"


def check_copies(make: Make) -> None:
    """A deep copy must be a learner of its own that goes on alike; pickling must be refused in one sentence."""
    x, y = _examples(100)
    for cut in (0, 45):
        learner = make(3)
        if cut:
            learner.observe(x[:cut], y[:cut])
        copied = copy.deepcopy(learner)
        assert same_state(learner.state_dict(), copied.state_dict()), f"a copy at example {cut} differs"
        copied.observe(-x[cut:], y[cut:])
        again = copy.deepcopy(learner)
        del copied
        a, b = again.observe(x[cut:], y[cut:]), learner.observe(x[cut:], y[cut:])
        assert np.array_equal(a.log_loss, b.log_loss), f"a copy at example {cut} goes on otherwise"
        assert same_state(learner.state_dict(), again.state_dict()), f"a copy at example {cut} ends otherwise"
        try:
            pickle.dumps(learner)
        except BadInput as error:
            assert "save(path)" in str(error), f"{str(error)!r} does not say how a learner is kept"
        else:
            raise AssertionError("a learner was pickled")


def check_threads(make: Make) -> None:
    """Predicted from several threads while another learns, each prediction must be that of some moment in between."""
    x, y = _examples(70)
    alone = make(3)
    alone.learn_many(x[:30], y[:30])
    moments = [alone.predict_log_proba_many(x[:1]).tobytes()]
    for t in range(30, 70):
        alone.learn(x[t], y[t])
        moments.append(alone.predict_log_proba_many(x[:1]).tobytes())
    learner, known = make(3), set(moments)
    learner.learn_many(x[:30], y[:30])
    over, found = threading.Event(), []

    def predict() -> None:
        while not over.is_set():
            try:
                if learner.predict_log_proba_many(x[:1]).tobytes() not in known:
                    found.append("a prediction that belongs to no moment")
                learner.predict(x[0])
            except Exception as error:
                found.append(repr(error))

    threads = [threading.Thread(target=predict) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for t in range(30, 70):
            learner.learn(x[t], y[t])
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not found, f"{len(found)} predictions during learning went wrong: {found[0]}"
    assert same_state(alone.state_dict(), learner.state_dict()), "predictions during learning changed what was learned"


def check_evaluate(make: Make) -> None:
    """Over a stream, every example must be scored, whatever the length of the last piece."""
    x, y = _examples(131)
    scores = evaluate(_Recorded(x, y), make(3))
    assert scores.count == 131, f"of 131 examples {scores.count} were scored"
    assert np.isfinite(scores.log_loss), f"the mean log-loss is {scores.log_loss}"


def check_memory(make: Make) -> None:
    """Memory must stay the same however long the stream is."""
    learner = make(3)
    x, y = _examples(200)
    tracemalloc.start()
    try:
        for _ in range(3):  # until everything that is kept has been made
            learner.learn_many(x, y)
        held, before = _held(learner)
        for _ in range(12):
            learner.learn_many(x, y)
        after, grown = _held(learner)
    finally:
        tracemalloc.stop()
    assert grown - before < 8 * 1024, f"2,400 more examples took {grown - before} more bytes"
    assert after - held < 4 * 1024, f"2,400 more examples made the state larger by {after - held} bytes"


def _held(learner: OnlineLearner) -> tuple[int, int]:
    """Bytes in a learner's state, and in all Python objects there are."""
    size = _bytes(learner.state_dict())  # also waits for whatever the learner does behind
    # Python remembers where it found attributes, by names that libraries make anew in every call: up to 4,096 of them
    (getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache)()
    gc.collect()
    return size, tracemalloc.get_traced_memory()[0]


CHECKS: list[Callable[[Make], None]] = [
    check_predict_is_pure,
    check_probabilities,
    check_one_and_many,
    check_no_future,
    check_past_counts,
    check_no_future_replay,
    check_one_by_one,
    check_state_is_a_snapshot,
    check_same_again,
    check_learners_share_nothing,
    check_inputs_are_copied,
    check_save_load,
    check_new_classes,
    check_bad_input,
    check_gate,
    check_conversions,
    check_broken_values,
    check_all_or_nothing,
    check_copies,
    check_threads,
    check_evaluate,
    check_memory,
]


def _bytes(state: Any) -> int:
    """The size of all arrays and tensors in a state; tracemalloc does not see PyTorch's."""
    if isinstance(state, dict):
        return sum(_bytes(part) for part in state.values())
    if isinstance(state, list):
        return sum(_bytes(part) for part in state)
    return int(getattr(state, "nbytes", 0))


def _examples(n: int) -> tuple[np.ndarray, list[int]]:
    """n vectors with labels 0, 1, 2 that depend on them, the same every time."""
    random = np.random.default_rng(3)
    x = random.normal(size=(n, FEATURES)).astype(np.float32)
    y = np.digitize(x[:, 0] + 0.3 * random.normal(size=n), [-0.5, 0.5])
    return x, y.tolist()


class _Recorded(Stream):
    """A stream in memory that records which reads went beyond its present."""

    classes = 3

    def __init__(self, x: np.ndarray, y: Sequence[Hashable]) -> None:
        self.x, self.y, self.present = x, y, len(y)
        self.violations: list[tuple[int, int]] = []  # the last example that was read, and the present at that time

    def __len__(self) -> int:
        return len(self.y)

    def _read(self, start: int, stop: int) -> Chunk:
        if stop > self.present:  # raising would not do: whoever reads may catch it, or be in another thread
            self.violations.append((stop - 1, self.present))
        return Chunk(self.x[start:stop], self.y[start:stop])

    def fingerprint(self) -> str:
        return "checks"
