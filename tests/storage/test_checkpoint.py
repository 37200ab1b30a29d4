import json
import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from prequential.baselines.majority import Majority
from prequential.errors import BadCheckpoint, PrequentialError
from prequential.learners.transformer.learner import Learner
from prequential.storage.checkpoint import (
    LIMITS,
    CheckpointFolder,
    allow,
    loading,
    read_checkpoint,
    same_state,
    write_atomically,
    write_checkpoint,
)
from prequential.storage.migrations import FORMAT

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
    with pytest.raises(BadCheckpoint, match=f"has format None, expected 'prequential-checkpoint-{FORMAT}'"):
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


OLD = Path(__file__).parents[1] / "data" / "format-1"


def made_by_hand(path, header, data=b"", *, length=None):
    """A safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def metadata(state):
    from hashlib import sha256

    text = state if isinstance(state, str) else json.dumps(state)
    return {"format": "prequential-checkpoint-2", "state": text, "sha256": sha256(text.encode()).hexdigest()}


CRAFTED = {
    "shape": lambda s: s["state"].update(shape=[10**9]),
    "shape of text": lambda s: s["state"].update(shape="abc"),
    "capacity": lambda s: s["state"]["labels"].update(capacity=10**9),
    "both capacities": lambda s: (s["state"]["labels"].update(capacity=10**9), s["config"].update(classes=10**9)),
    "width": lambda s: s["config"].update(width=10**6),
    "window": lambda s: s["config"].update(window=10**8),
    "streams": lambda s: s["config"].update(num_streams=10**8),
    "depth": lambda s: s["config"].update(depth=10**6),
    "position": lambda s: s["state"].update(position=-5),
    "position of text": lambda s: s["state"].update(position="5"),
    "no labels": lambda s: s["state"].pop("labels"),
    "no learner": lambda s: s["state"].update(learner=None),
    "unknown setting": lambda s: s["config"].update(hack=1),
    "config": lambda s: s.update(config=[1]),
    "state": lambda s: s.update(state=7),
}
ONE = {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}  # an array of one number


class TestOldFormats:
    def test_what_format_1_holds_is_read(self):
        saved = read_checkpoint(OLD / "learner")
        assert saved["kind"] == "Learner"
        assert saved["state"]["position"] == 62
        assert len(read_checkpoint(OLD / "run" / "checkpoints" / "000000002048.safetensors", ["records"])) == 1

    def test_a_flipped_bit_in_format_1_is_refused(self, tmp_path):
        content = bytearray((OLD / "learner").read_bytes())
        for where in range(10, len(content), 4567):
            damaged = content.copy()
            damaged[where] ^= 16
            (tmp_path / "c").write_bytes(damaged)
            with pytest.raises(BadCheckpoint, match=r"is damaged|has format"):
                read_checkpoint(tmp_path / "c")

    def test_a_later_format_is_named(self, tmp_path):
        made_by_hand(
            tmp_path / "c", {"__metadata__": {**metadata({}), "format": f"prequential-checkpoint-{FORMAT + 1}"}}
        )
        with pytest.raises(
            BadCheckpoint, match=rf"made by a later version .* 'prequential-checkpoint-{FORMAT + 1}', expected up to"
        ):
            read_checkpoint(tmp_path / "c")


class TestCraftedFiles:
    """Sizes are checked against the file before anything is allocated."""

    @pytest.mark.parametrize(
        ("header", "data", "words"),
        [
            ({"a": {**ONE, "shape": [10**9]}}, bytes(8), r"array a has shape \(1000000000,\) of F64, but 8 bytes"),
            ({"a": {**ONE, "shape": [10**9, 0]}}, bytes(8), "array a has shape"),
            ({"a": {**ONE, "data_offsets": [0, 8 * 10**9]}}, bytes(8), "array a has shape"),
            ({"a": {**ONE, "shape": [10**9], "data_offsets": [0, 8 * 10**9]}}, bytes(8), "its arrays have 8000000000"),
            ({"a": ONE, "b": ONE}, bytes(8), "array b has shape"),
            ({"a": ONE}, bytes(16), "its arrays have 8 bytes, expected 16"),
            ({"a": {**ONE, "dtype": "F8_E4M3"}}, bytes(8), "has type 'F8_E4M3', expected one of"),
            ({"a": {**ONE, "shape": [-1]}}, bytes(8), "expected whole numbers"),
            ({"a": {**ONE, "shape": "x"}}, bytes(8), "expected whole numbers"),
            ({"a": {"dtype": "F64"}}, b"", "KeyError 'data_offsets'"),
            ({"a": 3}, b"", "is damaged"),
            (b"[]", b"", "its header is a list"),
            (b"{", b"", "is damaged"),
            (b"[" * 100_000, b"", "is damaged"),
            (b"\xff\xfe", b"", "is damaged"),
        ],
    )
    def test_headers_that_lie_are_refused(self, tmp_path, header, data, words):
        if isinstance(header, dict):
            header = {"__metadata__": metadata({"x": {"$array": "a", "shape": [1], "sha256": ""}}), **header}
        made_by_hand(tmp_path / "c", header, data)
        with pytest.raises(BadCheckpoint, match=words):
            read_checkpoint(tmp_path / "c")

    def test_a_header_longer_than_the_file_is_refused(self, tmp_path):
        made_by_hand(tmp_path / "c", b"{}", length=2**62)
        with pytest.raises(BadCheckpoint, match=f"its header has {2**62} bytes, expected at most 2"):
            read_checkpoint(tmp_path / "c")

    @pytest.mark.parametrize(
        ("state", "words"),
        [
            ({"x": {"$array": "a", "shape": [10**9], "sha256": ""}}, r"has 1 numbers, expected shape \(1000000000,\)"),
            ({"x": {"$array": "a", "shape": [-1], "sha256": ""}}, "has 1 numbers"),
            ({"x": {"$array": "b", "shape": [1], "sha256": ""}}, "KeyError 'b'"),
            ({"x": {"$array": "a", "shape": [1], "sha256": "0"}}, "does not match its checksum"),
            ({"x": {"$array": ["a"], "shape": [1]}}, "is damaged"),
            ('{"x":' * 150 + "1" + "}" * 150, "nested more than 100 deep"),
            ("[" * 100_000, "is damaged"),
        ],
    )
    def test_states_that_lie_are_refused(self, tmp_path, state, words):
        made_by_hand(tmp_path / "c", {"__metadata__": metadata(state), "a": ONE}, bytes(8))
        with pytest.raises(BadCheckpoint, match=words) as error:
            read_checkpoint(tmp_path / "c")
        assert len(str(error.value)) <= 300

    def test_json_beyond_the_limits_is_refused_before_it_is_parsed_and_never_written(self, tmp_path, monkeypatch):
        monkeypatch.setattr(LIMITS, "values", 1000)
        with pytest.raises(BadCheckpoint, match="values of JSON, expected at most 1000"):
            write_checkpoint(tmp_path / "c", {"many": list(range(2000))})
        assert not (tmp_path / "c").exists()
        made_by_hand(tmp_path / "c", {"__metadata__": metadata({"many": list(range(2000))})})
        with pytest.raises(BadCheckpoint, match="values of JSON, expected at most 1000"):
            read_checkpoint(tmp_path / "c")

    def test_parts_can_be_read_alone_and_are_verified(self, tmp_path):
        state = {"small": {"a": np.arange(4)}, "large": {"b": np.ones(1000)}}
        write_checkpoint(tmp_path / "c", state)
        content = (tmp_path / "c").read_bytes()
        where = content.rindex(np.ones(1).tobytes())
        (tmp_path / "c").write_bytes(content[:where] + b"\1" + content[where + 1 :])
        assert same_state(read_checkpoint(tmp_path / "c", ["small"]), {"small": state["small"]})
        with pytest.raises(BadCheckpoint, match="array /large/b does not match its checksum"):
            read_checkpoint(tmp_path / "c", ["large"])


class TestLoading:
    def test_whatever_does_not_fit_is_one_sentence(self, tmp_path):
        for error in (KeyError("a"), TypeError("x\ny"), IndexError(), RuntimeError("z" * 1000), AssertionError()):
            with pytest.raises(BadCheckpoint, match="is damaged or of another version: ") as found, loading(tmp_path):
                raise error
            assert len(str(found.value)) <= 300
            assert "\n" not in str(found.value)

    def test_memory_is_bounded_by_the_file(self, tmp_path):
        allow(1e15, "outside")
        with pytest.raises(BadCheckpoint, match=r"too small for .*1000000000"), loading(tmp_path, size=1000):
            torch.empty(1000, 1_000_000_000)
        with pytest.raises(BadCheckpoint, match="too small"), loading(tmp_path, size=0):
            _ = [torch.nn.Linear(2000, 2000) for _ in range(100)]  # the sum counts
        with loading(tmp_path, size=0):
            assert torch.zeros(3, 4).shape == (3, 4)
            assert torch.eye(3).sum() == 3
            assert torch.full((2,), 10**12).tolist() == [10**12] * 2

    @pytest.mark.parametrize("what", CRAFTED)
    def test_a_crafted_learner_is_one_sentence_and_no_memory(self, tmp_path, what):
        learner = Learner(classes=3, width=8, num_query_heads=2, depth=1, window=8, chunk_size=5, num_streams=2)
        rng = np.random.default_rng(0)
        learner.learn_many(rng.normal(size=(12, 3)), ["a", "b", "c"] * 4)
        learner.save(tmp_path / "good")
        saved = read_checkpoint(tmp_path / "good")
        CRAFTED[what](saved)
        write_checkpoint(tmp_path / "bad", saved)
        (tmp_path / "good.journal").rename(tmp_path / "bad.journal")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(PrequentialError) as error:
            Learner.load(tmp_path / "bad")
        assert len(str(error.value)) <= 300
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # KB

    def test_a_crafted_window_of_a_baseline_takes_no_memory(self, tmp_path):
        learner = Majority(3, window=10)
        learner.learn([1.0], "a")
        learner.save(tmp_path / "c")
        saved = read_checkpoint(tmp_path / "c")
        saved["config"]["window"] = 10**10
        write_checkpoint(tmp_path / "c", saved)
        with pytest.raises(BadCheckpoint, match="too small for a window of 10000000000"):
            Majority.load(tmp_path / "c")
