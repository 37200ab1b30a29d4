"""Names of other libraries' classes are data: they mean classifiers and their parts, and nothing is called before that is sure."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from types import ModuleType

import pytest

from prequential.baselines import RiverLearner, SklearnLearner, libraries
from prequential.baselines.libraries import LIBRARIES, build, find_class
from prequential.errors import BadSetting
from prequential.registry import make_learner

pytest.importorskip("river")
pytest.importorskip("sklearn")
KINDS = {"river": RiverLearner, "sklearn": SklearnLearner}

NAMES = [
    # functions, of which some run code, delete or fetch
    "sklearn:utils._testing.assert_run_python_script_without_output",
    "sklearn:datasets.clear_data_home",
    "sklearn:datasets.get_data_home",
    "sklearn:datasets.fetch_openml",
    "sklearn:datasets.load_files",
    "sklearn:base.clone",
    "sklearn:show_versions",
    "sklearn:utils.estimator_checks.check_estimator",
    "sklearn:utils.discovery.all_estimators",
    "sklearn:externals.joblib.load",
    "sklearn:externals._arff.load",
    "sklearn:linear_model.ridge_regression",
    "sklearn:linear_model.numpy.load",
    "sklearn:svm.l1_min_c",
    "river:datasets.Phishing",
    "river:datasets.base.RemoteDataset",
    "river:datasets.synth.Agrawal",
    "river:stream.iter_csv",
    "river:stream.Cache",
    "river:stream.TwitchChatStream",
    "river:checks.yield_checks",
    "river:evaluate.progressive_val_score",
    "river:utils.pretty.print_table",
    "river:compat.SKL2RiverClassifier",
    "river:compat.convert_sklearn_to_river",
    "river:api.datasets.Phishing",
    "river:forest.adaptive_random_forest.abc.ABC",
    "river:forest.adaptive_random_forest.random.Random",
    "river:compose.FuncTransformer",
    # modules that are not to be imported, or are none
    "sklearn:conftest.pyplot",
    "sklearn:tests.test_base.MyEstimator",
    "sklearn:linear_model.tests.test_sgd.SGDClassifier",
    "sklearn:_build_utils.openmp_helpers.check_openmp_support",
    "sklearn:__check_build.raise_build_error",
    "river:__main__.Model",
    "river:.os.system",
    "river:..os.system",
    "river:forest..ARFClassifier",
    "river:forest.",
    "sklearn:linear_model/../datasets.load_files",
    "sklearn:",
    "sklearn:SGDClassifier",
    # classes that are no classifiers, or not whole ones
    "river:base.Classifier",
    "river:linear_model.LinearRegression",
    "river:drift.ADWIN",
    "river:metrics.Accuracy",
    "river:tree.hoeffding_tree.HoeffdingTree",
    "sklearn:linear_model.SGDRegressor",
    "sklearn:naive_bayes._BaseNB",
    "sklearn:ensemble.BaseEnsemble",
    "sklearn:pipeline.Pipeline",
    "sklearn:feature_extraction.text.CountVectorizer",
    "sklearn:__class__.__mro__",
    "sklearn:linear_model.__loader__",
    "sklearn:linear_model.SGDClassifier.fit",
    "sklearn:linear_model.SGDClassifier.__init__",
]

ARGUMENTS = [
    ("sklearn", "multiclass.OneVsRestClassifier", {"estimator": {"class": "datasets.clear_data_home", "data_home": "x"}}),
    ("sklearn", "multiclass.OneVsRestClassifier", {"estimator": {"class": "pipeline.Pipeline", "memory": "cache"}}),
    ("sklearn", "multiclass.OneVsRestClassifier", {"estimator": [{"class": "utils._testing.MinimalClassifier"}]}),
    ("sklearn", "multiclass.OneVsRestClassifier", {"estimator": {"class": 3}}),
    ("sklearn", "multiclass.OneVsRestClassifier", {"estimator": {"class": "linear_model.SGDClassifier", "path": "x"}}),
    ("sklearn", "ensemble.StackingClassifier", {"estimators": [["a", {"class": "datasets.load_files"}]]}),
    ("sklearn", "linear_model.SGDClassifier", {"memory": "cache"}),
    ("sklearn", "linear_model.SGDClassifier", {"n_jobs": 10**6}),
    ("sklearn", "linear_model.SGDClassifier", {"loss": print}),
    ("sklearn", "linear_model.SGDClassifier", {"loss": b"log_loss"}),
    ("sklearn", "linear_model.SGDClassifier", {"alpha": 1j}),
    ("sklearn", "linear_model.SGDClassifier", {"max_iter": 10**5000}),
    ("sklearn", "linear_model.SGDClassifier", {"__class__": "x"}),
    ("sklearn", "linear_model.SGDClassifier", {3: "x"}),
    ("sklearn", "linear_model.SGDClassifier", {"class_weight": {"a": {"class": "base.clone"}}}),
    ("sklearn", "neural_network.MLPClassifier", {"hidden_layer_sizes": [10_000, 10_000]}),
    ("sklearn", "neural_network.MLPClassifier", {"hidden_layer_sizes": 10**9}),
    ("river", "ensemble.BaggingClassifier", {"model": {"class": "datasets.Phishing"}}),
    ("river", "ensemble.BaggingClassifier", {"model": {"class": "stream.Cache", "directory": "x"}}),
    ("river", "ensemble.BaggingClassifier", {"model": {"class": "naive_bayes.GaussianNB"}, "n_models": 10**9}),
    (
        "river",
        "ensemble.BaggingClassifier",
        {"model": {"class": "forest.ARFClassifier", "n_models": 2000}, "n_models": 2000},
    ),
    ("river", "forest.ARFClassifier", {"n_models": 10**9}),
    ("river", "forest.ARFClassifier", {"metric": {"class": "evaluate.Track"}}),
    ("river", "forest.ARFClassifier", {"drift_detector": {"class": "utils.Rolling"}}),
    ("river", "forest.ARFClassifier", {"drift_detector": {"class": "drift.ADWIN", "cache_dir": "x"}}),
    ("river", "neighbors.KNNClassifier", {"engine": {"class": "neighbors.SWINN", "maxlen": 10**12}}),
    ("river", "facto.FMClassifier", {"n_factors": 10**8}),
    (
        "river",
        "multiclass.OutputCodeClassifier",
        {"classifier": {"class": "linear_model.LogisticRegression"}, "code_size": 40, "coding_method": "exact"},
    ),
    ("river", "model_selection.BanditClassifier", {"models": [{"class": "compat.SKL2RiverClassifier"}], "policy": None}),
]  # fmt: skip


@pytest.fixture
def nothing_is_called(monkeypatch):
    """Notes whether anything was called that a name could mean: functions, data sets, and any class at all."""
    called: list[str] = []

    def trap(name):
        def call(*args, **kwargs):
            called.append(name)
            raise AssertionError(f"{name} was called")

        return call

    import sklearn.datasets
    import sklearn.utils._testing
    from river.datasets.base import Dataset

    for module, names in (
        (sklearn.utils._testing, ("assert_run_python_script_without_output",)),
        (sklearn.datasets, ("clear_data_home", "get_data_home", "fetch_openml", "load_files")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, trap(name))
    monkeypatch.setattr(Dataset, "__init__", trap("a data set"))
    monkeypatch.setattr(libraries._Planned, "make", trap("a class"))
    yield
    assert not called


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_means_no_classifier_is_refused_in_one_sentence(name, nothing_is_called):
    before = set(sys.modules)
    library, _, path = name.partition(":")
    for way in (lambda: make_learner(f"{name}(source_code='1')", 2), lambda: KINDS[library](2, model=path)):
        with pytest.raises(BadSetting) as error:
            way()
        assert len(str(error.value)) <= 300
        assert "\n" not in str(error.value)
    new = {module.partition(".")[0] for module in set(sys.modules) - before}
    assert not {m for m in set(sys.modules) - before if ".tests" in m or "conftest" in m or "__main__" in m}
    assert new <= {"river", "sklearn", "scipy", "numpy", "pandas", "joblib", "threadpoolctl", *sys.stdlib_module_names}


@pytest.mark.parametrize(("library", "path", "settings"), ARGUMENTS)
def test_what_a_model_may_not_be_made_with_is_refused_in_one_sentence(library, path, settings, nothing_is_called):
    with pytest.raises(BadSetting) as error:
        KINDS[library](2, model=path, settings=settings)
    assert len(str(error.value)) <= 300
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("model", [3, None, ["forest"], {"class": "forest.ARFClassifier"}])
def test_a_model_that_is_no_name_is_refused(model):
    with pytest.raises(BadSetting, match="expected a name"):
        RiverLearner(2, model=model)
    with pytest.raises(BadSetting, match="settings is a str"):
        SklearnLearner(2, settings="loss")


def test_a_class_of_somebody_else_inside_a_listed_module_is_refused(monkeypatch):
    import sklearn.linear_model
    from sklearn.base import BaseEstimator, ClassifierMixin

    made = []

    class Foreign(ClassifierMixin, BaseEstimator):
        def __init__(self):
            made.append(self)

    monkeypatch.setattr(sklearn.linear_model, "Foreign", Foreign, raising=False)
    monkeypatch.setattr(sklearn.linear_model, "inner", ModuleType("somewhere.else"), raising=False)
    for path in ("linear_model.Foreign", "linear_model.inner.SGDClassifier"):
        with pytest.raises(BadSetting, match="is not in sklearn"):
            find_class("sklearn", path)
    assert not made


def sklearn_classifiers():
    from sklearn.utils import all_estimators

    return [kind for _, kind in all_estimators("classifier") if hasattr(kind, "partial_fit")]


def river_classifiers():
    import river
    from river.base import Classifier

    found = {}
    for module in pkgutil.iter_modules(river.__path__):
        if not module.name.startswith("_") and module.name not in ("base", "compat", "active"):
            inside = vars(importlib.import_module(f"river.{module.name}"))
            found |= {
                f"{module.name}.{name}": kind
                for name, kind in inside.items()
                if isinstance(kind, type) and issubclass(kind, Classifier) and not inspect.isabstract(kind)
            }
    return found


def test_all_classifiers_of_scikit_learn_that_learn_bit_by_bit_are_accepted():
    kinds = sklearn_classifiers()
    assert len(kinds) > 8
    for kind in kinds:
        place = next(m for m in LIBRARIES["sklearn"].modules if kind.__module__.startswith(f"sklearn.{m}"))
        given = {"estimator": {"class": "linear_model.SGDClassifier"}} if "estimator" in _needed(kind) else {}
        assert type(build("sklearn", f"{place}.{kind.__name__}", given, 0)) is kind


def test_all_classifiers_of_river_are_accepted():
    kinds = river_classifiers()
    assert len(kinds) > 30
    given = {
        "model": {"class": "naive_bayes.GaussianNB"},
        "classifier": {"class": "linear_model.LogisticRegression"},
        "models": [{"class": "naive_bayes.GaussianNB"}, {"class": "linear_model.LogisticRegression"}],
        "meta_classifier": {"class": "linear_model.LogisticRegression"},
        "policy": {"class": "bandit.EpsilonGreedy", "epsilon": 0.1},
        "metric": {"class": "metrics.Accuracy"},
        "desired_dist": {0: 0.5, 1: 0.5},
        "drift_detector": {"class": "drift.binary.DDM"},
        "budget": 100,
        "eta": 2.0,
        "size": 30,
        "p": 0.1,
        "code_size": 5,
    }
    for path, kind in kinds.items():
        settings = {name: given[name] for name in _needed(kind) if name in given}
        assert find_class("river", path, classifier=True) is kind
        if path != "misc.ZstdClassifier" or sys.version_info >= (3, 14):  # which has zstd
            assert type(build("river", path, settings, 0)) is kind, path


def _needed(kind):
    parameters = inspect.signature(kind).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def test_models_in_lists_are_made_too():
    made = build(
        "river",
        "ensemble.VotingClassifier",
        {"models": [{"class": "naive_bayes.GaussianNB"}, {"class": "tree.HoeffdingTreeClassifier"}]},
        0,
    )
    assert [type(model).__name__ for model in made] == ["GaussianNB", "HoeffdingTreeClassifier"]


def test_parts_of_models_are_found_in_inner_modules():
    made = build(
        "river",
        "linear_model.LogisticRegression",
        {"loss": {"class": "optim.losses.Log", "weight_pos": 2.0}, "optimizer": {"class": "optim.Adam", "lr": 0.1}},
        0,
    )
    assert (made.loss.weight_pos, type(made.optimizer).__name__) == (2.0, "Adam")
