"""Runs over tables: how columns are read is part of the run, and of the learner that comes out of it."""

from pathlib import Path

import pytest

import prequential
from prequential import TableStream
from prequential.runs.run import Run
from prequential.runs.run_settings import RunSettings, read_settings
from prequential.settings import Settings
from prequential.sweeps.sweep import sweep

SMALL = Settings(width=8, num_query_heads=2, depth=1, window=8, chunk_size=16, num_streams=2)


@pytest.fixture
def table(tmp_path):
    rows = [f"{i},2024-01-{i % 28 + 1:02},my {'refund' if i % 2 else 'parcel'} is late {i},{i % 2}" for i in range(150)]
    (tmp_path / "t.csv").write_text("\n".join(["id,day,body,label", *rows]))
    return tmp_path / "t.csv"


def stopped_run(directory: Path, table: Path, **options) -> Run:
    run = Run(directory, RunSettings(stream=str(table), threads=1, checkpoint_seconds=0, **options), SMALL)
    run.begin()
    run.execute(lambda run: setattr(run, "stopped", run.position >= 64))
    return run


@pytest.mark.filterwarnings("error")  # what is left out is said by describe and hints
def test_ids_are_named_in_the_hints(tmp_path, table):
    run = stopped_run(tmp_path / "run", table)
    assert any("different in every row: id" in hint for hint in run.hints())


def test_a_run_of_version_01_goes_on_as_it_was(tmp_path, table):
    """Its settings do not say how columns are read, so they are read as that version did."""
    before = stopped_run(tmp_path / "run", table, reading=1)
    path = tmp_path / "run" / "settings.toml"
    text = path.read_text()
    assert "reading = 1\n" in text
    path.write_text("\n".join(line for line in text.splitlines()[1:] if not line.startswith("reading")))
    run = Run(tmp_path / "run")
    assert run.stream.fingerprint() == before.stream.fingerprint() == TableStream(table, reading=1).fingerprint()
    run.restore()
    assert run.position == 64
    run.execute()
    assert run.finished
    own = tmp_path / "mine.toml"
    own.write_text("examples = 10\n")
    assert "reading" not in read_settings(own)[0]  # a user's own file gets how it is today


def test_rows_after_a_run(tmp_path, table):
    run = stopped_run(tmp_path / "run", table)
    learner = prequential.open(tmp_path / "run")
    row = {"day": "2024-01-08", "body": "my refund is late 35"}
    assert learner.schema == run.stream.schema
    assert learner.predict_proba(row) == run.learner.predict_proba(run.stream.read(35, 36).x[0])


def test_a_sweep_of_version_01_goes_on_as_it_was(tmp_path, table):
    """New trials read columns as those that are there do, whose settings say nothing of it."""
    pytest.importorskip("optuna")
    plan = f'[sweep]\nmethod = "grid"\n[run]\nstream = "{table}"\nlearner = "majority"\n[vary]\n"majority.window" = '
    out = tmp_path / "sweep"
    (tmp_path / "plan.toml").write_text(plan + "[5, 10]\n")
    sweep(tmp_path / "plan.toml", out=out, jobs=0, trials=1)
    (first,) = (out / "trials").glob("*/*/settings.toml")
    assert "reading = 3\n" in first.read_text()
    lines = first.read_text().splitlines()[1:]  # without the checksum
    first.write_text("\n".join(line for line in lines if not line.startswith("reading")))
    sweep(tmp_path / "plan.toml", out=out, jobs=0)
    (second,) = ({*(out / "trials").glob("*/*/settings.toml")}) - {first}
    assert "reading = 1\n" in second.read_text()
