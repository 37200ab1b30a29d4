"""Learners by name: all of them can be made and learn, options arrive, and mistakes get one sentence."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from prequential import baselines
from prequential.cli.app import main
from prequential.comparisons.compare import Plan, read_plan
from prequential.errors import BadSetting, MissingExtra
from prequential.learners.transformer.learner import Learner
from prequential.registry import TRANSFORMERS, built_in, is_transformer, learner_names, make_learner
from prequential.runs.run import Run
from prequential.settings import Settings
from prequential.specs import parse_call
from prequential.storage.checkpoint import same_state
from prequential.sweeps.sweep import sweep
from prequential.trust import Untrusted

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
    "refit": baselines.Refit,
    "refit(sklearn:naive_bayes.GaussianNB, lags=2)": baselines.Refit,
    "river:naive_bayes.GaussianNB": baselines.RiverLearner,
    "sklearn:linear_model.SGDClassifier": baselines.SklearnLearner,
}
NEEDS = {"acm": "faiss", "river": "river", "sklearn": "sklearn", "refit": "lightgbm"}


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
        assert set(KINDS) >= {*TRANSFORMERS, *built_in()}
        assert learner_names()[-4:] == ["capymoa:CLASS", "river:CLASS", "sklearn:CLASS", "MODULE:CLASS"]

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
            with_seed = f"{name[:-1]}, seed=1)" if name.endswith(")") else f"{name}(seed=1)"
            assert is_transformer(name) == is_transformer(with_seed) == (kind is Learner)

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
            (
                "weka:J48",
                "learner 'weka:J48': module 'weka' cannot be imported: ModuleNotFoundError: No module named 'weka'",
            ),
            ("weka: J48", "unknown learner 'weka: J48'"),
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


OWN = """
from prequential import OnlineLearner
import numpy as np


class Stubborn(OnlineLearner):
    def __init__(self, classes, *, favorite: int = 0, boldness: float = 0.5):
        super().__init__(classes)
        self.favorite, self.boldness = favorite, boldness
        self.seen = 0

    def _predict(self, x):
        p = np.full((len(x), self.labels.capacity), (1 - self.boldness) / self.labels.capacity)
        p[:, self.favorite] += self.boldness
        return np.log(p)

    def _learn(self, x, class_ids):
        self.seen += len(class_ids)

    def _state_dict(self):
        return {"seen": self.seen}

    def _load_state_dict(self, state):
        self.seen = state["seen"]


class Unfinished(OnlineLearner):
    pass


number = 3
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "my_learners.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "my_learners"
    sys.modules.pop("my_learners", None)


class TestOwn:
    def test_a_class_in_a_module_of_the_current_directory(self, own_module, tmp_path):
        learner = make_learner("my_learners:Stubborn(favorite=1)", 3)
        learner.learn_many(*examples(4))
        assert learner.predict([0.0] * 4) == learner.labels.known[1]
        learner.save(tmp_path / "learner")
        loaded = type(learner).load(tmp_path / "learner")
        assert (loaded.seen, loaded.favorite) == (4, 1)

    def test_a_run_of_it_resumes(self, own_module, tmp_path, capsys):
        command = ["run", "--stream", "digits(tasks=2)", "--learner", "my_learners:Stubborn(boldness=0.1)"]
        main([*command, "--out", str(tmp_path / "run"), "--examples", "100"])
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main(["resume", str(tmp_path / "run")])
        assert "asks to import the learner my_learners:Stubborn; if you trust who made it" in capsys.readouterr().err
        main(["resume", str(tmp_path / "run"), "--trust"])
        assert Run(tmp_path / "run", trust=True).learner.boldness == 0.1

    def test_a_comparison_is_read_without_importing_it(self, own_module, tmp_path):
        plan = Plan(learners=("my_learners:Stubborn", "majority"), streams=("digits",), seeds=(0,))
        plan.write(tmp_path)
        sys.modules.pop("my_learners")
        assert read_plan(tmp_path).learners == plan.learners
        assert "my_learners" not in sys.modules

    def test_a_sweep_of_another_person_imports_nothing(self, own_module, tmp_path):
        (tmp_path / "study.db").touch()
        text = '[sweep]\nmethod = "grid"\n[vary]\nlearner = ["my_learners:Stubborn"]\n'
        (tmp_path / "sweep.toml").write_text(text)
        with pytest.raises(Untrusted, match="asks to import the learner my_learners:Stubborn"):
            sweep(tmp_path / "sweep.toml")
        assert "my_learners" not in sys.modules

    @pytest.mark.parametrize(
        ("spec", "sentence"),
        [
            ("my_learners:Stubbon", "module 'my_learners' has no 'Stubbon'; did you mean 'Stubborn'?"),
            ("my_learners:Stubborn(favourite=1)", "Stubborn has no option 'favourite'; did you mean 'favorite'?"),
            ("my_learners:Stubborn(favorite=a)", "Stubborn: favorite is 'a', expected a whole number"),
            ("my_learners:Unfinished", "does not define _learn, _load_state_dict, _predict, _state_dict"),
            ("my_learners:number", "is not a subclass of prequential.OnlineLearner"),
        ],
    )
    def test_mistakes_get_one_sentence(self, own_module, spec, sentence):
        with pytest.raises(BadSetting) as error:
            make_learner(spec, 3)
        assert sentence in str(error.value)
