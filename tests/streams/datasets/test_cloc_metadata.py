import json

import numpy as np
import pytest

from prequential.errors import BadInput
from prequential.streams.cache import cache_folder
from prequential.streams.datasets.cloc_metadata import (
    convert_metadata,
    converted_metadata,
    open_column,
    read_index,
    whole_hash,
)

LINES = ["3,20,b,two.jpg\n", "1,10,a,one.jpg\n", "0,30,a,three.jpg\n"]


@pytest.fixture
def metadata(tmp_path):
    (tmp_path / "meta.csv").write_text("".join(LINES))
    return tmp_path / "meta.csv"


def test_arrays_are_made_once_and_in_order(metadata, monkeypatch):
    folder = converted_metadata(metadata, None)
    assert folder.parent == cache_folder()
    index = read_index(folder)
    assert (index["rows"], index["classes"]) == (3, 4)
    assert open_column(folder / "time", "<i8", 3).tolist() == [10, 20, 30]
    assert open_column(folder / "label", "<i4", 3).tolist() == [1, 3, 0]
    assert [path.name for path in cache_folder().iterdir()] == [folder.name]  # nothing is left lying about

    def never(*arguments):
        raise AssertionError

    monkeypatch.setattr("prequential.streams.datasets.cloc_metadata.convert_metadata", never)
    assert converted_metadata(metadata, None) == folder


def test_another_process_was_faster(metadata, monkeypatch):
    """Both have made the arrays; the folder that is there is kept, as the other may be reading from it."""
    import prequential.streams.datasets.cloc_metadata as module

    original = convert_metadata

    def other_first(source, folder):
        original(source, cache_folder() / folder.name.split(".")[1])
        (cache_folder() / folder.name.split(".")[1] / "mark").touch()
        original(source, folder)

    monkeypatch.setattr(module, "convert_metadata", other_first)
    folder = converted_metadata(metadata, None)
    assert (folder / "mark").exists()
    assert [path.name for path in cache_folder().iterdir()] == [folder.name]


def test_a_failed_conversion_leaves_nothing(metadata):
    metadata.write_text("1,10,a,one.jpg\n-1,20,a,two.jpg\n")
    with pytest.raises(BadInput, match=r"line 2: the class is -1, expected a whole number in 0\.\.2147483647"):
        converted_metadata(metadata, None)
    assert list(cache_folder().iterdir()) == []


def test_changed_metadata_gets_arrays_of_its_own(metadata, tmp_path):
    first = converted_metadata(metadata, None)
    metadata.write_text("".join(LINES).replace("two", "owt"))
    second = converted_metadata(metadata, None)
    assert first != second
    assert read_index(first)["sha256"] != read_index(second)["sha256"]
    # in a folder of one's own it is refused, and one made before the source was noted is taken
    own = tmp_path / "own"
    assert converted_metadata(metadata, own) == own
    metadata.write_text("".join(LINES))
    with pytest.raises(BadInput, match="own was made from metadata with checksum"):
        converted_metadata(metadata, own)
    index = read_index(own)
    del index["source"]
    (own / "index.json").write_text(json.dumps(index))
    assert converted_metadata(metadata, own) == own


def test_the_hash_tells_files_apart(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"one")
    b.write_bytes(b"two")
    assert whole_hash(a, b) != whole_hash(b, a)
    before = whole_hash(a, b)
    a.write_bytes(b"onet")
    b.write_bytes(b"wo")
    assert whole_hash(a, b) != before  # the borders count


def test_metadata_that_is_not_there(tmp_path):
    with pytest.raises(
        BadInput, match=r"nometa does not exist; expected CLOC's metadata: .* class,time,user,path .*, a \.npz file with the "
        r"arrays label, time, user, path, or a folder with train_labels\.torchSave and its like$",
    ):  # fmt: skip
        converted_metadata(tmp_path / "nometa", None)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "train_labels.torchSave").touch()
    with pytest.raises(
        BadInput,
        match=r"the folder \S+folder holds no train_time\.torchSave; expected .* in it: train_labels\.torchSave, ",
    ):
        converted_metadata(tmp_path / "folder", None)


@pytest.mark.parametrize("name", ["label", "time"])
def test_arrays_of_something_else(tmp_path, name):
    arrays = {
        "label": np.array([1, 2]),
        "time": np.array([1, 2]),
        "user": np.array([1, 2]),
        "path": np.array(["a", "b"]),
    }
    np.savez(tmp_path / "a.npz", **{**arrays, name: np.array([0.5, 2.0])})
    with pytest.raises(BadInput, match=rf"a.npz: {name} holds float64 \(2,\), expected a whole number for each photo"):
        converted_metadata(tmp_path / "a.npz", None)
    np.savez(tmp_path / "b.npz", **{**arrays, "label": np.array([0, 2**31])})
    with pytest.raises(
        BadInput, match=r"b.npz, row 2: the class is 2147483648, expected a whole number in 0..2147483647"
    ):
        converted_metadata(tmp_path / "b.npz", None)
