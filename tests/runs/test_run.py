"""Runs: what they leave behind, and that nothing is lost when they are stopped or killed at any moment."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from prequential.cli.app import main
from prequential.errors import BadCheckpoint, BadInput
from prequential.runs.run import Run, new_directory
from prequential.runs.run_settings import RunSettings
from prequential.settings import Settings
from prequential.storage.checkpoint import CheckpointFolder, same_state
from shared.flags import SMALL_FLAGS

SMALL = Settings(width=16, num_query_heads=2, depth=1, window=32, chunk_size=20, num_streams=2)
TINY = RunSettings(tasks=4, task_length=50, threads=1, checkpoint_seconds=0.0)
FLAGS = [*SMALL_FLAGS, "--threads", "1"]


def new(directory: Path, **changes) -> Run:
    settings = {**{"tasks": 4, "task_length": 50, "threads": 1, "checkpoint_seconds": 0.0}, **changes}
    run = Run(directory, RunSettings(**settings), SMALL)
    run.begin()
    return run


def contents(directory: Path) -> dict[str, bytes]:
    """The bytes of all records, and of the pictures and scores."""
    paths = [*sorted((directory / "records").iterdir()), directory / "curves.svg"]
    scores = json.loads((directory / "scores.json").read_text())
    assert scores.pop("seconds") > 0  # time is no result
    del scores["sha256"]
    return {**{path.name: path.read_bytes() for path in paths}, "scores.json": json.dumps(scores).encode()}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "prequential.cli.app", *map(str, arguments)]


class TestDirectory:
    def test_holds_settings_environment_records_scores_and_pictures(self, tmp_path):
        run = new(tmp_path / "run")
        scores = run.execute()
        assert scores.count == 200
        summary = json.loads((tmp_path / "run" / "scores.json").read_text())
        assert summary["count"] == 200
        assert summary["accuracy"] == scores.accuracy
        environment = json.loads((tmp_path / "run" / "environment.json").read_text())
        assert environment["versions"].keys() >= {"python", "torch", "numpy", "prequential"}
        assert environment["seed"] == 0
        assert (tmp_path / "run" / "curves.png").read_bytes()[:4] == b"\x89PNG"
        again = Run(tmp_path / "run")
        assert again.learner_settings == SMALL

    def test_records_agree_with_the_scores(self, tmp_path):
        import pandas as pd

        scores = new(tmp_path / "run").execute()
        table = pd.read_parquet(tmp_path / "run" / "records")
        assert len(table) == 200
        assert table["correct"].mean() == scores.accuracy
        assert table["log_loss"].sum() == pytest.approx(scores.total_nats)
        assert table["task"].tolist() == np.repeat(np.arange(4), 50).tolist()
        assert (table["label"] == table["predicted"]).tolist() == table["correct"].tolist()

    def test_one_that_is_taken_is_refused(self, tmp_path):
        new(tmp_path / "run").execute()
        with pytest.raises(BadInput, match="is not empty; prequential resume"):
            Run(tmp_path / "run", TINY, SMALL)

    def test_names_are_never_used_twice(self, tmp_path):
        first = new_directory("a/digits.csv", tmp_path)
        first.mkdir()
        second = new_directory("a/digits.csv", tmp_path)
        assert first.name.startswith("digits-")
        assert second != first

    def test_two_processes_do_not_share_one(self, tmp_path):
        run = new(tmp_path / "run")
        other = Run(tmp_path / "run")
        with pytest.raises(BadInput, match="another process or learner is working in"):
            run.execute(lambda _: other.execute())

    def test_resuming_one_that_is_alive_touches_nothing(self, tmp_path):
        run = new(tmp_path / "run", tasks=30, task_length=100)
        tried = []

        def try_to_resume(run):
            if run.position == 1500:
                with pytest.raises(BadInput, match="another process or learner is working in"):
                    Run(tmp_path / "run").restore()
                tried.append(sorted(path.name for path in (tmp_path / "run" / "records").glob("*.parquet")))

        run.execute(try_to_resume)
        assert tried == [["part-000000000000.parquet"]]

    def test_what_a_kill_at_the_very_start_leaves_is_no_obstacle(self, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / ".settings.toml.123.tmp").write_text("half")
        assert new(tmp_path / "run").execute().count == 200


class TestResume:
    @pytest.fixture
    def whole(self, tmp_path):
        run = new(tmp_path / "whole")
        run.execute()
        return run

    @pytest.mark.parametrize("at", [20, 100, 180])
    def test_a_stopped_run_ends_like_one_that_was_not(self, whole, tmp_path, at):
        run = new(tmp_path / "run")

        def stop(run):
            run.stopped = run.position >= at

        run.execute(stop)
        assert run.position == at
        resumed = Run(tmp_path / "run")
        resumed.restore()
        assert resumed.position == at
        resumed.execute()
        assert contents(tmp_path / "run") == contents(tmp_path / "whole")
        assert same_state(resumed.learner.state_dict(), whole.learner.state_dict())

    def test_a_damaged_checkpoint_is_passed_over(self, whole, tmp_path):
        run = new(tmp_path / "run")

        def stop(run):
            run.stopped = run.position >= 100

        run.execute(stop)
        newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
        content = bytearray(newest.read_bytes())
        content[-50] ^= 1
        newest.write_bytes(content)
        resumed = Run(tmp_path / "run")
        resumed.restore()
        assert resumed.position == 80
        assert "checksum" in resumed.warnings[0]
        resumed.execute()
        assert contents(tmp_path / "run") == contents(tmp_path / "whole")

    def test_other_data_is_refused(self, tmp_path):
        new(tmp_path / "run").execute()
        settings = tmp_path / "run" / "settings.toml"
        settings.write_text(settings.read_text().partition("\n")[2].replace("tasks = 4", "tasks = 5"))
        with pytest.raises(BadCheckpoint, match="has changed: its fingerprint is"):
            Run(tmp_path / "run").restore()

    def test_the_checkpoint_of_another_learner_is_passed_over(self, tmp_path):
        new(tmp_path / "run").execute()
        other = Run(tmp_path / "other", TINY, SMALL.changed(learning_rate=0.5))
        other.begin()
        other.execute()
        newest = sorted((tmp_path / "other" / "checkpoints").iterdir())[-1]
        (tmp_path / "run" / "checkpoints" / "000000000201.safetensors").write_bytes(newest.read_bytes())
        resumed = Run(tmp_path / "run")
        resumed.restore()
        assert resumed.position == 200
        assert "does not belong here" in resumed.warnings[0]

    def test_changed_settings_are_refused_and_nothing_is_lost(self, tmp_path):
        new(tmp_path / "run").execute()
        before = contents(tmp_path / "run")
        settings = tmp_path / "run" / "settings.toml"
        text = settings.read_text()
        settings.write_text(text.partition("\n")[2].replace("weight_decay = 0.01", "weight_decay = 0.5"))
        with pytest.raises(BadCheckpoint, match=r"made with weight_decay 0.01, expected 0.5; .* nothing was changed"):
            Run(tmp_path / "run").restore()
        settings.write_text(text)
        assert contents(tmp_path / "run") == before

    def test_another_number_of_threads_is_said(self, tmp_path):
        run = new(tmp_path / "run")
        run.execute()
        state, _ = CheckpointFolder(tmp_path / "run" / "checkpoints").newest()
        state["numerics"]["threads"] = 64
        CheckpointFolder(tmp_path / "run" / "checkpoints").write(200, state)
        resumed = Run(tmp_path / "run")
        resumed.restore()
        assert "threads is 1 now and was 64 before" in resumed.warnings[0]


def test_killed_with_sigkill_the_resume_command_ends_like_a_run_that_was_not(tmp_path):
    """Real processes of the command line; tests/test_kills.py kills forked ones many more times."""
    size = ["--tasks", "8", "--task-length", "100", "--checkpoint-seconds", "0"]
    main(["run", *FLAGS, *size, "--out", str(tmp_path / "whole")])
    moments = random.Random(time.time_ns())
    target, reached = moments.randrange(20, 600), 0
    process = subprocess.Popen(command("run", *FLAGS, *size, "--out", tmp_path / "killed"), stdout=subprocess.DEVNULL)
    while reached < target and process.poll() is None:
        time.sleep(0.002)
        reached = max((int(path.stem) for path in (tmp_path / "killed").rglob("[0-9]*.safetensors")), default=0)
    time.sleep(moments.uniform(0, 0.03))  # anywhere in the work on one chunk, the writing of files included
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert 0 < reached < 800
    subprocess.run(command("resume", tmp_path / "killed"), check=True, capture_output=True)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    states = [CheckpointFolder(tmp_path / name / "checkpoints").newest()[0] for name in ("whole", "killed")]
    for state in states:
        del state["seconds"]  # time is no result
    assert same_state(*states)


def test_a_signal_ends_a_run_with_everything_saved(tmp_path):
    size = ["--tasks", "1000", "--task-length", "100"]
    process = subprocess.Popen(command("run", *FLAGS, *size, "--out", tmp_path / "run"), stdout=subprocess.PIPE)
    while not (tmp_path / "run" / "settings.toml").exists():
        time.sleep(0.05)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 0
    assert "resume with: prequential resume" in output
    position = json.loads((tmp_path / "run" / "scores.json").read_text())["count"]
    resumed = Run(tmp_path / "run")
    resumed.restore()
    assert resumed.position == position > 0


class TestCommandLine:
    def test_run_and_show(self, tmp_path, capsys):
        main(["run", *FLAGS, "--tasks", "3", "--task-length", "40", "--out", str(tmp_path / "run")])
        out = capsys.readouterr().out
        assert "120 examples, average accuracy" in out
        assert "first 3 tasks" in out
        assert str(tmp_path / "run") in out.replace("\n", "")
        (tmp_path / "run" / "curves.png").unlink()
        main(["show", str(tmp_path / "run")])
        shown = capsys.readouterr().out
        assert "120 examples, average accuracy" in shown
        assert (tmp_path / "run" / "curves.png").exists()

    def test_settings_from_a_file_with_flags_on_top(self, tmp_path):
        file = tmp_path / "settings.toml"
        file.write_text("tasks = 2\n[run]\ntask_length = 30\nthreads = 1\n[learner]\nwidth = 8\nheads = 2\nseed = 7\n")
        main(["run", "--config", str(file), "--width", "16", "--out", str(tmp_path / "run")])
        run = Run(tmp_path / "run")
        assert (run.settings.tasks, run.settings.task_length) == (2, 30)
        assert (run.learner_settings.width, run.learner_settings.num_query_heads, run.learner_settings.seed) == (
            16,
            2,
            7,
        )

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["run", "--stream", "nowhere.csv"], "nowhere.csv"),
            (["run", "--num-streams", "0"], "num_streams (0) must be at least 1"),
            (["resume", "nowhere"], "nowhere holds no run"),
            (["show", "nowhere"], "nowhere holds no run"),
            (["run", "--config", "nowhere.toml"], "cannot read the settings nowhere.toml"),
        ],
    )
    def test_what_goes_wrong_is_one_sentence(self, arguments, words, capsys):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code != 0
        said = capsys.readouterr().err
        assert words in said
        assert "Traceback" not in said

    def test_an_unknown_setting_in_a_file_is_named_with_the_nearest(self, tmp_path, capsys):
        (tmp_path / "settings.toml").write_text("[learner]\nwidht = 3\n")
        with pytest.raises(SystemExit):
            main(["run", "--config", str(tmp_path / "settings.toml")])
        assert "unknown setting 'widht'; did you mean 'width'?" in capsys.readouterr().err


def test_examples_may_stand_among_the_options_of_the_stream(tmp_path):
    run = Run(
        tmp_path / "a", RunSettings(stream="photos(classes=40, examples=1000100)", learner="last-label"), Settings()
    )
    assert (run.length, len(run.stream), run.learner.labels.capacity) == (1_000_100, 1_000_100, 40)


def test_a_new_run_whose_first_example_is_refused_leaves_nothing(tmp_path, capsys):
    pytest.importorskip("river")
    command = ["run", "--stream", "digits(tasks=1)", "--learner", "river:linear_model.LogisticRegression(l2=nan)"]
    for place, before in ((tmp_path / "new", False), (tmp_path / "there", True)):
        if before:
            place.mkdir()
        with pytest.raises(SystemExit):
            main([*command, "--out", str(place)])
        assert "cannot take it" in capsys.readouterr().err
        assert place.exists() == before
