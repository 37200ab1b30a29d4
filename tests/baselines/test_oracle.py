from __future__ import annotations

import numpy as np
import pytest

from prequential.baselines import LastLabel, Oracle, oracle_accuracy
from prequential.errors import BadSetting
from prequential.storage.checkpoint import read_checkpoint, write_checkpoint
from prequential.streams.stream import Chunk, Stream

WINDOWS = [1, 2, 5, 30, 1000]


class Given(Stream):
    def __init__(self, y):
        self.y = y

    def __len__(self):
        return len(self.y)

    def _read(self, start, stop):
        return Chunk(np.zeros((stop - start, 1)), self.y[start:stop])

    def fingerprint(self):
        return "given"


def labels(n=3000, classes=60):
    random = np.random.default_rng(0)
    y = np.minimum(random.geometric(0.06, size=n), classes) + 10 * (np.arange(n) // 500)
    return y.tolist()


def test_against_a_brute_force_count():
    y = labels()
    correct = Oracle(WINDOWS).observe(y)
    for column, window in enumerate(WINDOWS):
        expected = [y[t] in y[max(0, t - window) : t] for t in range(len(y))]
        assert correct[:, column].tolist() == expected


def test_window_one_is_last_label():
    y = labels()
    charges = LastLabel(200).observe(np.zeros((len(y), 1)), y)
    assert Oracle([1]).observe(y)[:, 0].tolist() == charges.correct.tolist()


def test_is_monotone_in_the_window():
    accuracy = list(oracle_accuracy(Given(labels()), [1, 2, 4, 8, 16, 3000]).values())
    assert accuracy == sorted(accuracy)
    assert accuracy[0] < accuracy[-1]


def test_pieces_and_resume_change_nothing(tmp_path):
    y = [("a", label) for label in labels()]
    whole = oracle_accuracy(Given(y), WINDOWS)
    assert oracle_accuracy(Given(y), WINDOWS, batch=7) == whole
    oracle = Oracle(WINDOWS)
    oracle.observe(y[:1234])
    write_checkpoint(tmp_path / "oracle", oracle.state_dict())
    resumed = Oracle(WINDOWS)
    resumed.load_state_dict(read_checkpoint(tmp_path / "oracle"))
    resumed.observe(y[1234:])
    assert resumed.accuracy() == whole


def test_memory_is_bounded_by_the_window():
    oracle = Oracle([5, 10])
    oracle.observe(range(10_000))
    assert len(oracle._last) <= 20
    assert oracle.accuracy() == {5: 0.0, 10: 0.0}


def test_bad_windows():
    with pytest.raises(BadSetting, match=r"windows \(\[3, 0\]\)"):
        Oracle([3, 0])
