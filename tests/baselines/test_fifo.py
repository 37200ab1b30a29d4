from __future__ import annotations

import numpy as np
import pytest

from prequential.baselines.fifo import FIFOBuffer
from prequential.errors import BadSetting
from prequential.storage.checkpoint import read_checkpoint, write_checkpoint


def filled(size, n, piece):
    buffer = FIFOBuffer(size)
    for start in range(0, n, piece):
        i = np.arange(start, min(start + piece, n))
        buffer.push(i[:, None], i % 3)
    return buffer


@pytest.mark.parametrize(
    ("size", "n", "piece"), [(5, 3, 1), (100, 1000, 7), (64, 64, 64), (10, 95, 30), (200, 150, 40)]
)
def test_holds_the_last_examples_in_order(size, n, piece):
    x, class_ids = filled(size, n, piece).contents()
    wanted = np.arange(max(0, n - size), n)
    assert x.ravel().tolist() == wanted.tolist()
    assert class_ids.tolist() == (wanted % 3).tolist()


def test_draws_uniformly_from_all_of_it():
    buffer = filled(50, 730, 13)
    x, class_ids = buffer.draw(np.random.default_rng(0), 100_000)
    counts = np.bincount(x.ravel(), minlength=730)
    assert counts[:680].sum() == 0  # nothing that was pushed out
    chi_square = ((counts[680:] - 2000) ** 2 / 2000).sum()
    assert chi_square < 85  # 49 degrees of freedom: exceeded once in a thousand
    assert (class_ids == x.ravel() % 3).all()


def test_resizing_keeps_the_newest():
    buffer = filled(20, 100, 9)
    buffer.resize(5)
    assert buffer.contents()[0].ravel().tolist() == [95, 96, 97, 98, 99]
    buffer.resize(7)
    buffer.push(np.array([[100], [101], [102]]), np.zeros(3, dtype=np.int64))
    assert buffer.contents()[0].ravel().tolist() == list(range(96, 103))


def test_resumes_with_the_same_draws(tmp_path):
    buffer = filled(50, 333, 7)
    write_checkpoint(tmp_path / "buffer", buffer.state_dict())
    loaded = FIFOBuffer(1)
    loaded.load_state_dict(read_checkpoint(tmp_path / "buffer"))
    for one in (buffer, loaded):
        one.push(np.arange(400, 410)[:, None], np.zeros(10, dtype=np.int64))
    draws = [one.draw(np.random.default_rng(1), 200)[0].tolist() for one in (buffer, loaded)]
    assert draws[0] == draws[1]


def test_bad_size():
    with pytest.raises(BadSetting, match=r"buffer \(0\)"):
        FIFOBuffer(0)


@pytest.mark.parametrize("size", [4, 1000])  # one that is full, one that never is
def test_numbers_of_several_kinds_are_kept_as_they_are(size):
    buffer = FIFOBuffer(size)
    pushed = [np.array([[1], [2**40]]), np.array([[0.25]], dtype=np.float32), np.array([[1 / 3]])]
    for x in pushed:
        buffer.push(x, np.zeros(len(x), dtype=np.int64))
    assert buffer.contents()[0].ravel().tolist() == [1, 2**40, 0.25, 1 / 3]
    images = FIFOBuffer(size)
    images.push(np.zeros((3, 2, 2), dtype=np.uint8), np.zeros(3, dtype=np.int64))
    assert images.state_dict()["x"].dtype == np.uint8  # a quarter of the memory


@pytest.mark.parametrize("sizes", [[3], [20, 20], [5, 70, 5]])
@pytest.mark.parametrize("resize", [None, 10, 100])
def test_undo_brings_everything_back(sizes, resize):
    buffer = FIFOBuffer(40)
    buffer.push(np.arange(35)[:, None], np.arange(35))
    before = buffer.contents()
    buffer.begin_undo()
    for size in sizes:
        buffer.push(np.full((size, 1), 0.5), np.zeros(size, dtype=np.int64))
    if resize:
        buffer.resize(resize)
        buffer.push(np.full((7, 1), 0.5), np.zeros(7, dtype=np.int64))
    buffer.undo()
    for now, then in zip(buffer.contents(), before, strict=True):
        assert now.dtype == then.dtype
        assert np.array_equal(now, then)
    assert buffer.size == 40
