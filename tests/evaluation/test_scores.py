"""Scores against sums written out by hand over all examples."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from prequential.errors import BadCheckpoint, BadInput, BadSetting
from prequential.evaluation import RecordWriter, Scores
from prequential.evaluation.binned_sums import BinnedSums
from prequential.evaluation.scores import CURVE_ROWS, TASK_ROWS, position_bins
from prequential.learners.charges import Charges, charge
from prequential.storage.checkpoint import read_checkpoint, same_state, write_checkpoint


def some_charges(n, seed=0):
    """Charges with irregular fractions, so that a sum taken in another order shows in its last bits."""
    rng = np.random.default_rng(seed)
    nats = rng.exponential(1.3, n)
    sure = rng.beta(2, 1, n)
    return Charges(nats, rng.integers(0, 5, n), rng.random(n) < sure, sure)


def part(charges, start, stop):
    columns = (charges.log_loss, charges.predicted, charges.correct, charges.confidence)
    return Charges(*(column[start:stop] for column in columns))


def feed(scores, charges, chunk, start=0):
    n = len(charges.log_loss)
    for at in range(start, n, chunk):
        scores.update(at, part(charges, at, at + chunk))  # the last chunk is short where chunk does not divide n
    return scores


def test_the_numbers_are_means_over_every_example():
    n = 1003
    charges = some_charges(n)
    scores = feed(Scores(classes=7), charges, 50)
    assert scores.count == n
    assert scores.accuracy == charges.correct.mean()
    assert scores.total_nats == pytest.approx(math.fsum(charges.log_loss), rel=1e-14)
    assert scores.log_loss == pytest.approx(charges.log_loss.mean(), rel=1e-14)
    assert scores.bits == pytest.approx(np.log2(np.exp(charges.log_loss)).sum(), rel=1e-12)
    assert scores.uniform_bits == pytest.approx(n * math.log2(7))
    assert scores.compression == pytest.approx(charges.log_loss.mean() / math.log(7))


def test_an_unseen_class_is_charged_what_was_set_aside_for_it():
    log_p = np.log(np.array([[0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1]]))
    charges = charge(log_p, np.array([0, 1]), np.array([0, 1]))  # both labels come for the first time
    scores = Scores(classes=4)
    scores.update(0, charges)
    assert scores.total_nats == pytest.approx(-math.log(0.25) - math.log(0.1))
    assert scores.accuracy == 0.0
    assert scores.calibration_error == pytest.approx((0.0 + 0.7) / 2)


def test_calibration_is_binned_by_confidence():
    charges = some_charges(5000, seed=1)
    sure = charges.confidence.copy()
    sure[:3] = [1.0, 1.0 + 1e-7, 0.0]  # both ends; single precision may pass 1
    charges = Charges(charges.log_loss, charges.predicted, charges.correct, sure)
    scores = feed(Scores(classes=5), charges, 64)
    table = scores.calibration()
    error = 0.0
    for b in range(20):
        held = (sure >= b / 20) & ((sure < (b + 1) / 20) | (b == 19))
        assert table["count"][b] == held.sum() > 0
        assert table["accuracy"][b] == pytest.approx(charges.correct[held].mean())
        assert table["confidence"][b] == pytest.approx(sure[held].mean())
        assert table["center"][b] == pytest.approx((b + 0.5) / 20)
        error += held.mean() * abs(charges.correct[held].mean() - sure[held].mean())
    assert scores.calibration_error == pytest.approx(error)


@pytest.mark.parametrize("n", [5, 700, CURVE_ROWS, CURVE_ROWS + 1, 5 * CURVE_ROWS + 77])
def test_the_curve_holds_true_means_also_after_folding(n):
    charges = some_charges(n, seed=2)
    curve = feed(Scores(classes=5), charges, 50).curve(window=300)
    assert len(curve["position"]) <= CURVE_ROWS
    assert curve["position"][-1] == n
    for i in {0, len(curve["position"]) // 3, len(curve["position"]) - 1}:
        stop, window = curve["position"][i], curve["examples"][i]
        # rounded up to whole points of 1, 2, 4 or 8 examples, the last of which may be cut short by the end
        assert min(stop, 300) - 8 < window <= min(stop, 300 + 8)
        assert curve["accuracy"][i] == pytest.approx(charges.correct[stop - window : stop].mean())
        assert curve["log_loss"][i] == pytest.approx(charges.log_loss[stop - window : stop].mean())
        assert curve["running_accuracy"][i] == pytest.approx(charges.correct[:stop].mean())
        assert curve["running_log_loss"][i] == pytest.approx(charges.log_loss[:stop].mean())


def test_tables_make_data_frames():
    scores = feed(Scores(classes=5, task_starts=np.arange(0, 900, 30)), some_charges(900), 64)
    for table in (scores.curve(), scores.calibration(), scores.tasks(), scores.within_task()):
        assert len(pd.DataFrame(table)) == len(next(iter(table.values()))) > 0


def test_tasks_and_positions_in_them():
    lengths = np.random.default_rng(3).integers(1, 90, 40)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    n = int(lengths.sum())
    charges = some_charges(n, seed=3)
    scores = feed(Scores(classes=5, task_starts=starts), charges, 17)
    task = np.repeat(np.arange(40), lengths)
    inside = np.arange(n) - starts[task] + 1

    tasks = scores.tasks()
    assert scores.task_count == 40
    assert tasks["first_task"].tolist() == tasks["last_task"].tolist() == list(range(40))
    for t in range(40):
        assert tasks["accuracy"][t] == pytest.approx(charges.correct[task == t].mean())
        assert tasks["log_loss"][t] == pytest.approx(charges.log_loss[task == t].mean())

    table = scores.within_task(5, 20)
    assert table["first"][:8].tolist() == [1, 2, 3, 4, 5, 6, 8, 10]
    assert table["last"][:8].tolist() == [1, 2, 3, 4, 5, 7, 9, 12]
    assert table["last"][-1] == lengths.max() or lengths[5:21].max() < lengths.max()
    chosen = (task >= 5) & (task <= 20)
    assert table["count"].sum() == chosen.sum()
    for first, last, accuracy, loss in zip(
        table["first"], table["last"], table["accuracy"], table["log_loss"], strict=True
    ):
        held = chosen & (inside >= first) & (inside <= last)
        assert accuracy == pytest.approx(charges.correct[held].mean())
        assert loss == pytest.approx(charges.log_loss[held].mean())

    whole = scores.heat_map()
    t, b = 7, 3
    held = (task == t) & (inside >= whole["first"][b]) & (inside <= whole["last"][b])
    assert whole["accuracy"][t, b] == pytest.approx(charges.correct[held].mean())
    assert whole["log_loss"][t, b] == pytest.approx(charges.log_loss[held].mean())
    coarse = scores.heat_map(rows=9)  # 40 tasks in rows of five
    assert coarse["first_task"].tolist() == list(range(0, 40, 5))
    held = (task >= 5) & (task <= 9) & (inside == 2)
    assert coarse["accuracy"][1, 1] == pytest.approx(charges.correct[held].mean())

    summary = scores.to_dict()
    assert summary["first_tasks"]["accuracy"] == pytest.approx(charges.correct[task < 10].mean())
    assert summary["last_tasks"]["log_loss"] == pytest.approx(charges.log_loss[task >= 30].mean())
    assert [summary["last_tasks"][name] for name in ("tasks", "first", "last")] == [10, 30, 39]


def test_more_tasks_than_rows_are_averaged_in_groups():
    tasks, length = TASK_ROWS * 2 + 3, 3
    n = tasks * length
    charges = some_charges(n, seed=4)
    scores = feed(Scores(classes=5, task_starts=np.arange(0, n, length)), charges, 1000)
    table = scores.tasks()
    assert len(table["count"]) <= TASK_ROWS
    assert table["last_task"][-1] == tasks - 1
    assert table["count"].sum() == n
    row = 1234
    first, last = table["first_task"][row], table["last_task"][row]
    assert last - first == 3  # four tasks a row
    held = slice(first * length, (last + 1) * length)
    assert table["accuracy"][row] == pytest.approx(charges.correct[held].mean())
    assert table["log_loss"][row] == pytest.approx(charges.log_loss[held].mean())
    within = scores.within_task(8, 15)
    assert within["accuracy"][1] == pytest.approx(charges.correct[8 * length + 1 : 16 * length : length].mean())


def test_the_table_folds_no_earlier_than_it_must():
    sums = BinnedSums(rows=4)
    one = np.ones(1)
    for index in range(4):
        sums.add(np.array([index]), np.zeros(1, int), one * index, one > 0)
    assert (sums.group, sums.used) == (1, 4)
    sums.add(np.array([4]), np.zeros(1, int), one * 4, one > 0)
    assert (sums.group, sums.used) == (2, 3)
    assert sums.nats[:, 0].tolist() == [1, 5, 4]
    sums.add(np.array([37]), np.zeros(1, int), one * 9, one > 0)  # a jump folds as often as it takes
    assert (sums.group, sums.used) == (16, 3)
    assert sums.nats[:, 0].tolist() == [10, 0, 9]


def test_bins_of_positions_are_single_at_first_and_few_in_all():
    bins = position_bins()
    assert bins[:9].tolist() == [1, 2, 3, 4, 5, 6, 8, 10, 13]
    assert (np.diff(bins) > 0).all()
    assert 40 <= len(bins) <= 60


@pytest.mark.parametrize("chunk", [1, 7, 2500, 10**6])
def test_the_last_bit_does_not_depend_on_the_chunks(chunk):
    n = 2 * CURVE_ROWS + 501
    charges = some_charges(n, seed=5)
    starts = np.arange(0, n, 37)
    one = feed(Scores(classes=5, task_starts=starts), charges, 50)
    other = feed(Scores(classes=5, task_starts=starts), charges, chunk)
    assert same_state(one.state_dict(), other.state_dict())


@pytest.mark.parametrize("stop", [0, 50, CURVE_ROWS + 3, 4000])
def test_saving_and_going_on_changes_no_bit(tmp_path, stop):
    n = 2 * CURVE_ROWS + 501
    charges = some_charges(n, seed=6)
    starts = np.arange(0, n, 41)
    whole = feed(Scores(classes=5, task_starts=starts), charges, 50)
    before = feed(Scores(classes=5, task_starts=starts), part(charges, 0, stop), 50)
    write_checkpoint(tmp_path / "scores", before.state_dict())
    after = feed(Scores(classes=5, task_starts=starts), part(charges, 0, 60), 50)  # what it held is forgotten
    after.load_state_dict(read_checkpoint(tmp_path / "scores"))
    assert same_state(before.state_dict(), after.state_dict())
    feed(after, charges, 50, start=stop)
    assert same_state(whole.state_dict(), after.state_dict())
    assert whole.to_dict() == after.to_dict()


def test_a_state_is_not_changed_by_going_on():
    charges = some_charges(200)
    scores = feed(Scores(classes=5, task_starts=np.array([0, 50])), part(charges, 0, 100), 10)
    state = scores.state_dict()
    again = Scores(classes=5, task_starts=np.array([0, 50]))
    feed(scores, charges, 10, start=100)
    again.load_state_dict(state)
    feed(again, charges, 10, start=100)
    assert same_state(scores.state_dict(), again.state_dict())


@pytest.mark.parametrize("with_tasks", [False, True])
def test_scores_are_rebuilt_from_records(tmp_path, with_tasks):
    n = 5003
    charges = some_charges(n, seed=7)
    starts = np.array([0, 10, 900, 1024, 4000]) if with_tasks else None
    task = None if starts is None else np.searchsorted(starts, np.arange(n), side="right") - 1
    live = Scores(classes=5, task_starts=starts)
    writer = RecordWriter(tmp_path)
    for at in range(0, n, 50):
        now = part(charges, at, at + 50)
        size = len(now.log_loss)
        live.update(at, replace(now, num_labels=1), ["a"] * size, list("abcde"))
        writer.append(at, ["a"] * size, now, list("abcde"), None if task is None else task[at : at + size])
    writer.close()
    rebuilt = Scores.from_records(tmp_path, classes=5)
    assert rebuilt.task_count == (5 if with_tasks else 0)
    assert same_state(live.state_dict(), rebuilt.state_dict())
    assert same_state(live.state_dict(), Scores.from_records(tmp_path, 5, task_starts=starts).state_dict())


def test_a_label_given_no_chance_costs_infinitely_much_and_the_summary_is_still_json(tmp_path):
    charges = some_charges(300)
    charges.log_loss[200] = np.inf
    scores = feed(Scores(classes=5), charges, 32)
    assert scores.log_loss == math.inf
    assert scores.curve(window=10)["log_loss"][-1] == pytest.approx(charges.log_loss[-10:].mean())
    assert json.loads(json.dumps(scores.to_dict(), allow_nan=False))["log_loss"] is None
    write_checkpoint(tmp_path / "scores", scores.state_dict())
    again = Scores(classes=5)
    again.load_state_dict(read_checkpoint(tmp_path / "scores"))
    assert same_state(scores.state_dict(), again.state_dict())


def test_no_examples_yet():
    scores = Scores(classes=5, task_starts=np.array([0, 5]))
    assert math.isnan(scores.accuracy)
    assert scores.to_dict()["accuracy"] is None
    assert scores.bits == 0
    assert len(scores.curve()["position"]) == len(scores.tasks()["count"]) == 0
    assert scores.heat_map()["accuracy"].shape == (0, 0)
    assert np.isnan(scores.calibration()["accuracy"]).all()
    assert "0 examples" in repr(scores)


def test_bad_input_is_named_and_changes_nothing():
    good = some_charges(10)
    scores = feed(Scores(classes=5), good, 10)
    before = scores.state_dict()
    with pytest.raises(BadInput, match="given example 11, but the next one is example 10"):
        scores.update(11, good)
    nan = Charges(np.array([0.1, np.nan]), good.predicted[:2], good.correct[:2], good.confidence[:2])
    with pytest.raises(BadInput, match="example 11: log_loss is nan"):
        scores.update(10, nan)
    with pytest.raises(BadInput, match=r"example 10: log_loss is -0\.5"):
        scores.update(10, Charges(np.array([-0.5]), good.predicted[:1], good.correct[:1], good.confidence[:1]))
    with pytest.raises(BadInput, match=r"example 11: confidence is 1\.5"):
        scores.update(10, Charges(np.array([0.1, 0.1]), good.predicted[:2], good.correct[:2], np.array([0.5, 1.5])))
    with pytest.raises(BadInput, match="got 10 losses, 9 answers and 10 confidences"):
        scores.update(10, Charges(good.log_loss, good.predicted, good.correct[:9], good.confidence))
    assert same_state(before, scores.state_dict())


def test_bad_tasks_are_named():
    with pytest.raises(BadSetting, match=r"classes \(0\)"):
        Scores(classes=0)
    with pytest.raises(BadInput, match="task 0 starts at example 3, expected 0"):
        Scores(classes=2, task_starts=np.array([3, 5]))
    with pytest.raises(BadInput, match="task 2 starts at example 5, expected one after 5"):
        Scores(classes=2, task_starts=np.array([0, 5, 5]))
    with pytest.raises(BadInput, match="dtype float64"):
        Scores(classes=2, task_starts=np.array([0.0, 5.0]))
    with pytest.raises(BadInput, match="knows no tasks"):
        Scores(classes=2).tasks()
    scores = feed(Scores(classes=5, task_starts=np.array([0, 5, 90])), some_charges(10), 10)
    with pytest.raises(BadInput, match="asked for tasks 0 to 2, but only 0 to 1 have begun"):
        scores.within_task(0, 2)


def test_scores_of_another_run_are_refused():
    state = Scores(classes=5).state_dict()
    with pytest.raises(BadCheckpoint, match="classes = 5, expected 6"):
        Scores(classes=6).load_state_dict(state)
    with pytest.raises(BadCheckpoint, match="tasks = None, expected 2"):
        Scores(classes=5, task_starts=np.array([0, 9])).load_state_dict(state)


def test_without_a_number_of_classes_the_labels_seen_count(tmp_path):
    from prequential.baselines import LastLabel
    from prequential.evaluation.records import RecordWriter

    learner, scores, writer = LastLabel(), Scores(), RecordWriter(tmp_path)
    y = ["a", "b", "a", "c", "c", "a", "d", "a"]
    for start in (0, 4):
        charges = learner.observe([[0.0]] * 4, y[start : start + 4])
        scores.update(start, charges)
        writer.append(start, y[start : start + 4], charges, learner.labels.known)
        assert scores.classes == len(set(y[: start + 4]))
    assert scores.uniform_bits == 8 * 2
    assert scores.compression == scores.bits / 16
    assert scores.to_dict()["classes"] == 4
    again = Scores()
    again.load_state_dict(scores.state_dict())
    assert (again.classes, again.given_classes) == (4, None)
    with pytest.raises(BadCheckpoint, match="classes = None, expected 4"):
        Scores(4).load_state_dict(scores.state_dict())
    writer.close()
    assert Scores.from_records(tmp_path).classes == 4
