import numpy as np
import pytest

from prequential.errors import BadInput
from prequential.streams.journal import Journal
from streams.battery import check_stream


def test_battery(tmp_path):
    def make(seed=0):
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        journal = Journal(directory)
        random = np.random.default_rng(seed)
        for _ in range(12):
            journal.append(random.normal(size=(25, 3)), random.integers(0, 4, 25).tolist())
        return journal

    check_stream(make, changed=lambda: make(1))


@pytest.mark.parametrize(("name", "cut"), [("x.bin", 5), ("y.bin", 3), ("x.bin", 24), ("labels.jsonl", 2)])
def test_a_record_cut_off_by_a_crash_is_dropped(tmp_path, name, cut):
    journal = Journal(tmp_path)
    journal.append(np.ones((4, 3)), ["a", "b", "a", "new"])
    journal.close()
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-cut])
    again = Journal(tmp_path)
    assert len(again) == 3
    again.append(np.zeros((1, 3)), ["c"])
    assert again.read(0, 4).y == ["a", "b", "a", "c"]
    again.close()
    assert Journal(tmp_path).read(0, 4).y == ["a", "b", "a", "c"]


def test_kinds_of_numbers(tmp_path):
    whole = Journal(tmp_path / "whole")
    whole.append(np.array([[1, 2]]), [0])
    whole.append(np.array([[0.5, 2.5]]), [1])  # fractions after whole numbers must not be cut
    assert whole.read(1, 2).x.tolist() == [[0.5, 2.5]]
    small = Journal(tmp_path / "small")
    small.append(np.array([[1, 2]], np.uint8), [0])
    small.append(np.array([[0.5, 300]]), [1])
    assert small.read(1, 2).x.tolist() == [[0.5, 300]]
    images = Journal(tmp_path / "images")
    images.append(np.full((2, 4, 4), 200, np.uint8), ["a", "a"])
    assert images.read(0, 2).x.dtype == np.uint8


def test_copies_are_independent(tmp_path):
    first = Journal(tmp_path / "first")
    first.append(np.ones((3, 2)), [1, 2, 3])
    second = first.copy(tmp_path / "second")
    second.append(np.zeros((1, 2)), [4])
    assert (len(first), len(second)) == (3, 4)
    second.truncate(2)
    assert second.read(0, 2).y == [1, 2]
    with pytest.raises(BadInput, match="holds 2 examples, expected at least 5"):
        second.truncate(5)
