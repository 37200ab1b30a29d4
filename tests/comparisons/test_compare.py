"""Comparisons: the table is what the jobs scored, whatever was killed, stopped or failed on the way."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from prequential.cli.app import main
from prequential.comparisons import compare as comparing
from prequential.comparisons import table1
from prequential.comparisons.compare import Plan, collect, compare, read_plan
from prequential.comparisons.comparison_tables import cells_of, latex, make_row, markdown, screen
from prequential.errors import BadInput, BadSetting
from prequential.registry import is_transformer, make_learner
from prequential.runs import pool
from prequential.runs.job import read_progress, run_job
from prequential.runs.run import Run
from prequential.runs.run_settings import RunSettings
from prequential.settings import Settings
from prequential.storage.sealed import read_json, write_sealed
from shared.flags import SMALL_FLAGS

SMALL = Settings(width=16, num_query_heads=2, depth=1, window=32, chunk_size=20, num_streams=2)
FLAGS = SMALL_FLAGS
PICTURES = [f"{name}.{suffix}" for name in ("accuracy", "loss", "bits", "cost") for suffix in ("png", "svg")]


@pytest.fixture
def no_pictures(monkeypatch):
    """Drawing takes most of the time of a small run, and is looked at in one test only."""
    monkeypatch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)
    monkeypatch.setattr(comparing, "_draw", lambda *_: None)


def plan(**changes) -> Plan:
    given = {
        "learners": ("last-label", "majority(window=5)", "kalman"),
        "streams": ("digits(tasks=2,task_length=40)",),
        "seeds": (0, 1),
    }
    return Plan(**{**given, "settings": SMALL, **changes})


def table(directory: Path) -> list[dict[str, str]]:
    """The CSV table without the times."""
    with (directory / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [{name: value for name, value in row.items() if not name.startswith("seconds")} for row in rows]


class TestTable:
    def test_is_what_the_jobs_scored(self, tmp_path, monkeypatch):
        monkeypatch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)
        rows, notes = compare(plan(), tmp_path / "c", jobs=0)
        assert notes == {}
        folders = {"last-label": "last-label", "majority(window=5)": "majority-window=5", "kalman": "kalman"}
        kept = table(tmp_path / "c")
        assert [row["learner"] for row in kept] == list(folders)
        for row, folder in zip(kept, folders.values(), strict=True):
            all_jobs = [tmp_path / "c" / "digits-tasks=2,task_length=40" / folder / str(seed) for seed in (0, 1)]
            scores = [json.loads((job / "scores.json").read_text()) for job in all_jobs]
            for name in ("accuracy", "kappa", "kappa_temporal", "balanced_accuracy", "log_loss", "bits", "compression"):
                values = [each[name] for each in scores]
                assert float(row[name]) == sum(values) / 2
                assert [float(row[f"{name}_min"]), float(row[f"{name}_max"])] == sorted(values)
            assert float(row["macs"]) == scores[0]["macs_per_example"] * 80
            assert (row["seeds"], row["examples"], row["failed"]) == ("2", "80", "")
            for job in all_jobs:
                assert read_progress(job).items() >= {"state": "finished", "position": 80, "length": 80}.items()
                assert 0 < read_progress(job)["seconds"] < 60
        text = (tmp_path / "c" / "table.md").read_text()
        kalman = rows[2].spread("accuracy")[0]
        assert re.search(rf"\| kalman \| \*\*{100 * kalman:.1f} % \(", text)
        assert "80 examples, 10 classes, mean (min–max) over 2 seeds; majority class " in text
        for name in PICTURES:
            assert (tmp_path / "c" / name).stat().st_size > 1000

    def test_grows_with_what_is_given_later(self, tmp_path, no_pictures):
        compare(plan(seeds=(0,)), tmp_path, jobs=0)
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("scores.json")}
        assert len(before) == 3
        rows, _ = compare(plan(learners=("kalman", "er(batch=8)"), seeds=(0, 1)), tmp_path, jobs=0)
        assert [row.learner for row in rows] == ["last-label", "majority(window=5)", "kalman", "er(batch=8)"]
        assert all(len(row.results) == 2 for row in rows)
        assert all(path.stat().st_mtime_ns == when for path, when in before.items())
        assert read_plan(tmp_path).seeds == (0, 1)

    def test_other_settings_in_the_same_place_are_refused(self, tmp_path, no_pictures):
        one = {"learners": ("no-image", "last-label"), "seeds": (0,)}
        compare(plan(**one), tmp_path, jobs=0)
        with pytest.raises(BadSetting, match=r"was made with width = 16, not 32; give another --out"):
            compare(plan(**one, settings=SMALL.changed(width=32)), tmp_path, jobs=0)
        with pytest.raises(BadSetting, match=r"was made with examples = None, not 10"):
            compare(plan(**one, run=RunSettings(examples=10)), tmp_path, jobs=0)
        with pytest.raises(BadSetting, match=r"was made with examples = None, not 10"):
            compare(plan(learners=("last-label",), seeds=(0,), run=RunSettings(examples=10)), tmp_path, jobs=0)
        (tmp_path / "compare.toml").rename(tmp_path / "something")
        with pytest.raises(BadInput, match="is not empty and holds no comparison"):
            compare(plan(), tmp_path, jobs=0)

    def test_settings_of_the_transformers_matter_to_them_alone(self, tmp_path, no_pictures):
        one = {"seeds": (0,), "settings": SMALL.changed(width=32)}
        compare(plan(learners=("last-label", "kalman"), seeds=(0,)), tmp_path, jobs=0)
        rows, _ = compare(plan(learners=("no-image",), **one), tmp_path, jobs=0)
        assert [len(row.results) for row in rows] == [1, 1, 1]
        with pytest.raises(BadSetting, match=r"no-image/0 was made with width = 32, not 16"):
            compare(plan(learners=("er",), seeds=(0,)), tmp_path, jobs=0)

    def test_failures_are_rows_and_stop_nothing(self, tmp_path, no_pictures, monkeypatch):
        monkeypatch.setitem(sys.modules, "river", None)
        learners = ("er(extractor=convnet)", "river:naive_bayes.GaussianNB", "last-label")
        rows, _ = compare(plan(learners=learners), tmp_path, jobs=0)
        assert rows[0].failures == ["failed: extractor (convnet) needs images, but x has shape (64,)"]
        assert "pip install 'prequential[river]'" in rows[1].failures[0]
        assert len(rows[2].results) == 2
        text = (tmp_path / "table.md").read_text()
        for finished in tmp_path.glob("*/last-label/*/scores.json"):  # as an earlier version wrote it
            kept = {name: value for name, value in read_json(finished).items() if "kappa" not in name}
            write_sealed(finished, kept)
        shown, _ = collect(read_plan(tmp_path), tmp_path, Console(quiet=True))
        assert shown[2].spread("kappa_temporal") == rows[2].spread("kappa_temporal") == (0, 0, 0)
        assert "| er(extractor=convnet) | failed: extractor (convnet) needs images, but x has shape (64,) |" in text
        assert r"\multicolumn{9}{l}{failed: extractor (convnet) needs images" in (tmp_path / "table.tex").read_text()
        monkeypatch.undo()
        again, _ = compare(read_plan(tmp_path), tmp_path, jobs=0)  # what failed is tried again
        assert len(again[1].results) == 2

    def test_one_seed_that_fails_is_named_beside_the_others(self, tmp_path):
        for seed in (0, 1):
            (tmp_path / str(seed)).mkdir()
        result = {
            "finished": True,
            "count": 10,
            "classes": 2,
            "accuracy": 0.5,
            "log_loss": 0.7,
            "bits": 10.0,
            "compression": 1.0,
        }
        (tmp_path / "0" / "scores.json").write_text(json.dumps({**result, "macs_per_example": None}))
        (tmp_path / "0" / "progress.json").write_text(json.dumps({"state": "finished", "seconds": 75.0}))
        (tmp_path / "1" / "progress.json").write_text(json.dumps({"state": "failed", "why": "no [room]"}))
        row = make_row("s", "a_b", {seed: tmp_path / str(seed) for seed in (0, 1)})
        accuracy, *others = cells_of(row)
        assert accuracy == "50.0 % [seed 1 failed: no [room]]"
        assert others == ["–", "–", "–", "0.700", "10", "100.0 %", "1m15s", "not counted"]  # an earlier version's run
        console = Console(width=80, file=io.StringIO())
        for part in screen([row], 80):
            console.print(part)
        assert r"a\_b & 50.0\,\% [seed 1" in latex([row])
        assert "## s" in markdown([row])
        shown = console.file.getvalue()
        assert "a_b: seed 1 failed: no [room]" in shown
        assert "not counted" in shown

    def test_a_process_that_ends_without_a_word_is_a_failure(self, tmp_path):
        job = plan(seeds=(0,)).jobs(tmp_path)[0]
        job.directory.mkdir(parents=True)
        pool.record_exit(job, -signal.SIGKILL)
        assert read_progress(job.directory)["why"] == "its process was ended by SIGKILL, perhaps because memory ran out"
        (job.directory / "log.txt").write_text("Traceback\nOSError: disk full\n")
        pool.record_exit(job, 1)
        assert read_progress(job.directory)["why"] == "its process ended with code 1: OSError: disk full"


class TestPlan:
    def test_mistakes_are_found_before_anything_runs(self, tmp_path):
        for changes, sentence in (
            ({"learners": ("kalmann",)}, "unknown learner 'kalmann'; did you mean 'kalman'?"),
            ({"seeds": (0, -2)}, "seed (-2) must be at least 0"),
            ({"learners": ()}, "got 0 learners, expected at least 1"),
            ({"streams": ("digits(width=3)",)}, "digits does not take width; it takes"),
        ):
            with pytest.raises(BadSetting, match=re.escape(sentence)):
                plan(**changes)
        with pytest.raises(BadSetting, match=r"jobs \(-1\)"):
            compare(plan(), tmp_path / "new", jobs=-1)

    def test_comes_back_from_its_file(self, tmp_path):
        (tmp_path / "a b").mkdir()
        (tmp_path / "a b" / "prices.csv").write_text("x,y,up\n1,2,3\n")
        own = f"{tmp_path}/a b/prices.csv(label=up,features=[x, y])"
        given = plan(streams=("digits(tasks=3)", own), table1=True)
        given.write(tmp_path)
        assert read_plan(tmp_path) == given
        run, settings = given.settings_of(given.jobs(tmp_path)[-1])
        assert (run.stream, run.threads) == (own, 1)
        assert (run.learner, settings) == ("kalman", SMALL.changed(seed=1))

    def test_no_two_jobs_share_a_folder(self, tmp_path):
        learners = ("majority(window=5)", "majority (window=5)", "er(learning_rate=0.1)", "er(learning_rate=.1)")
        streams = ("emnist:/a/x.npz", "emnist:/b/x.npz", "digits")
        directories = [job.directory for job in plan(learners=learners, streams=streams).jobs(tmp_path)]
        assert len(set(directories)) == len(directories) == 4 * 3 * 2
        assert tmp_path / "emnist-x.npz" / "majority-window=5" / "0" in directories
        assert all(directory.parents[2] == tmp_path for directory in directories)


class TestTable1:
    def test_the_order_is_checked_pair_by_pair(self):
        right = {name: (share / 100, share / 100, share / 100) for name, share in table1.PAPER.items()}
        # of 45 pairs, two rows have 37 % both
        assert table1.check_order(right) == ["44 of 44 pairs of rows are in the paper's order."]
        wrong = {**right, "acm": (0.31, 0.31, 0.31)}
        lines = table1.check_order(wrong)
        assert lines[0] == "43 of 44 pairs of rows are in the paper's order."
        assert lines[1:] == ["The paper has kalman (30 %) above acm (26 %); here kalman has 30.0 % and acm 31.0 %."]
        del wrong["er"]
        assert table1.check_order(wrong)[-1] == "Not compared, because there is no result: er."

    def test_the_transformers_are_the_papers(self):
        given = Settings(recent_window=300)
        names = {name: make_learner(name, 3, settings=given) for name in table1.PAPER if is_transformer(name)}
        assert [name.partition("(")[0] for name in names] == ["no-image", "no-attention", "transformer"]
        assert table1.OWN in names
        for learner in names.values():
            assert (learner.settings.method, learner.settings.recent_window) == ("paper", 0)
        assert set(table1.LEARNED) < set(table1.PAPER)

    @pytest.mark.parametrize(
        ("learner", "alone"), [("no-attention(method=paper,recent_window=0)", True), (table1.OWN, False)]
    )
    def test_no_attention_is_a_function_of_x_alone(self, learner, alone):
        """What came after the last gradient step makes no difference to it, but for the statistics of x."""
        x = np.random.default_rng(0).normal(size=(48, 4))
        y = (x[:, 0] > 0).astype(int)
        found = []
        for sign in (1, -1):
            made = make_learner(learner, 3, settings=SMALL.changed(standardize=False))
            made.learn_many(x[:40], y[:40])  # two chunks
            made.learn_many(sign * x[40:45], y[40:45])  # and a part of the third
            found.append(made.predict_log_proba_many(x[45:]))
        assert np.array_equal(*found) == alone

    def test_the_preset_runs_the_rows_and_reports_the_order(self, tmp_path, no_pictures, capsys, monkeypatch):
        monkeypatch.setattr(table1, "PAPER", {"last-label": 12, "kalman": 30, "no-image": 18, "majority": 18})
        on = ["--on", "digits(tasks=1,task_length=60)", "--jobs", "0", "--out", str(tmp_path)]
        main(["compare", "table1", *FLAGS, *on])
        out = capsys.readouterr().out
        assert "5 pairs of rows are in the paper's order." in out
        text = (tmp_path / "table.md").read_text()
        assert "of 5 pairs of rows are in the paper's order." in text
        assert f"- {table1.LEARNED_NOTE}" in text
        kept = read_plan(tmp_path)
        assert kept.table1
        assert kept.learners == ("last-label", "kalman", "no-image", "majority")
        assert kept.run.examples == table1.EXAMPLES


class TestResume:
    def test_stopped_and_resumed_it_gives_the_same_table(self, tmp_path, no_pictures, stopping):
        learners = ("transformer", "er(batch=8)")
        compare(plan(learners=learners), tmp_path / "whole", jobs=0)
        with stopping(6):
            assert compare(plan(learners=learners), tmp_path / "parts", jobs=0) is None
        states = [read_progress(job.directory).get("state") for job in plan(learners=learners).jobs(tmp_path / "parts")]
        assert states == ["finished", "stopped", None, None]
        compare(read_plan(tmp_path / "parts"), tmp_path / "parts", jobs=0)
        assert table(tmp_path / "parts") == table(tmp_path / "whole")

    def test_the_time_is_the_sum_of_all_goes(self, tmp_path, no_pictures):
        one = plan(learners=("last-label",), seeds=(0,))
        compare(one, tmp_path, jobs=0)
        directory = one.jobs(tmp_path)[0].directory
        first = read_progress(directory)["seconds"]
        (directory / "progress.json").write_text(json.dumps({**read_progress(directory), "seconds": 1000.0}))
        for path in (directory / "checkpoints").iterdir():
            path.unlink()
        assert run_job(directory) == "finished"
        assert 1000 < read_progress(directory)["seconds"] < 1000 + 60
        assert first < 60

    def test_killed_in_the_middle_it_goes_on_with_the_same_command(self, tmp_path, no_pictures, capsys):
        """A real comparison in processes, killed with SIGKILL while its first run works, then resumed."""
        given = plan(learners=("kalman(block=16)", "er(batch=16)"), streams=("digits(tasks=10)",), seeds=(0,))
        compare(given, tmp_path / "whole", jobs=0)
        all_jobs = given.jobs(tmp_path / "killed")
        command = ["compare", *FLAGS, "--learners", *given.learners, "--on", *given.streams]
        command += ["--out", str(tmp_path / "killed")]
        started = [sys.executable, "-m", "prequential.cli.app", *command, "--checkpoint-seconds", "0", "--jobs", "1"]
        process = subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        while not list(all_jobs[0].directory.glob("checkpoints/*.safetensors")):
            assert process.poll() is None, process.communicate()[0].decode()
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        end = time.monotonic() + 60
        while read_progress(all_jobs[0].directory)["state"] == "running":  # until it notices that it works for nobody
            assert time.monotonic() < end
            time.sleep(0.02)
        stopped = [read_progress(job.directory) for job in all_jobs]
        assert [told.get("state") for told in stopped] == ["stopped", None]
        assert 0 < stopped[0]["position"] < 2000
        main([*command, "--jobs", "0"])
        assert table(tmp_path / "killed") == table(tmp_path / "whole")
        out = capsys.readouterr().out
        for row in table(tmp_path / "whole"):
            assert f"{100 * float(row['accuracy']):.1f}%" in out
        assert "Traceback" not in (all_jobs[0].directory / "log.txt").read_text()
        for job in all_jobs:
            environment = json.loads((job.directory / "environment.json").read_text())
            assert environment["processor"]["threads"] == 1


class TestCommandLine:
    def test_without_learners_it_asks_for_them(self, tmp_path, capsys):
        with pytest.raises(SystemExit):
            main(["compare", "--out", str(tmp_path)])
        assert "compare needs learners" in capsys.readouterr().err

    def test_what_is_not_given_stays_as_it_was(self, tmp_path, no_pictures, capsys):
        first = ["--learners", "no-image", "last-label", "--on", "digits(tasks=1,task_length=60)", "--examples", "50"]
        more = ["--jobs", "0", "--out", str(tmp_path)]
        main(["compare", *FLAGS, *first, *more, "--device", "cpu", "--checkpoint-seconds", "7"])
        main(["compare", "--learners", "er(batch=8)", "--seeds", "3", *more])
        kept = read_plan(tmp_path)
        assert (kept.learners, kept.seeds) == (("no-image", "last-label", "er(batch=8)"), (0, 3))
        assert (kept.run.examples, kept.run.device, kept.run.checkpoint_seconds) == (50, "cpu", 7)
        assert kept.settings == SMALL
        assert [(row["seeds"], row["examples"]) for row in table(tmp_path)] == [("2", "50")] * 3
        with pytest.raises(SystemExit):
            main(["compare", "--examples", "40", *more])
        assert "was made with examples = 50, not 40" in capsys.readouterr().err

    def test_the_exit_code_says_that_a_row_failed(self, tmp_path, no_pictures, capsys):
        on = ["--on", "digits(tasks=1,task_length=40)", "--jobs", "0", "--out", str(tmp_path)]
        with pytest.raises(SystemExit) as end:
            main(["compare", "--learners", "last-label", "er(extractor=convnet)", *on])
        assert end.value.code == 1
        assert "needs images" in capsys.readouterr().out
        assert (tmp_path / "table.md").is_file()

    def test_run_takes_a_learner_by_name(self, tmp_path, capsys, no_pictures):
        file = tmp_path / "settings.toml"
        file.write_text("learner = 'kalman(block=16)'\ntasks = 2\n")
        main(["run", "--config", str(file), "--task-length", "40", "--out", str(tmp_path / "run")])
        assert "80 examples, 10 classes · kalman(block=16)" in capsys.readouterr().out.replace("\n", "")
        run = Run(tmp_path / "run")
        assert run.settings.learner == "kalman(block=16)"
        assert run.learner.stride == 16
