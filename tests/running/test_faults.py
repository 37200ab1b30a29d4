"""Faults in the files of a run: the same result, or one sentence and nothing more lost than what was damaged."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from prequential.cli import main
from prequential.running.run import Run
from prequential.running.settings import RunSettings
from prequential.scoring.records import read_records
from prequential.settings import Settings

EXAMPLES = 3200


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped at example 2,048 of 3,200."""
    directory = tmp_path_factory.mktemp("runs") / "stopped"
    run = Run(directory, RunSettings(learner="majority(window=50)", tasks=16, threads=1), Settings())
    run.begin()

    def stop(run: Run) -> None:
        run.stopped = run.position >= 2000

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prequential.running.run.draw_run", lambda *_, **__: None)
        run.go(stop)
    assert run.position == 2048
    return directory


@pytest.fixture
def run(stopped, tmp_path, monkeypatch):
    """A copy of it."""
    monkeypatch.setattr("prequential.running.run.draw_run", lambda *_, **__: None)
    shutil.copytree(stopped, tmp_path / "run")
    return tmp_path / "run"


def rows(directory: Path) -> int:
    return sum(batch.num_rows for batch in read_records(directory / "records", ["position"]))


def refused(capsys, *arguments: str) -> str:
    """What a command says that ends with one sentence."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert end.value.code == 2
    said: str = capsys.readouterr().err.strip()
    assert said.startswith("prequential: ")
    assert "\n" not in said
    return said


class TestLinks:
    def test_a_lock_that_is_a_link_empties_nothing(self, run, tmp_path, capsys):
        (tmp_path / "precious").write_text("kept")
        (run / ".lock").unlink()
        (run / ".lock").symlink_to(tmp_path / "precious")
        assert "is a symbolic link" in refused(capsys, "resume", str(run))
        assert (tmp_path / "precious").read_text() == "kept"

    @pytest.mark.parametrize("name", ["records", "checkpoints"])
    def test_a_folder_that_is_a_link_to_another_run_is_left_alone(self, run, stopped, tmp_path, name, capsys):
        shutil.copytree(stopped, tmp_path / "other")
        before = {path.name: path.read_bytes() for path in (tmp_path / "other" / name).iterdir()}
        shutil.rmtree(run / name)
        (run / name).symlink_to(tmp_path / "other" / name)
        assert f"{name} is a symbolic link to" in refused(capsys, "resume", str(run))
        assert {path.name: path.read_bytes() for path in (tmp_path / "other" / name).iterdir()} == before

    def test_links_in_the_place_of_files_are_replaced(self, run, tmp_path):
        (tmp_path / "precious").write_text("kept")
        for path in (run / "scores.json", run / "environment.json", run / f".scores.json.{os.getpid()}.tmp"):
            path.unlink(missing_ok=True)
            path.symlink_to(tmp_path / "precious")
        main(["resume", str(run)])
        assert (tmp_path / "precious").read_text() == "kept"
        assert not (run / "scores.json").is_symlink()
        assert rows(run) == EXAMPLES

    def test_the_directory_itself_may_be_one(self, run, tmp_path):
        (tmp_path / "link").symlink_to(run)
        main(["resume", str(tmp_path / "link")])
        assert rows(run) == EXAMPLES
