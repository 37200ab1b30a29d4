"""Faults in the files of a run: the same result, or one sentence and nothing more lost than what was damaged."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from prequential.cli import main
from prequential.running.run import Run
from prequential.running.settings import RunSettings
from prequential.scoring.records import read_records
from prequential.settings import Settings

EXAMPLES = 3200
OLD = Path(__file__).parent.parent / "data" / "format-1"


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


@pytest.fixture(scope="module")
def whole(stopped, tmp_path_factory):
    """The numbers that the run ends with when nothing happens to it."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    shutil.copytree(stopped, directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prequential.running.run.draw_run", lambda *_, **__: None)
        main(["resume", str(directory)])
    return numbers(directory)


def numbers(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "scores.json").read_text())
    return {name: value for name, value in found.items() if name not in ("seconds", "sha256")}


def rows(directory: Path) -> int:
    return sum(batch.num_rows for batch in read_records(directory / "records", ["position"]))


def refused(capsys, *arguments: str) -> str:
    """What a command says that ends with one sentence."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert end.value.code in (1, 2)
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


class TestRecords:
    @pytest.mark.parametrize("fault", ["flip", "swap", "delete"])
    def test_a_damaged_part_is_named_and_the_run_can_go_on_without_it(self, run, whole, fault, capsys):
        part = run / "records" / "part-000000000000.parquet"
        data = part.read_bytes()
        if fault == "delete":
            part.unlink()
        elif fault == "swap":
            part.write_bytes((run / "records" / "part-000000001024.parquet").read_bytes())
        else:
            part.write_bytes(data[:99] + bytes([data[99] ^ 1]) + data[100:])
        said = refused(capsys, "resume", str(run))
        assert f"{part.name} is " in said
        assert "resume --set-aside" in said
        main(["resume", str(run), "--set-aside"])
        assert "the records lack examples 0 to 1,023" in " ".join(capsys.readouterr().out.split())
        assert numbers(run) == whole
        main(["resume", str(run)])  # and the next time it is not asked again
        assert numbers(run) == whole

    def test_what_was_made_by_an_earlier_version_goes_on(self, tmp_path, monkeypatch):
        monkeypatch.setattr("prequential.running.run.draw_run", lambda *_, **__: None)
        shutil.copytree(OLD / "run", tmp_path / "old")
        main(["resume", str(tmp_path / "old")])
        new = Run(tmp_path / "new", RunSettings(learner="majority(window=50)", tasks=14, threads=1), Settings())
        new.begin()
        new.go()
        assert numbers(tmp_path / "old") == numbers(tmp_path / "new")
        for part in (tmp_path / "new" / "records").iterdir():
            assert part.read_bytes() == (tmp_path / "old" / "records" / part.name).read_bytes()
