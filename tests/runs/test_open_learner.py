"""From a run, a home or a file to its learner: it predicts as it did, learns on, and nothing in the run changes."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest

import prequential
from prequential.errors import BadInput, PrequentialError
from prequential.learners.transformer.learner import Learner
from prequential.runs.run import Run
from prequential.runs.run_settings import RunSettings
from prequential.settings import Settings
from prequential.storage.checkpoint import same_state
from prequential.trust import Untrusted

SMALL = Settings(width=8, num_query_heads=2, depth=1, window=16, chunk_size=10, num_streams=2)
LEARNERS = ("transformer", "majority", "er(hidden_sizes=[4])", "river:naive_bayes.GaussianNB", "kalman")


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)


def write_table(path: Path, rows: int = 57) -> Path:
    draws = np.random.default_rng(0)
    lines = [f"{draws.normal():.3f},{draws.choice(['a', 'b'])},{t % 3}" for t in range(rows)]
    path.write_text("\n".join(["number,letter,label", *lines]) + "\n")
    return path


def finished_run(folder: Path, learner: str = "transformer", *, stop: int | None = None) -> Run:
    table = write_table(folder / "table.csv")
    run = Run(folder / "run", RunSettings(stream=str(table), learner=learner, threads=1, classes=3), SMALL)
    run.begin()

    def progress(run: Run) -> None:
        run.stopped = stop is not None and run.position >= stop

    run.execute(progress)
    return run


def listing(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def test_the_learner_of_a_run_is_the_one_that_ran(tmp_path):
    for i, name in enumerate(LEARNERS):
        (folder := tmp_path / str(i)).mkdir()
        run = finished_run(folder, name)
        before = listing(folder / "run")
        learner = prequential.open(folder / "run")
        x = run.stream.read(0, 20).x
        expected = run.learner.predict_log_proba_many(x)
        assert np.array_equal(learner.predict_log_proba_many(x), expected), name
        assert type(learner) is type(run.learner)
        assert learner.position == 57
        # both learn on alike, and the past that they replay is that of the run's stream
        for one in (learner, run.learner):
            one.learn_many(-x, [0, 1] * 10)
        assert np.array_equal(learner.predict_log_proba_many(x), run.learner.predict_log_proba_many(x)), name
        assert listing(folder / "run") == before, name


def test_the_learner_of_a_run_that_was_stopped(tmp_path):
    run = finished_run(tmp_path, stop=30)
    assert run.position < 57
    learner = prequential.open(tmp_path / "run")
    assert same_state(learner.state_dict(), run.learner.state_dict())
    (tmp_path / "run" / "settings.toml").unlink()  # the checkpoint says what it was
    assert same_state(prequential.open(tmp_path / "run").state_dict(), run.learner.state_dict())


@pytest.mark.parametrize("change", ["gone", "changed"])
def test_without_its_stream_it_predicts_but_does_not_learn(tmp_path, change):
    run = finished_run(tmp_path)
    x, expected = run.stream.read(0, 5).x, run.learner.predict_log_proba_many(run.stream.read(0, 5).x)
    if change == "gone":
        (tmp_path / "table.csv").unlink()
    else:
        write_table(tmp_path / "table.csv", 58)
    learner = prequential.open(tmp_path / "run")
    before = learner.state_dict()
    assert np.array_equal(learner.predict_log_proba_many(x), expected)
    with pytest.raises(BadInput, match=r"to learn on, the learner of .*run reads its past from .*(sv|…)") as error:
        learner.learn_many(x, [0, 1, 2, 0, 1])
    assert len(str(error.value)) <= 300
    assert same_state(learner.state_dict(), before)


def test_a_learner_without_replay_needs_no_stream(tmp_path):
    x = finished_run(tmp_path, "majority").stream.read(0, 5).x
    (tmp_path / "table.csv").unlink()
    learner = prequential.open(tmp_path / "run")
    learner.learn_many(x, [0, 1, 2, 0, 1])
    assert learner.position == 62


def test_homes_and_files_of_every_kind(tmp_path):
    learner = Learner(2, home=tmp_path / "home", settings=SMALL)
    learner.learn([1.0, 2.0], "a")
    learner.close()
    opened = prequential.open(tmp_path / "home")
    assert (opened.position, opened.home) == (1, tmp_path / "home")
    for name in LEARNERS:
        learner = prequential.make_learner(name, 2, settings=SMALL)
        learner.learn_many([[1.0, 2.0], [3.0, 4.0]], ["a", "b"])
        learner.save(tmp_path / "file")
        opened = prequential.open(tmp_path / "file")
        assert same_state(opened.state_dict(), learner.state_dict()), name


def test_a_class_of_ones_own_needs_trust(tmp_path, monkeypatch):
    (tmp_path / "own_opened.py").write_text("from prequential import Majority\nclass Mine(Majority):\n    names = {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    run = finished_run(tmp_path, "own_opened:Mine")
    run.learner.save(tmp_path / "file")
    for path in (tmp_path / "run", tmp_path / "file"):
        with pytest.raises(Untrusted, match=r"to import the learner own_opened:Mine.*trust=True"):
            prequential.open(path)
        assert same_state(prequential.open(path, trust=True).state_dict(), run.learner.state_dict())


def test_what_holds_no_learner_is_refused_in_one_sentence(tmp_path):
    run = finished_run(tmp_path)
    checkpoint = next((run.directory / "checkpoints").iterdir())
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("hello")
    for path, sentence in (
        (tmp_path / "nowhere", "does not exist"),
        (tmp_path / "empty", "holds no learner; expected the directory of a run, a home, or a file"),
        (tmp_path / "text", "is damaged"),
        (checkpoint, "is a checkpoint of a run; open the directory"),
    ):
        with pytest.raises(PrequentialError, match=sentence) as error:
            prequential.open(path)
        assert len(str(error.value)) <= 300
    checkpoint.unlink()
    for path in (run.directory / "checkpoints").iterdir():
        path.unlink()
    with pytest.raises(BadInput, match="has saved no checkpoint yet"):
        prequential.open(run.directory)


def test_repr_says_what_it_is_and_where_it_stands(tmp_path):
    learner = Learner(5, home=tmp_path / "home", width=8, num_query_heads=2, depth=1)
    learner.learn([1.0], "a")
    said = repr(learner)
    for part in ("Learner(classes=5, ", "width=8", "1 example learned", "1 label seen", "home '"):
        assert part in said
    assert "window" not in said  # as by default
    assert "a snapshot" in repr(learner.snapshot())
    assert "home" not in repr(copy.deepcopy(learner))
    assert (
        repr(prequential.Majority(3, window=4)) == "<Majority(classes=3, window=4): 0 examples learned, 0 labels seen>"
    )
