import os

import numpy as np
import pytest

from prequential.streams import cache
from prequential.streams.cache import (
    array_hash,
    cache_folder,
    cached_array,
    cached_file,
    file_hash,
    file_stamp,
    scratch_file,
)


def test_file_hash_covers_every_byte_and_the_order(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"x" * 5000)
    b.write_bytes(b"x" * 4999 + b"y")
    assert file_hash(a) != file_hash(b)
    assert file_hash(a, b) != file_hash(b, a)
    (tmp_path / "copy").write_bytes(a.read_bytes())
    assert file_hash(a) == file_hash(tmp_path / "copy")


def test_large_files_are_sampled_at_both_ends_and_between(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "WHOLE", 1000)
    monkeypatch.setattr(cache, "PIECE", 10)
    data = bytearray(10_000)
    path = tmp_path / "a"
    path.write_bytes(data)
    whole = file_hash(path)
    for place in (0, 5005, 9999):
        changed = bytearray(data)
        changed[place] = 1
        path.write_bytes(changed)
        assert file_hash(path) != whole, place
    path.write_bytes(data + b"\0")
    assert file_hash(path) != whole


@pytest.mark.parametrize("values", [np.arange(5000.0).reshape(-1, 2), np.arange(2500), np.array(["a", "b"] * 900)])
def test_array_hash_covers_every_value(values):
    changed = values.copy()
    changed[-1] = changed[0]
    assert array_hash(values) != array_hash(changed)
    assert array_hash(values) == array_hash(values.copy())
    objects = np.array([("t", 1), None], object)
    assert array_hash(objects) != array_hash(objects[::-1])


def test_an_array_is_made_once_and_mapped():
    made = []

    def make():
        made.append(1)
        return np.arange(12).reshape(3, 4)

    for _ in range(2):
        np.testing.assert_array_equal(cached_array("numbers", make), np.arange(12).reshape(3, 4))
    assert made == [1]
    (cache_folder() / "numbers.npy").write_bytes(b"damaged")
    assert isinstance(cached_array("numbers", make), np.memmap)
    assert made == [1, 1]
    assert cached_array("none", lambda: np.empty(0)).shape == (0,)


def test_where_nothing_can_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PREQUENTIAL_CACHE", str(tmp_path / "file" / "below"))
    assert cached_array("numbers", lambda: np.arange(3)).tolist() == [0, 1, 2]
    scratch = scratch_file()
    assert scratch.is_file()
    scratch.unlink()


def test_a_stamp_tells_what_a_sampled_hash_cannot(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "WHOLE", 1000)
    monkeypatch.setattr(cache, "PIECE", 10)
    path = tmp_path / "a"
    path.write_bytes(bytes(10_000))
    os.utime(path, ns=(1, 1))
    before, stamp = file_hash(path), file_stamp(path)
    assert file_stamp(path) == stamp
    changed = bytearray(10_000)
    changed[50] = 1  # between two pieces
    path.write_bytes(changed)
    assert file_hash(path) == before
    assert file_stamp(path) != stamp


def test_a_file_is_made_once_and_never_half(tmp_path):
    made = []

    def write(path):
        made.append(1)
        path.write_text("whole" if len(made) > 1 else "half")
        if len(made) == 1:
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        cached_file("copy", write)
    assert list(cache_folder().iterdir()) == []
    for _ in range(2):
        assert cached_file("copy", write).read_text() == "whole"
    assert len(made) == 2
