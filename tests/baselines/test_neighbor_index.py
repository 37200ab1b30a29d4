from __future__ import annotations

import sys

import numpy as np
import pytest

from prequential.baselines import neighbor_index
from prequential.baselines.neighbor_index import NeighborIndex
from prequential.errors import MissingExtra
from prequential.storage.checkpoint import read_checkpoint, same_state, write_checkpoint

pytest.importorskip("faiss")


def vectors(n, width=32, seed=0):
    random = np.random.default_rng(seed)
    centres = random.normal(size=(40, width))
    x = centres[random.integers(40, size=n)] + 0.8 * random.normal(size=(n, width))
    return (x * np.exp(random.normal(size=(n, 1)))).astype(np.float32)  # of very different lengths


def exact(x, queries, k):
    """By brute force, in float64."""
    x, queries = x.astype(float), queries.astype(float)
    cosine = np.einsum("qf,xf->qx", queries, x) / np.linalg.norm(x, axis=1) / np.linalg.norm(queries, axis=1)[:, None]
    return np.argsort(-cosine, axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize("half", [False, True])
def test_recall_against_exact_neighbors(half):
    x, queries = vectors(6000), vectors(50, seed=1)
    index = NeighborIndex(32, half=half)
    index.add(x)
    _, found = index.search(queries, 10)
    wanted = exact(x, queries, 10)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), wanted.tolist(), strict=True)])
    assert recall >= 0.95


def test_waiting_vectors_are_found_exactly_and_at_once():
    x = vectors(60)
    index = NeighborIndex(32, block=1000)
    similarity, item = index.search_and_add(x, 3)
    assert (item[0] == -1).all()
    for t in range(1, 60):
        wanted = exact(x[:t], x[t : t + 1], 3)[0]
        assert item[t, : len(wanted)].tolist() == wanted.tolist()
        assert (item[t, len(wanted) :] == -1).all()
    assert (np.diff(np.nan_to_num(similarity[1:], neginf=-2)) <= 1e-6).all()


def test_one_by_one_finds_the_same():
    x = vectors(700)
    whole, single = NeighborIndex(32, block=64), NeighborIndex(32, block=64)
    found = [whole.search_and_add(x[i : i + 64], 5)[1] for i in range(0, 700, 64)]
    one = []
    for row in x:
        one.append(single.search(row[None], 5)[1])
        single.add(row[None])
    assert np.mean(np.concatenate(found) == np.concatenate(one)) > 0.999  # equal cosines may swap


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_resumes_to_the_bit(tmp_path, shards):
    x = vectors(1500)
    index = NeighborIndex(32, block=50, shards=shards, seed=4)
    index.add(x[:777])
    write_checkpoint(tmp_path / "index", index.state_dict())
    loaded = NeighborIndex(32, block=50, shards=shards, seed=4)
    loaded.load_state_dict(read_checkpoint(tmp_path / "index"))
    assert len(loaded) == 777
    for one in (index, loaded):
        one.add(x[777:])
    assert same_state(index.state_dict(), loaded.state_dict())
    queries = vectors(100, seed=2)
    for a, b in zip(index.search(queries, 8), loaded.search(queries, 8), strict=True):
        assert np.array_equal(a, b)


def test_the_seed_decides_the_levels():
    states = []
    for seed in (0, 0, 1):
        index = NeighborIndex(8, block=50, seed=seed)
        index.add(vectors(400, 8))
        states.append(index.state_dict())
    assert same_state(states[0], states[1])
    assert not same_state(states[0], states[2])


def test_a_row_of_zeros_is_no_problem():
    index = NeighborIndex(3, block=2)
    index.add(np.zeros((5, 3), dtype=np.float32))
    assert index.search(np.zeros((1, 3), dtype=np.float32), 2)[1].shape == (1, 2)


def test_without_faiss(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtra, match=r"prequential\[neighbors\]"):
        NeighborIndex(3)


def test_it_is_the_angle_that_counts():
    index = NeighborIndex(2, block=2)
    index.add(np.array([[1.0, 0.0], [100.0, 90.0], [0.001, 0.0001]], dtype=np.float32))  # two in the graph, one waits
    similarity, item = index.search(np.array([[5.0, 0.0]], dtype=np.float32), 3)
    assert item.tolist() == [[0, 2, 1]]
    np.testing.assert_allclose(similarity[0], [1, 1 / np.sqrt(1.01), 100 / np.hypot(100, 90)], rtol=1e-5)


def test_uses_no_more_threads_than_pytorch_and_finds_the_same(monkeypatch):
    asked, found = [], []
    original = neighbor_index._pool
    monkeypatch.setattr(neighbor_index, "_pool", lambda threads: asked.append(threads) or original(threads))
    for threads in (1, 8):
        monkeypatch.setattr("torch.get_num_threads", lambda threads=threads: threads)
        index = NeighborIndex(32, block=50, shards=2)
        index.add(vectors(300))
        found.append(index.state_dict())
    assert set(asked[: len(asked) // 2]) == {1}
    assert set(asked[len(asked) // 2 :]) == {2}
    assert same_state(*found)


@pytest.mark.parametrize("kept", [0, 5, 16, 40, 47])
def test_truncated_it_is_what_it_was(kept):
    x = np.random.default_rng(0).normal(size=(90, 6)).astype(np.float32)
    index, expected = NeighborIndex(6, block=8, shards=3), NeighborIndex(6, block=8, shards=3)
    expected.add(x[:kept])
    index.add(x[:kept])
    waiting = index.waiting
    index.add(x[kept:])
    index.truncate(kept, waiting)
    assert same_state(index.state_dict(), expected.state_dict())
