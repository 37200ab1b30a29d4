import os
import pickle
from contextlib import suppress

import numpy as np
import pytest

from prequential.errors import BadInput
from prequential.streams.formats.pickles import read_plain_pickle


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data(protocol):
    data = {
        "a": [1, -2, 300, 70_000, 2**40],
        b"b": (True, False, None),
        "c": {"deep": [()]},
        "long": b"x" * 70_000,
        "names": ["n"] * 300,
    }
    assert read_plain_pickle(pickle.dumps(data, protocol)) == data


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_bytes(protocol, order):
    array = np.asarray(np.arange(60, dtype=np.uint8).reshape(5, 12), order=order)
    found = read_plain_pickle(pickle.dumps({"data": array, "again": [array]}, protocol))
    np.testing.assert_array_equal(found["data"], array)
    np.testing.assert_array_equal(found["again"][0], array)


class Attack:
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    "attack", [Attack(os.mkdir, "hacked"), Attack(eval, "open('hacked', 'w')"), Attack(np.load, "hacked")]
)
def test_nothing_is_ever_run(tmp_path, monkeypatch, protocol, attack):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="it was not run"):
        read_plain_pickle(pickle.dumps({"data": attack}, protocol))
    assert list(tmp_path.iterdir()) == []


def test_arrays_of_objects_are_refused():
    with pytest.raises(BadInput, match=r"an array of 'O8', expected bytes \('u1'\)"):
        read_plain_pickle(pickle.dumps(np.array([1, "a"], object), 2))


def test_damage_is_a_sentence():
    good = pickle.dumps({"data": np.zeros((3, 4), np.uint8), "labels": [1, 2]}, 2)
    for length in range(len(good)):
        with pytest.raises(BadInput, match="pickle"):
            read_plain_pickle(good[:length])
    random = np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(good)
        broken[random.integers(len(good))] = random.integers(256)
        with suppress(BadInput):  # any other error fails
            read_plain_pickle(bytes(broken))
