"""Runs in which labels come late: stopped and resumed, compared, and opened by what an earlier version wrote."""

import json

import pytest

from prequential.errors import BadSetting
from prequential.runs.run import Run
from prequential.runs.run_settings import RunSettings
from prequential.settings import Settings

SMALL = Settings(width=16, depth=1, window=16, chunk_size=10, num_streams=2, num_neighbors=0)


def made(directory, **protocol):
    settings = RunSettings(stream="digits", tasks=2, task_length=60, out=directory, checkpoint_seconds=0.0, **protocol)
    run = Run(directory, settings, SMALL)
    run.begin()
    return run


@pytest.mark.parametrize("protocol", [{"delay": 15}, {"label_batches": 7}])
def test_a_stopped_run_resumes_to_the_bit(tmp_path, protocol):
    whole = made(tmp_path / "whole", **protocol)
    whole.execute()
    stopped = made(tmp_path / "stopped", **protocol)

    def stop(run):
        run.stopped = run.position >= 40

    stopped.execute(stop)
    assert not stopped.finished
    again = Run(tmp_path / "stopped")
    again.restore()
    assert again.position == stopped.position
    again.execute()
    kept = [json.loads((tmp_path / name / "scores.json").read_text()) for name in ("whole", "stopped")]
    assert kept[0]["log_loss"] == kept[1]["log_loss"]
    assert [scores["count"] for scores in kept] == [120, 120]


def test_the_title_says_how_late_labels_come(tmp_path):
    assert made(tmp_path / "a", delay=15).title.endswith(", labels 15 rows late")
    assert made(tmp_path / "b", label_batches=7).title.endswith(", labels in batches of 7")


def test_both_protocols_at_once_are_refused():
    with pytest.raises(BadSetting, match=r"delay \(2\) and label_batches \(3\) cannot both be given"):
        RunSettings(delay=2, label_batches=3)
