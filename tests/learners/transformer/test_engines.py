"""The native core and torch: the same learner up to rounding, chosen, said, saved and exchanged as the settings say."""

import copy
import threading
import warnings

import numpy as np
import pytest
import torch

from prequential.errors import BadSetting, EngineWarning
from prequential.learners.transformer import engine as engines
from prequential.learners.transformer.engine import choose_engine
from prequential.learners.transformer.learner import Learner
from prequential.native.library import Found
from prequential.runs.run import Run
from prequential.runs.run_settings import RunSettings
from prequential.settings import Settings
from prequential.storage.checkpoint import same_state
from shared.engines import NO_LIBRARY

native_only = pytest.mark.skipif(bool(NO_LIBRARY), reason=NO_LIBRARY)
SMALL = {"width": 16, "num_query_heads": 2, "depth": 2, "window": 24, "chunk_size": 10, "num_streams": 3}
VARIANTS = {
    "mixed": {},
    "paper": {"method": "paper"},
    "copy": {"method": "copy"},
    "joint": {"updates": "joint", "joint_learning_rate": 0.1},
    "async": {"async_steps": True},
    "no average": {"ema_decay": 0.0},
    "no window": {"window": 0},
    "no input": {"use_input": False},
    "no positions": {"positions": "none"},
    "schedule": {"warmup_examples": 30, "lr_decay": "cosine", "lr_decay_examples": 100, "weight_decay": 0.3},
    "trained for late labels": {"label_delay": 7},
    "odd sizes": {"width": 18, "num_query_heads": 3, "mlp_width": 7, "chunk_size": 7, "window": 9, "depth": 3},
    "no replay": {"num_streams": 1, "recent_window": 0, "num_neighbors": 0},
    "frozen": {"freeze_at": 60},
    "two-token": {"model": "two-token"},
    "two-token paper": {"model": "two-token", "method": "paper", "weight_decay": 0.3, "window": 9},
    "two-token joint": {"model": "two-token", "updates": "joint", "joint_learning_rate": 0.1, "ema_decay": 0.9},
    "two-token async": {"model": "two-token", "method": "paper", "async_steps": True, "positions": "none"},
    "two-token no window": {"model": "two-token", "window": 0},
    "two-token no input": {"model": "two-token", "method": "paper", "use_input": False},
}


def examples(n, features=4, classes=6, seed=0):
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, n)
    x = random.normal(y[:, None], 1.5, (n, features)).astype(np.float32)
    return x, [f"label {i}" for i in y]


def losses(engine, x, y, **changes):
    """In chunks, one by one with predictions, and late."""
    learner = Learner(**{**SMALL, **changes}, engine=engine)
    found = [learner.observe(x[:55], y[:55]).log_loss]
    for t in range(55, 68):
        found.append(learner.predict_log_proba_many(x[t : t + 1]).max(1))
        learner.learn(x[t], y[t])
    found.append(learner.predict_log_proba_many(x[60:63]).max(1))
    learner.learn_many(x[68:90], y[68:90], asked_at=np.maximum(np.arange(68, 90) - 5, 68))
    found.append(learner.predict_log_proba_late(x[94:98], x[88:94], since=3).max(1))
    found.append(learner.observe(x[90:], y[90:]).log_loss)
    assert learner.engine.name == engine
    return np.concatenate(found)


@native_only
@pytest.mark.parametrize("variant", VARIANTS)
def test_both_engines_give_the_same_losses(variant):
    x, y = examples(120)
    a, b = (losses(engine, x, y, **VARIANTS[variant]) for engine in ("torch", "native"))
    np.testing.assert_allclose(a, b, rtol=0, atol=2e-3)
    assert np.abs(a - b).mean() < 1e-4
    assert not np.array_equal(a, b), "the native core was not used"


@native_only
@pytest.mark.parametrize("model", ["pi", "two-token"])
@pytest.mark.parametrize("seed", range(6))
def test_both_engines_give_the_same_losses_at_odd_sizes(seed, model):
    """Sizes drawn at random, small and uneven: what a vectorized loop gets wrong at its ends."""
    random = np.random.default_rng(seed)
    heads = int(random.integers(1, 5))
    changes = {
        "model": model,
        "method": str(random.choice(["mixed", "paper", "copy" if model == "pi" else "paper"])),
        "num_query_heads": heads,
        "width": heads * 2 * int(random.integers(1, 9)),
        "mlp_width": int(random.integers(1, 40)),
        "depth": int(random.integers(1, 4)),
        "window": int(random.integers(1, 40)),
        "chunk_size": int(random.integers(1, 36)),
        "num_streams": int(random.integers(1, 4)),
        "num_neighbors": int(random.integers(0, 30)),
        "updates": str(random.choice(["sequential", "joint"])),
        "learning_rate": 0.01,
    }
    x, y = examples(80, features=int(random.integers(1, 35)), classes=int(random.integers(1, 70)), seed=seed)
    sizes = [1, 1, 2, 17, 3, 30]
    found = []
    for engine in ("torch", "native"):
        learner, start, charged = Learner(**changes, engine=engine), 0, []
        for size in sizes:
            charged.append(learner.observe(x[start : start + size], y[start : start + size]).log_loss)
            charged.append(learner.predict_log_proba_many(x[-3:]).max(1))
            start += size
        found.append(np.concatenate(charged))
    np.testing.assert_allclose(*found, rtol=0, atol=2e-3)


@native_only
@pytest.mark.parametrize("changes", [{}, {"model": "two-token"}, {"model": "two-token", "method": "paper"}], ids=str)
def test_a_copy_a_snapshot_and_a_saved_learner_go_on_to_the_bit(tmp_path, changes):
    x, y = examples(120)
    learner = Learner(**SMALL, **changes, engine="native")
    learner.learn_many(x[:65], y[:65])
    snapshot, copied = learner.snapshot(), copy.deepcopy(learner)
    learner.save(tmp_path / "learner")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = Learner.load(tmp_path / "learner")
    assert loaded.engine.name == snapshot.engine.name == copied.engine.name == "native"
    before = learner.predict_log_proba_many(x[:2])
    charged = learner.observe(x[65:], y[65:]).log_loss
    assert np.array_equal(snapshot.predict_log_proba_many(x[:2]), before)
    for other in (copied, loaded):
        assert np.array_equal(other.observe(x[65:], y[65:]).log_loss, charged)
        assert same_state(other.state_dict(), learner.state_dict())


@native_only
def test_threads_that_predict_at_once_get_what_one_alone_gets():
    x, y = examples(100)
    learner = Learner(**SMALL, engine="native")
    learner.learn_many(x, y)
    snapshots = [learner.snapshot() for _ in range(2)]
    expected = [learner.predict_log_proba_many(x[i : i + 1]) for i in range(20)]
    wrong = []

    def ask(asked):
        for _ in range(5):
            for i in range(20):
                if not np.array_equal(asked.predict_log_proba_many(x[i : i + 1]), expected[i]):
                    wrong.append(i)

    threads = [threading.Thread(target=ask, args=(each,)) for each in (learner, learner, *snapshots)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@native_only
def test_a_learner_saved_by_one_engine_goes_on_with_the_other(tmp_path, monkeypatch):
    x, y = examples(120)
    learner = Learner(**SMALL)
    learner.learn_many(x[:65], y[:65])
    learner.save(tmp_path / "learner")
    assert "engine native" in repr(learner)
    monkeypatch.setenv("PREQUENTIAL_ENGINE", "torch")
    said = "engine is torch now and was the native core before: results will agree, but not to the last bit"
    with pytest.warns(EngineWarning, match=said):
        other = Learner.load(tmp_path / "learner")
    assert "engine torch" in repr(other)
    np.testing.assert_allclose(
        other.observe(x[65:], y[65:]).log_loss, learner.observe(x[65:], y[65:]).log_loss, atol=2e-3
    )


@native_only
def test_a_run_goes_on_with_another_engine_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)
    run = Run(tmp_path / "run", RunSettings(tasks=1, task_length=40, threads=1), Settings(**SMALL))
    run.begin()
    run.execute(lambda run: setattr(run, "stopped", run.position >= 20))
    assert not run.finished
    assert run.engine == "computed by the native core"
    again = Run(tmp_path / "run", engine="torch")
    again.restore()
    assert again.warnings == [
        "engine is torch now and was the native core before: results will agree, but not to the last bit"
    ]
    again.execute()
    assert again.finished
    assert '"engine": "computed by torch: engine is torch"' in (tmp_path / "run" / "scores.json").read_text()


CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("changes", "given", "why"),
    [
        ({"model": "two-token", "method": "copy"}, {}, "method is copy"),
        ({"model": "two-token", "label_delay": 7}, {}, "label_delay is 7"),
        ({"precision": "bfloat16"}, {}, "precision is bfloat16"),
        ({}, {"device": torch.device("meta")}, "device is meta"),
        ({}, {"processes": 2}, "2 processes share the streams"),
    ],
)
def test_torch_does_what_the_native_core_does_not(changes, given, why):
    choice = choose_engine(Settings(**changes), **{"device": CPU, **given})
    assert choice.name == "torch"
    assert why in choice.describe()
    with pytest.raises(BadSetting, match=rf"engine \(native\) cannot be used: {why}"):
        choose_engine(Settings(**changes, engine="native"), **{"device": CPU, **given})


def test_without_a_library_torch_computes_and_says_why(monkeypatch):
    monkeypatch.setattr(engines, "library", lambda: Found(None, "it was not built"))
    assert choose_engine(Settings(), device=CPU).describe() == "computed by torch: it was not built"
    with pytest.raises(BadSetting, match=r"engine \(native\) cannot be used: it was not built"):
        Learner(engine="native")


@native_only
def test_images_are_for_torch():
    learner = Learner(2, **SMALL)
    learner.learn(np.zeros((8, 8), np.float32), 0)
    assert learner.engine.name == "torch"
    assert "vectors" in learner.engine.why
    with pytest.raises(BadSetting, match="vectors"):
        Learner(2, **SMALL, engine="native").learn(np.zeros((8, 8), np.float32), 0)


def test_the_environment_says_what_auto_means(monkeypatch):
    monkeypatch.setenv("PREQUENTIAL_ENGINE", "torch")
    assert choose_engine(Settings(), device=CPU).name == "torch"
    monkeypatch.setenv("PREQUENTIAL_ENGINE", "fast")
    with pytest.raises(BadSetting, match="PREQUENTIAL_ENGINE is 'fast', expected one of auto, native, torch"):
        choose_engine(Settings(), device=CPU)
    assert choose_engine(Settings(engine="torch"), device=CPU).name == "torch"
