"""kNN, mixer and normalizer of the native core against those of torch and NumPy."""

import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from prequential.errors import BadCheckpoint
from prequential.labels import num_seen_before
from prequential.learners.normalizer import Normalizer
from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.experts.knn import KNNExpert
from prequential.learners.transformer.experts.metric import LearnedMetric, Neighbors
from prequential.learners.transformer.mixer import Mixer
from prequential.learners.transformer.native_mixer import NativeMixer
from prequential.native.experts import native_experts
from prequential.native.library import library
from prequential.storage.checkpoint import same_state

NATIVE = native_experts()
if NATIVE is None:
    pytest.skip(library().reason, allow_module_level=True)

# kNN


def experts(num_classes=3, width=5, memory=40, chunk_size=8):
    sizes = {"memory": memory, "chunk_size": chunk_size, "width": width, "num_classes": num_classes}
    return KNNExpert(**sizes), KNNExpert(**sizes, native=NATIVE)


def examples(n, *, num_classes=3, width=5, seed=0, lags=None):
    random = np.random.default_rng(seed)
    class_ids = random.integers(0, num_classes, n)
    x = random.normal(size=(n, width + 2)).astype(np.float32)  # the last two are not compared
    return Batch(x, class_ids, num_seen_before(class_ids, 0), lags)


def part(batch, start, stop):
    lags = None if batch.lags is None else batch.lags[start:stop]
    return Batch(batch.x[start:stop], batch.class_ids[start:stop], batch.num_seen[start:stop], lags)


def assert_close(native, expected):
    np.testing.assert_allclose(native, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("lags", [None, np.arange(8) + 3])
def test_a_metric_is_learned_as_with_torch(lags):
    data = examples(160)
    sizes = {"memory": 40, "chunk_size": 8, "width": 5, "num_classes": 3, "learn_metric": True}
    torch_knn, native = KNNExpert(**sizes), KNNExpert(**sizes, native=NATIVE)
    for start in range(0, 160, 8):
        chunk = replace(part(data, start, start + 8), lags=lags)
        assert_close(native.commit(chunk), torch_knn.commit(chunk))
        np.testing.assert_allclose(native._metric.scale, torch_knn._metric.scale, rtol=1e-3)
    assert np.abs(np.log(native._metric.scale)).max() > 0.05
    queries = Queries(chunk.x, np.full(8, 3))
    np.testing.assert_allclose(native.predict(queries).log_probs, torch_knn.predict(queries).log_probs, atol=1e-2)


def test_the_gradient_of_a_metric_is_that_of_numpy():
    random = np.random.default_rng(0)
    keys, labels = random.normal(size=(50, 6)).astype(np.float32), random.integers(0, 3, 50)
    ages = random.integers(0, 30, (12, 15))
    ages[3] = 0  # no neighbors
    prior = random.random(12)
    metric = LearnedMetric(width=6, prior_weight=0.5)
    metric.sharpness = 1.7
    row = 38 + np.arange(12)[:, None]
    found = ages > 0
    squares = np.square(keys[row] - keys[row - ages]) * found[..., None]
    expected = metric.gradient(Neighbors(squares, labels[row - ages] == labels[row], found, prior))

    def native(first=38, ages=ages):
        memory = (keys.ctypes.data, labels.ctypes.data, 50)
        return NATIVE.metric_gradient(memory, first, ages, prior, width=6, prior_weight=0.5, sharpness=1.7)

    np.testing.assert_allclose(native(), expected, rtol=1e-9, atol=1e-12)
    for impossible in ({"first": 39}, {"first": -1}, {"ages": ages + 40}, {"ages": -ages}):
        with pytest.raises(IndexError, match="not in memory"):
            native(**impossible)


@pytest.mark.parametrize(("num_classes", "width"), [(1, 1), (2, 8), (3, 5), (1000, 17)])
def test_neighbors_are_those_of_torch(num_classes, width):
    data = examples(130, num_classes=num_classes, width=width)
    torch_knn, native = experts(num_classes, width)
    for start in range(0, 128, 8):  # the memory is filling, and then full
        chunk = part(data, start, start + 8)
        queries = Queries(chunk.x, np.full(8, chunk.num_seen[-1]))
        assert_close(native.predict(queries).log_probs, torch_knn.predict(queries).log_probs)
        for sizes in ((0, 1, 2), (2, 5)):
            for a, b in itertools.pairwise(sizes):
                assert_close(native.extend(part(chunk, a, b)), torch_knn.extend(part(chunk, a, b)))
        assert_close(native.commit(chunk), torch_knn.commit(chunk))
        assert same_state(native.state_dict(), torch_knn.state_dict())


@pytest.mark.parametrize("lag", [1, 5, 30, 200])
def test_labels_that_come_late_are_hidden(lag):
    random = np.random.default_rng(lag)
    data = examples(96, lags=random.integers(0, lag + 1, 96))
    torch_knn, native = experts()
    for start in range(0, 96, 8):
        chunk = part(data, start, start + 8)
        for knn in (torch_knn, native):
            assert knn.extend(part(chunk, 0, 3)).shape == (1, 3, 3)
        missing = np.arange(3, -1, -1)
        queries = Queries(chunk.x[:4], chunk.num_seen[:4], missing, missing)
        assert_close(native.predict(queries).log_probs, torch_knn.predict(queries).log_probs)
        assert_close(native.extend(part(chunk, 3, 4)), torch_knn.extend(part(chunk, 3, 4)))
        assert_close(native.commit(chunk), torch_knn.commit(chunk))
        assert same_state(native.state_dict(), torch_knn.state_dict())


@pytest.mark.parametrize("learn_metric", [False, True])
def test_one_by_one_and_at_once_give_the_same_bits(learn_metric):
    data = examples(64, width=11)
    sizes = {"memory": 20, "chunk_size": 8, "width": 11, "num_classes": 3, "learn_metric": learn_metric}
    whole, single = KNNExpert(**sizes, native=NATIVE), KNNExpert(**sizes, native=NATIVE)
    for start in range(0, 64, 8):
        chunk = part(data, start, start + 8)
        found = []
        for i in range(8):
            one = part(chunk, i, i + 1)
            predicted = single.predict(Queries(one.x, one.num_seen))
            found.append(single.extend(one, predicted if i % 3 else None))
            if start == 16 and i == 3:  # what was found before is not in the state
                single.load_state_dict(single.state_dict())
        assert np.array_equal(np.concatenate(found, 1), whole.commit(chunk))
        assert np.array_equal(np.concatenate(found, 1), single.commit(chunk))
    assert same_state(single.state_dict(), whole.state_dict())


def test_a_chunk_longer_than_the_memory():
    data = examples(40)
    torch_knn, native = experts(memory=5, chunk_size=40)
    assert_close(native.commit(data), torch_knn.commit(data))
    assert same_state(native.state_dict(), torch_knn.state_dict())


def test_of_equally_near_ones_the_latest_vote():
    _, native = experts(num_classes=2, width=1)
    x = np.zeros((40, 3), np.float32)
    class_ids = np.repeat([0, 1], [20, 20])
    native.commit(Batch(x, class_ids, num_seen_before(class_ids, 0)))
    p = np.exp(native.predict(Queries(x[:1], np.array([2]))).log_probs[0, 0])
    assert p[1] > 0.9
    assert p.sum() == pytest.approx(1)


def test_distances_that_are_no_numbers_do_not_count():
    torch_knn, native = experts(num_classes=2, width=2, memory=200)
    data = examples(100, num_classes=2, width=2)
    data.x[::3, 0] = np.inf
    data.x[1::3, 0] = 1e30  # its square is infinite
    data.x[5, 1] = np.nan
    for knn in (torch_knn, native):
        knn.commit(data)
    for value in (0.0, 1e30, np.inf, np.nan):
        x = np.full((1, 4), value, np.float32)
        found = native.predict(Queries(x, np.array([2]))).log_probs
        assert np.isfinite(found).all()
        if value == 0:
            assert_close(found, torch_knn.predict(Queries(x, np.array([2]))).log_probs)
        else:
            assert np.allclose(np.exp(found), 0.5)


def test_no_rows_and_no_past():
    _, native = experts()
    empty = native.predict(Queries(np.empty((0, 5), np.float32), np.empty(0, np.int64)))
    assert empty.log_probs.shape == (1, 0, 3)
    first = native.predict(Queries(np.zeros((1, 5), np.float32), np.array([0])))
    assert np.allclose(np.exp(first.log_probs), 1 / 3)


def test_a_label_that_is_none_of_the_classes_is_refused():
    _, native = experts(num_classes=9)
    native.commit(examples(8, num_classes=9))
    native.num_classes = 2
    with pytest.raises(IndexError, match="none of the classes"):
        native.predict(Queries(np.zeros((1, 5), np.float32), np.array([2])))


def test_a_copy_of_an_expert_is_its_own():
    _, native = experts()
    data = examples(16)
    native.commit(part(data, 0, 8))
    copied = copy.deepcopy(native)
    before = native.predict(Queries(data.x[8:9], np.array([3]))).log_probs
    copied.extend(part(data, 8, 9))
    assert np.array_equal(native.predict(Queries(data.x[8:9], np.array([3]))).log_probs, before)
    assert not np.array_equal(copied.predict(Queries(data.x[8:9], np.array([3]))).log_probs, before)


# The mixer


def predictions(n=40, num_experts=4, num_classes=5, seed=0):
    random = np.random.default_rng(seed)
    logits = torch.from_numpy(3 * random.normal(size=(num_experts, n, num_classes)).astype(np.float32))
    return torch.log_softmax(logits, -1).numpy(), random.integers(0, num_classes, n)


def assert_same_weights(native, expected):
    for version in ("committed", "current"):
        for name, value in expected.state_dict()[version].items():
            np.testing.assert_allclose(native.state_dict()[version][name], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("rates", [(), (0.005, 0.02, 0.08)])
@pytest.mark.parametrize(("num_experts", "num_classes"), [(1, 3), (2, 1), (4, 2), (4, 5), (11, 7), (4, 1000)])
@pytest.mark.parametrize("open_ended", [False, True])
def test_mixtures_are_those_of_numpy(num_experts, num_classes, rates, open_ended):
    log_probs, class_ids = predictions(num_experts=num_experts, num_classes=num_classes)
    class_ids = np.minimum(class_ids, np.arange(40) // 4)  # new ones come by and by
    num_seen = num_seen_before(class_ids, 0) if open_ended else None
    expected = Mixer(num_experts, learning_rates=rates)
    native = NativeMixer(num_experts, native=NATIVE, learning_rates=rates)

    def seen(at):
        return None if num_seen is None else num_seen[at]

    for start in range(0, 40, 10):
        for i in range(start, start + 10):
            at = slice(i, i + 1)
            here, reuse = expected.predict(log_probs[:, at], seen(at))
            own, own_reuse = native.predict(log_probs[:, at], seen(at))
            np.testing.assert_allclose(own, here, atol=1e-11)
            assert (reuse is None) == (own_reuse is None)
            if i % 3 == 0:
                reuse = own_reuse = None
            expected.extend(log_probs[:, at], class_ids[at], reuse, seen(at))
            found = native.extend(log_probs[:, at], class_ids[at], own_reuse, seen(at))
            np.testing.assert_allclose(found, here, atol=1e-11)
            assert_same_weights(native, expected)
        if num_experts > 1:
            missing = np.array([0, 1, 4, 10])
            asked = slice(start, start + 4)
            late = [mixer.predict(log_probs[:, asked], seen(asked), missing)[0] for mixer in (native, expected)]
            np.testing.assert_allclose(*late, atol=1e-11)
        at = slice(start, start + 10)
        lags = None if start % 20 else np.arange(10) * 30
        made = [mixer.commit(log_probs[:, at], class_ids[at], seen(at), lags) for mixer in (native, expected)]
        np.testing.assert_allclose(*made, atol=1e-11)
        assert_same_weights(native, expected)


def test_a_native_mixer_gives_the_same_bits_in_all_sizes():
    log_probs, class_ids = predictions()
    whole, single = NativeMixer(4, native=NATIVE), NativeMixer(4, native=NATIVE)
    expected = whole.commit(log_probs, class_ids)
    for t in range(40):
        at = slice(t, t + 1)
        predicted, reuse = single.predict(log_probs[:, at])
        assert np.array_equal(predicted, expected[at])
        assert np.array_equal(single.extend(log_probs[:, at], class_ids[at], reuse), expected[at])
    assert same_state(single.state_dict()["current"], whole.state_dict()["current"])


def test_experts_that_are_certain_of_the_wrong_label():
    log_probs = np.float32([[[0, -800, -np.inf]], [[-700, 0, -5]], [[-1, -1, -1]]])
    expected, native = Mixer(3), NativeMixer(3, native=NATIVE)
    for y in (0, 1, 2, 2, 1):
        made = [mixer.commit(log_probs, np.array([y])) for mixer in (native, expected)]
        np.testing.assert_allclose(*made, atol=1e-10)
        assert_same_weights(native, expected)


def test_a_class_id_that_there_is_not_is_refused():
    log_probs, _ = predictions(1)
    native = NativeMixer(4, native=NATIVE)
    _, reuse = native.predict(log_probs)
    for call in (
        lambda: native.commit(log_probs, np.array([5])),
        lambda: native.extend(log_probs, np.array([-1]), reuse),
    ):
        with pytest.raises(IndexError, match="class id"):
            call()


# The normalizer


def streams():
    """Tables with all that a normalizer meets."""
    random = np.random.default_rng(0)
    plain = random.normal(size=(400, 3)) * [1, 1e-8, 1e6] + [0, 5, -1e9]
    missing = np.where(random.random((400, 3)) < 0.3, np.nan, plain)
    missing[:, 2] = np.nan
    rare = np.zeros((400, 4))
    rare[random.random((400, 4)) < 0.05] = 1
    broken = plain.copy()
    broken[[3, 120, 121, 200], 0] = 1e9
    broken[250:, 1] = 1e5 + random.normal(size=150)  # a new level
    return {
        "plain": plain,
        "missing": missing,
        "rare": rare,
        "broken": broken,
        "huge": np.where(random.random((400, 3)) < 0.01, 1e308, plain),
        "constant": np.full((400, 2), 7.0),
        "no features": np.empty((400, 0)),
    }


@pytest.mark.parametrize("recent", [None, 50])
@pytest.mark.parametrize("kind", streams())
def test_features_are_normalized_as_by_numpy(kind, recent):
    x = streams()[kind]
    expected, native = (Normalizer(x.shape[1], recent=recent, native=n) for n in (None, NATIVE))
    for start in range(0, 400, 32):
        rows = x[start : start + 32]
        np.testing.assert_allclose(native.transform(rows), expected.transform(rows), rtol=1e-5, atol=1e-6)
        for normalizer in (expected, native):
            normalizer.update(rows)
            normalizer.forget()
        for name, value in expected.state_dict().items():
            if name == "guard":
                for field, of_guard in value.items():
                    other = native.state_dict()[name][field]
                    assert other.dtype == of_guard.dtype
                    if field == "others" and not len(of_guard):  # room is made for what is not there yet
                        assert not other.any()
                        continue
                    np.testing.assert_allclose(other, of_guard, rtol=1e-9, atol=1e-9, err_msg=field)
            else:
                np.testing.assert_allclose(native.state_dict()[name], value, rtol=1e-8, atol=1e-9, err_msg=name)


def starts(n=200):
    """Features that show their first values at different speeds, with ties, constants, gaps and broken ones."""
    random = np.random.default_rng(1)
    plain = random.normal(size=(n, 24)) * 3 + 1
    usual = np.where(random.random((n, 24)) < np.linspace(0.02, 1, 24), plain, 5.0)  # one value recurs
    gaps = np.where(random.random((n, 24)) < np.linspace(0, 0.95, 24), np.nan, plain)
    whole = random.integers(-12, 13, size=(n, 24)) * 1.0
    at_limit = whole * (1 + 15 * (random.random((n, 24)) < 0.02))  # distances of about SPREAD times the usual one
    heavy = random.standard_cauchy(size=(n, 24))
    broken = plain.copy()
    broken[random.integers(0, 34, 24), np.arange(24)] = random.choice([-9e9, 999.0, 1e30, -0.0], 24)
    constant = np.full((n, 4), 7.0)
    constant[n // 2 :, 1] += plain[n // 2 :, 0]
    constant[:, 2] = np.nan
    constant[::2, 3] = -0.0
    return {
        "usual": usual, "gaps": gaps, "ties": whole, "at the limit": at_limit, "heavy": heavy, "first broken": broken,
        "constants": constant, "all": np.concatenate([usual, gaps, whole, at_limit, heavy, broken, constant], 1),
    }  # fmt: skip


@pytest.mark.parametrize("size", [1, 7, 32, 200])
def test_first_values_are_looked_at_as_by_numpy(size):
    x = starts()["all"]
    expected, native = (Normalizer(x.shape[1], native=n) for n in (None, NATIVE))
    ended = set()
    for start in range(0, len(x), size):
        for normalizer in (expected, native):
            normalizer.update(x[start : start + size])
        ended.add(len(expected.guard.starting))
        for name in ("starting", "first", "same", "others", "filled", "cut", "low", "high", "value", "repeats"):
            ours, theirs = getattr(native.guard, name), getattr(expected.guard, name)
            if name == "others" and not len(theirs):  # room is made for what is not there yet
                assert not ours.any()
                continue
            assert np.array_equal(ours, theirs), (start, name)
        np.testing.assert_allclose(native.mean, expected.mean, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(native.square, expected.square, rtol=1e-8, atol=1e-9)
    assert size == 200 or len(ended) > 3  # not all at once
    assert min(ended) < x.shape[1] / 2


def test_a_look_finds_broken_what_numpy_does():
    random = np.random.default_rng(2)
    found = []
    for case in range(200):
        others = random.permutation(np.arange(1, 8 if case % 2 else 32)) * random.choice([-1, 1])
        largest = np.abs(others).max() * 16 + random.integers(-40, 41)
        same = int(random.integers(1, 40))
        values = np.concatenate([np.zeros(same), others, [largest]])[:, None].astype(np.float64)
        values += random.integers(-5, 6)
        expected, native = (Normalizer(1, native=n) for n in (None, NATIVE))
        for normalizer in (expected, native):
            normalizer.update(values)
        assert np.array_equal(native.guard.cut, expected.guard.cut)
        assert np.array_equal(native.guard.low, expected.guard.low)
        assert np.array_equal(native.guard.high, expected.guard.high)
        found.append(bool(expected.guard.cut.any() or expected.guard.repeats.any()))
    assert 50 < sum(found) < 150


@pytest.mark.parametrize("kind", ["usual", "gaps", "ties", "constants"])
def test_where_nothing_is_broken_rows_stay_in_the_native_core(monkeypatch, kind):
    x = starts()[kind]
    normalizer = Normalizer(x.shape[1], recent=50, native=NATIVE)
    monkeypatch.setattr(Normalizer, "_next", None)
    for start in range(0, len(x), 20):
        normalizer.update(x[start : start + 20])
        normalizer.forget()
    assert np.isfinite(normalizer.guard.low).any()
    before = normalizer.guard
    normalizer.transform(x)
    assert normalizer.guard is before  # what is only asked changes nothing


def test_a_range_is_that_of_the_first_values_and_holds_from_then_on():
    random = np.random.default_rng(3)
    x = random.normal(size=(80, 2))
    x[:20, 1] = 0.5  # its start ends 19 rows later, in the same chunk
    x[40, 0] = x[60, 1] = 1e6
    native = Normalizer(2, native=NATIVE)
    shown = native.transform(x)
    native.update(x)
    assert not len(native.guard.starting)
    assert native.guard.low.tolist() == [x[:33, 0].min(), x[19:52, 1].min()]
    assert native.guard.high.tolist() == [x[:33, 0].max(), x[19:52, 1].max()]
    assert shown[40, 0] == shown[60, 1] == 2
    assert native.guard.value.tolist() == [1e6, 1e6]


@pytest.mark.parametrize("kind", ["missing", "rare", "broken", *starts()])
def test_a_native_normalizer_gives_the_same_bits_in_all_sizes(kind):
    x = (streams() | starts(400))[kind]
    whole, single = (Normalizer(x.shape[1], recent=50, native=NATIVE) for _ in range(2))
    for start in range(0, 400, 32):
        rows, parts = x[start : start + 32], []
        for row in rows[:, None]:
            features, after = single.peek(row)
            parts.append(features)
            single.take(after)
        assert np.array_equal(np.concatenate(parts), whole.transform(rows))
        whole.update(rows)
        assert same_state(whole.state_dict(), single.state_dict())
        for normalizer in (whole, single):
            normalizer.forget()


def test_rows_are_taken_as_they_come():
    x = np.random.default_rng(0).normal(size=(40, 6))
    expected = Normalizer(3, native=NATIVE).transform(x[:, ::2].copy())
    read_only = x[:, ::2].copy()
    read_only.flags.writeable = False
    for rows in (x[:, ::2], read_only, np.asfortranarray(x[:, ::2])):
        assert np.array_equal(Normalizer(3, native=NATIVE).transform(rows), expected)
    whole = np.arange(12, dtype=np.uint8).reshape(4, 3)
    made = [Normalizer(3, native=n).transform(whole) for n in (None, NATIVE)]
    np.testing.assert_allclose(*made, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("others", np.zeros((5, 3))),
        ("filled", np.array([0, 40, 0])),
        ("starting", np.array([0, 1, 9])),
        ("run", np.zeros(2, np.int64)),
        ("low", np.zeros((3, 3))),
    ],
)
def test_statistics_that_cannot_be_are_not_loaded(name, value):
    state = Normalizer(3).state_dict()
    with pytest.raises(BadCheckpoint, match=f"{name} of the features"):
        Normalizer(3, native=NATIVE).load_state_dict({**state, "guard": {**state["guard"], name: value}})
    with pytest.raises(BadCheckpoint, match="expected"):
        Normalizer(3, native=NATIVE).load_state_dict({**state, "mean": np.zeros(2)})


def test_numbers_of_another_type_are_loaded_as_what_they_are():
    x = streams()["broken"]
    saved = Normalizer(3, native=NATIVE)
    saved.update(x[:130])
    state = saved.state_dict()
    narrow = {**state, "guard": {**state["guard"], "run": state["guard"]["run"].astype(np.int8)}}
    loaded = Normalizer(3, native=NATIVE)
    loaded.load_state_dict(narrow)
    assert np.array_equal(loaded.transform(x[130:]), saved.transform(x[130:]))


def test_weights_that_cannot_be_are_not_loaded():
    state = Mixer(4).state_dict()
    other = {**state["current"], "exponents": np.zeros((3, 2))}
    with pytest.raises(BadCheckpoint, match=r"exponents of the mixer has shape \(3, 2\), expected \(3, 4\)"):
        NativeMixer(4, native=NATIVE).load_state_dict({**state, "current": other})
