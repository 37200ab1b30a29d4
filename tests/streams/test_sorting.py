import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prequential.errors import BadInput
from prequential.streams import sorting
from prequential.streams.sorting import sort_rows


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
