"""Figures: they show the numbers, are the same bytes each time, and survive small and strange runs."""

import matplotlib as mpl
import numpy as np
import pytest

from prequential.errors import BadInput, BadSetting
from prequential.evaluation import Scores
from prequential.learners.charges import Charges
from prequential.plots import draw_calibration, draw_run, draw_tasks, save
from prequential.plots.curves import groups_of_tasks, points_within_task
from prequential.plots.style import label_ends

BEGINS = {".png": b"\x89PNG", ".svg": b"<?xml"}


def some_scores(n=3000, task=100, classes=10, seed=0):
    """A learner that gets better inside each task and from task to task."""
    rng = np.random.default_rng(seed)
    t = np.arange(n)
    inside = t % task if task else t
    p = 0.1 + 0.85 * (1 - np.exp(-(inside + 1) / (60 * (1 - 0.8 * t / n))))
    correct = rng.random(n) < p
    scores = Scores(classes, np.arange(0, n, task) if task else None)
    scores.update(0, Charges(np.where(correct, -np.log(p), -np.log(1 - p)), np.zeros(n, int), correct, p))
    return scores


def draw_all(folder, scores, suffix):
    draw_run({"one": scores, "two": scores}, folder / f"run{suffix}", "A run")
    draw_calibration({"one": scores}, folder / f"calibration{suffix}", "A run")
    if scores.task_count:
        draw_tasks(scores, folder / f"tasks{suffix}", "A run")
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_same_scores_give_the_same_bytes(tmp_path, suffix):
    first = draw_all(tmp_path / "a", some_scores(), suffix)
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": "other", "axes.grid": True}):
        again = draw_all(tmp_path / "b", some_scores(), suffix)  # the user's own style changes nothing …
        assert mpl.rcParams["font.size"] == 30  # … and is not changed
    assert first == again
    assert len(first) == 3
    for data in first.values():
        assert len(data) > 5000
        assert data.startswith(BEGINS[suffix])


def test_a_figure_is_saved_as_pdf_for_papers(tmp_path):
    for name in ("a.pdf", "b.pdf"):
        draw_calibration({"one": some_scores()}, tmp_path / name)
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()


def test_the_picture_holds_the_scores():
    scores = some_scores(task=0)
    left, right = draw_run({"learner": scores}).axes
    curve = scores.curve()
    told = curve["position"] >= 100
    windowed, running = left.lines[:2]
    np.testing.assert_array_equal(windowed.get_xdata(), curve["position"][told])
    np.testing.assert_array_equal(windowed.get_ydata(), curve["accuracy"][told])
    np.testing.assert_array_equal(running.get_ydata(), curve["running_accuracy"][told])
    np.testing.assert_array_equal(right.lines[1].get_ydata(), curve["running_log_loss"][told])
    assert left.lines[2].get_ydata()[0] == 0.1  # chance
    assert [text.get_text() for text in left.texts] == ["chance", f"learner\n{100 * scores.accuracy:.1f} %"]


def test_inside_tasks_early_and_late_groups_are_drawn():
    scores = some_scores(n=10_000)
    right = draw_run({"learner": scores}).axes[1]
    assert [line.get_label() for line in right.lines[:3]] == ["first 10 tasks", "middle 10 tasks", "last 10 tasks"]
    early, _, late = (line.get_ydata() for line in right.lines[:3])
    assert late[:5].mean() > early[:5].mean()
    assert len(draw_run({"a": scores, "b": scores}).axes[1].lines) == 2 * 2 + 1  # each early and late, and chance


def test_the_heat_map_holds_the_scores():
    scores = some_scores(n=2000)
    above, below, _ = draw_tasks(scores).axes
    np.testing.assert_array_equal(above.lines[0].get_ydata(), scores.tasks()["accuracy"])
    cells = below.collections[0].get_array().filled(np.nan)
    np.testing.assert_array_equal(cells, scores.heat_map()["accuracy"].T)


def test_the_reliability_diagram_holds_the_scores():
    scores = some_scores()
    table = scores.calibration()
    held = table["count"] > 0
    line = draw_calibration({"learner": scores}).axes[0].lines[1]
    np.testing.assert_array_equal(line.get_xdata(), table["confidence"][held])
    np.testing.assert_array_equal(line.get_ydata(), table["accuracy"][held])


def test_groups_of_tasks():
    assert groups_of_tasks(100) == (10, [0, 45, 90])
    assert groups_of_tasks(2000) == (200, [0, 900, 1800])
    assert groups_of_tasks(6) == (2, [0, 2, 4])
    assert groups_of_tasks(2) == (1, [0, 1])
    assert groups_of_tasks(1) == (1, [0])


def test_points_of_few_examples_are_joined():
    counts = np.array([10, 10, 10, 10, 60, 50, 10])
    right = np.array([1, 2, 3, 4, 30, 40, 9])
    table = {"first": np.arange(1, 8), "last": np.arange(1, 8), "count": counts, "accuracy": right / counts}
    position, accuracy = points_within_task(table)
    np.testing.assert_allclose(accuracy, [10 / 40, 30 / 60, 49 / 60])
    np.testing.assert_allclose(position, [2, 5, np.sqrt(6 * 7)])


def test_labels_at_line_ends_do_not_touch():
    axes = draw_run({"learner": some_scores(task=0)}).axes[0]
    for text in list(axes.texts):
        text.remove()
    label_ends(axes, [(0.5, "a", "k"), (0.5, "b\nb", "k"), (0.51, "c", "k"), (0.1, "d", "k")], line=0.06)
    heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
    low, high = axes.get_ylim()
    assert heights["d"] == pytest.approx((0.1 - low) / (high - low))  # far from the others, so not moved
    assert heights["b\nb"] - heights["a"] >= 0.09 - 1e-3
    assert heights["c"] - heights["b\nb"] >= 0.09 - 1e-3


@pytest.mark.parametrize(("n", "task", "classes"), [(1, 0, 10), (1, 5, 10), (30, 7, 2), (40, 0, 1), (500, 1, 10)])
def test_small_and_strange_runs_can_be_drawn(tmp_path, n, task, classes):
    scores = some_scores(n, task, classes)
    draw_run({"learner": scores}, tmp_path / "run.png")
    if task:
        draw_tasks(scores, tmp_path / "tasks.png")
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == (2 if task else 1)
    assert min(sizes) > 5000


def test_an_infinite_loss_leaves_the_rest_visible(tmp_path):
    scores = Scores(classes=4)
    n = 400
    loss = np.full(n, 0.5)
    loss[200] = np.inf
    scores.update(0, Charges(loss, np.zeros(n, int), np.ones(n, bool), np.full(n, 0.6)))
    right = draw_run({"learner": scores}, tmp_path / "run.svg").axes[1]
    assert np.isfinite(right.get_ylim()).all()
    assert (tmp_path / "run.svg").stat().st_size > 5000


def test_what_cannot_be_drawn_is_named(tmp_path):
    with pytest.raises(BadInput, match="got 0 learners"):
        draw_run({})
    with pytest.raises(BadInput, match="'new' has 0 examples"):
        draw_run({"new": Scores(classes=3)})
    with pytest.raises(BadInput, match="knows no tasks"):
        draw_tasks(some_scores(task=0))
    with pytest.raises(BadSetting, match=r"'run\.bmp': expected a name that ends in \.png, \.svg, \.pdf"):
        save(draw_run({"learner": some_scores()}), tmp_path / "run.bmp")
    assert list(tmp_path.iterdir()) == []
