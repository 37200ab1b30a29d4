"""Runs without a number of classes, and those of versions in which there was always one."""

from __future__ import annotations

import json

import numpy as np
import pytest

from prequential.cli.app import main
from prequential.runs.run import Run
from prequential.runs.run_settings import RunSettings
from prequential.settings import Settings
from prequential.storage.checkpoint import same_state
from prequential.storage.sealed import sealed_toml
from prequential.testing.class_checks import make_many_labels

SMALL = Settings(width=16, num_query_heads=2, depth=1, window=16, chunk_size=8, num_streams=2)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)


@pytest.fixture
def table(tmp_path):
    x, y = make_many_labels(60)
    path = tmp_path / "table.csv"
    rows = [",".join([*map(str, row), f"label {label}"]) for row, label in zip(x, y, strict=True)]
    path.write_text("\n".join(["a,b,c,d,label", *rows]))
    return path


def new(directory, table, **changes) -> Run:
    run = Run(directory, RunSettings(stream=str(table), threads=1, checkpoint_seconds=0.0, **changes), SMALL)
    run.begin()
    return run


def test_a_run_that_grows_is_resumed_to_the_bit(tmp_path, table):
    whole = new(tmp_path / "whole", table)
    whole.execute()
    assert whole.learner.labels.capacity == 32
    assert whole.scores.classes == len(whole.learner.labels) == 17

    def stop(run):
        run.stopped = run.position >= 32

    new(tmp_path / "stopped", table).execute(stop)
    again = Run(tmp_path / "stopped")
    again.restore()
    assert again.position == 32
    again.execute()
    assert same_state(whole.learner.state_dict(), again.learner.state_dict())
    summaries = [json.loads((run.directory / "scores.json").read_text()) for run in (whole, again)]
    assert summaries[0]["log_loss"] == summaries[1]["log_loss"]
    assert summaries[0]["uniform_bits"] == pytest.approx(60 * np.log2(17))


def test_a_run_of_an_earlier_version_keeps_the_number_it_had(tmp_path, table):
    run = new(tmp_path / "run", table, classes=100)
    run.execute(lambda run: setattr(run, "stopped", True))
    text = (tmp_path / "run" / "settings.toml").read_text().replace("classes = 100\n", "")
    (tmp_path / "run" / "settings.toml").write_bytes(sealed_toml(text))  # as it was written where none was given
    again = Run(tmp_path / "run")
    assert again.learner.labels.classes == 100
    again.restore()
    assert again.warnings == []
    assert same_state(run.learner.state_dict(), again.learner.state_dict())


def test_a_quantity_is_refused_at_once(tmp_path, capsys):
    path = tmp_path / "prices.csv"
    path.write_text("\n".join(["a,price", *(f"{i},{i + 0.125}" for i in range(40))]))
    arguments = [
        "run",
        "--stream",
        str(path),
        "--label",
        "price",
        "--learner",
        "majority",
        "--out",
        str(tmp_path / "run"),
    ]
    with pytest.raises(SystemExit):
        main(arguments)
    assert "this learner predicts classes; put the label into bins" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
    main([*arguments, "--classes", "40"])
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["classes"] == 40
