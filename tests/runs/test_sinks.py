"""Sinks: the numbers of a run arrive in TensorBoard, MLflow and W&B, and a sink that fails does not end the run."""

from __future__ import annotations

import json

import pytest

from prequential.cli.app import main
from prequential.errors import MissingExtra
from prequential.runs import sinks

RUN = ["run", "--learner", "last-label", "--tasks", "2", "--task-length", "100", "--out"]


def accuracy(directory):
    return json.loads((directory / "scores.json").read_text())["accuracy"]


def test_tensorboard(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    main([*RUN, str(tmp_path / "run"), "--tensorboard"])
    found = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    last = found.Scalars("accuracy")[-1]
    assert last.step == 200
    assert last.value == pytest.approx(accuracy(tmp_path / "run"))
    assert {"kappa", "last_label_accuracy", "latest_accuracy", "log_loss"} <= set(found.Tags()["scalars"])


def test_mlflow(tmp_path, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking")
    uri = (tmp_path / "mlruns").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    main([*RUN, str(tmp_path / "run"), "--mlflow"])
    main(["resume", str(tmp_path / "run"), "--mlflow"])
    client = tracking.MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("prequential").experiment_id])  # resumed, not doubled
    assert found.data.metrics["accuracy"] == pytest.approx(accuracy(tmp_path / "run"))
    assert found.data.params["learner"] == "last-label"
    assert found.info.status == "FINISHED"
    assert [file.path for file in client.list_artifacts(found.info.run_id)] == ["curves.png"]


def test_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    main([*RUN, str(tmp_path / "run"), "--wandb"])
    (log,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"last_label_accuracy" in log.read_bytes()


def test_one_that_fails_is_turned_off(tmp_path, monkeypatch, capsys):
    class Broken:
        def __init__(self, *_):
            pass

        def log(self, step, numbers):
            raise OSError("the server is gone")

    monkeypatch.setitem(sinks.SINKS, "tensorboard", Broken)
    monkeypatch.setattr(sinks, "check_sinks", lambda names: None)
    main([*RUN, str(tmp_path / "run"), "--tensorboard"])
    assert capsys.readouterr().out.count("tensorboard is turned off: OSError: the server is gone") == 1
    assert accuracy(tmp_path / "run") is not None


def test_a_missing_package_is_said_before_anything_is_written(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"--wandb needs an optional package: pip install 'prequential\[wandb\]'"):
        sinks.check_sinks(["wandb"])
