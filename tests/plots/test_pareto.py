"""The figures of a sweep: what is on the front, and that the same data give the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from prequential.errors import BadInput
from prequential.plots.pareto import draw_fronts, draw_history, draw_settings, front_of
from prequential.plots.style import FAINT


def lines(axes, style: str):
    return [line for line in axes.lines if line.get_drawstyle() == style]


class TestFront:
    def test_is_what_nothing_else_is_better_than(self):
        random = np.random.default_rng(0)
        points = random.integers(0, 6, (40, 3))  # small numbers, so that there are ties
        more = [True, False, True]
        signed = points * [1, -1, 1]
        for i in range(40):
            beaten = any((other >= signed[i]).all() and (other > signed[i]).any() for other in signed)
            assert (i in front_of(points, more)) == (not beaten)

    def test_same_points_are_on_it_together_and_of_nothing_there_is_none(self):
        assert front_of([(1, 1), (1, 1), (0, 2)], [True, False]) == [0, 1]
        assert front_of([], [True]) == []


class TestFronts:
    def test_the_line_goes_through_the_front_and_costs_along_the_bottom(self):
        some = [(0.5, 1e6), (0.7, 1e8), (0.6, 1e7), (0.4, 1e7)]
        (axes,) = draw_fronts({"one": some}, ["accuracy", "macs"]).axes
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("multiply-accumulates", "accuracy")
        (front,) = lines(axes, "steps-post")
        assert list(zip(front.get_xdata(), front.get_ydata(), strict=True)) == [(6, 0.5), (7, 0.6), (8, 0.7)]
        assert axes.get_title(loc="left").endswith("3 of 4 trials on the front")

    def test_methods_have_a_color_each_and_one_line_is_of_all(self):
        groups = {"a": [(0.5, 10.0), (0.9, 90.0)], "b": [(0.6, 5.0), (0.7, 50.0)]}
        (axes,) = draw_fronts(groups, ["accuracy", "seconds"]).axes
        both, a, b = lines(axes, "steps-post")
        assert both.get_color() == FAINT
        assert list(both.get_ydata()) == [0.6, 0.7, 0.9]
        assert list(a.get_ydata()) == [0.5, 0.9]
        assert a.get_color() != b.get_color()
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]

    def test_three_objectives_are_three_panels(self):
        figure = draw_fronts({"a": [(0.5, 1e6, 2.0), (0.6, 0.0, 3.0)]}, ["accuracy", "macs", "seconds"])
        shown = [(axes.get_ylabel(), axes.get_xlabel()) for axes in figure.axes if axes.axison]
        macs = "multiply-accumulates"
        assert shown == [("accuracy", macs), ("accuracy", "seconds"), (macs, "seconds")]

    def test_nothing_to_draw_is_said(self):
        with pytest.raises(BadInput, match="got 2 objectives and 0 trials, expected at least 2 and 1"):
            draw_fronts({"a": [(0.5, np.inf)]}, ["accuracy", "log_loss"])
        with pytest.raises(BadInput, match="got 1 objectives"):
            draw_fronts({"a": [(0.5,)]}, ["accuracy"])


class TestSettings:
    points = (
        {"rate": 0.01, "streams": 1, "learner": "a"},
        {"rate": 0.2, "streams": 8, "learner": "a"},
        {"learner": "b"},
    )

    def test_each_setting_has_a_panel_with_the_trials_it_matters_to(self):
        figure = draw_settings(
            self.points, [0.3, 0.5, 0.4], "accuracy", names=["learner", "rate", "streams"], logs=["rate"]
        )
        learner, rate, streams = figure.axes
        assert rate.get_xscale() == "log"
        dots = [(line.get_xdata()[0], line.get_ydata()[0]) for line in rate.lines if line.get_marker() == "o"]
        assert dots == [(0.01, 0.3), (0.2, 0.5)]
        assert [label.get_text() for label in streams.get_xticklabels()] == ["1", "8"]
        assert [label.get_text() for label in learner.get_xticklabels()] == ["a", "b"]
        means = [line.get_ydata()[0] for line in learner.lines if line.get_marker() != "o"]
        assert means == pytest.approx([0.4, 0.4])

    @pytest.mark.parametrize(("objective", "best"), [("accuracy", 0.5), ("log_loss", 0.3)])
    def test_the_best_is_marked(self, objective, best):
        (axes,) = draw_settings(self.points, [0.3, 0.5, 0.4], objective, names=["learner"]).axes
        dots = [line for line in axes.lines if line.get_marker() == "o"]
        assert max(dots, key=lambda dot: dot.get_markersize()).get_ydata()[0] == best

    def test_what_is_infinite_is_left_out(self):
        (axes,) = draw_settings(self.points, [0.3, np.inf, 0.4], "log_loss", names=["learner"]).axes
        assert len([line for line in axes.lines if line.get_marker() == "o"]) == 2
        with pytest.raises(BadInput, match="got 0 trials with a finite log_loss"):
            draw_settings(self.points[:1], [np.inf], "log_loss", names=["learner"])

    def test_the_same_data_give_the_same_bytes(self, tmp_path):
        for name in ("a", "b"):
            draw_settings(self.points, [0.3, 0.5, 0.4], "accuracy", tmp_path / f"{name}.svg", names=["learner", "rate"])
        assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize(("more", "line"), [(True, [0.3, 0.5, 0.5]), (False, [0.3, 0.3, 0.2])])
def test_the_history_has_the_best_so_far(more, line):
    (axes,) = draw_history([2, 0, 1], [0.2, 0.3, 0.5], "log_loss", more=more).axes
    dots, best = axes.lines
    assert list(dots.get_ydata()) == [0.3, 0.5, 0.2]
    assert list(best.get_ydata()) == line
