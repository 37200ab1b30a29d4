"""Settings by the names that they had before."""

from __future__ import annotations

import warnings
from dataclasses import fields
from pathlib import Path

import pytest

from prequential.baselines import ACM, ExperienceReplay, ReplayStreams
from prequential.cli.app import main
from prequential.cli.old_flags import current_flags
from prequential.comparisons.compare import Plan
from prequential.errors import BadSetting
from prequential.learners.transformer.learner import Learner
from prequential.registry import make_learner
from prequential.renames import OPTIONS, SETTINGS, RenamedSetting, current_names, one_warning, without_warning
from prequential.runs.run import Run
from prequential.runs.run_settings import read_settings, read_stored_settings
from prequential.settings import Settings
from prequential.storage.migrations import OLD_DEFAULTS
from shared.flags import TINY_FLAGS

TINY = [*TINY_FLAGS, "--tasks", "1", "--task-length", "20"]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Settings(rate=0.5).learning_rate, 0.5),
        (lambda: Settings().changed(streams=3).num_streams, 3),
        (lambda: Settings(num_streams=5).streams, 5),
        (lambda: Learner(6, rate=0.5).settings.learning_rate, 0.5),
        (lambda: Learner(6, settings=Settings(depth=1), average=0.5).settings.ema_decay, 0.5),
        (lambda: ExperienceReplay(2, hidden=[8]).hidden_sizes, (8,)),
        (lambda: ACM(2, neighbours=3).num_neighbors, 3),
        (lambda: ReplayStreams(2, average=0.5).ema_rate, 0.5),
        (lambda: make_learner("transformer(chunk=7)", 2).settings.chunk_size, 7),
        (lambda: make_learner("er(hidden=[8])", 2).hidden_sizes, (8,)),
        (lambda: make_learner("sklearn:linear_model.SGDClassifier(standardise=false)", 2).standardize, False),
    ],
)
def test_old_names_work_in_python_with_one_warning(make, expected):
    with pytest.warns(RenamedSetting, match="is now called") as warned:
        assert make() == expected
    assert len(warned) == 1


def test_the_warning_names_all_of_them_and_shows_the_caller():
    with pytest.warns(RenamedSetting) as warned:
        Settings(rate=0.5, streams=2, width=64)
    assert [str(w.message) for w in warned] == ["rate is now called learning_rate; streams is now called num_streams"]
    assert warned[0].filename == __file__


def test_new_names_are_settings_and_old_ones_are_none():
    names = {field.name for field in fields(Settings)}
    assert set(SETTINGS.values()) <= names
    assert not SETTINGS.keys() & names
    assert not OPTIONS.keys() & set(OPTIONS.values())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Settings(rate=0.5, learning_rate=0.5),
        lambda: Learner(2, rate=0.5, learning_rate=0.1),
        lambda: ExperienceReplay(2, rate=0.5, learning_rate=0.5),
        lambda: make_learner("er(rate=1, learning_rate=1)", 2),
        lambda: current_flags(["run", "--rate", "1", "--learning-rate=2"]),
    ],
)
def test_both_names_are_refused(make):
    with pytest.raises(BadSetting, match=r"rate is now called (--)?learning.rate: both are given, leave out (--)?rate"):
        make()


def test_an_unknown_name_gets_the_nearest_one_suggested():
    with pytest.raises(BadSetting, match="unknown setting 'learnig_rate'; did you mean 'learning_rate'"):
        Settings().changed(learnig_rate=1)
    with pytest.raises(BadSetting, match="unknown setting 'streamz'"):
        Learner(2, streamz=1)


def test_files_of_users_warn_once_and_those_of_runs_do_not(tmp_path: Path):
    path = tmp_path / "own.toml"
    path.write_text("label-scale = 0.5\n[learner]\nrate = 0.5\nstreams = 2\n")
    expected = {"label_init_std": 0.5, "learning_rate": 0.5, "num_streams": 2}
    with pytest.warns(RenamedSetting, match="label_scale .*; rate .*; streams is now called num_streams") as warned:
        assert read_settings(path)[1] == expected
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_stored_settings(path)[1] == {**expected, **OLD_DEFAULTS[4], **OLD_DEFAULTS[5]}  # as it was then
    path.write_text("rate = 0.5\n[learner]\nlearning_rate = 0.5\n")
    with pytest.raises(BadSetting, match="rate is now called learning_rate, and it is given twice; leave out rate"):
        read_settings(path)


def test_flags():
    given = ["run", "--rate=0.5", "--no-behind", "--learner", "er(rate=1)", "--chunk", "4"]
    with pytest.warns(RenamedSetting) as warned, one_warning():
        assert current_flags(given) == [
            "run", "--learning-rate=0.5", "--no-async-steps", "--learner", "er(rate=1)", "--chunk-size", "4",
        ]  # fmt: skip
    assert len(warned) == 1
    assert current_flags(["features", "--rate", "1"]) == ["features", "--rate", "1"]


def test_on_the_command_line_there_is_one_line(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)
    (tmp_path / "own.toml").write_text("heads = 2\n")
    main(
        [
            "run",
            *TINY[:2],
            *TINY[4:],
            "--rate",
            "0.5",
            "--config",
            str(tmp_path / "own.toml"),
            "--out",
            str(tmp_path / "a"),
        ]
    )
    assert capsys.readouterr().err == (
        "prequential: rate is now called learning_rate; heads is now called num_query_heads\n"
    )
    assert Run(tmp_path / "a").learner_settings.learning_rate == 0.5
    main(["run", *TINY, "--learner", "er(hidden=[4])", "--out", str(tmp_path / "b")])
    assert capsys.readouterr().err == "prequential: hidden is now called hidden_sizes\n"
    main(["resume", str(tmp_path / "b")])
    main(["show", str(tmp_path / "b")])
    assert capsys.readouterr().err == ""


def test_a_setting_that_is_gone_is_accepted(tmp_path: Path):
    path = tmp_path / "own.toml"
    path.write_text("[learner]\ngraphs = false\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it had no effect then either
        assert Settings(graphs=False, width=64) == Settings(width=64)
        assert current_flags(["run", "--no-graphs", "--graphs=false"]) == ["run"]
        assert read_settings(path) == ({}, {})
        make_learner("transformer(graphs=false)", 2)
    with pytest.warns(RenamedSetting, match="^graphs has no effect any more$"):
        assert Settings(graphs=True) == Settings()
    with pytest.warns(RenamedSetting, match="^graphs has no effect any more$"):
        assert current_flags(["compare", "--graphs", "--width", "8"]) == ["compare", "--width", "8"]


def test_silence_and_collecting():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with without_warning():
            assert current_names({"rate": 1}, SETTINGS) == {"learning_rate": 1}
        assert current_names({"rate": 1, "width": 2}, SETTINGS, warn=False) == {"learning_rate": 1, "width": 2}


def test_a_comparison_that_is_continued_does_not_repeat_a_learner_under_its_new_names():
    with without_warning():
        before = Plan(learners=("er(hidden=[8])", "last-label"), streams=("digits",))
    more = Plan(learners=("er(hidden_sizes=[8])", "majority"), streams=("digits",))
    with without_warning():
        assert before.with_more(more).learners == ("er(hidden=[8])", "last-label", "majority")
