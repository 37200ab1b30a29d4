"""Metrics of a run: saved with it, there again when it is resumed, and named in what it leaves behind."""

from __future__ import annotations

import json
import sys

import pytest

from prequential.runs.run import Run
from prequential.runs.run_settings import RunSettings
from prequential.settings import Settings
from prequential.trust import Untrusted

MODULE = """
class Opaque:  # with a state that cannot be stored
    def __init__(self):
        self.lines, self.hits, self.count = iter(()), 0, 0

    def update(self, y_true, y_pred):
        self.hits, self.count = self.hits + (y_true == y_pred), self.count + 1

    def get(self):
        return self.hits / self.count
"""
METRICS = ["river.metrics:MacroF1", "river.metrics:CrossEntropy", "my_metrics:Opaque"]


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "my_metrics.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("my_metrics", None)


def begun(directory):
    settings = RunSettings(tasks=4, task_length=50, learner="kalman(block=20)", metric=METRICS, checkpoint_seconds=0.0)
    run = Run(directory, settings, Settings())
    run.begin()
    return run


def test_a_resumed_run_has_the_metrics_of_one_that_was_not_stopped(tmp_path, own_module):
    whole = begun(tmp_path / "whole")
    whole.execute()
    stopped = begun(tmp_path / "run")

    def stop(run):
        run.stopped = run.position >= 100

    stopped.execute(stop)
    assert 0 < stopped.position < 200
    with pytest.raises(Untrusted, match=r"to import the metric my_metrics:Opaque; .* --trust"):
        Run(tmp_path / "run")
    resumed = Run(tmp_path / "run", trust=True)
    resumed.restore()
    assert resumed.warnings == []
    assert resumed.scores.metrics.values() == stopped.scores.metrics.values()
    resumed.execute()
    found, expected = ({**json.loads((tmp_path / name / "scores.json").read_text())} for name in ("run", "whole"))
    assert found["metrics"] == expected["metrics"]
    assert set(found["metrics"]) == {"MacroF1", "CrossEntropy", "Opaque"}
    assert found["metrics"]["Opaque"] == found["accuracy"]
