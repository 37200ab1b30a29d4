"""The options of a stream are the same in every command that reads one."""

from __future__ import annotations

import io
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from prequential import exits
from prequential.cli.app import app, main
from prequential.errors import BadSetting
from prequential.experiments import NAMES
from prequential.experiments.experiment import Request
from prequential.experiments.runner import list_experiments, run_experiment
from prequential.runs.run_settings import StreamSettings

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def flags(command):
    return {name for argument in app[command].assemble_argument_collection() for name in argument.names}


@pytest.fixture
def table(tmp_path):
    x = np.random.default_rng(0).normal(size=40)
    lines = ["a,up,b", *(f"{value:.3f},{'yes' if value > 0 else 'no'},{i}" for i, value in enumerate(x))]
    (tmp_path / "prices.csv").write_text("\n".join(lines))
    return tmp_path / "prices.csv"


@pytest.mark.parametrize("command", ["run", "compare", "sweep", "experiment"])
def test_every_command_has_them(command):
    wanted = {f"--{field.name.replace('_', '-')}" for field in fields(StreamSettings)}
    assert wanted <= flags(command)
    assert "--stream" in flags(command)


def test_compare_reads_the_column_that_is_named(table, tmp_path, capsys):
    options = ["--label", "up", "--features", "a", "--examples", "30", "--jobs", "0", "--out", str(tmp_path / "out")]
    main(["compare", "--learners", "majority", "--on", str(table), *options])
    assert "30 examples, 2 classes" in " ".join(capsys.readouterr().out.split())
    kept = tomllib.loads((tmp_path / "out" / "compare.toml").read_text())["run"]
    assert (kept["label"], kept["features"], kept["examples"]) == ("up", ["a"], 30)


def test_sweep_takes_them_over_its_file_and_keeps_them(table, tmp_path, capsys):
    pytest.importorskip("optuna")
    file = tmp_path / "s.toml"
    file.write_text('[sweep]\nmethod="grid"\n[run]\nlearner="majority"\nlabel="b"\n[vary]\n"majority.window"=[5]\n')
    main(["sweep", str(file), "--stream", str(table), "--label", "up", "--jobs", "0", "--out", str(tmp_path / "out")])
    assert "1 trials done" in capsys.readouterr().out
    kept = tomllib.loads((tmp_path / "out" / "sweep.toml").read_text())["run"]
    assert kept == {"learner": "majority", "label": "up", "stream": str(table)}


def test_experiment_refuses_what_it_varies_itself(tmp_path):
    request = Request(scale="small", seeds=1, stream="emnist:none.npz", reading={"task_length": 50})
    with pytest.raises(BadSetting, match=r"task_length is what split-emnist-lengths varies \(100, 300, 600\)"):
        run_experiment("split-emnist-lengths", request, tmp_path)


def test_the_list_of_experiments_says_data_and_time():
    text = io.StringIO()
    list_experiments(Console(file=text, width=400))
    lines = text.getvalue().splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(NAMES)
    for line in lines:
        assert re.search("none, |--stream", line)
        assert re.search("minute|hours", line)


def test_the_page_names_every_command_and_exit_code():
    page = PAGE.read_text()
    commands = [name for name in app if not name.startswith("-")]
    assert [name for name in commands if f"`{name}" not in page] == []
    for code in (0, exits.UNUSABLE, exits.USAGE, exits.INTERNAL, exits.INTERRUPTED):
        assert f"| {code} |" in page


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_commands(shell):
    script = app.generate_completion(shell=shell)
    assert "label-batches" in script
    assert "experiment" in script
