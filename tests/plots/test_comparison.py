"""The figures of a comparison: what is in them, and that the same data give the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from prequential.errors import BadInput
from prequential.evaluation.scores import Scores
from prequential.learners.charges import Charges
from prequential.plots.comparison import draw_accuracies, draw_bits, draw_costs, draw_losses


def scored(accuracy: float, nats: float, seed: int = 0, n: int = 400) -> Scores:
    random = np.random.default_rng(seed)
    scores = Scores(classes=10)
    scores.update(0, Charges(np.full(n, nats), np.zeros(n, int), random.random(n) < accuracy, np.full(n, 0.5)))
    return scores


def many(learners: int = 4) -> dict[str, dict[str, list[Scores]]]:
    shown = {f"learner-{i}": [scored(0.1 + 0.01 * i, 2.0 + 0.01 * i, seed) for seed in (0, 1)] for i in range(learners)}
    oracle = {"oracle(window=3)": [scored(0.6, np.inf, seed) for seed in (0, 1)]}
    return {"stream": {**shown, **oracle}}


def numbers(scores, value):
    return {stream: {name: [value(name)] * len(some) for name, some in by.items()} for stream, by in scores.items()}


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_every_learner_is_named_with_its_mean():
    scores = many()
    (axes,) = draw_accuracies(scores).axes
    mean = np.mean([each.accuracy for each in scores["stream"]["learner-2"]])
    assert f"learner-2 {100 * mean:.1f} %" in texts(axes)
    assert len(texts(axes)) == 6  # chance is one of them
    line = axes.lines[2]
    assert line.get_ydata()[-1] == pytest.approx(mean)


def test_what_was_not_charged_has_no_loss_and_no_bits():
    for draw in (draw_losses, draw_bits):
        (axes,) = draw(many()).axes
        shown = texts(axes) + [label.get_text() for label in axes.get_yticklabels()]
        assert any("learner-3" in text for text in shown)
        assert not any("oracle" in text for text in shown)


def test_costs_have_a_place_for_nothing_and_for_not_counted():
    scores = many()
    macs = numbers(scores, lambda name: {"learner-0": None, "learner-1": 0.0}.get(name, 1e9))
    left, right = draw_costs(scores, numbers(scores, lambda _: 12.0), macs).axes
    ticks = {label.get_text(): at for at, label in zip(right.get_xticks(), right.get_xticklabels(), strict=True)}
    low, high = right.get_xlim()
    assert low < ticks["0"] < ticks["$10^{9}$"] < ticks["not\ncounted"] < high
    points = [line.get_xdata()[0] for line in right.lines if line.get_marker() == "o"]
    assert points == [ticks["not\ncounted"], ticks["0"], 9, 9, 9]
    assert "0" not in [label.get_text() for label in left.get_xticklabels()]


@pytest.mark.parametrize("learners", [4, 16])
def test_names_stay_beside_the_panel_and_do_not_touch(learners):
    (axes,) = draw_accuracies(many(learners)).axes
    heights = np.sort([text.get_position()[1] for text in axes.texts])
    assert heights[0] >= -1e-9
    assert heights[-1] <= 1 + 1e-9
    assert np.diff(heights).min() > 0.02


def test_more_learners_than_colors_are_told_apart():
    (axes,) = draw_accuracies(many(14)).axes
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines[:15]}
    assert len(looks) == 15


def test_one_panel_per_stream():
    scores = {name: many(2)["stream"] for name in ("a", "b", "c")}
    shown = [axes.get_title(loc="left") for axes in draw_losses(scores).axes if axes.axison]
    assert shown == [f"{name}: average log-loss so far, in nats" for name in "abc"]


def test_the_same_data_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        draw_bits(many(), tmp_path / f"{name}.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_nothing_to_draw_is_said():
    with pytest.raises(BadInput, match="nothing to draw"):
        draw_accuracies({"stream": {}})
