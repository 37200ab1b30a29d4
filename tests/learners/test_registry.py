"""Learners by name: all of them can be made and learn, options arrive, and mistakes get one sentence."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from prequential import baselines
from prequential.errors import BadSetting, MissingExtra
from prequential.learners.registry import LEARNERS, is_transformer, learner_names, make_learner
from prequential.learners.transformer.learner import Learner
from prequential.settings import Settings
from prequential.specs import parse_call
from prequential.storage.checkpoint import same_state

SMALL = Settings(width=16, num_query_heads=2, depth=1, window=20, chunk_size=10, num_streams=2, seed=3)
KINDS = {
    "transformer": Learner,
    "two-token": Learner,
    "no-image": Learner,
    "no-attention": Learner,
    "last-label": baselines.LastLabel,
    "oracle": baselines.OracleRow,
    "majority": baselines.Majority,
    "er": baselines.ExperienceReplay,
    "er-polrs": baselines.ExperienceReplay,
    "er-adrep": baselines.ExperienceReplay,
    "er-polrs-adrep": baselines.ExperienceReplay,
    "acm": baselines.ACM,
    "replay-streams": baselines.ReplayStreams,
    "kalman": baselines.Kalman,
    "kalman-network": baselines.KalmanNetwork,
    "river:naive_bayes.GaussianNB": baselines.RiverLearner,
    "sklearn:linear_model.SGDClassifier": baselines.SklearnLearner,
}
NEEDS = {"acm": "faiss", "river": "river", "sklearn": "sklearn"}


def examples(n: int = 60) -> tuple[np.ndarray, list[str]]:
    random = np.random.default_rng(0)
    x = random.normal(size=(n, 4))
    return x, ["left" if row[0] < 0 else "right" for row in x]


def make(spec: str, **changes) -> object:
    needed = NEEDS.get(spec.partition(":")[0].partition("(")[0])
    if needed:
        pytest.importorskip(needed)
    return make_learner(spec, 3, **{"settings": SMALL, **changes})


class TestNames:
    def test_none_is_untested(self):
        assert set(KINDS) >= set(LEARNERS)
        assert learner_names()[-2:] == ["river:CLASS", "sklearn:CLASS"]

    @pytest.mark.parametrize("name", KINDS)
    def test_learns_vectors_and_comes_back(self, name):
        learner = make(name)
        assert type(learner) is KINDS[name]
        x, y = examples()
        charges = learner.observe(x, y)
        assert np.isfinite(charges.log_loss).all() == (name != "oracle")  # which is not charged
        again = type(learner)(**learner.config())
        assert again.config() == learner.config()
        assert learner.labels.capacity == 3

    def test_variants_of_the_transformer(self):
        changed = {
            "two-token": {"model": "two-token"},
            "no-image": {"use_input": False},
            "no-attention": {"window": 0},
            "no-attention(width=32, depth=2)": {"window": 0, "width": 32, "depth": 2},
            "transformer(model=two-token, learning_rate=1)": {"model": "two-token", "learning_rate": 1},
        }
        for spec, changes in changed.items():
            assert make(spec).settings == SMALL.changed(**changes)

    def test_variants_of_experience_replay(self):
        flags = {
            "er": (False, False),
            "er-polrs": (True, False),
            "er-adrep": (False, True),
            "er-polrs-adrep": (True, True),
        }
        for name, expected in flags.items():
            assert (make(name).polrs, make(name).adrep) == expected

    def test_the_seed_is_that_of_the_settings_unless_another_is_given(self):
        x, y = examples()
        states = []
        for spec, changes in (
            ("er(hidden_sizes=[8])", {}),
            ("er(hidden_sizes=[8])", {"seed": 3}),
            ("er(hidden_sizes=[8], seed=4)", {}),
        ):
            learner = make(spec, **changes)
            learner.learn_many(x, y)
            states.append(learner.state_dict())
        assert same_state(states[0], states[1])
        assert not same_state(states[0], states[2])
        assert make("transformer", seed=9).settings.seed == 9

    @pytest.mark.parametrize("name", KINDS)
    def test_a_seed_below_0_is_refused(self, name):
        with pytest.raises(BadSetting, match=r"seed \(-1\) must be at least 0"):
            make(name, seed=-1)

    def test_which_are_transformers(self):
        for name, kind in KINDS.items():
            assert is_transformer(name) == is_transformer(f"{name}(seed=1)") == (kind is Learner)

    def test_where_features_may_be_missing(self):
        for name in ("transformer", "kalman", "er", "last-label"):
            assert make(name, missing=True).missing


class TestOptions:
    def test_arrive(self):
        assert make("majority(window=7, smoothing=2)").config()["window"] == 7
        assert make("kalman(block=8,precision=float32,calibrate=false)").config().items() >= {
            "block": 8, "precision": "float32", "calibrate": False,
        }.items()  # fmt: skip
        assert make("er(hidden_sizes=[32, 16])").hidden_sizes == (32, 16)
        assert make("acm(num_neighbors=none)").num_neighbors is None

    def test_of_a_library_go_to_its_model(self):
        learner = make("river:forest.ARFClassifier(n_models=2, drift_detector=drift.ADWIN(delta=0.5), smoothing=0.1)")
        assert learner.smoothing == 0.1
        assert learner.model.n_models == 2
        assert learner.model.drift_detector.delta == 0.5
        learner = make("sklearn:linear_model.SGDClassifier(alpha=0.5, batch=4)")
        assert (learner.model.alpha, learner.model.loss, learner.stride) == (0.5, "log_loss", 4)

    def test_are_never_executed(self, capsys):
        for spec in ("majority(window=print(1))", "majority(window=[print(1)])", "er(hidden_sizes=[*range(3)])"):
            with pytest.raises(BadSetting):
                make(spec)
        assert capsys.readouterr().out == ""

    @pytest.mark.parametrize(
        "text",
        [
            "majority(7)",
            "majority(window=7",
            "majority(window=7)(2)",
            "majority(window=7) + er(learning_rate=1)",
            "a(**b)",
            "a(b=1 + 1)",
        ],
    )
    def test_that_cannot_be_read(self, text):
        with pytest.raises(BadSetting, match=r"cannot read the options in .*; expected them as in \w+\(\w+="):
            parse_call(text)

    @pytest.mark.parametrize(
        ("spec", "sentence"),
        [
            ("transfromer", "unknown learner 'transfromer'; did you mean 'transformer'?"),
            ("???", "unknown learner '???'; expected one of transformer, two-token,"),
            ("weka:J48", "unknown learner 'weka:J48'"),
            ("majority(windwo=3)", "Majority has no option 'windwo'; did you mean 'window'?"),
            ("majority(window=many)", "Majority: window is 'many', expected a whole number"),
            ("majority(window=0)", "window (0) must be at least 1"),
            ("er(hidden_sizes=3)", "ExperienceReplay: hidden_sizes is 3, expected a list of a whole number"),
            ("er(polrs=1)", "ExperienceReplay: polrs is 1, expected true or false"),
            ("transformer(widht=3)", "unknown setting 'widht'; did you mean 'width'?"),
            ("transformer(width=wide)", "transformer: width is 'wide', expected a whole number"),
            ("transformer(model=mamba)", "transformer: model is 'mamba', expected one of pi, two-token"),
            ("er(device=cuda)", "device is not an option of a learner: the run sets it"),
            ("river:linear_model.LinearRegression", "model 'linear_model.LinearRegression' is no classifier of River"),
            ("river:ensemble.BaggingClassifier(model=tree.HoeffdingTreeClassifier)", "cannot be made with ['model', "),
            ("river:trees.Oak", "model 'trees.Oak' is not in river"),
            ("river:tree.HoeffdingTreeClassifier(depth=3)", "has no option 'depth'; did you mean 'max_depth'?"),
        ],
    )
    def test_and_mistakes_get_one_sentence(self, spec, sentence):
        with pytest.raises(BadSetting) as error:
            make(spec)
        assert sentence in str(error.value)
        assert "\n" not in str(error.value)

    def test_a_package_that_is_not_there_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "river", None)
        with pytest.raises(MissingExtra, match=r"pip install 'prequential\[river\]'"):
            make_learner("river:naive_bayes.GaussianNB", 3)

    @pytest.mark.parametrize(
        "spec", ["er(extractor=convnet)", "replay-streams(extractor=vgg)", "transformer(extractor=convnet)"]
    )
    def test_an_extractor_needs_images(self, spec):
        with pytest.raises(BadSetting, match=r"extractor \((convnet|vgg)\) needs images, but x has shape \(4,\)"):
            make(spec).observe(*examples())
