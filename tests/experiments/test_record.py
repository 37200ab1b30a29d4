"""The record: the paper's figures with ours beside them, all numbers, and claims decided again from what is stored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from prequential.errors import BadInput
from prequential.experiments import NAMES, find_experiment, record, remaining
from prequential.experiments.budget import EXAMPLES_PER_SECOND
from prequential.experiments.claims import write_claims
from prequential.experiments.costs import gpu_hours, macs_of
from prequential.experiments.experiment import Request
from prequential.experiments.record import EXHIBITS, NOT_IN_THE_PAPER, write_record
from prequential.experiments.run_all import Step
from prequential.experiments.stored import decided, read_all

OUTCOME = {"bits": 1.0, "seconds": 3600.0, "macs": 1e12, "examples": 500_000}


def stored(folder: Path, name: str, accuracies: dict[str, list[float]], scale: str = "medium", **more) -> Path:
    """Results of an experiment with a row for each learner and seed."""
    outcomes = [
        {"tags": {"learner": learner, "seed": seed}, "accuracy": accuracy, "log_loss": 1.0, **OUTCOME}
        for learner, some in accuracies.items()
        for seed, accuracy in enumerate(some)
    ]
    saved = {
        "experiment": name, "scale": scale, "seeds": 3, "stream": "photos", "command": f"prequential experiment {name}",
        "outcomes": outcomes, "claims": [], "figures": {"curves": "Curves."}, "failures": [], **more,
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(saved))
    (folder / "curves.png").write_bytes(b"")
    return folder


@pytest.fixture
def results(tmp_path):
    learners = {"transformer": [0.5, 0.51, 0.52], "no attention": [0.2, 0.2, 0.2], "no image": [0.4, 0.4, 0.41]}
    stored(tmp_path / "results" / "cloc", "cloc-features", learners, commit="abc", date="2030-01-02")
    stored(tmp_path / "results" / "old", "cloc-features", {"transformer": [0.9]}, scale="small")
    return tmp_path / "results"


def test_claims_are_decided_from_what_is_stored(results, tmp_path):
    (saved,) = read_all([results])
    assert saved["folder"].name == "cloc"  # the larger one
    collapses, labels, decay, queries, features = decided(saved)
    assert [c.verdict for c in (collapses, labels)] == ["holds", "does not hold"]
    assert [c.reason for c in (decay, queries)] == ["no results for falling", "no results for queries as keys"]
    assert features.reason.startswith("not run: CLOC's photographs")
    assert write_claims([results], tmp_path / "claims.md") == 5
    page = (tmp_path / "claims.md").read_text()
    assert "Of 5 claims 1 hold, 1 do not, 3 cannot be said." in page
    assert "](claims.png)" in page
    assert (tmp_path / "claims.png").read_bytes().startswith(b"\x89PNG")
    assert "commit abc, 2030-01-02" in page
    assert "effect 0.055 [0.0426, 0.0674] over 3 seeds, needed 0" in page
    with pytest.raises(BadInput, match="there are no results of experiments in"):
        read_all([tmp_path / "none"])


def test_one_seed_of_a_larger_scale_does_not_hide_what_several_say(results):
    stored(results / "one", "cloc-features", {"transformer": [0.9], "no image": [0.1]}, scale="paper")
    assert [saved["folder"].name for saved in read_all([results])] == ["cloc"]
    stored(results / "two", "cloc-features", {"transformer": [0.9, 0.9]}, scale="paper")
    assert [saved["folder"].name for saved in read_all([results])] == ["two"]


def test_what_is_left_of_the_plan(tmp_path, monkeypatch):
    """By tiers, at the speed of the runs of the same experiment, or else of the same kind."""
    monkeypatch.setattr(remaining, "macs_of", lambda trial, request: 1e12 if trial.learner == "transformer" else None)
    plan = [Step("cloc-oracle", "medium", 3), Step("cloc-features", "medium", 3), Step("cloc-base", "medium", 1)]
    stored(tmp_path / "features", "cloc-features", {"transformer": [0.5, 0.5]})  # 1e12 in an hour
    request = Request(scale="medium", seeds=3, stream="photos")
    done = [
        {"tags": trial.tags, "accuracy": 0.1, "log_loss": 1.0, **OUTCOME}
        for trial in find_experiment("cloc-oracle").trials(request)
    ]
    stored(tmp_path / "oracle", "cloc-oracle", {}, outcomes=done)
    of_features, of_base = remaining.remaining([tmp_path], plan)
    assert (of_features.step.name, of_features.finished) == ("cloc-features", 2)
    trials = find_experiment("cloc-features").trials(request)
    left = [
        t
        for t in trials
        if t.tags not in ({"learner": "transformer", "seed": 0}, {"learner": "transformer", "seed": 1})
    ]
    transformers = sum(trial.learner == "transformer" for trial in left)
    others = 500_000 / EXAMPLES_PER_SECOND / 3600 * (len(left) - transformers)
    assert of_features.runs + of_features.late_runs == len(left)
    assert of_features.hours + of_features.late_hours == pytest.approx(transformers + others)
    assert (of_base.finished, of_base.runs, of_base.late_runs) == (0, 1, 1)
    assert of_base.hours == of_base.late_hours == pytest.approx(1.0)  # as fast as cloc-features
    page = "\n".join(remaining.remaining_table([tmp_path]))
    assert "| `cloc-oracle` |" not in page
    assert f"| `cloc-features` | medium | 3 | 2 | {of_features.runs} | {of_features.hours:.1f} |" in page


def test_the_page_has_every_exhibit_of_the_paper(results, tmp_path, monkeypatch):
    for module in (record, remaining):  # to count them takes a model for each
        monkeypatch.setattr(module, "macs_of", lambda trial, request: 1e15)
    numbers = write_record([results], tmp_path / "docs" / "page.md")
    page = (tmp_path / "docs" / "page.md").read_text()
    assert "![curves](../results/cloc/curves.png)\n\nCurves.\n" in page
    assert "500,000 examples, 3 seeds, 9 runs, 9.0 hours of a core, 2030-01-02, commit abc" in " ".join(page.split())
    assert max(len(line) for line in page.splitlines() if not line.startswith("|")) <= 120
    assert "- Without context (C = 0) it collapses. **holds**" in page
    assert "`cloc-window` has not been run." in page
    assert "| `cloc-window` | 98 | " in page
    for exhibit in EXHIBITS:
        assert f"## {exhibit.number}\n" in page
    (experiment,) = json.loads(numbers.read_text())["experiments"]
    assert len(experiment["runs"]) == 9
    assert experiment["claims"][0]["effect"]["low"] > 0
    assert read_all([results])  # all.json is not taken for results
    shutil.rmtree(results / "cloc")
    assert "0.90" not in page


def test_every_experiment_has_a_place():
    assert {exhibit.experiment for exhibit in EXHIBITS} - {""} == set(NAMES) - set(NOT_IN_THE_PAPER)


def test_costs_are_those_that_runs_count():
    """The stored run of Split-EMNIST at the paper's size had 9.86e13, of `photos` with D 128 3.50e12."""
    for name, scale, expected in (
        ("split-emnist", "paper", 98616115200000.0),
        ("cloc-features", "medium", 3.496704e12),
    ):
        request = Request(scale=scale, seeds=1, stream=find_experiment(name).STREAM)
        assert macs_of(find_experiment(name).trials(request)[0], request) == pytest.approx(expected, rel=1e-6)
    assert gpu_hours(1e17) == pytest.approx(12)


def test_an_experiment_on_other_data_stands_by_itself(results, tmp_path, monkeypatch):
    for module in (record, remaining):
        monkeypatch.setattr(module, "macs_of", lambda trial, request: 1e15)
    real = "geo-images:features(records=r.npz, overlay_days=13)"
    learners = {"transformer": [0.5, 0.51, 0.52], "no attention": [0.4, 0.4, 0.41]}
    stored(results / "real", "cloc-features", learners, stream=real)
    assert [saved["folder"].name for saved in read_all([results])] == ["cloc", "real"]
    assert write_claims([results], tmp_path / "claims.md") == 10
    page = (tmp_path / "claims.md").read_text()
    assert page.index("## cloc-features\n") < page.index("## cloc-features on geo-images\n")
    write_record([results], tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert page.index("## Figure 4\n") < page.index("## Figure 4: on geo-images\n") < page.index("## Beyond the paper")
    plan = [Step("cloc-features", "medium", 3), Step("cloc-features", "medium", 3, "geo-images")]
    left = remaining.remaining([results], plan)
    assert [(of.step.data, of.finished) for of in left] == [("", 9), ("geo-images", 6)]
    assert "| `cloc-features` on geo-images | medium |" in "\n".join(remaining.remaining_table([results]))


def test_real_records_are_tuned_on_other_ones():
    real = Request(scale="medium", seeds=3, stream="geo-images:features(records=r.npz, overlay_days=13)")
    assert real.folder("cloc-table", "photos") == "cloc-table-medium-geo-images"
    tuning = find_experiment("cloc-table").trials(real)
    assert {t.run["stream"] for t in tuning} == {"geo-images:features(records=r.npz, overlay_days=13, seed=1000)"}
    weights = find_experiment("cloc-two-token").trials(real)
    assert {t.run["stream"] for t in weights} == {"geo-images:features(records=r.npz, overlay_days=13, seed=0)"}
