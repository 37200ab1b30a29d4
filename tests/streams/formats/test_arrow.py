import json

import numpy as np
import pyarrow as pa
import pytest

from prequential.errors import BadInput
from prequential.streams import cache
from prequential.streams.formats import arrow as arrow_files
from prequential.streams.formats.arrow import ArrowTable
from prequential.streams.formats.tables import TableStream
from prequential.testing.streams import check_stream


def rows(start=0, n=9000):
    return pa.table({"n": np.arange(n) + float(start), "s": [f"s{i % 7}" for i in range(n)], "label": np.arange(n) % 3})


def write(path, table, kind="file", size=1000, compression=None):
    make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, make(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=size)
    return path


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize(("size", "compression"), [(1000, None), (9000, None), (1000, "lz4"), (9000, "zstd")])
def test_battery(tmp_path, kind, size, compression):
    a = write(tmp_path / "a.arrow", rows(), kind, size, compression)
    b = write(tmp_path / "b.arrow", rows(1), kind, size, compression)
    c = write(tmp_path / "c.arrow", rows(np.inf), kind, size, compression)
    check_stream(
        lambda: TableStream(a),
        lambda: TableStream(b),
        lambda: TableStream(c),
        "^c.arrow, row 1, column 'n' is inf, expected a finite number$",
    )
    np.testing.assert_array_equal(TableStream(a).read(0, 9000).x[:, 0], np.arange(9000))


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_categories_with_a_dictionary(tmp_path, kind):
    plain = rows()
    coded = plain.set_column(1, "s", plain["s"].combine_chunks().dictionary_encode())
    a = TableStream(write(tmp_path / "a.arrow", coded, kind))
    b = TableStream(write(tmp_path / "b.arrow", plain, kind))
    np.testing.assert_array_equal(a.read(0, 9000).x, b.read(0, 9000).x)


def saved_dataset(folder, table, parts=2):
    """The files that Hugging Face's save_to_disk writes."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05}-of-{parts:05}.arrow" for i in range(parts)]
    size = len(table) // parts
    for i, name in enumerate(names):
        write(folder / name, table.slice(i * size, size), "stream")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    features = {
        "n": {"dtype": "float64", "_type": "Value"},
        "label": {"names": ["a", "b", "c", "d"], "_type": "ClassLabel"},
    }
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))


def test_a_saved_data_set(tmp_path):
    saved_dataset(tmp_path / "set", rows())
    stream = TableStream(tmp_path / "set")
    assert stream.classes == 4
    np.testing.assert_array_equal(stream.read(4000, 5000).x[:, 0], np.arange(4000, 5000))
    saved_dataset(tmp_path / "other", rows(1))
    check_stream(lambda: TableStream(tmp_path / "set"), lambda: TableStream(tmp_path / "other"))


def test_the_splits_of_a_saved_data_set(tmp_path):
    saved_dataset(tmp_path / "set" / "train", rows(0, 100))
    saved_dataset(tmp_path / "set" / "test", rows(500, 100))
    (tmp_path / "set" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    assert TableStream(tmp_path / "set").read(0, 1).x[0, 0] == 0
    assert TableStream(tmp_path / "set").describe() == (
        "label 'label' (whole numbers); numbers: n; categories: s; of the splits train, test only train (say split=…)"
    )
    assert "split" not in TableStream(ArrowTable(tmp_path / "set", split="train")).describe()
    assert TableStream(ArrowTable(tmp_path / "set", split="test")).read(0, 1).x[0, 0] == 500
    with pytest.raises(BadInput, match="has no split 'dev'; its splits are train, test"):
        ArrowTable(tmp_path / "set", split="dev")


def test_files_that_do_not_fit(tmp_path):
    write(tmp_path / "a.arrow", rows())
    write(tmp_path / "b.arrow", rows().drop_columns(["s"]))
    with pytest.raises(BadInput, match=r"b.arrow has the columns n, label, but .*a.arrow has n, s, label"):
        TableStream(tmp_path)
    (tmp_path / "b.arrow").write_bytes(b"not arrow at all")
    with pytest.raises(BadInput, match=r"b.arrow is no Arrow file"):
        TableStream(tmp_path)


@pytest.mark.parametrize("compression", ["uncompressed", "lz4"])
def test_files_that_polars_wrote(tmp_path, compression):
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(rows()).with_columns(t=polars.col("n") * -1)
    frame.write_ipc(tmp_path / "a.arrow", compression=compression)
    stream = TableStream(tmp_path / "a.arrow", label="label", time="t")
    assert stream.read(0, 3).x[:, 0].tolist() == [8999, 8998, 8997]
    frame.with_columns(n=polars.col("n") + 1).write_ipc(tmp_path / "b.arrow", compression=compression)
    check_stream(
        lambda: TableStream(tmp_path / "a.arrow", label="label", time="t"),
        lambda: TableStream(tmp_path / "b.arrow", label="label", time="t"),
    )


def test_parts_of_several_types_are_read_as_one(tmp_path):
    for i, column in enumerate([pa.nulls(2), pa.array([1, 2]), pa.array([1.5, None])]):
        write(tmp_path / f"{i}.arrow", pa.table({"n": column, "label": ["x", "y"]}))
    stream = TableStream(tmp_path)
    assert stream.feature_names == ["n", "n missing"]
    np.testing.assert_array_equal(stream.read(0, 6).x[:, 0], [np.nan, np.nan, 1, 2, 1.5, np.nan])


def test_an_unpacked_copy_is_not_taken_for_another_file(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "WHOLE", 4)
    monkeypatch.setattr(cache, "PIECE", 2)  # a hash that hardly looks
    path = write(tmp_path / "a.arrow", rows(), "file", 9000, "zstd")
    assert TableStream(path).read(0, 1).y == [0]
    size = path.stat().st_size
    monkeypatch.setattr(arrow_files, "file_hash", lambda *_: "the same")
    first = TableStream(path).read(0, 1).x[0, 0]
    write(path, rows(1), "file", 9000, "zstd")
    assert abs(path.stat().st_size - size) < 5000
    assert TableStream(path).read(0, 1).x[0, 0] == first + 1
