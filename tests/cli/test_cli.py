"""What the command line says, beyond what the runs themselves do."""

import numpy as np
import pytest

from prequential.cli.app import main
from prequential.streams.tasks import SplitStream

FLAGS = ["--width", "8", "--num-query-heads", "2", "--depth", "1", "--window", "16", "--chunk-size", "10", "--num-streams", "2", "--threads", "1"]  # fmt: skip
DIGITS = ["--tasks", "2", "--task-length", "20"]


def test_how_a_stream_is_read_is_told_at_the_start(tmp_path, monkeypatch, capsys):
    sentence = "reads [age] as a number, [city] as a category, and " + "many others " * 20
    monkeypatch.setattr(SplitStream, "describe", lambda self: sentence.strip(), raising=False)
    main(["run", *FLAGS, *DIGITS, "--out", str(tmp_path / "run")])
    lines = capsys.readouterr().out.splitlines()
    assert "40 examples, 10 classes" in " ".join(lines[:2])  # the title, which a narrow terminal may break
    assert lines.index(sentence.strip()) in (1, 2, 3)
    main(["resume", str(tmp_path / "run")])
    assert sentence.strip() not in capsys.readouterr().out.splitlines()


def test_streams_that_do_not_describe_themselves(tmp_path, capsys):
    assert not hasattr(SplitStream, "describe")
    main(["run", *FLAGS, *DIGITS, "--out", str(tmp_path / "run")])
    assert "40 examples, average accuracy" in capsys.readouterr().out


def test_too_many_labels_name_the_flag(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=(60, 3)), y=np.arange(60) % 3)
    with pytest.raises(SystemExit):
        main(["run", *FLAGS, "--stream", str(tmp_path / "a.npz"), "--classes", "2", "--out", str(tmp_path / "run")])
    said = capsys.readouterr().err
    assert "label 2 is new, but all 2 classes are taken" in said
    assert "classes=3 or more (--classes 3 on the command line)" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("value", ["window", "window=", "=16"])
def test_only_takes_a_name_and_a_value(value, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["experiment", "cloc-window", "--only", value, "--out", str(tmp_path)])
    assert f"--only takes TAG=VALUE, such as window=16, but got {value}" in " ".join(capsys.readouterr().err.split())
