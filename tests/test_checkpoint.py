import json
import os

import numpy as np
import pytest
import torch

from prequential.checkpoint import CheckpointFolder, read_checkpoint, same_state, write_atomically, write_checkpoint
from prequential.errors import BadCheckpoint

STATE = {
    "numbers": [1, 2.5, None, True, "text"],
    "arrays": {"a": np.arange(6.0).reshape(2, 3), "empty": np.zeros((0, 4), np.float32), "scalar": np.array(3.0)},
    "deep": [{"tensor": torch.arange(4, dtype=torch.int64)}, {"large": 2**80}],
}


def test_a_state_comes_back_as_it_was(tmp_path):
    write_checkpoint(tmp_path / "c", STATE)
    back = read_checkpoint(tmp_path / "c")
    assert same_state(STATE, back)
    assert back["numbers"] == STATE["numbers"]
    assert back["arrays"]["empty"].shape == (0, 4)
    assert back["arrays"]["scalar"].shape == ()
    assert np.array_equal(back["deep"][0]["tensor"], [0, 1, 2, 3])


def test_a_difference_of_one_bit_is_seen():
    other = {**STATE, "arrays": {**STATE["arrays"], "a": STATE["arrays"]["a"] + np.array([[0, 0, 0], [0, 0, 1e-15]])}}
    assert same_state(STATE, dict(STATE))
    assert not same_state(STATE, other)
    assert not same_state({"a": np.zeros(2, np.float32)}, {"a": np.zeros(2, np.float64)})


def test_a_flipped_bit_anywhere_is_refused(tmp_path):
    write_checkpoint(tmp_path / "c", STATE)
    content = (tmp_path / "c").read_bytes()
    for where in range(len(content)):
        damaged = bytearray(content)
        damaged[where] ^= 1 << where % 8
        (tmp_path / "c").write_bytes(damaged)
        try:
            back = read_checkpoint(tmp_path / "c")
        except BadCheckpoint:
            continue
        assert same_state(back, STATE), where  # a bit that means nothing, such as one of the padding


@pytest.mark.parametrize("size", [0, 5, 200])
def test_one_cut_short_is_refused(tmp_path, size):
    write_checkpoint(tmp_path / "c", STATE)
    (tmp_path / "c").write_bytes((tmp_path / "c").read_bytes()[:size])
    with pytest.raises(BadCheckpoint, match="is damaged"):
        read_checkpoint(tmp_path / "c")


def test_foreign_files_are_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"weight": np.zeros(3)}, tmp_path / "weights.safetensors")
    with pytest.raises(BadCheckpoint, match="has format None, expected 'prequential-checkpoint-1'"):
        read_checkpoint(tmp_path / "weights.safetensors")
    with pytest.raises(BadCheckpoint, match="does not exist"):
        read_checkpoint(tmp_path / "nothing")


def test_the_folder_keeps_the_newest_and_falls_back(tmp_path):
    folder = CheckpointFolder(tmp_path / "c")
    assert folder.newest() == (None, [])
    for position in (10, 20, 30):
        folder.write(position, {"position": position})
    assert [path.stem for path in sorted((tmp_path / "c").iterdir())] == ["000000000020", "000000000030"]
    (tmp_path / "c" / "000000000030.safetensors").write_bytes(b"damaged")
    state, refused = folder.newest()
    assert state == {"position": 20}
    assert len(refused) == 1
    assert "000000000030" in refused[0]


def test_a_write_that_fails_leaves_the_old_content(tmp_path, monkeypatch):
    write_atomically(tmp_path / "f", b"old")

    def fail(handle):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"old"


def test_loading_runs_nothing(tmp_path):
    """The text in a checkpoint is JSON; anything else in its place is data or an error, never code."""
    from safetensors.numpy import save_file

    text = "__import__('os').mkdir('hacked')"
    save_file({}, tmp_path / "c", {"format": "prequential-checkpoint-1", "state": text, "sha256": "0"})
    with pytest.raises(BadCheckpoint):
        read_checkpoint(tmp_path / "c")
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    assert not os.path.exists("hacked")  # noqa: PTH110
