"""What a directory or a checkpoint that somebody else has made may make this package do: nothing but learn."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from prequential.checkpoint import read_checkpoint, write_checkpoint
from prequential.cli import main
from prequential.learners.baselines import RiverLearner, SklearnLearner

pytest.importorskip("sklearn")
SMALL = ["--stream", "digits(tasks=2, task_length=20)", "--classes", "10", "--device", "cpu"]


@pytest.fixture
def marked(tmp_path):
    """A tree that must survive, and a file that must not come to be."""
    tree = tmp_path / "precious"
    (tree / "inner").mkdir(parents=True)
    (tree / "inner" / "thesis.txt").write_text("years of work")
    return tree, tmp_path / "executed"


def attacks(tree: Path, made: Path) -> list[str]:
    code = f"open({str(made)!r}, 'w').close()"
    return [
        f"sklearn:utils._testing.assert_run_python_script_without_output(source_code={json.dumps(code)})",
        f"sklearn:datasets.clear_data_home(data_home={json.dumps(str(tree))})",
        f"sklearn:multiclass.OneVsRestClassifier(estimator=datasets.clear_data_home(data_home={json.dumps(str(tree))}))",
        f"river:ensemble.BaggingClassifier(model=stream.Cache(directory={json.dumps(str(tree))}))",
    ]


def refused(capsys, arguments) -> str:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert len(said) <= 315
    assert said.count("\n") == 1
    return said


def intact(tree: Path, made: Path) -> bool:
    return (tree / "inner" / "thesis.txt").is_file() and not made.exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("stored") / "run"
    main(["run", *SMALL, "--learner", "majority", "--out", str(directory)])
    return directory


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("command", ["resume", "show"])
def test_a_run_directory_executes_nothing(tmp_path, capsys, marked, finished, command, number):
    run = shutil.copytree(finished, tmp_path / "run")
    settings = (run / "settings.toml").read_text()
    attack = attacks(*marked)[number]
    (run / "settings.toml").write_text(settings.replace('learner = "majority"', f"learner = {json.dumps(attack)}"))
    capsys.readouterr()
    assert "is not in" in refused(capsys, [command, run])
    assert intact(*marked)


@pytest.mark.parametrize("number", range(4))
def test_a_comparison_executes_nothing(tmp_path, capsys, marked, number):
    attack = attacks(*marked)[number]
    directory = tmp_path / "compare"
    directory.mkdir()
    (directory / "compare.toml").write_text(
        f'[compare]\nlearners = [{json.dumps(attack)}]\nstreams = ["digits"]\nseeds = [0]\ntable1 = false\n'
        "[run]\n[learner]\n"
    )
    for arguments in (["compare", "--out", directory], ["pareto", directory]):
        assert "is not in" in refused(capsys, arguments)
        assert intact(*marked)


@pytest.mark.parametrize("number", range(4))
def test_a_sweep_executes_nothing(tmp_path, capsys, marked, number):
    pytest.importorskip("optuna")
    attack = attacks(*marked)[number]
    file = tmp_path / "sweep.toml"
    file.write_text(f'[sweep]\nmethod = "grid"\n[vary]\nlearner = ["majority", {json.dumps(attack)}]\n')
    assert "is not in" in refused(capsys, ["sweep", file, "--out", tmp_path / "out", "--jobs", "0"])
    assert intact(*marked)


@pytest.mark.parametrize("kind", [RiverLearner, SklearnLearner])
def test_a_checkpoint_executes_nothing(tmp_path, marked, kind):
    if kind is RiverLearner:
        pytest.importorskip("river")
    tree, made = marked
    learner = kind(2, model="naive_bayes.GaussianNB")
    learner.save(tmp_path / "learner")
    saved = read_checkpoint(tmp_path / "learner")
    code = f"open({str(made)!r}, 'w').close()"
    for model, settings in (
        ("utils._testing.assert_run_python_script_without_output", {"source_code": code}),
        ("datasets.clear_data_home", {"data_home": str(tree)}),
        (
            "multiclass.OneVsRestClassifier",
            {"estimator": {"class": "datasets.clear_data_home", "data_home": str(tree)}},
        ),
        ("ensemble.BaggingClassifier", {"model": {"class": "datasets.clear_data_home", "data_home": str(tree)}}),
        ({"class": "datasets.clear_data_home"}, {}),
        ("naive_bayes.GaussianNB", ["data_home"]),
    ):
        saved["config"] |= {"model": model, "settings": settings}
        write_checkpoint(tmp_path / "crafted", saved)
        with pytest.raises(Exception, match=r"model|settings") as error:
            kind.load(tmp_path / "crafted")
        assert len(str(error.value)) <= 300
        assert intact(*marked)
