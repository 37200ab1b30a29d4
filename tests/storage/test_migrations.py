"""Files of earlier versions are opened, and go on as they would have gone there.

`tests/data/format-N.tar.xz` are made by `tests/data/make_stored.py` of that format's version: runs that were stopped halfway,
a finished run, a home, saved learners, a sweep and a comparison that were stopped, and the losses and tables that the same
version gave without interruption. Format 2 is that of the old names of settings (`rate`, `streams`, ...).
"""

from __future__ import annotations

import csv
import json
import tarfile
import warnings
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import prequential
from prequential.baselines import KalmanNetwork
from prequential.comparisons.compare import compare, read_plan
from prequential.errors import BadCheckpoint, BadInput, BadSetting
from prequential.learners.transformer.learner import Learner
from prequential.renames import SETTINGS
from prequential.runs.run import Run, restore_settings
from prequential.runs.run_settings import RunSettings, read_settings, read_stored_settings, write_settings
from prequential.settings import Settings
from prequential.storage import migrations
from prequential.storage.checkpoint import read_checkpoint, same_state, write_checkpoint
from prequential.storage.sealed import read_sealed
from prequential.sweeps.sweep import sweep
from shared.engines import NO_LIBRARY

DATA = Path(__file__).parents[1] / "data"
STORED = sorted(DATA.glob("format-*.tar.xz"))
CLOSE = 2e-5  # nats; on the machine that made the files, losses are equal to the bit
# baselines that start now give labels not seen yet another weight than they did then, which shows in short runs
CLOSE_OF_BASELINES = 0.1

# The settings of format 5. Another one must have a default that changes nothing, or a step that sets the old value.
FORMAT_5 = """
method model width depth num_query_heads mlp_width window chunk_size num_streams updates positions label_init_std query_init use_input
extractor channel_order standardize recent_window num_neighbors neighbor_metric change_half_life num_trees recent_labels mixing learning_rate joint_learning_rate extractor_learning_rate weight_decay beta1
beta2 warmup_examples lr_decay lr_decay_examples ema_decay freeze_at label_delay async_steps precision seed engine
"""


def unpack(path: Path, folder: Path) -> Path:
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    return folder / path.name.removesuffix(".tar.xz")


@pytest.fixture(params=STORED, ids=lambda path: path.name.removesuffix(".tar.xz"))
def stored(request, tmp_path):
    """The files of each format."""
    return unpack(request.param, tmp_path)


@pytest.fixture
def format_2(tmp_path):
    return unpack(DATA / "format-2.tar.xz", tmp_path)


@pytest.fixture(autouse=True)
def by_torch(monkeypatch):
    """Earlier versions had no other engine; `test_a_stopped_run_goes_on_in_the_native_core` is about the change."""
    monkeypatch.setenv("PREQUENTIAL_ENGINE", "torch")


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)
    monkeypatch.setattr("prequential.comparisons.compare._draw", lambda *_, **__: None, raising=False)
    for name in ("draw_settings", "draw_history", "draw_fronts"):
        monkeypatch.setattr(f"prequential.sweeps.trial_tables.{name}", lambda *_, **__: None)


def losses(run: Path) -> np.ndarray:
    return pq.read_table(run / "records")["log_loss"].to_numpy()


def table(path: Path, key: str) -> dict[str, dict[str, str]]:
    with path.open() as file:
        return {row[key]: row for row in csv.DictReader(file)}


def check_sweep(stored: Path, rows: list) -> None:
    """All five trials are done, in the folders and with the losses of a sweep that was not stopped."""
    assert [row.state for row in rows] == ["done"] * 5
    assert [row.point.get("num_streams") for row in rows] == [1, 2, 1, 2, None]
    found, expected = table(stored / "sweep" / "table.csv", "folder"), table(stored / "sweep-table.csv", "folder")
    assert found.keys() == expected.keys()
    for folder, row in expected.items():
        close = CLOSE if row["learner"] == "transformer" else CLOSE_OF_BASELINES
        assert float(found[folder]["log_loss_0"]) == pytest.approx(float(row["log_loss_0"]), abs=close)


class TestStored:
    @pytest.mark.parametrize("name", ["transformer", "async", "er", "replay-streams"])
    def test_a_stopped_run_goes_on(self, stored, name):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the program wrote the old names itself
            run = Run(stored / f"stopped-{name}")
            run.restore()
        assert run.warnings == []
        assert 0 < run.position < run.length
        run.execute()
        np.testing.assert_allclose(losses(run.directory), np.load(stored / f"{name}-losses.npy"), rtol=0, atol=CLOSE)

    @pytest.mark.skipif(bool(NO_LIBRARY), reason=NO_LIBRARY)
    @pytest.mark.parametrize("name", ["transformer", "async"])
    def test_a_stopped_run_goes_on_in_the_native_core(self, stored, name, monkeypatch):
        monkeypatch.setenv("PREQUENTIAL_ENGINE", "auto")
        run = Run(stored / f"stopped-{name}")
        run.restore()
        assert run.warnings == [
            "engine is the native core now and was torch before: results will agree, but not to the last bit"
        ]
        run.execute()
        np.testing.assert_allclose(losses(run.directory), np.load(stored / f"{name}-losses.npy"), rtol=0, atol=CLOSE)
        assert run.engine == "computed by the native core"

    def test_a_finished_run_is_shown(self, stored):
        run = Run(stored / "finished")
        run.restore()
        assert run.finished
        assert run.learner_settings.learning_rate == 0.06
        assert run.learner_settings.ema_decay == 0.9
        scores = json.loads((stored / "finished" / "scores.json").read_text())
        assert run.scores.log_loss == scores["log_loss"]
        opened = prequential.open(stored / "finished", device="cpu")
        assert same_state(opened.state_dict(), run.learner.state_dict())

    def test_a_home_is_opened_and_becomes_one_of_this_version(self, stored):
        x, y = np.load(stored / "home-x.npy"), json.loads((stored / "home-y.json").read_text())
        learner = Learner.open(stored / "home", device="cpu")
        assert learner.notes == []
        assert learner.settings.num_streams == 2
        charges = learner.observe(x[29:], y[29:])
        np.testing.assert_allclose(charges.log_loss, np.load(stored / "home-losses.npy"), rtol=0, atol=CLOSE)
        learner.save()
        learner.close()
        assert read_sealed(stored / "home" / "learner.json")["format"] == f"prequential-home-{migrations.FORMAT}"
        again = Learner.open(stored / "home", device="cpu")
        np.testing.assert_array_equal(again.predict_log_proba_many(x[:3]), learner.predict_log_proba_many(x[:3]))
        again.close()

    @pytest.mark.parametrize(("name", "kind"), [("learner", Learner), ("kalman-network", KalmanNetwork)])
    def test_a_saved_learner_is_loaded(self, stored, name, kind):
        x, y = np.load(stored / "home-x.npy"), json.loads((stored / "home-y.json").read_text())
        learner = kind.load(stored / name)
        expected = np.load(stored / ("home-losses.npy" if name == "learner" else f"{name}-losses.npy"))
        np.testing.assert_allclose(learner.observe(x[29:], y[29:]).log_loss, expected, rtol=0, atol=CLOSE)

    def test_a_stopped_comparison_goes_on_in_its_folders(self, stored):
        directory = stored / "comparison"
        before = {path.parent for path in directory.rglob("settings.toml")}
        compare(read_plan(directory), directory, jobs=0)
        assert {path.parent for path in directory.rglob("settings.toml")} == before
        found, expected = table(directory / "table.csv", "learner"), table(stored / "comparison-table.csv", "learner")
        assert found.keys() == expected.keys()
        for learner, row in expected.items():
            close = CLOSE if learner.startswith("transformer") else CLOSE_OF_BASELINES
            assert float(found[learner]["log_loss"]) == pytest.approx(float(row["log_loss"]), abs=close)

    def test_a_stopped_sweep_goes_on_in_its_folders(self, stored):
        pytest.importorskip("optuna")
        old = stored.name == "format-2"
        with pytest.warns(FutureWarning, match="rate is now called learning_rate") if old else nullcontext() as warned:
            rows = sweep(stored / "small.toml", out=stored / "sweep", jobs=0)[1]
        assert not old or sum(issubclass(w.category, FutureWarning) for w in warned) == 1
        check_sweep(stored, rows)

    def test_a_stopped_sweep_goes_on_when_the_new_names_are_written_into_its_file(self, format_2):
        pytest.importorskip("optuna")
        file = format_2 / "small.toml"
        text = file.read_text()
        for old, new in SETTINGS.items():
            text = text.replace(f"\n{old} =", f"\n{new} =")
        file.write_text(text.replace("er.rate", "er.learning_rate"))
        with pytest.warns(FutureWarning, match="^hidden is now called hidden_sizes$"):  # of the learner, as it is kept
            rows = sweep(file, out=format_2 / "sweep", jobs=0)[1]
        check_sweep(format_2, rows)

    def test_missing_settings_of_a_run_are_made_again_from_its_checkpoint(self, stored):
        directory = stored / "stopped-transformer"
        _, learner = read_stored_settings(directory / "settings.toml")
        (directory / "settings.toml").unlink()
        restore_settings(directory)
        assert read_stored_settings(directory / "settings.toml")[1] == learner
        assert learner["mlp_width"] == 12

    def test_reading_changes_no_file(self, stored):
        before = {path: path.read_bytes() for path in stored.rglob("*") if path.is_file()}
        read_stored_settings(stored / "finished" / "settings.toml")
        for path in stored.rglob("*.safetensors"):
            assert "rate" not in read_checkpoint(path).get("config", {})
        assert {path: path.read_bytes() for path in stored.rglob("*") if path.is_file()} == before


class TestSteps:
    def test_files_of_every_format_are_kept(self):
        assert [path.name for path in STORED] == [f"format-{n}.tar.xz" for n in range(2, 2 + len(STORED))]
        assert len(STORED) >= migrations.FORMAT - 2  # those of the present one at the latest before the next

    def test_every_format_has_a_step(self):
        assert sorted(migrations.STEPS) == list(range(2, migrations.FORMAT + 1))

    def test_new_settings_change_nothing_in_older_files(self):
        """Where this fails, read `storage/migrations.py`, then add the setting to FORMAT_5."""
        assert {field.name for field in fields(Settings)} == set(FORMAT_5.split())

    def test_a_checkpoint_without_a_newer_setting_is_resumed(self, tmp_path):
        settings = Settings(width=8, num_query_heads=2, depth=1, window=8, chunk_size=8)
        run = Run(tmp_path / "run", RunSettings(tasks=1, task_length=24, threads=1, checkpoint_seconds=0), settings)
        run.begin()
        run.execute()
        path = max((tmp_path / "run" / "checkpoints").iterdir())
        state = read_checkpoint(path)
        for without, refused in (("beta2", False), ("width", True)):  # the one has its default, the other has not
            config = {name: value for name, value in state["config"].items() if name != without}
            write_checkpoint(path, {**state, "config": config})
            again = Run(tmp_path / "run")
            reason = again._foreign(read_checkpoint(path))
            assert (reason is not None) == refused
            assert not refused or "width" in str(reason)

    def test_the_state_of_a_learner_can_be_renamed(self, tmp_path, monkeypatch, format_2):
        """What a restructured learner does: it writes format 6, with another key, and still reads the older ones."""

        def renamed(kind: str, state: dict) -> dict:
            assert kind in ("Learner", "KalmanNetwork", "ExperienceReplay", "ReplayStreams")
            return {"since_4" if name == "memory" else name: value for name, value in state.items()}

        monkeypatch.setattr(migrations, "FORMAT", migrations.FORMAT + 1)
        monkeypatch.setitem(migrations.STEPS, migrations.FORMAT, migrations.Step(state=renamed))
        run = read_checkpoint(max((format_2 / "finished" / "checkpoints").iterdir()))
        home = read_checkpoint(max((format_2 / "home" / "saves").iterdir()))
        saved = read_checkpoint(format_2 / "learner")
        for state in (run["learner"], home, saved["state"]):
            assert "since_4" in state["learner"]
            assert "memory" not in state["learner"]
        assert home["home"]["made"]["config"]["learning_rate"] == 0.06

    def test_files_of_a_later_version_are_refused(self, tmp_path, monkeypatch):
        later = migrations.FORMAT + 1
        with monkeypatch.context() as patch:
            patch.setattr("prequential.storage.checkpoint.FORMAT", later)
            write_checkpoint(tmp_path / "checkpoint", {"position": 1})
        with pytest.raises(BadCheckpoint, match="was made by a later version"):
            read_checkpoint(tmp_path / "checkpoint")
        text = write_settings(RunSettings(), Settings()).replace(f"format = {migrations.FORMAT}", f"format = {later}")
        (tmp_path / "settings.toml").write_text(text)
        for read in (read_settings, read_stored_settings):
            with pytest.raises(BadSetting, match=f"has format {later}, expected up to {migrations.FORMAT}"):
                read(tmp_path / "settings.toml")
        learner = Learner(2, home=tmp_path / "home", width=8, depth=1, window=8, num_query_heads=2)
        learner.learn([1.0, 2.0], "a")
        learner.close()
        made = tmp_path / "home" / "learner.json"
        made.write_text(made.read_text().replace(f"home-{migrations.FORMAT}", f"home-{later}"))
        with pytest.raises((BadInput, BadCheckpoint)):
            Learner.open(tmp_path / "home")
