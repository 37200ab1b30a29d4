"""The experiment on image networks learned from scratch: what it runs, and what it concludes from what."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from prequential.experiments.cloc_scratch import claims, figures, frozen_stream, trials
from prequential.experiments.costs import macs_of
from prequential.experiments.experiment import Outcome, Request, Results
from prequential.experiments.run_all import Step, _needs, _stream
from prequential.experiments.stored import decided, read_all
from prequential.streams.open import open_stream

IMAGES = "geo-images:cifar100:data(records=r.npz)"
BOTH = "geo-images:cifar100:data(records=r.npz, album_gap=60.0, similar_by=features, tasks=3)"


def request(stream=BOTH, scale="medium", seeds=3):
    return Request(scale=scale, seeds=seeds, stream=stream)


def arms(found):
    """The first trial of each arm, by name."""
    return {trial.tags["learner"]: trial for trial in reversed(found)}


def results(accuracies, scale="medium", stream=BOTH, examples=12_000):
    """Three seeds of each of these arms, all the same."""
    outcomes = [
        Outcome({"learner": name, "seed": seed}, share, 1.0, 1.0, 1.0, None, {"count": examples}, Path("none"))
        for name, share in accuracies.items()
        for seed in range(3)
    ]
    return Results(tuple(outcomes), request(stream, scale))


def verdicts(accuracies, **how):
    return {claim.says: claim for claim in claims(results(accuracies, **how))}


TOGETHER = "Learned from scratch, the network and the context work together."
AHEAD = "(Not in the paper.) Learned from scratch, it is ahead of repeating the last label."
REPLAY = "From scratch, replay beyond 10 streams hurts."
WINDOW = "From scratch, a larger window helps more than on given features."
TWO_TOKEN = "2-token from scratch does as well as pi."
AS_IN_THE_PAPER = {
    "with context": 0.67,
    "no attention": 0.19,
    "last label": 0.12,
    "16 streams": 0.64,
    "smaller window": 0.62,
    "2-token": 0.66,
    "frozen features": 0.59,
    "frozen features, smaller window": 0.58,
}
ALL = set(AS_IN_THE_PAPER)


def test_arms_differ_from_the_first_in_one_thing():
    found = arms(trials(request()))
    assert set(found) == ALL
    base = found["with context"].settings
    sizes = (base.extractor, base.width, base.depth, base.chunk_size, base.window, base.num_streams)
    assert sizes == ("convnext-atto", 128, 2, 32, 512, 8)
    assert found["no attention"].settings == base.changed(window=0)
    assert found["smaller window"].settings == base.changed(window=128)
    assert found["16 streams"].settings == base.changed(num_streams=16)
    two = found["2-token"].settings
    assert two == base.changed(model="two-token", depth=10, window=1024)
    assert two.window_examples == base.window_examples
    frozen = found["frozen features"].settings
    assert frozen == base.changed(extractor="none", learning_rate=3 * base.learning_rate)
    assert found["frozen features, smaller window"].settings == frozen.changed(window=128)
    assert {trial.run["examples"] for trial in found.values()} == {12_000}
    assert {trial.run["examples"] for trial in trials(request(scale="small"))} == {3_000}


def test_the_most_valuable_come_first_with_all_seeds():
    found = trials(request())
    assert [trial.tier for trial in found] == sorted(trial.tier for trial in found)
    first = [(trial.tags["learner"], trial.settings.seed) for trial in found if trial.tier == 1]
    assert first == [(arm, seed) for arm in ("last label", "with context", "no attention") for seed in range(3)]
    assert {arm: trial.tier for arm, trial in arms(found).items() if trial.tier > 1} == {
        "smaller window": 2,
        "frozen features": 2,
        "frozen features, smaller window": 2,
        "2-token": 3,
        "16 streams": 4,
    }


def test_the_scale_of_the_paper():
    found = arms(trials(request("cloc:m", "paper")))
    assert set(found) == {"with context", "no attention"}
    base = found["with context"].settings
    assert (base.extractor, base.width, base.chunk_size, base.window) == ("convnext", 1024, 256, 2048)
    assert (base.depth, base.num_streams, base.learning_rate, base.extractor_learning_rate) == (2, 8, 0.01, 3e-4)


def test_frozen_features_run_on_a_stream_of_their_own():
    assert {arm for arm in ALL if "frozen" not in arm} == set(arms(trials(request(IMAGES))))
    assert frozen_stream(BOTH) == "geo-images:features(records=r.npz, album_gap=60.0)"
    found = arms(trials(request()))
    on = {arm: trial.run_settings(request()).stream for arm, trial in found.items()}
    assert on["frozen features"] == on["frozen features, smaller window"] == frozen_stream(BOTH)
    assert {stream for arm, stream in on.items() if "frozen" not in arm} == {BOTH}


def test_frozen_features_are_those_of_the_same_photos(tmp_path):
    """Seeds are paired over all arms: at every position both streams have the same image and the same place."""
    rng = np.random.default_rng(0)
    kind, images = np.repeat(np.arange(3), 30), rng.integers(0, 255, (90, 4, 4, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", x=images, y=kind)
    numbered = np.concatenate([np.arange(90.0)[:, None], rng.normal(size=(90, 4))], 1)  # the first says which it is
    np.savez(tmp_path / "features.npz", x=numbered, y=kind)
    place, time = rng.integers(0, 6, 60).repeat(4), 1_200_000_000 + np.arange(240) * 40
    np.savez(tmp_path / "r.npz", y=place, user=np.arange(60).repeat(4) % 7, time=time, classes=np.array(list("abcdef")))
    spec = f"geo-images:{tmp_path}/images.npz(records={tmp_path}/r.npz, similar_by={tmp_path}/features.npz)"
    drawn = []
    for seed in (0, 1):
        shown, given = (open_stream(s, seed=seed).read(0, 240) for s in (spec, frozen_stream(spec)))
        assert shown.y == given.y
        numbers = np.asarray(given.x)[:, 0].astype(int)
        assert (np.asarray(shown.x) == images[numbers]).all()
        drawn.append(numbers)
    assert (drawn[0] != drawn[1]).any()  # another seed is another stream


def test_costs_are_those_of_small_images():
    found = arms(trials(request()))
    macs = {arm: macs_of(trial, request()) for arm, trial in found.items()}
    assert macs["last label"] is None
    assert macs["16 streams"] == 2 * macs["with context"]
    per_step = macs["with context"] / (3 * 8 * 12_000)
    assert 11.2e6 < per_step < 13e6  # the network has 11.2 million, the transformer little more
    assert macs["frozen features"] < macs["with context"] / 10
    assert macs["with context"] < macs["2-token"] < 2 * macs["with context"]


def test_all_claims_hold_where_all_is_as_in_the_paper():
    found = verdicts(AS_IN_THE_PAPER)
    assert list(found) == [TOGETHER, AHEAD, REPLAY, WINDOW, TWO_TOKEN]
    assert {claim.verdict for claim in found.values()} == {"holds"}
    assert found[WINDOW].effect["mean"] == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("changed", "fails"),
    [
        ({"no attention": 0.63}, {TOGETHER}),  # less than 5 points
        ({"last label": 0.66}, {AHEAD}),
        ({"16 streams": 0.665}, {REPLAY}),
        ({"smaller window": 0.655}, {WINDOW}),  # 1.5 points from scratch, 1 on features
        ({"frozen features, smaller window": 0.53}, {WINDOW}),
        ({"2-token": 0.64}, {TWO_TOKEN}),
        ({"2-token": 0.9}, set()),
    ],
)
def test_each_claim_fails_by_its_own_arm(changed, fails):
    found = verdicts(AS_IN_THE_PAPER | changed)
    assert {says for says, claim in found.items() if claim.verdict == "does not hold"} == fails
    assert {says for says, claim in found.items() if claim.verdict == "holds"} == set(found) - fails


@pytest.mark.parametrize(
    ("arm", "affected"),
    [
        ("no attention", {TOGETHER}),
        ("last label", {AHEAD}),
        ("16 streams", {REPLAY}),
        ("frozen features", {WINDOW}),
        ("2-token", {TWO_TOKEN}),
        ("with context", {TOGETHER, AHEAD, REPLAY, WINDOW, TWO_TOKEN}),
    ],
)
def test_without_an_arm_its_claims_cannot_be_said(arm, affected):
    found = verdicts({name: share for name, share in AS_IN_THE_PAPER.items() if name != arm})
    for says, claim in found.items():
        assert claim.verdict == ("cannot be said" if says in affected else "holds")
        assert claim.reason == (f"no results for {arm}" if says in affected else "")


def test_short_runs_say_nothing():
    found = verdicts(AS_IN_THE_PAPER, scale="small", examples=3_000)
    why = "the runs of 3,000 examples are too short: the context is hardly used yet"
    assert {(claim.verdict, claim.reason) for claim in found.values()} == {("cannot be said", why)}


def test_the_paper_scale_says_what_its_other_arms_would_cost():
    found = verdicts({"with context": 0.67, "no attention": 0.19}, scale="paper", stream="cloc:m")
    assert found.pop(TOGETHER).verdict == "holds"
    assert set(found) == {REPLAY, WINDOW, TWO_TOKEN}
    for claim in found.values():
        assert claim.reason.startswith("not run: CLOC's photographs are needed")
    assert "C = 2048 gains at least 1 point more over C = 512" in found[WINDOW].criterion


def test_results_of_an_earlier_version_are_decided(tmp_path):
    """They are of ten fixed classes of CIFAR-100, one seed."""
    numbers = {"log_loss": 1.6, "bits": 23518.6, "seconds": 549.4, "macs": 5.5e12, "examples": 10_000}
    saved = {
        "experiment": "cloc-scratch", "scale": "small", "stream": "cifar100:data", "seeds": 1, "command": "", "claims": [],
        "figures": {}, "failures": [], "outcomes": [
            {"tags": {"learner": "with context", "seed": 0}, "accuracy": 0.4337, **numbers},
            {"tags": {"learner": "no attention", "seed": 0}, "accuracy": 0.4673, **numbers},
        ],
    }  # fmt: skip
    (tmp_path / "results.json").write_text(json.dumps(saved))
    (read,) = read_all([tmp_path])
    found = decided(read)
    assert {claim.verdict for claim in found} == {"cannot be said"}
    assert found[0].reason == "ten classes that never change need no context"
    assert "gets far beyond chance" in found[1].says
    old = verdicts({"with context": 0.43, "no attention": 0.47}, scale="small", stream="cifar100:data")
    assert [claim.says for claim in old.values() if claim.verdict == "holds"] == [found[1].says]


def test_there_is_no_figure_of_nothing():
    assert figures(results({})) == {}


def test_all_knows_which_data_it_needs():
    step = Step("cloc-scratch", "medium", 3)
    assert _stream(step, {"cifar100": "cifar100:data"}) is None
    assert _stream(step, {"geo-images": IMAGES}) == IMAGES
    assert _needs(step) == "geo-images:PATH(records=FILE)"
    assert _needs(Step("split-cifar", "medium", 1)) == "cifar100:PATH"
    on_features = Step("cloc-table", "medium", 3, "geo-images")
    dense = "geo-images:features(records=r.npz, album_gap=60.0, length=500000, overlay_days=13, typical_share=0.38)"
    assert _stream(on_features, {"geo-images": BOTH}) == dense
    assert _stream(on_features, {"geo-images": IMAGES}) is _stream(on_features, {}) is None  # no features are named
    assert _stream(on_features, {"geo-images": "geo-images:f(records=r, overlay_days=5)"}).endswith(
        "overlay_days=5, length=500000, typical_share=0.38)"
    )
    assert _needs(on_features) == "geo-images:PATH(records=FILE, similar_by=FEATURES)"
