"""Faults in the files of a run: the same result, or one sentence and nothing more lost than what was damaged."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from prequential.cli.app import main
from prequential.comparisons.compare import Plan, compare
from prequential.errors import BadInput, PrequentialError
from prequential.evaluation.records import read_records
from prequential.runs.job import read_result
from prequential.runs.run import Run
from prequential.runs.run_settings import RunSettings
from prequential.settings import Settings
from prequential.storage.checkpoint import read_checkpoint

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
        patch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)
        run.execute(stop)
    assert run.position == 2048
    return directory


@pytest.fixture
def run(stopped, tmp_path, monkeypatch):
    """A copy of it."""
    monkeypatch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)
    shutil.copytree(stopped, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def whole(stopped, tmp_path_factory):
    """The numbers that the run ends with when nothing happens to it."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    shutil.copytree(stopped, directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)
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


FAULTS = ("flip", "truncate", "empty", "swap", "delete", "link")


def damage(path: Path, fault: str, other: Path, at: float = 0.5) -> None:
    """Damages a file; `other` takes its place in a swap, and a link leads to it."""
    data = path.read_bytes()
    where = min(int(len(data) * at), len(data) - 1)
    if fault in ("delete", "link"):
        path.unlink()
    if fault == "link":
        path.symlink_to(other)
    elif fault != "delete":
        flipped = data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :]
        broken = {"flip": flipped, "truncate": data[:where], "empty": b""}
        path.write_bytes(other.read_bytes() if fault == "swap" else broken[fault])


def attempt(capsys: Any, *arguments: str) -> str | None:
    """None when a command ends well, else its one sentence."""
    capsys.readouterr()
    try:
        main(list(arguments))
    except SystemExit as end:
        said: str = capsys.readouterr().err.strip()
        assert end.code in (1, 2), said
        assert said.startswith("prequential: ")
        assert "\n" not in said
        assert len(said) <= 300
        return said
    return None


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
        monkeypatch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)
        shutil.copytree(OLD / "run", tmp_path / "old")
        main(["resume", str(tmp_path / "old")])
        new = Run(tmp_path / "new", RunSettings(learner="majority(window=50)", tasks=14, threads=1), Settings())
        new.begin()
        new.execute()
        old, again = (numbers(tmp_path / name) for name in ("old", "new"))
        assert old["accuracy"] == again["accuracy"]
        # labels that have not been seen weigh less than they did: the first examples were charged otherwise then
        assert old["log_loss"] == pytest.approx(again["log_loss"], abs=0.01)
        rows = [pq.read_table(tmp_path / name / "records") for name in ("old", "new")]
        assert rows[0].num_rows == rows[1].num_rows
        assert rows[0].slice(400).equals(rows[1].slice(400))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A run of something else, whose files have the same names."""
    directory = tmp_path_factory.mktemp("other") / "run"
    run = Run(directory, RunSettings(learner="last-label", tasks=16, threads=1), Settings(seed=5))
    run.begin()

    def stop(run: Run) -> None:
        run.stopped = run.position >= 2000

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)
        run.execute(stop)
    return directory


class TestFiles:
    """Each file of a run, damaged in six ways: the same result, or a sentence whose remedy gives the same result."""

    @pytest.mark.parametrize("fault", FAULTS)
    @pytest.mark.parametrize(
        "name", ["settings.toml", "environment.json", "scores.json", "checkpoints/000000002048.safetensors"]
    )
    def test_of_a_run(self, run, other, whole, name, fault, capsys):
        precious = (other / name).read_bytes()
        kept = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path != run / name}
        damage(run / name, fault, other / name)
        said = attempt(capsys, "resume", str(run))
        if said is not None:
            assert {path: path.read_bytes() for path in kept} == kept  # nothing else was lost
            (run / name).unlink()  # what is damaged can be taken away
            assert attempt(capsys, "resume", str(run)) is None
        assert numbers(run) == whole
        assert rows(run) == EXAMPLES
        assert (other / name).read_bytes() == precious
        if name in ("environment.json", "scores.json"):  # made again without a word
            assert said is None

    @pytest.mark.parametrize("at", [0.0, 0.02, 0.3, 0.7, 0.999])
    def test_a_flipped_bit_in_the_settings_never_makes_another_run(self, run, whole, at, capsys):
        damage(run / "settings.toml", "flip", run, at)
        if attempt(capsys, "resume", str(run)) is None:
            assert numbers(run) == whole  # it was one of the line that holds the checksum
            return
        assert not (run / "records" / "_damaged").exists()

    def test_settings_may_be_edited_when_it_is_said(self, run, whole, capsys):
        text = (run / "settings.toml").read_text()
        edited = text.replace("checkpoint_seconds = 20.0", "checkpoint_seconds = 5.0")
        assert edited != text
        (run / "settings.toml").write_text(edited)
        assert "without which it is taken as it is" in str(attempt(capsys, "resume", str(run)))
        (run / "settings.toml").write_text(edited.partition("\n")[2])
        main(["resume", str(run)])
        assert numbers(run) == whole

    def test_show_says_that_records_are_damaged_and_shows_the_scores(self, run, monkeypatch, capsys):
        for name in ("draw_run", "draw_calibration", "draw_tasks", "draw_classes", "draw_label_shares"):
            monkeypatch.setattr(f"prequential.runs.show.{name}", lambda *_, **__: None)
        main(["show", str(run)])
        right = capsys.readouterr().out
        part = run / "records" / "part-000000000000.parquet"
        damage(part, "flip", part)
        main(["show", str(run)])
        said = capsys.readouterr().out
        assert f"{part} is damaged: its checksum is" in said
        assert said.endswith(right.partition("\n")[2])
        assert "is damaged" in str(attempt(capsys, "report", str(run)))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("compared") / "c"
    compare_quickly(directory)
    return directory


class TestComparisons:
    @pytest.mark.parametrize("fault", FAULTS)
    @pytest.mark.parametrize(
        "name", ["compare.toml", *(f"digits/majority/0/{n}" for n in ("settings.toml", "scores.json", "progress.json"))]
    )
    def test_of_a_comparison(self, finished, tmp_path, name, fault, capsys):
        directory = tmp_path / "c"
        shutil.copytree(finished, directory)
        (tmp_path / "other").write_bytes(b"something else")
        damage(directory / name, fault, tmp_path / "other", at=0.8)
        expected = (finished / "table.csv").read_text().splitlines()
        try:
            compare_quickly(directory)
        except PrequentialError as error:
            assert name == "compare.toml"
            assert str(directory / name) in str(error)
            assert len(str(error)) <= 300
            (directory / name).unlink()
            compare_quickly(directory)
        found = (directory / "table.csv").read_text().splitlines()
        assert [without_time(row) for row in found] == [without_time(row) for row in expected]
        assert (tmp_path / "other").read_bytes() == b"something else"

    def test_times_are_not_lost_with_the_progress(self, finished, tmp_path):
        shutil.copytree(finished, tmp_path / "c")
        job = tmp_path / "c" / "digits" / "majority" / "0"
        (job / "progress.json").write_text("{")
        (job / "scores.json").write_text("{")
        seconds = read_checkpoint(max((job / "checkpoints").iterdir()), ["seconds"])["seconds"]
        compare_quickly(tmp_path / "c")
        assert read_result(job)["seconds"] >= seconds > 0

    def test_a_front_of_damaged_results_is_refused(self, finished, tmp_path, capsys):
        shutil.copytree(finished, tmp_path / "c")
        damage(tmp_path / "c" / "digits" / "majority" / "0" / "scores.json", "flip", tmp_path)
        said = attempt(capsys, "pareto", str(tmp_path / "c"), "--objectives", "accuracy", "log_loss")
        assert "scores.json is damaged" in str(said)

    @pytest.mark.parametrize("left", [[".lock"], [".lock", ".compare.toml.7.tmp"], ["digits/majority/0/settings.toml"]])
    def test_killed_while_it_began_it_goes_on(self, tmp_path, left):
        for name in left:
            (tmp_path / "c" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "c" / name).write_bytes(b"")
        compare_quickly(tmp_path / "c")
        assert (tmp_path / "c" / "table.csv").is_file()

    def test_a_directory_of_other_things_is_left_alone(self, tmp_path):
        (tmp_path / "c" / "photos").mkdir(parents=True)
        (tmp_path / "c" / "photos" / "a.png").write_bytes(b"")
        with pytest.raises(BadInput, match="is not empty and holds no comparison"):
            compare_quickly(tmp_path / "c")


def compare_quickly(directory: Path) -> None:
    plan = Plan(
        learners=("majority", "last-label"), streams=("digits",), run=RunSettings(tasks=2, task_length=50, threads=1)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)
        for name in ("draw_accuracies", "draw_losses", "draw_bits", "draw_costs"):
            patch.setattr(f"prequential.plots.comparison.{name}", lambda *_, **__: None)
        assert compare(plan, directory, jobs=0) is not None


def without_time(row: str) -> list[str]:
    """A line of the table but for what differs from run to run."""
    fields = row.split(",")
    return fields[:-7] + fields[-4:]
