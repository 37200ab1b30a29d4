"""Files of settings: what is in the wrong place or of the wrong kind is said in one sentence, and nothing begins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prequential.cli.app import main
from prequential.comparisons.compare import read_plan
from prequential.errors import PrequentialError
from prequential.runs.run_settings import RunSettings, read_settings, write_settings
from prequential.settings import Settings
from prequential.streams.spec import StreamSpec
from prequential.sweeps.plan import read_sweep

BAD = {
    "learner's under run": (b"[run]\nwidth = 64\n", r"width is under \[run\], expected it under \[learner\]"),
    "run's under learner": (b'[learner]\nstream = "digits"\n', r"stream is under \[learner\], expected it under \[run\]"),
    "twice": (b"width = 64\n[learner]\nwidth = 32\n", r"width is given twice, at the top and under \[learner\]"),
    "twice, spelled otherwise": (b"[learner]\nweight-decay = 1.0\nweight_decay = 1.0\n", "weight_decay is given twice"),
    "twice in TOML": (b"[learner]\nwidth = 1\nwidth = 2\n", "is not a TOML file"),
    "a table twice": (b"[learner]\nwidth = 1\n[learner]\ndepth = 2\n", "is not a TOML file"),
    "unknown": (b"[learner]\nwidht = 1\n", "unknown setting 'widht'; did you mean 'width'"),
    "unknown, long": (b"[learner]\n" + b"x" * 5000 + b" = 1\n", "unknown setting"),
    "a table inside": (b"[learner.width]\na = 1\n", "width is .*, expected a whole number"),
    "no table": (b"run = 3\n", "unknown setting 'run'"),
    "not UTF-8": (b'[run]\nstream = "\xff\xfe"\n', "byte 16 is 0xff, expected UTF-8"),
    "UTF-16": ("[learner]\nwidth = 1\n".encode("utf-16"), "expected UTF-8"),
    "binary": (bytes(range(256)) * 10, "is not a TOML file"),
    "no TOML": (b"width: 64\n", "is not a TOML file"),
    "a word for a number": (b'[learner]\nwidth = "64"\n', "width is '64', expected a whole number"),
    "a fraction": (b"[learner]\nwidth = 64.5\n", "width is 64.5, expected a whole number"),
    "a truth for a number": (b"[learner]\nwidth = true\n", "width is True, expected a whole number"),
    "a list for a truth": (b"[learner]\nasync_steps = [true]\n", r"async_steps is \[True\], expected true or false"),
    "a number for a word": (b"[run]\nlearner = 3\n", "learner is 3, expected a word"),
    "a date": (b"[run]\nstream = 2024-01-01\n", "stream is datetime.date.*, expected a word"),
    "a number among words": (b'[run]\nfeatures = ["a", 1]\n', "features is .*, expected a list of a word"),
    "none of the choices": (b'[learner]\nmethod = "magic"\n', "method is 'magic', expected one of mixed, paper, copy"),
    "a number for a path": (b"[run]\nimages = 3\n", "images is 3, expected"),
    "not a number": (b"[learner]\nlearning_rate = nan\n", r"learning_rate \(nan\) must be"),
    "endless": (b"[learner]\nlearning_rate = inf\n", r"learning_rate \(inf\) must be at most"),
    "never saved": (b"[run]\ncheckpoint_seconds = nan\n", r"checkpoint_seconds \(nan\) must be at least 0"),
    "negative": (b"[run]\nexamples = -1\n", r"examples \(-1\) must be at least 1"),
    "huge": (b"[learner]\nwidth = 99999999999999999999999\n", "must be at most|expected"),
    "too many threads": (b"[run]\nthreads = 100000\n", r"threads \(100000\) must be at most 1,024"),
    "thousands of digits": (b"[learner]\nwidth = 1" + b"0" * 6000 + b"\n", "is not a TOML file"),
    "a hexadecimal number with thousands of digits": (b"[learner]\nwidth = 0x1" + b"0" * 6000 + b"\n", "must be at most"),
    "deep": (b"a = " + b"[" * 5000 + b"]" * 5000 + b"\n", "nested too deep"),
    "large": (b"# " + b"x" * 2**20 + b"\n", "is larger than 1,048,576 bytes"),
    "a long value": (b'[learner]\nmethod = "' + b"x" * 100_000 + b'"\n', "method is .*, expected one of"),
}  # fmt: skip


def sentence(error) -> str:
    said = str(error.value)
    assert len(said) <= 300
    assert "\n" not in said
    return said


def made(path):
    run, learner = read_settings(path)
    return RunSettings(**run), Settings(**learner)


@pytest.mark.parametrize("name", BAD)
def test_a_run(tmp_path, name):
    content, pattern = BAD[name]
    (tmp_path / "settings.toml").write_bytes(content)
    with pytest.raises(PrequentialError, match=pattern) as error:
        made(tmp_path / "settings.toml")
    sentence(error)


@pytest.mark.parametrize("name", BAD)
def test_a_comparison(tmp_path, name):
    content, pattern = BAD[name]
    first = b'[compare]\nlearners = ["majority"]\nstreams = ["digits"]\nseeds = [0]\ntable1 = false\n'
    top = content if content.startswith((b"[", b"\xff")) else b""
    (tmp_path / "compare.toml").write_bytes(first + top if top else content + first)
    with pytest.raises(PrequentialError, match=pattern if "UTF-8" not in pattern else "UTF-8") as error:
        read_plan(tmp_path)
    sentence(error)


@pytest.mark.parametrize("name", BAD)
def test_a_sweep(tmp_path, name):
    content, pattern = BAD[name]
    last = b"[vary]\nchunk = [10, 20]\n[sweep]\nmethod = 'grid'\n"
    (tmp_path / "sweep.toml").write_bytes(content + last)
    with pytest.raises(PrequentialError, match=pattern) as error:
        read_sweep(tmp_path / "sweep.toml")
    sentence(error)


@pytest.mark.parametrize(
    "compare",
    [
        "",
        "compare = 3",
        "[compare]",
        "[compare]\nlearners = 'majority'\nstreams = ['digits']\nseeds = [0]\ntable1 = false",
        "[compare]\nlearners = ['majority']\nstreams = [1]\nseeds = [0]\ntable1 = false",
        "[compare]\nlearners = ['majority']\nstreams = ['digits']\nseeds = [true]\ntable1 = false",
        "[compare]\nlearners = ['majority']\nstreams = ['digits']\nseeds = [-1]\ntable1 = false",
        "[compare]\nlearners = ['majority']\nstreams = ['digits']\nseeds = [0]\ntable1 = 0",
        "[compare]\nlearners = []\nstreams = ['digits']\nseeds = [0]\ntable1 = false",
        "[compare]\nlearners = ['majority']\nstreams = ['digits']\nseeds = [0]\ntable1 = false\nrun = 3",
    ],
)
def test_the_table_of_a_comparison(tmp_path, compare):
    (tmp_path / "compare.toml").write_text(compare)
    with pytest.raises(PrequentialError) as error:
        read_plan(tmp_path)
    sentence(error)


@pytest.mark.parametrize("name", ["learner's under run", "not UTF-8", "a word for a number", "huge", "deep", "twice"])
def test_on_the_command_line_nothing_begins(tmp_path, capsys, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_bytes(BAD[name][0])
    with pytest.raises(SystemExit) as left:
        main(["run", "--config", "my.toml"])
    said = capsys.readouterr().err
    assert left.value.code in (1, 2)
    assert len(said) <= 300
    assert said.startswith("prequential: ")
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["my.toml"]


def test_what_is_no_file_or_cannot_be_read(tmp_path):
    (tmp_path / "closed.toml").write_text("")
    (tmp_path / "closed.toml").chmod(0)
    places = [tmp_path, tmp_path / "gone.toml", tmp_path / "a\0b.toml", tmp_path / ("x" * 300)]
    if os.geteuid():  # root reads everything
        places.append(tmp_path / "closed.toml")
    for place in places:
        for read in (read_settings, read_sweep):
            with pytest.raises(PrequentialError, match="cannot read the") as error:
                read(place)
            sentence(error)


@pytest.mark.parametrize(("kind", "given"), [(Settings, {"width": "64"}), (RunSettings, {"tasks": "3"}), (Settings, {"async_steps": 1}), (RunSettings, {"images": "x"})])  # fmt: skip
def test_in_python_too(kind, given):
    with pytest.raises(PrequentialError, match=f"{next(iter(given))} is .*, expected") as error:
        kind(**given)
    sentence(error)


@pytest.mark.parametrize("value", [10**5000, -(10**5000)], ids=["large", "small"])
def test_numbers_with_thousands_of_digits(value):
    for kind, name in ((Settings, "width"), (Settings, "seed"), (RunSettings, "threads")):
        with pytest.raises(PrequentialError, match=rf"{name} \(a number of more than 20 digits\) must be at") as error:
            kind(**{name: value})
        sentence(error)


def test_what_is_written_is_read(tmp_path):
    run = RunSettings(images=Path("a/b"), features=["x", "y"], threads=1, checkpoint_seconds=3)
    learner = Settings(width=64, learning_rate=1, ema_decay=0)
    (tmp_path / "settings.toml").write_text("\ufeff" + write_settings(run, learner))
    assert made(tmp_path / "settings.toml") == (run, learner)
    (tmp_path / "flat.toml").write_text('learner = "majority"\nweight-decay = 0.5\n')
    assert read_settings(tmp_path / "flat.toml") == ({"learner": "majority"}, {"weight_decay": 0.5})


@pytest.mark.parametrize("stream", ["x" * 5000, "csv:" + "x" * 5000, "a\0b", "x" * 300 + "(a=1)"])
def test_a_stream_that_cannot_be_a_path(stream):
    assert StreamSpec.parse(stream).absolute() == stream
