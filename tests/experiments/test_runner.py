"""`prequential experiment`: runs, results, claims, going on after a stop."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest

from prequential.cli.app import main
from prequential.errors import BadInput, BadSetting
from prequential.experiments import runner
from prequential.experiments.experiment import PAPER, CaptionedFigure, Claim, Request, over_seeds
from prequential.experiments.verdicts import claim_from_json
from prequential.plots.studies import draw_instantaneous, draw_lines

SMALL = PAPER.changed(width=16, depth=1, window=32, chunk_size=20, num_streams=2)
RUN = {"tasks": 2, "task_length": 40}
TINY = SimpleNamespace(
    __doc__="A tiny experiment.\n\nShows: that it works.",
    STREAM="digits",
    trials=lambda request: [
        trial
        for streams in (1, 2)
        for trial in over_seeds(request, SMALL.changed(num_streams=streams), {"streams": streams}, run=RUN)
    ],
    figures=lambda results: {
        "lines": CaptionedFigure(
            draw_lines({"pi": {1: [results.where(streams=1).mean()]}}, over="streams"), "Something."
        ),
        "curves": CaptionedFigure(draw_instantaneous({"pi": results.scores()}), "Something else."),
    },
    claims=lambda results: [
        Claim(says="More is more.", found=f"{results.mean():.1%}", verdict="holds"),
        Claim(says="Less is more.", found="no", verdict="does not hold"),
    ],
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(runner, "find_experiment", lambda name: TINY)


def request(**changes):
    return Request(**{"scale": "small", "seeds": 2, "stream": "digits", **changes})


def test_runs_draws_and_concludes(tmp_path):
    results = runner.run_experiment("split-emnist", request(), tmp_path / "out", jobs=0)
    assert [o.tags for o in results.outcomes] == [{"streams": e, "seed": s} for e in (1, 2) for s in (0, 1)]
    for name in ("lines.png", "lines.svg", "curves.png", "result.md", "results.json"):
        assert (tmp_path / "out" / name).stat().st_size > 200
    saved = json.loads((tmp_path / "out" / "results.json").read_text())
    assert saved["command"] == "prequential experiment split-emnist --scale small --seeds 2"
    assert {o["examples"] for o in saved["outcomes"]} == {80}
    assert saved["outcomes"][1]["accuracy"] == results.outcomes[1].accuracy
    page = (tmp_path / "out" / "result.md").read_text()
    assert page.startswith("# A tiny experiment.")
    assert "| Less is more. |  | no | does not hold |" in page
    assert saved["missing"] == []
    assert saved["outcomes"][0]["measures"]["last_tenth"] >= 0
    assert re.fullmatch(r"[\w.-]+", saved["commit"])
    assert str(tmp_path) not in page


def test_what_is_finished_is_not_run_again(tmp_path):
    tmp_path /= "out"
    runner.run_experiment("split-emnist", request(seeds=1), tmp_path, jobs=0)
    records = tmp_path / "runs" / "streams=1,seed=0" / "records"
    before = {path: path.stat().st_mtime_ns for path in records.iterdir()}
    runner.run_experiment("split-emnist", request(seeds=2), tmp_path, jobs=0)
    assert {path: path.stat().st_mtime_ns for path in records.iterdir()} == before
    assert len(json.loads((tmp_path / "results.json").read_text())["outcomes"]) == 4
    with pytest.raises(BadSetting, match="was made with width = 16, not 32; give another --out"):
        runner.run_experiment("split-emnist", request(), tmp_path, jobs=0, options={"width": 32})


def test_what_is_finished_beside_it_is_not_run_again(tmp_path):
    runner.run_experiment("split-emnist", request(seeds=1), tmp_path / "one", jobs=0)
    results = runner.run_experiment("cloc-chunk", request(seeds=2), tmp_path / "two", jobs=0)
    assert [o.directory.parent.parent.name for o in results.outcomes] == ["one", "two", "one", "two"]
    assert len(list((tmp_path / "two" / "runs").iterdir())) == 2


def test_it_concludes_from_what_is_finished(tmp_path):
    with pytest.raises(BadInput, match="none of the 4 runs of split-emnist finished; nothing was run to its end yet"):
        runner.run_experiment("split-emnist", request(), tmp_path / "out", jobs=0, partial=True)
    runner.run_experiment("split-emnist", request(seeds=1), tmp_path / "out", jobs=0)
    results = runner.run_experiment("split-emnist", request(), tmp_path / "out", jobs=0, partial=True)
    assert len(results) == 2
    saved = json.loads((tmp_path / "out" / "results.json").read_text())
    assert saved["missing"] == ["streams=1,seed=1", "streams=2,seed=1"]
    assert "Not run yet: streams=1,seed=1; streams=2,seed=1." in (tmp_path / "out" / "result.md").read_text()
    results = runner.run_experiment("split-emnist", request(), tmp_path / "out", jobs=0, budget=1e-9)
    assert len(results) == 2
    results = runner.run_experiment("split-emnist", request(), tmp_path / "out", jobs=1, budget=0.0001)
    assert len(results) == 2  # what cannot fit is not started


def test_what_an_earlier_version_wrote_is_read(tmp_path):
    old = {"experiment": "split-emnist", "outcomes": [], "figures": {}, "failures": [], "command": "prequential"}
    old["claims"] = [{"says": "Old.", "found": "it was so", "holds": None}]
    (tmp_path / "results.json").write_text(json.dumps(old))
    assert claim_from_json(runner.read_results(tmp_path)["claims"][0]).verdict == "cannot be said"


def test_mistakes_get_a_sentence(tmp_path, capsys):
    for arguments, sentence in (
        (["split-emist"], "unknown experiment 'split-emist'"),
        (["split-emnist", "--seeds", "0"], "seeds (0) must be at least 1"),
        (["split-emnist", "--stream", "nowhere.npz"], "neither a known stream nor a path that exists"),
        (["split-emnist", "x"], "only `claims`, `record`, `publish` and `all` take folders"),
    ):
        with pytest.raises(SystemExit):
            main(["experiment", *arguments, "--out", str(tmp_path / "out")])
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("stream", "name"), [("emnist", "emnist"), ("cifar100:", "cifar100")])
def test_missing_data_is_told_before_anything_is_made(tmp_path, stream, name):
    says = rf"'{stream}' names no path; expected {name}:PATH, or '{name}\(download=true\)'"
    with pytest.raises(BadInput, match=says):
        runner.run_experiment("split-emnist", request(stream=stream), tmp_path / "out", jobs=0)
    assert not (tmp_path / "out").exists()


def test_list(capsys, monkeypatch):
    monkeypatch.undo()
    main(["experiment", "list"])
    assert "cloc-pareto" in capsys.readouterr().out
