"""Checks of inputs: bad ones are refused and change nothing, good ones count the same in any form."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch

from prequential.errors import BadInput, PrequentialError
from prequential.storage.checkpoint import same_state
from prequential.testing.examples import FEATURES, Make, make_examples
from prequential.testing.hostile import hostile_inputs


def check_inputs_are_copied(make: Make) -> None:
    """Changing an array after it was learned must not change the learner."""
    x, y = make_examples(35)
    kept, given = make(3), make(3)
    buffer = np.empty_like(x[:1])
    for t in range(len(y)):
        kept.learn(x[t], y[t])
        buffer[:] = x[t]
        given.learn(buffer[0], y[t])
        buffer[:] = 1e6
    assert same_state(kept.state_dict(), given.state_dict()), "the learner kept hold of an array it was given"


def check_bad_input(make: Make) -> None:
    """Bad input must give one sentence that names the example and both values, and change nothing."""
    x, y = make_examples(45)
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
    """What is no example must be refused in one short sentence and change nothing, at the start and later."""
    x, y = make_examples(40)
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
        for what, one in (("a word", "no"), ("nothing", None), ("a number", 1.0), ("no fields", {})):
            _refused(lambda learner=learner, one=one: learner.learn(one, 0), what)  # type: ignore[misc]
            _refused(lambda learner=learner, one=one: learner.predict_proba(one), what)  # type: ignore[misc]
        assert same_state(before, learner.state_dict()), "what was refused changed the learner"
    fresh.learn_many(x[:2, :3], [0, 1])
    assert fresh.shape == (3,), f"after what was refused, the first example has shape {fresh.shape}"


def check_conversions(make: Make) -> None:
    """The same numbers must be the same example, whatever holds them and however they lie in memory."""
    x, y = make_examples(12)
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
    x, y = make_examples(300)
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
    """If one of several examples is refused, none of them may have been learned, also where labels were new."""
    x, y = make_examples(50)
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
