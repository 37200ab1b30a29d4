"""How the command line ends: one short sentence for every error, and an exit code that says of which kind it was."""

import errno
import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import optuna
import PIL
import pyarrow as pa
import pytest
import sqlalchemy.exc
import torch

from prequential.baselines import Kalman
from prequential.cli import app as cli
from prequential.cli.app import main
from prequential.errors import BadInput, BadSetting
from prequential.exits import INTERNAL, INTERRUPTED, TRACEBACK, UNUSABLE, USAGE
from prequential.learners.transformer.learner import Learner


def end(arguments, capsys):
    """The exit code and the only line on stderr."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr().err
    assert said.startswith("prequential: "), said
    assert said.count("\n") == 1, said
    assert len(said) <= 301, said
    return ended.value.code, said.removeprefix("prequential: ").strip()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--width", "abc"], 'Invalid value for --width: unable to convert "abc" into int'),
        (["run", "--width", "nan"], "Invalid value for --width"),
        (["run", "--learning-rate", "nan"], "learning_rate (nan) must be at"),
        (["run", "--learning-rate", "-inf"], "learning_rate (-inf) must be at"),
        (["run", "--widht", "3"], "Unknown option: --widht. Did you mean --width?"),
        (["run", "--width", "w" * 100_000], "Invalid value for --width"),
        (["run", "--width"], "--width requires an argument"),
        (["run", "--tasks", "1", "--device", "\udcff"], "device ('\\udcff') is no text"),
        (
            ["compare", "--learners", "majority", "--seeds", "9" * 30, "--jobs", "0"],
            "seed (a number of more than 20 digits)",
        ),
        (["walk"], 'Unknown command "walk"'),
        (["resume"], "DIRECTORY requires an argument"),
        (["run", "--width", "80000000000"], "more than this machine has"),
        (["run", "--depth", "100000000"], "more than this machine has"),
        (["run", "--window", "99999999999"], "more than this machine has"),
        (["run", "--classes", "999999999999"], "more than this machine has"),
    ],
)
def test_a_wrong_command_or_setting_is_one_sentence_and_code_2(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, said = end(arguments, capsys)
    assert (code, words in said) == (USAGE, True), said
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_read_or_written_is_one_sentence_and_code_1(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").mkdir()
    for arguments, words in (
        (["run", "--tasks", "1", "--out", str(tmp_path / "file" / "run")], "Not a directory"),
        (["run", "--config", str(tmp_path)], "Is a directory"),
        (["run", "--config", str(tmp_path / "file")], "0xff"),
        (["sweep", str(tmp_path / "file")], "0xff"),
        (["show", str(tmp_path / "empty")], "holds no run"),
        (["report", str(tmp_path / "empty")], "has 0 runs that have recorded something"),
    ):
        code, said = end(arguments, capsys)
        assert code == UNUSABLE
        assert words in said, said


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a/b"), "a/b: No space left on device", UNUSABLE),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "a/b"), "Too many open files", UNUSABLE),
        (PermissionError(errno.EACCES, "Permission denied", b"a"), "a: Permission denied", UNUSABLE),
        (MemoryError(), "not enough memory", UNUSABLE),
        (KeyboardInterrupt(), "stopped", INTERRUPTED),
        (pa.ArrowInvalid("no\nadvice"), "ArrowInvalid: no", UNUSABLE),
        (zipfile.BadZipFile("not a zip file"), "BadZipFile: not a zip file", UNUSABLE),
        (json.JSONDecodeError("bad", "{", 0), "JSONDecodeError: bad", UNUSABLE),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"), "UnicodeDecodeError: 'utf-8'", UNUSABLE),
        (PIL.UnidentifiedImageError("no image"), "UnidentifiedImageError: no image", UNUSABLE),
        (sqlalchemy.exc.OperationalError("select", {}, Exception("locked")), "locked", UNUSABLE),
        (optuna.exceptions.StorageInternalError("gone"), "gone", UNUSABLE),
        (torch.OutOfMemoryError("CUDA out of memory"), "not enough memory", UNUSABLE),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "not enough memory", UNUSABLE),
        (BadInput("x\ny"), "x y", UNUSABLE),
        (BadSetting("width"), "width", USAGE),
        (KeyError("k" * 1000), "internal error: KeyError: 'kkk", INTERNAL),
        (AssertionError(), "internal error: AssertionError: no reason given", INTERNAL),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_kind_of_error_is_one_sentence(error, said, code, monkeypatch, capsys):
    def fail(arguments):
        raise error

    monkeypatch.setattr(cli, "_config", fail)
    found, sentence = end([], capsys)
    assert found == code
    assert said in sentence
    assert (TRACEBACK in sentence) == (code == INTERNAL)


def test_a_traceback_is_shown_where_it_is_asked_for(monkeypatch, capsys):
    monkeypatch.setenv(TRACEBACK, "1")
    monkeypatch.setattr(cli, "_config", lambda arguments: {}["k"])
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == INTERNAL
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error():
    command = [sys.executable, "-m", "prequential", "experiment", "list"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()  # before anything is written
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == UNUSABLE


def test_an_output_that_is_full_is_one_sentence():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "prequential", "experiment", "list"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (UNUSABLE, "prequential: No space left on device\n")


def test_what_cannot_fit_into_memory_is_refused_before_it_is_allocated(monkeypatch):
    monkeypatch.setattr("prequential.memory_limits.memory_bytes", lambda: 8 * 10**9)
    for settings in ({"width": 2**38}, {"depth": 10**9}, {"window": 10**11}, {"num_streams": 10**10}):
        with pytest.raises(BadSetting, match="of memory, more than this machine has"):
            Learner(2, **settings)
    with pytest.raises(BadSetting, match=r"classes \(1000000000000\) would take"):
        Kalman(10**12)
    for learner in (Kalman(2), Learner(2, width=2048, depth=1, recent_window=0)):
        with pytest.raises((BadInput, BadSetting), match=r"10000000 features.* of memory, more than this machine has"):
            learner.learn(np.zeros(10_000_000, np.uint8), 0)
        learner.predict(np.zeros(3))
        assert learner.shape is None
