"""Sweeps: every trial is run once, whatever was killed, stopped or done by others on the way."""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from prequential.comparisons.compare import Plan, compare
from prequential.errors import BadInput, BadSetting, MissingExtra
from prequential.plots.pareto import front_of
from prequential.runs.job import read_progress
from prequential.runs.run_settings import RunSettings
from prequential.settings import for_digits
from prequential.sweeps import study as sweep_study
from prequential.sweeps.pareto_front import show_pareto
from prequential.sweeps.plan import read_sweep
from prequential.sweeps.storage import open_storage
from prequential.sweeps.study import Trials, rows_of
from prequential.sweeps.sweep import sweep
from prequential.sweeps.sweep_display import SweepDisplay

optuna = pytest.importorskip("optuna")

GRID = """
[sweep]
name = "small"
method = "grid"
[run]
tasks = 2
task_length = 20
[learner]
width = 16
depth = 1
window = 16
chunk_size = 10
[vary]
learning_rate = [0.01, 0.1]
num_streams = [1, 2]
"""
QUICK = """
[sweep]
method = "grid"
[run]
tasks = 2
task_length = 20
learner = "majority"
[vary]
"majority.window" = [5, 10]
"""
# a worker in a process of its own, without pictures
WORKER = """
import prequential.runs.run, prequential.sweeps.sweep as sweeping
prequential.runs.run.draw_run = sweeping.write_results = lambda *_, **__: None
begin.wait()
sweeping.sweep(file, out=out, storage=storage, jobs=0)
"""
# one process imports everything, and the workers are forked from it
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "prequential.sweeps.sweep",
        "optuna.storages._rdb.storage",
        "optuna.samplers",
        "prequential.learners.transformer.learner",
        "pyarrow.parquet",
    ]
)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """Drawing takes most of the time of a small run."""
    monkeypatch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)
    for name in ("draw_settings", "draw_history", "draw_fronts"):
        monkeypatch.setattr(f"prequential.sweeps.trial_tables.{name}", lambda *_, **__: None)


def written(tmp_path: Path, text: str = GRID, name: str = "small.toml") -> Path:
    (tmp_path / name).write_text(text)
    return tmp_path / name


def start(file: Path, outs: list[Path], storage: str | None = None) -> list[Any]:
    """Workers that begin at the same moment."""
    begin = PROCESSES.Barrier(len(outs))
    given = [{"begin": begin, "file": file, "out": out, "storage": storage} for out in outs]
    workers = [PROCESSES.Process(target=exec, args=(WORKER, names)) for names in given]
    for each in workers:
        each.begin = begin  # it must outlive this function
        each.start()
    return workers


def table(directory: Path) -> dict[str, dict[str, str]]:
    """The CSV table by point, without the times and the numbers of the trials."""
    with (directory / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = {row["folder"]: {n: v for n, v in row.items() if n != "trial" and "seconds" not in n} for row in rows}
    assert len(found) == len(rows)
    return found


def completed(directory: Path) -> list[str]:
    """The settings of all trials that the study has as complete."""
    storage, _ = open_storage(f"sqlite:///{directory / 'study.db'}")
    study = optuna.load_study(study_name=None, storage=storage)
    return sorted(json.dumps(t.params) for t in study.trials if t.state.name == "COMPLETE")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A grid that went through without trouble."""
    directory = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)
        sweep(written(directory), out=directory / "out", jobs=0)
    return directory / "out"


class TestGrid:
    def test_runs_each_point_once_and_the_table_is_what_the_runs_scored(self, whole):
        rows = table(whole)
        assert sorted((row["learning_rate"], row["num_streams"]) for row in rows.values()) == [
            ("0.01", "1"), ("0.01", "2"), ("0.1", "1"), ("0.1", "2"),
        ]  # fmt: skip
        for folder, row in rows.items():
            scores = json.loads((whole / "trials" / folder / "0" / "scores.json").read_text())
            assert float(row["mean_accuracy"]) == float(row["accuracy_0"]) == scores["accuracy"]
            assert scores["count"] == 40
        best = max(rows.values(), key=lambda row: float(row["mean_accuracy"]))
        assert f"| **{100 * float(best['mean_accuracy']):.1f} %** |" in (whole / "table.md").read_text()
        for name in ("settings.png", "history.svg"):
            assert (whole / name).stat().st_size > 1000

    def test_a_second_time_nothing_is_run(self, whole):
        before = {path: path.stat().st_mtime_ns for path in whole.rglob("scores.json")}
        _, rows, _ = sweep(whole.parent / "small.toml", out=whole, jobs=0)
        assert [row.state for row in rows] == ["done"] * 4
        assert {path: path.stat().st_mtime_ns for path in whole.rglob("scores.json")} == before

    def test_all_seeds_are_run_and_the_mean_reported(self, tmp_path):
        text = GRID.replace('method = "grid"', 'method = "grid"\nseeds = [3, 4]').replace("[0.01, 0.1]", "[0.1]")
        _, rows, directory = sweep(written(tmp_path, text), out=tmp_path / "out", jobs=0, trials=1)
        (row,) = rows
        each = [json.loads((directory / "trials" / row.folder / s / "scores.json").read_text()) for s in "34"]
        assert row.values == (sum(scores["accuracy"] for scores in each) / 2,)
        assert each[0]["log_loss"] != each[1]["log_loss"]

    def test_settings_that_make_no_difference_are_not_varied(self, tmp_path):
        more = 'learner = ["transformer", "kalman", "er(hidden_sizes=[8])"]\ner.learning_rate = {low = 0.01, high = 0.1, log = true, points = 3}\n'
        plan = read_sweep(written(tmp_path, GRID + more))
        points = plan.points()
        assert len(points) == 4 + 1 + 3
        assert points[4] == {"learner": "kalman"}
        assert [point["er.learning_rate"] for point in points[5:]] == [0.01, pytest.approx(0.0316227766), 0.1]
        assert plan.settings_of(points[-1], 0)[0].learner == "er(hidden_sizes=[8],learning_rate=0.1)"
        assert len({plan.folder(point) for point in points}) == 8

    def test_points_that_do_not_fit_fail_alone_and_are_tried_again(self, tmp_path):
        text = (
            GRID.replace("width = 16\n", "")
            .replace("learning_rate = [0.01, 0.1]", "width = [16, 6]")
            .replace("[1, 2]", "[1]")
        )
        for _ in range(2):
            _, rows, _ = sweep(written(tmp_path, text), out=tmp_path / "out", jobs=0)
            assert [row.state for row in rows] == ["done", "failed"]
            assert rows[1].why == "width (6) must be divisible by num_query_heads (4)"
        assert "| failed: width (6) must be divisible" in (tmp_path / "out" / "table.md").read_text()


class TestInterrupted:
    def test_stopped_in_a_run_it_goes_on_from_its_checkpoint(self, tmp_path, monkeypatch, stopping, whole):
        file, out = written(tmp_path), tmp_path / "out"
        with stopping(6):
            assert sweep(file, out=out, jobs=0) is None
        states = [read_progress(path)["state"] for path in out.glob("trials/*/0")]
        assert sorted(states) == ["finished", "stopped"]
        starts = []
        monkeypatch.setattr("prequential.runs.job.ProgressWriter.begin", lambda self, at, *_: starts.append(at))
        sweep(file, out=out, jobs=0)
        assert starts == [20, 0, 0]
        assert table(out) == table(whole)
        assert completed(out) == completed(whole)

    def test_what_is_drawn_at_random_does_not_depend_on_interruptions(self, tmp_path):
        text = GRID.replace('"grid"', '"tpe"\ntrials = 12').replace(
            "[0.01, 0.1]", "{low = 0.01, high = 0.3, log = true}"
        )
        plan = read_sweep(written(tmp_path, text))

        def points(directory: Path, breaks: tuple[int, ...]) -> list[dict[str, float]]:
            trials = Trials(plan, directory)
            for i in range(12):
                number, point = trials.claim()
                if i in breaks:  # the process is gone, and another one comes
                    trials.close()
                    trials = Trials(plan, directory)
                    trials._last_seen.clear()
                    for trial in trials._all(optuna.trial.TrialState.RUNNING):
                        trials._storage.set_trial_user_attr(trial._trial_id, "owner", "")
                    trials.reclaim()
                    number, again = trials.claim()
                    assert again == point
                trials.finish(number, [point["learning_rate"] * point["num_streams"]], {}, "")
            assert trials.claim() is None
            trials.close()
            return [row.point for row in trials.rows()]

        straight = points(tmp_path / "a", ())
        assert points(tmp_path / "b", (3, 10)) == straight
        assert len({point["learning_rate"] for point in straight}) == 12

    def test_all_trials_of_a_killed_worker_are_taken_up_at_once(self, tmp_path):
        plan, out = read_sweep(written(tmp_path)), tmp_path / "out"
        killed, idle = Trials(plan, out), Trials(plan, out)
        claimed = [killed.claim(), killed.claim()]
        for worker in (killed, idle):
            os.close(worker._alive)  # as when its process ends
        other = Trials(plan, out)
        assert [row.state for row in other.rows()] == ["waiting"] * 4
        assert [other.claim()[1] for _ in range(2)] == [point for _, point in claimed]
        assert [path.name for path in (out / "workers").iterdir()] == [other.me]

    def test_results_are_stored_whole_or_not_at_all_for_others(self, tmp_path, monkeypatch):
        plan, out = read_sweep(written(tmp_path)), tmp_path / "out"
        killed, reader = Trials(plan, out), Trials(plan, out)
        number, point = killed.claim()

        def die_before_the_values(*_, **__):
            assert [row.state for row in reader.rows()] == ["running", "waiting", "waiting", "waiting"]
            raise KeyboardInterrupt

        monkeypatch.setattr(killed.study, "tell", die_before_the_values)
        with pytest.raises(KeyboardInterrupt):
            killed.finish(number, [0.5], {}, "folder")
        for worker in (killed, reader):
            os.close(worker._alive)
        other = Trials(plan, out)
        assert [row.state for row in other.rows()] == ["waiting"] * 4
        assert other.claim()[1] == point

    def test_a_worker_elsewhere_is_given_time(self, tmp_path, monkeypatch):
        plan, url = read_sweep(written(tmp_path)), f"sqlite:///{tmp_path / 'shared.db'}"
        gone, other = (Trials(plan, tmp_path / name, url) for name in "ab")
        number, point = gone.claim()
        other.reclaim()
        assert len(other._all(optuna.trial.TrialState.RUNNING)) == 1
        monkeypatch.setattr(sweep_study, "GRACE_SECONDS", 0.2)
        time.sleep(0.25)
        assert gone.heartbeat(number)
        other.reclaim()  # heard of
        assert len(other._all(optuna.trial.TrialState.RUNNING)) == 1
        time.sleep(0.25)
        other.reclaim()  # not heard of since
        assert not gone.heartbeat(number)
        assert not gone.finish(number, [0.5], {}, "")
        assert other.claim()[1] == point
        assert [row.state for row in other.rows()] == ["running", "waiting", "waiting", "waiting"]


class TestMany:
    @pytest.mark.parametrize("storage", ["sqlite:///{}/s.db", "journal:{}/s.log"])
    def test_two_workers_share_one_storage_and_repeat_nothing(self, tmp_path, storage, whole):
        file, url = written(tmp_path), storage.format(tmp_path)
        both = start(file, [tmp_path / "a", tmp_path / "b"], url)
        for process in both:
            process.join(60)
        assert [process.exitcode for process in both] == [0, 0]
        study = optuna.load_study(study_name="small", storage=open_storage(url)[0])
        rows = rows_of(study)
        assert [row.state for row in rows] == ["done"] * 4
        assert all(list(tmp_path.glob(f"{name}/trials/*")) for name in "ab")
        made = [path.parent.name for path in tmp_path.glob("[ab]/trials/*/0")]
        assert sorted(made) == sorted(row.folder for row in rows) == sorted(table(whole))
        for row in rows:
            assert row.values[0] == float(table(whole)[row.folder]["mean_accuracy"])

    def test_what_two_made_at_once_is_run_once(self, tmp_path):
        plan, url = read_sweep(written(tmp_path)), f"journal:{tmp_path / 's.log'}"
        first, second = (Trials(plan, tmp_path / name, url) for name in "ab")
        with pytest.MonkeyPatch.context() as patch:  # as if it had not seen the points of the first
            patch.setattr(second, "_all", lambda *_: [])
            second._add_points()
        assert len(first._all()) == 8
        claimed = [trials.claim() for _ in range(3) for trials in (first, second)]
        assert len([c for c in claimed if c]) == 4
        assert len(first.rows()) == 4

    def test_processes_and_a_journal(self, tmp_path, whole):
        text = GRID.replace("[0.01, 0.1]", "[0.1]")
        console = Console(width=200, record=True, file=io.StringIO())
        _, rows, out = sweep(
            written(tmp_path, text), out=tmp_path / "out", storage=f"journal:{tmp_path}/s.log", jobs=2, console=console
        )
        assert [row.state for row in rows] == ["done"] * 2
        assert table(out).items() <= table(whole).items()
        shown = console.export_text()
        terminal = Console(width=120, height=30, force_terminal=True, record=True, file=io.StringIO())
        with SweepDisplay(read_sweep(out / "sweep.toml"), 3, terminal) as display:
            display.update(rows, [])
            terminal.print(display._table([]))
        drawn = terminal.export_text()
        assert "2 of 3 trials done, best accuracy" in drawn
        assert re.search(r"trial +learning_rate +num_streams +accuracy +state", drawn)
        assert "2 of 2 trials done, best accuracy" in shown
        environment = json.loads((out / "trials" / rows[0].folder / "0" / "environment.json").read_text())
        assert environment["processor"]["threads"] == 1
        front = show_pareto([str(out)], objectives=["accuracy", "loss"], out=tmp_path / "p.png")
        assert front[-1].results["accuracy"] == max(row.values[0] for row in rows)


class TestTwoObjectives:
    def test_the_front_of_a_study_its_directory_and_a_comparison(self, tmp_path, capsys, monkeypatch):
        text = GRID.replace('"grid"', '"nsga2"\ntrials = 3\nobjectives = ["accuracy", "macs"]')
        _, rows, out = sweep(
            written(tmp_path, text + 'learner = ["last-label", "majority"]'), out=tmp_path / "out", jobs=0
        )
        assert [len(row.values) for row in rows] == [2, 2, 2]
        front = show_pareto([str(out)], console=Console(width=200))
        again = show_pareto([f"sqlite:///{out / 'study.db'}#small"], out=out / "again.svg")
        assert front == again
        assert {trial.method for trial in front} <= {"small: last-label", "small: majority"}
        assert f"{len(front)} of 3 on the Pareto front of accuracy, macs" in capsys.readouterr().out
        assert (out / "pareto.png").stat().st_size > 1000
        monkeypatch.setattr("prequential.comparisons.compare._draw", lambda *_: None)
        plan = Plan(learners=("last-label", "kalman"), streams=("digits(tasks=2,task_length=20)",), seeds=(0, 1))
        compared, _ = compare(plan, tmp_path / "compared", jobs=0)
        both = show_pareto([str(out), str(tmp_path / "compared")])
        values = [row.values for row in rows] + [(r.spread("accuracy")[0], r.spread("macs")[0]) for r in compared]
        expected = {values[i] for i in front_of(values, [True, False])}
        assert {(trial.results["accuracy"], trial.results["macs"]) for trial in both} == expected
        assert "kalman" in {trial.method for trial in both}  # better than counting labels
        with pytest.raises(
            BadInput, match=r"there is no study 'big' in the storage, expected URL#NAME with one of small"
        ):
            show_pareto([f"sqlite:///{out / 'study.db'}#big"])
        with pytest.raises(BadInput, match="is no directory, and no study"):
            show_pareto([str(tmp_path / "nothing")])

    def test_macs_that_are_not_counted_are_a_failure(self, tmp_path, monkeypatch):
        text = GRID.replace('"grid"', '"random"\ntrials = 1\nobjectives = ["accuracy", "macs"]')
        monkeypatch.setattr("prequential.learners.transformer.learner.Learner.macs_per_example", lambda self: None)
        _, (row,), _ = sweep(written(tmp_path, text), out=tmp_path / "out", jobs=0)
        assert row.state == "failed"
        assert row.why.startswith("the learner does not count its multiply-accumulates")


class TestFile:
    @pytest.mark.parametrize(
        ("old", "new", "sentence"),
        [
            ("learning_rate =", "learning_ratee =", "unknown setting 'learning_ratee'; did you mean 'learning_rate'?"),
            ("width =", "widht =", "unknown setting 'widht'; did you mean 'width'?"),
            ("method =", "methode =", "unknown setting [sweep] 'methode'; did you mean 'method'?"),
            ('"grid"', '"gird"', "[sweep] method is 'gird', expected one of grid, random, tpe, nsga2"),
            ('"grid"', '"tpe"', "[sweep] trials is missing"),
            ('"grid"', '"grid"\nobjectives = ["acuracy"]', "unknown objective 'acuracy'; did you mean 'accuracy'?"),
            ('"grid"', '"grid"\nseeds = [1, 1]', "[sweep] seeds is [1, 1], expected different whole numbers"),
            ("[1, 2]", "4", "[vary] num_streams is 4, expected a list of values or {low = ..., high = ...}"),
            ("[1, 2]", '[1, "two"]', "num_streams is 'two', expected a whole number"),
            ("[1, 2]", "[]", "[vary] num_streams has 0 values, expected at least 1"),
            ("[1, 2]", "[0]", "num_streams (0) must be at least 1"),
            ("[1, 2]", "{low = 1, high = 4}", "[vary] num_streams: a grid needs a list of values, or points or step"),
            ("[1, 2]", "{low = 4, high = 1}", "[vary] num_streams: low (4) must be below high (1)"),
            ("[1, 2]", "{low = 1, high = 2.5}", "[vary] num_streams is a whole number, but goes from 1 to 2.5 by 1"),
            ("[1, 2]", "{low = 0, high = 2, log = true}", "[vary] num_streams: log = true does not go with low = 0"),
            ("[1, 2]", "{lo = 0, high = 2}", "[vary] num_streams: unknown 'lo'; did you mean 'low'?"),
            ("num_streams = [1, 2]", "seed = [1, 2]", "seed cannot be varied: give the seeds as [sweep] seeds"),
            ("num_streams = [1, 2]", "tasks = [1, 2]", "tasks is varied and also fixed at 2; leave out one of the two"),
            ("num_streams = [1, 2]", 'learner = ["kalmann"]', "unknown learner 'kalmann'; did you mean 'kalman'?"),
            ("num_streams = [1, 2]", "er.learning_rate = [0.1]", "[vary] er.learning_rate: 'er' is no learner of this sweep"),
            ("num_streams = [1, 2]", 'learner = ["er"]\ner.rat = [0.1]', "ExperienceReplay has no option 'rat'; did you mean"),
            ("num_streams = [1, 2]", "model = {low = 0, high = 1}", "it has no range, expected a list of values"),
        ],
    )  # fmt: skip
    def test_what_is_wrong_is_said_in_one_sentence(self, tmp_path, old, new, sentence):
        assert old in GRID
        with pytest.raises(BadSetting, match=re.escape(sentence)) as error:
            sweep(written(tmp_path, GRID.replace(old, new, 1)), out=tmp_path / "out")
        assert "\n" not in str(error.value)
        assert not (tmp_path / "out").exists()

    def test_other_things(self, tmp_path, whole, monkeypatch):
        with pytest.raises(BadInput, match="cannot read the sweep"):
            sweep(tmp_path / "none.toml")
        with pytest.raises(BadInput, match="is not a TOML file"):
            sweep(written(tmp_path, "[sweep"))
        with pytest.raises(BadInput, match="is not empty and holds no sweep"):
            sweep(written(tmp_path), out=tmp_path)
        other = written(tmp_path, GRID.replace("[1, 2]", "[1, 4]"))
        with pytest.raises(
            BadSetting, match=re.escape("was made with [vary] num_streams = [1, 2], not [1, 4]; give the sweep")
        ):
            sweep(other, out=whole)
        for url in ("nothing://x", "no url", "postgresql://me:secret@localhost:1/x"):
            with pytest.raises(BadInput, match="cannot open the storage") as error:
                sweep(other, out=tmp_path / "new", storage=url)
            assert "secret" not in str(error.value)
        monkeypatch.setitem(sys.modules, "optuna", None)
        with pytest.raises(MissingExtra, match=re.escape("pip install 'prequential[sweep]'")):
            sweep(other, out=tmp_path / "new")
        assert not (tmp_path / "new").exists()

    def test_settings_are_those_of_a_run_with_the_same_file(self, tmp_path):
        plan = read_sweep(written(tmp_path, GRID + 'num_query_heads = ["none", 2]\nimages = ["pictures"]\n'))
        run, learner = plan.settings_of({"learning_rate": 0.1, "num_query_heads": None, "images": "pictures"}, 7)
        assert run == RunSettings(tasks=2, task_length=20, threads=1, images=Path("pictures"))
        assert learner == for_digits().changed(width=16, depth=1, window=16, chunk_size=10, learning_rate=0.1, seed=7)
        assert plan.vary["num_query_heads"].values == (None, 2)

    def test_a_study_of_an_earlier_format_goes_on_with_the_digits_settings_of_its_time(self, tmp_path):
        plan = read_sweep(written(tmp_path, GRID.replace("chunk_size = 10\n", "")))
        now, then = (plan.settings_of({"learning_rate": 0.1}, 0, version)[1] for version in (5, 4))
        assert (now.chunk_size, then.chunk_size) == (25, 50)
        assert then.mixing == "quick"


class TestEarlyKills:
    """A sweep that was killed while it began is gone on with by the same command."""

    @pytest.mark.parametrize(
        "left", [[], ["study.db.lock"], ["study.db.lock", ".sweep.toml.9.tmp", "study.db-journal"]]
    )
    def test_what_it_left_is_no_obstacle(self, tmp_path, left):
        out = tmp_path / "sweep"
        out.mkdir()
        for name in left:
            (out / name).write_bytes(b"")
        found = sweep(written(tmp_path, QUICK), out=out, jobs=0)
        assert found is not None
        assert [row.state for row in found[1]] == ["done"] * len(found[1])
        assert len(found[1]) == 2

    def test_killed_at_any_file_operation_it_goes_on(self, tmp_path, monkeypatch):
        """Each go is ended, like by kill -9, at a later moment than the one before, until one ends by itself."""
        monkeypatch.syspath_prepend(Path(__file__).parents[2])  # so that the process finds this file
        file, moment, ended = written(tmp_path, QUICK), 0, []
        while not ended or ended[-1] == 9:
            moment += 23
            context = PROCESSES.Process(target=killed_after, args=(moment, file, tmp_path / "out"))
            context.start()
            context.join()
            ended.append(context.exitcode)
            assert ended[-1] in (0, 9)
            assert moment < 700
        assert len(ended) > 3
        rows = json.loads((tmp_path / "out" / "trials.json").read_text())["rows"]
        assert [row["state"] for row in rows] == ["done", "done"]

    def test_a_worker_in_the_database_is_never_a_path_elsewhere(self, tmp_path):
        trials = Trials(read_sweep(written(tmp_path, QUICK)), tmp_path / "out")
        (tmp_path / "precious").write_text("kept")
        number, _ = trials.claim() or (-1, {})
        trials._storage.set_trial_user_attr(trials._trial(number)._trial_id, "owner", "../../precious")
        trials._mine.clear()
        trials.reclaim()
        assert (tmp_path / "precious").read_text() == "kept"
        assert [row.state for row in trials.rows()] == ["waiting", "waiting"]
        trials.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    root = tmp_path_factory.mktemp("sweeps")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)
        patch.setattr("prequential.sweeps.trial_tables.draw_settings", lambda *_, **__: None)
        patch.setattr("prequential.sweeps.trial_tables.draw_history", lambda *_, **__: None)
        sweep(written(root, QUICK), out=root / "out", jobs=0)
    return root


class TestFaults:
    """Damage to the files of a sweep: the same trials, or one sentence whose remedy gives them."""

    @pytest.mark.parametrize("fault", ["flip", "flips", "truncate", "empty", "swap", "delete"])
    @pytest.mark.parametrize("name", ["study.db", "trials.json", "sweep.toml"])
    def test_the_trials_are_the_same_or_the_damage_is_named(self, finished, tmp_path, name, fault):
        shutil.copytree(finished / "out", tmp_path / "out")
        path = tmp_path / "out" / name
        data = path.read_bytes()
        half = len(data) // 2
        # one bit of what was found, which no database notices
        where = data.index(b'"accuracy": ') + 14 if name == "study.db" else half
        broken = {
            "flip": data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :],
            "flips": data[: half // 2] + bytes(byte ^ 0x55 for byte in data[half // 2 : half]) + data[half:],
            "truncate": data[:half],
            "empty": b"",
            "swap": b"something else entirely" * 100,
        }
        path.unlink() if fault == "delete" else path.write_bytes(broken[fault])
        file = written(tmp_path, QUICK)
        try:
            sweep(file, out=tmp_path / "out", jobs=0)
        except BadInput as error:
            assert name == "study.db"
            assert "is damaged" in str(error)
            assert "move it away" in str(error)
            path.unlink()
            sweep(file, out=tmp_path / "out", jobs=0)
        tables = [(place / "out" / "table.md").read_text() for place in (finished, tmp_path)]
        assert tables[0] == tables[1]


def killed_after(moment: int, file: Path, out: Path) -> None:
    """Runs a sweep in this process and ends it before its n-th change of a file."""
    import os

    import prequential.runs.run
    import prequential.sweeps.sweep as sweeping

    count = 0

    def counted(name: str) -> None:
        original = getattr(os, name)

        def act(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count >= moment:
                os._exit(9)
            return original(*arguments, **named)

        setattr(os, name, act)

    for name in ("open", "replace", "mkdir", "unlink", "fsync"):
        counted(name)
    prequential.runs.run.draw_run = lambda *_, **__: None  # type: ignore[assignment]
    sweeping.write_results.__globals__["draw_settings"] = lambda *_, **__: None
    sweeping.write_results.__globals__["draw_history"] = lambda *_, **__: None
    sweeping.sweep(file, out=out, jobs=0)
