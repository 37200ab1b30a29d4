"""Published results: what is in them, and that experiments continue from them."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from prequential.cli.app import main
from prequential.errors import BadInput
from prequential.experiments import runner
from prequential.experiments.experiment import PAPER, CaptionedFigure, Claim, Request, over_seeds
from prequential.experiments.published import SCORES, load_every_example, load_scores, publish
from prequential.plots.comparison import draw_accuracies
from prequential.plots.studies import draw_instantaneous, draw_task_curves
from prequential.storage.sealed import read_json, write_sealed

SMALL = PAPER.changed(width=16, depth=1, window=32, chunk_size=20, num_streams=2)
TINY = SimpleNamespace(
    __doc__="A tiny experiment.\n\nShows: that it works.",
    STREAM="digits",
    trials=lambda request: over_seeds(request, SMALL, {"model": "pi"}, run={"tasks": 2, "task_length": 40}),
    figures=lambda results: {
        "curves": CaptionedFigure(draw_instantaneous({"pi": results.scores()}), "Curves."),
        "accuracies": CaptionedFigure(draw_accuracies({"digits": {"pi": results.scores()}}), "With references."),
        "tasks": CaptionedFigure(draw_task_curves({"pi": results.scores()}), "Tasks."),
    },
    claims=lambda results: [Claim(says="It is.", found=f"{results.mean():.3f}", verdict="holds")],
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(runner, "find_experiment", lambda name: TINY)


def request(seeds=1, stream="digits"):
    return Request(scale="small", seeds=seeds, stream=stream)


def run(out, **how):
    asked = request(how.pop("seeds", 1), how.pop("stream", "digits"))
    return runner.run_experiment("split-emnist", asked, out, jobs=0, **how)


def test_another_machine_continues_from_what_is_published(tmp_path):
    first = run(tmp_path / "here" / "one")
    (made,) = publish([tmp_path / "here"], tmp_path / "results")
    original = tmp_path / "here" / "one" / "runs" / "model=pi,seed=0"
    assert made == tmp_path / "results" / "one"
    assert sorted(path.name for path in (made / "runs" / "model=pi,seed=0").iterdir()) == sorted(
        ["environment.json", "scores.json", SCORES, "settings.toml"]
    )
    curve = load_scores(original).curve()
    published = load_scores(made / "runs" / "model=pi,seed=0")
    for name, values in published.curve().items():
        np.testing.assert_array_equal(values, curve[name])
    assert published.last_label_accuracy == load_scores(original).last_label_accuracy
    assert not published.has_classes
    correct, nats = load_every_example(original)
    published_correct, published_nats = load_every_example(made / "runs" / "model=pi,seed=0")
    np.testing.assert_array_equal(published_correct, correct)
    np.testing.assert_allclose(published_nats, nats, rtol=1e-3, atol=1e-6)
    figures = {path.name: path.read_bytes() for path in (tmp_path / "here" / "one").glob("*.svg")}
    shutil.rmtree(tmp_path / "here")

    again = run(tmp_path / "there" / "two", reuse=[tmp_path / "results"])
    assert {path.name: path.read_bytes() for path in (tmp_path / "there" / "two").glob("*.svg")} == figures
    assert again.outcomes[0].measures == first.outcomes[0].measures
    assert again.outcomes[0].accuracy == first.outcomes[0].accuracy
    assert not (tmp_path / "there" / "two" / "runs").exists()
    more = run(tmp_path / "there" / "two", seeds=2, reuse=[tmp_path / "results"])
    assert [o.tags["seed"] for o in more.outcomes] == [0, 1]
    assert [path.name for path in (tmp_path / "there" / "two" / "runs").iterdir()] == ["model=pi,seed=1"]


def test_publishing_again_keeps_the_runs_that_came_from_there(tmp_path):
    run(tmp_path / "here" / "one")
    publish([tmp_path / "here"], tmp_path / "results")
    run(tmp_path / "there" / "one", seeds=2, reuse=[tmp_path / "results"])
    publish([tmp_path / "there"], tmp_path / "results")
    runs = tmp_path / "results" / "one" / "runs"
    assert sorted(path.name for path in runs.iterdir()) == ["model=pi,seed=0", "model=pi,seed=1"]
    assert len(read_json(tmp_path / "results" / "one" / "results.json")["outcomes"]) == 2
    everything = run(tmp_path / "elsewhere" / "one", seeds=2, reuse=[tmp_path / "results"], partial=True)
    assert len(everything) == 2


def test_publishing_the_same_again_changes_no_byte(tmp_path):
    run(tmp_path / "here" / "one")
    contents = set()
    for _ in range(8):  # with three entries in any order, all would agree by chance once in 280,000 times
        (made,) = publish([tmp_path / "here"], tmp_path / "results")
        contents.add((made / "runs" / "model=pi,seed=0" / SCORES).read_bytes())
    assert len(contents) == 1
    load_scores(made / "runs" / "model=pi,seed=0")


def test_runs_on_other_data_are_made_again(tmp_path):
    run(tmp_path / "here" / "one")
    publish([tmp_path / "here"], tmp_path / "results")
    path = tmp_path / "results" / "one" / "runs" / "model=pi,seed=0" / "environment.json"
    environment = read_json(path)
    write_sealed(path, environment | {"stream": {**environment["stream"], "fingerprint": "0" * 32}})
    run(tmp_path / "there" / "two", reuse=[tmp_path / "results"])
    assert (tmp_path / "there" / "two" / "runs" / "model=pi,seed=0" / "records").is_dir()


def test_damaged_runs_are_made_again(tmp_path):
    run(tmp_path / "here" / "one")
    publish([tmp_path / "here"], tmp_path / "results")
    path = tmp_path / "results" / "one" / "runs" / "model=pi,seed=0" / "scores.json"
    path.write_bytes(path.read_bytes()[:-20])
    run(tmp_path / "there" / "two", reuse=[tmp_path / "results"])
    assert (tmp_path / "there" / "two" / "runs" / "model=pi,seed=0" / "records").is_dir()


def test_data_may_lie_elsewhere_and_no_path_is_published(tmp_path):
    rng = np.random.default_rng(0)
    for folder in ("data of mine", "yours"):
        (tmp_path / folder).mkdir()
        rng = np.random.default_rng(0)
        np.savez(tmp_path / folder / "pool.npz", x=rng.normal(size=(200, 3)), y=np.arange(200) % 20)
    run(tmp_path / "here" / "one", stream=f"split:{tmp_path}/data of mine/pool.npz")
    publish([tmp_path / "here"], tmp_path / "results")
    for path in (tmp_path / "results").rglob("*"):
        assert path.is_dir() or str(tmp_path).encode() not in path.read_bytes(), path
    run(tmp_path / "there" / "two", stream=f"split:{tmp_path}/yours/pool.npz", reuse=[tmp_path / "results"])
    assert not (tmp_path / "there" / "two" / "runs").exists()


def test_what_is_not_finished_is_not_published(tmp_path):
    run(tmp_path / "here" / "one")
    unfinished = tmp_path / "here" / "one" / "runs" / "model=pi,seed=1"
    shutil.copytree(tmp_path / "here" / "one" / "runs" / "model=pi,seed=0", unfinished)
    (unfinished / "scores.json").unlink()
    publish([tmp_path / "here"], tmp_path / "results")
    assert [path.name for path in (tmp_path / "results" / "one" / "runs").iterdir()] == ["model=pi,seed=0"]


def test_mistakes_get_a_sentence(tmp_path, capsys):
    with pytest.raises(BadInput, match="there are no results of experiments in"):
        publish([tmp_path], tmp_path / "results")
    with pytest.raises(BadInput, match=r"there are no published results in .*nowhere: it is no folder"):
        run(tmp_path / "out", reuse=[tmp_path / "nowhere"])
    run(tmp_path / "here" / "one")
    with pytest.raises(BadInput, match="cannot be published into itself"):
        publish([tmp_path / "here"], tmp_path / "here")
    main(["experiment", "publish", str(tmp_path / "here"), "--out", str(tmp_path / "results")])
    assert "published" in capsys.readouterr().out
    saved = json.loads((tmp_path / "results" / "one" / "results.json").read_text())
    assert saved["claims"][0]["says"] == "It is."
