import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prequential.errors import BadInput
from prequential.streams.formats import sorting
from prequential.streams.formats.encoding import Column
from prequential.streams.formats.sorting import sort_rows, time_keys


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    keys=st.lists(st.integers(0, 6), min_size=1, max_size=200),
    block=st.integers(1, 30),
    batch=st.integers(1, 12),
    run=st.integers(1, 3000),
)
def test_equals_a_stable_sort_in_memory(tmp_path, keys, block, batch, run):
    rows = pa.table({"row": np.arange(len(keys)), "text": [str(key) for key in keys]})
    pieces = ((np.array(keys[i : i + block]), rows.slice(i, block)) for i in range(0, len(keys), block))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "RUN_BYTES", run)
        patch.setattr(sorting, "BATCH_ROWS", batch)
        sort_rows(pieces, tmp_path / "sorted.arrow")
    with pa.memory_map(str(tmp_path / "sorted.arrow")) as file:
        reader = pa.ipc.open_file(file)
        found = reader.read_all()
        sizes = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
    order = np.argsort(keys, kind="stable")
    assert found["row"].to_pylist() == order.tolist()
    assert found["text"].to_pylist() == [str(keys[i]) for i in order]
    assert all(size == batch for size in sizes[:-1])
    assert [path.name for path in tmp_path.iterdir()] == ["sorted.arrow"]


def test_no_rows(tmp_path):
    with pytest.raises(BadInput, match="there are no rows to sort"):
        sort_rows(iter([]), tmp_path / "sorted.arrow")
    assert list(tmp_path.iterdir()) == []


def test_wide_rows_come_in_smaller_batches(tmp_path):
    wide = pa.table({"text": ["x" * 10_000] * 500})
    sort_rows(iter([(np.arange(500)[::-1].copy(), wide)]), tmp_path / "sorted.arrow")
    with pa.memory_map(str(tmp_path / "sorted.arrow")) as file:
        reader = pa.ipc.open_file(file)
        assert 16 <= reader.get_batch(0).num_rows <= 2 * sorting.BATCH_BYTES // 10_000
        assert len(reader.read_all()) == 500


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([2**63 + 5, 2**63 + 1], pa.uint64()), [1, 0]),
        (pa.array([2**62 + 1, 2**62]), [1, 0]),  # as floats they would be equal
        (pa.array([1.5, float("nan"), 0.5]), [2, 0]),
        (pa.array([None, 3, 2], pa.int8()), [2, 1]),
        (pa.array([5, 4], pa.date32()), [1, 0]),
        (pa.array([5, 4], pa.timestamp("ns", "Europe/Berlin")), [1, 0]),
        (pa.array(["1.5", "0.5"]).cast(pa.decimal128(5, 2)), [1, 0]),
    ],
)
def test_times_of_every_type(values, expected):
    keys, empty = time_keys(Column("t", "number", values.type, 1), values)
    assert [i for i in np.argsort(keys, kind="stable") if i not in empty] == expected
    assert all(what == "column 't' is missing, expected a time to order by" for what in empty.values())
    assert len(empty) == len(values) - len(expected)
