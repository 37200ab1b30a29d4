import numpy as np
import pytest

from prequential.learners.transformer.batch import Batch, Queries
from prequential.learners.transformer.experts.knn import PRIOR_WEIGHT, KNNExpert
from prequential.learners.transformer.experts.metric import LearnedMetric, Neighbors


def neighbors(n=6, k=5, width=3, seed=0):
    random = np.random.default_rng(seed)
    found = np.ones((n, k), bool)
    found[1, 3:] = False
    found[2] = False
    squares = random.random((n, k, width)) * found[..., None]
    return Neighbors(squares, (random.random((n, k)) < 0.5) & found, found, np.full(n, 0.25))


def loss(log, given):
    """The mean of -log p(y), in plain words."""
    losses = []
    for squares, same, found, prior in zip(*given, strict=True):
        distance = (squares * np.exp(2 * log[:-1])).sum(1)[found]
        if not len(distance):
            losses.append(-np.log(prior))
            continue
        vote = np.exp(-np.exp(log[-1]) * distance / (distance.mean() + 1e-9))
        share = 1 / (1 + PRIOR_WEIGHT / len(distance))
        losses.append(-np.log(share * vote[same[found]].sum() / vote.sum() + (1 - share) * prior))
    return np.mean(losses)


def test_the_gradient_is_that_of_the_loss():
    given, metric = neighbors(), LearnedMetric(width=3, prior_weight=PRIOR_WEIGHT)
    eye = 1e-6 * np.eye(4)
    expected = [(loss(step, given) - loss(-step, given)) / 2e-6 for step in eye]
    np.testing.assert_allclose(metric.gradient(given), expected, rtol=1e-5, atol=1e-9)


def test_a_step_that_is_not_finite_is_not_taken():
    given, metric = neighbors(), LearnedMetric(width=3, prior_weight=PRIOR_WEIGHT)
    metric.learn(given._replace(squares=np.full_like(given.squares, np.inf)))
    assert metric.scale.tolist() == [1, 1, 1]


def stream(n, seed=0):
    """The first feature decides the label; the nine others are noise."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 10)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def learned(x, class_ids, *, learn_metric, lags=None):
    knn = KNNExpert(memory=400, chunk_size=32, width=10, num_classes=2, learn_metric=learn_metric)
    log_probs = [
        knn.commit(Batch(x[i : i + 32], class_ids[i : i + 32], np.full(len(x[i : i + 32]), 2), lags))[0]
        for i in range(0, len(x), 32)
    ]
    return knn, np.concatenate(log_probs)


def test_it_finds_the_feature_that_tells():
    x, class_ids = stream(3200)
    knn, log_probs = learned(x, class_ids, learn_metric=True)
    _, fixed = learned(x, class_ids, learn_metric=False)
    scale = knn._metric.scale
    assert scale[0] > 3 * scale[1:].max()
    late = slice(1600, None)
    right, right_fixed = ((p.argmax(1) == class_ids)[late].mean() for p in (log_probs, fixed))
    assert right > right_fixed + 0.05


def test_what_is_in_memory_is_scaled_as_what_comes():
    x, class_ids = stream(640)
    knn, _ = learned(x, class_ids, learn_metric=True)
    kept = knn._past.committed()[0][0, 0].numpy()
    np.testing.assert_allclose(kept, x[-400:] * knn._metric.scale, rtol=1e-4)


@pytest.mark.parametrize("lags", [None, np.full(32, 5)])
def test_a_state_goes_on_the_same(lags):
    x, class_ids = stream(640)
    knn, _ = learned(x[:320], class_ids[:320], learn_metric=True, lags=lags)
    again = KNNExpert(memory=400, chunk_size=32, width=10, num_classes=2, learn_metric=True)
    again.load_state_dict(knn.state_dict())
    query = Queries(x[320:330], np.full(10, 2))
    for expert in (knn, again):
        expert.commit(Batch(x[320:352], class_ids[320:352], np.full(32, 2), lags))
    assert np.array_equal(knn.predict(query).log_probs, again.predict(query).log_probs)
