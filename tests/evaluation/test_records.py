"""Records: the right rows, the same bytes however often a run was interrupted, and readers that agree."""

import shutil
import subprocess

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest

from prequential.errors import BadCheckpoint, BadInput
from prequential.evaluation.records import PART, RecordWriter, part_bounds, read_records
from prequential.learners.charges import Charges
from prequential.storage.checkpoint import read_checkpoint, write_checkpoint

KNOWN = ["cat", 7, ("a", 1), "ünï", "", "dog"]  # the label of each output unit


class Run:
    """A made-up run whose examples depend on their position alone."""

    def __init__(self, n, seed=0):
        rng = np.random.default_rng(seed)
        self.n = n
        self.slots = rng.integers(0, len(KNOWN), n)
        self.predicted = rng.integers(-1, len(KNOWN), n)
        self.log_loss = rng.exponential(1.0, n)
        self.confidence = rng.random(n)
        self.tasks = np.arange(n) // 1500
        self.labels = [KNOWN[slot] for slot in self.slots]

    def charges(self, start, stop):
        now = slice(start, stop)
        right = self.predicted[now] == self.slots[now]
        return Charges(self.log_loss[now], self.predicted[now], right, self.confidence[now])

    def write(self, writer, start, stop, chunk):
        for at in range(start, stop, chunk):
            end = min(at + chunk, stop)
            writer.append(at, self.labels[at:end], self.charges(at, end), KNOWN, self.tasks[at:end])


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def test_part_borders_tile_the_stream():
    borders, at = [], 0
    while at < 4 * PART:
        first, stop = part_bounds(at)
        assert first == at
        assert part_bounds(stop - 1) == (first, stop)
        borders.append(stop)
        at = stop
    assert borders == [1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 196608, 262144]


def test_every_reader_sees_the_rows(tmp_path):
    run = Run(5000)
    writer = RecordWriter(tmp_path)
    run.write(writer, 0, run.n, 50)
    writer.close()
    names = ["position", "label", "predicted", "log_loss", "probability", "correct", "confidence", "task"]
    expected = {
        "position": list(range(run.n)),
        "label": [str(label) for label in run.labels],
        "predicted": [str(KNOWN[unit]) if unit >= 0 else None for unit in run.predicted],
        "log_loss": run.log_loss.tolist(),
        "probability": np.exp(-run.log_loss).tolist(),
        "correct": (run.predicted == run.slots).tolist(),
        "confidence": run.confidence.tolist(),
        "task": run.tasks.tolist(),
    }

    streamed = {name: [] for name in names}
    for batch in read_records(tmp_path):
        for name, column in batch.to_pydict().items():
            streamed[name] += column
    assert streamed == expected

    frame = pd.read_parquet(tmp_path)
    assert list(frame.columns) == names
    for name in names:
        assert frame[name].astype(object).where(frame[name].notna(), None).tolist() == expected[name]
    assert frame.dtypes["position"] == "int64"
    assert frame.dtypes["task"] == "int32"
    assert (frame["label"] == frame["predicted"]).tolist() == expected["correct"]  # plain text can be compared

    lazy = pl.scan_parquet(tmp_path / "*.parquet").collect()
    assert lazy.to_dict(as_series=False) == expected
    assert lazy.schema["task"] == pl.Int32

    rows = duckdb.sql(f"select * from read_parquet('{tmp_path}/*.parquet') order by position").fetchall()
    assert rows == list(zip(*expected.values(), strict=True))


def test_columns_come_in_the_order_they_were_asked_for(tmp_path):
    run = Run(20)
    writer = RecordWriter(tmp_path)
    run.write(writer, 0, run.n, 7)
    writer.close()
    (batch,) = read_records(tmp_path, ["correct", "position"])
    assert batch.schema.names == ["correct", "position"]


@pytest.mark.parametrize("seed", range(4))
def test_interrupted_runs_leave_the_same_bytes(tmp_path, seed):
    run = Run(9000, seed)
    writer = RecordWriter(tmp_path / "whole")
    run.write(writer, 0, run.n, 50)
    writer.close()

    rng = np.random.default_rng(seed)
    folder, saved = tmp_path / "broken", tmp_path / "checkpoint"
    at = 0
    writer = RecordWriter(folder)
    while at < run.n:
        stop = min(run.n, at + int(rng.integers(1, 2500)))
        run.write(writer, at, stop, int(rng.integers(1, 300)))
        write_checkpoint(saved, writer.state_dict())
        lost = min(run.n, stop + int(rng.integers(0, 3000)))  # goes on after the checkpoint, then is killed …
        run.write(writer, stop, lost, 100)
        if rng.random() < 0.5:
            writer.close()  # … or stopped in good order
        writer = RecordWriter(folder)
        writer.load_state_dict(read_checkpoint(saved))
        assert sum(batch.num_rows for batch in read_records(folder, ["position"])) == stop
        at = stop
    writer.close()
    assert contents(tmp_path / "whole") == contents(folder)


def test_the_chunks_do_not_show_in_the_bytes(tmp_path):
    run = Run(PART + 2000)  # past the first full-size part
    for name, chunk in (("a", 999), ("b", 40000)):
        writer = RecordWriter(tmp_path / name)
        run.write(writer, 0, run.n, chunk)
        writer.close()
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert f"part-{PART:012d}.parquet" in contents(tmp_path / "a")


def test_a_closed_run_can_be_extended(tmp_path):
    run = Run(3000)
    writer = RecordWriter(tmp_path / "a")
    run.write(writer, 0, 1500, 50)
    writer.close()
    assert len(pd.read_parquet(tmp_path / "a")) == 1500
    run.write(writer, 1500, 3000, 50)
    writer.close()
    writer.close()
    whole = RecordWriter(tmp_path / "b")
    run.write(whole, 0, 3000, 50)
    whole.close()
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_only_the_current_part_is_held(tmp_path):
    run = Run(2100)
    writer = RecordWriter(tmp_path)
    run.write(writer, 0, 2048, 64)
    state = writer.state_dict()
    assert state["texts"] == []
    assert all(len(column) == 0 for column in state["rows"].values())
    run.write(writer, 2048, 2100, 52)
    assert len(writer.state_dict()["rows"]["label"]) == 52


def test_a_stream_without_tasks_has_an_empty_task_column(tmp_path):
    run = Run(1500)
    writer = RecordWriter(tmp_path)
    writer.append(0, run.labels, run.charges(0, run.n), KNOWN)
    writer.close()
    assert pl.read_parquet(tmp_path / "*.parquet")["task"].null_count() == 1500


def test_records_of_another_run_are_not_overwritten(tmp_path):
    run = Run(1200)
    writer = RecordWriter(tmp_path)
    run.write(writer, 0, run.n, 100)
    writer.close()
    before = contents(tmp_path)
    with pytest.raises(BadInput, match="already holds the records of another run"):
        run.write(RecordWriter(tmp_path), 0, 100, 100)
    assert contents(tmp_path) == before
    writer = RecordWriter(tmp_path)
    (tmp_path / ".part-000000000000.parquet.123.tmp").write_bytes(b"half")
    writer.clear()
    assert contents(tmp_path) == {}
    run.write(writer, 0, run.n, 100)
    writer.close()
    assert contents(tmp_path) == before


def test_bad_input_is_named_and_changes_nothing(tmp_path):
    run = Run(100)
    writer = RecordWriter(tmp_path)
    run.write(writer, 0, 50, 50)
    with pytest.raises(BadInput, match="given example 60, but the next one is example 50"):
        run.write(writer, 60, 70, 10)
    with pytest.raises(BadInput, match="example 50: got 9 labels, 10 charges and no tasks"):
        writer.append(50, run.labels[:9], run.charges(50, 60), KNOWN)
    with pytest.raises(BadInput, match="got 10 labels, 10 charges and 3 tasks"):
        writer.append(50, run.labels[:10], run.charges(50, 60), KNOWN, np.zeros(3, int))
    with pytest.raises(BadInput, match="unit 5 was predicted, but only 5 labels are known"):
        writer.append(50, run.labels[50:100], run.charges(50, 100), KNOWN[:5])
    run.write(writer, 50, 100, 50)
    writer.close()
    assert pd.read_parquet(tmp_path)["label"].tolist() == [str(label) for label in run.labels]


def test_missing_and_damaged_parts_are_named(tmp_path):
    run = Run(5000)
    writer = RecordWriter(tmp_path)
    run.write(writer, 0, run.n, 100)
    writer.close()
    state = writer.state_dict()
    with pytest.raises(BadInput, match="no column 'lable', only position, label"):
        next(read_records(tmp_path, ["lable"]))
    second = tmp_path / "part-000000001024.parquet"
    data = second.read_bytes()
    second.write_bytes(data[:100])
    with pytest.raises(BadInput, match=r"part-000000001024\.parquet is damaged"):
        list(read_records(tmp_path))
    second.unlink()
    with pytest.raises(BadInput, match="starts at example 2048, expected 1024"):
        list(read_records(tmp_path))
    with pytest.raises(BadCheckpoint, match=r"part-000000001024\.parquet is missing; nothing was changed"):
        RecordWriter(tmp_path).load_state_dict(state)
    with pytest.raises(BadInput, match="holds no records"):
        list(read_records(tmp_path / "nowhere"))
    second.write_bytes(data)
    max(tmp_path.glob("part-*")).unlink()
    with pytest.raises(BadInput, match=r"part-0000000\d+\.parquet is missing, though its checksum is there"):
        list(read_records(tmp_path))


FAULTS = ["flip", "truncate", "empty", "swap", "delete", "link"]


def break_part(part, other, fault):
    """Damages a part; `other` is the same part of another run."""
    data = part.read_bytes()
    if fault in ("delete", "link"):
        part.unlink()
    if fault == "link":
        part.symlink_to(other)
    elif fault != "delete":
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
        broken = {"flip": flipped, "truncate": data[:middle], "empty": b"", "swap": other.read_bytes()}
        part.write_bytes(broken[fault])


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """Folders of two runs of 5,000 examples with nothing but other numbers, and the state of the first."""
    root, states = tmp_path_factory.mktemp("records"), []
    for seed in (0, 1):
        run, writer = Run(5000, seed), RecordWriter(root / str(seed))
        run.write(writer, 0, run.n, 500)
        writer.close()
        states.append(writer.state_dict())
    return root, states[0]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("number", [0, 2])
def test_damage_to_an_earlier_part_is_named_and_can_be_set_aside(two_runs, tmp_path, fault, number):
    root, state = two_runs
    shutil.copytree(root / "0", tmp_path / "r")
    part = sorted((tmp_path / "r").glob("*.parquet"))[number]
    break_part(part, root / "1" / part.name, fault)
    with pytest.raises(BadInput, match=r"is damaged|is missing|part-000000004096|starts at"):
        list(read_records(tmp_path / "r"))
    before = contents(tmp_path / "r")
    with pytest.raises(BadCheckpoint, match=rf"{part.name} is (damaged|missing)") as error:
        RecordWriter(tmp_path / "r").load_state_dict(state)
    assert len(str(error.value)) - len(str(tmp_path)) < 300
    assert contents(tmp_path / "r") == before

    writer = RecordWriter(tmp_path / "r")
    (said,) = writer.load_state_dict(state, set_aside=True)
    assert part.name in said
    assert (tmp_path / "r" / "_damaged" / part.name).is_symlink() == (fault == "link")
    assert not part.exists()
    run = Run(9000)
    run.write(writer, 5000, run.n, 500)  # goes on, and is resumed again without a word
    writer.close()
    assert writer.lost == [int(part.stem[5:])]
    again = RecordWriter(tmp_path / "r")
    assert again.load_state_dict(writer.state_dict()) == []
    lost = part_bounds(int(part.stem[5:]))
    whole = pl.concat([pl.read_parquet(path) for path in sorted((tmp_path / "r").glob("*.parquet"))])
    assert whole["position"].to_list() == [i for i in range(run.n) if not lost[0] <= i < lost[1]]

    shutil.copyfile(root / "0" / part.name, part)  # put back from a copy
    healed = RecordWriter(tmp_path / "r")
    assert healed.load_state_dict(writer.state_dict()) == []
    assert healed.lost == []
    assert sum(batch.num_rows for batch in read_records(tmp_path / "r")) == run.n


@pytest.mark.parametrize("fault", FAULTS)
def test_damage_to_the_checksums_loses_nothing(two_runs, tmp_path, fault):
    root, state = two_runs
    shutil.copytree(root / "0", tmp_path / "r")
    before = contents(tmp_path / "r")
    break_part(tmp_path / "r" / "_sha256sums", root / "1" / "_sha256sums", fault)
    if fault == "link":
        with pytest.raises(BadInput, match="is a symbolic link"):
            RecordWriter(tmp_path / "r").load_state_dict(state)
        return
    RecordWriter(tmp_path / "r").load_state_dict(state)
    assert contents(tmp_path / "r") == before


@pytest.mark.parametrize("fault", FAULTS)
def test_damage_to_the_last_part_is_named_and_healed(two_runs, tmp_path, fault):
    root, state = two_runs
    shutil.copytree(root / "0", tmp_path / "r")
    before = contents(tmp_path / "r")
    part = max((tmp_path / "r").glob("*.parquet"))
    break_part(part, root / "1" / part.name, fault)
    if fault != "delete":  # a run that was killed has none, either
        with pytest.raises(BadInput, match=rf"{part.name} is damaged"):
            list(read_records(tmp_path / "r"))
    RecordWriter(tmp_path / "r").load_state_dict(state)
    assert contents(tmp_path / "r") == before
    assert not part.is_symlink()


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in ("swap", "link")])
def test_records_without_checksums_are_verified_by_their_rows(two_runs, tmp_path, fault):
    """What an earlier version wrote has none."""
    root, state = two_runs
    shutil.copytree(root / "0", tmp_path / "r")
    (tmp_path / "r" / "_sha256sums").unlink()
    old = {name: state[name] for name in ("position", "texts", "rows")}
    part = tmp_path / "r" / "part-000000001024.parquet"
    RecordWriter(tmp_path / "r").load_state_dict(old)
    assert sum(batch.num_rows for batch in read_records(tmp_path / "r")) == 5000
    (tmp_path / "r" / "_sha256sums").unlink()
    if fault == "flip":  # of bits in the footer nothing need be wrong but the rows
        data = part.read_bytes()
        part.write_bytes(data[:4] + bytes(byte ^ 0xFF for byte in data[4:200]) + data[200:])
    else:
        break_part(part, part, fault)
    with pytest.raises(BadCheckpoint, match=r"part-000000001024\.parquet is (damaged|missing)"):
        RecordWriter(tmp_path / "r").load_state_dict(old)
    other = tmp_path / "r" / "part-000000002048.parquet"
    part.write_bytes(other.read_bytes())
    with pytest.raises(BadCheckpoint, match=r"part-000000001024\.parquet is damaged: it has 2048 rows, expected 1024"):
        RecordWriter(tmp_path / "r").load_state_dict(old)


def test_checksums_can_be_checked_without_this_package(two_runs):
    root, _ = two_runs
    done = subprocess.run(
        ["sha256sum", "-c", "--strict", "_sha256sums"], cwd=root / "0", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": OK") == len(list((root / "0").glob("*.parquet")))


def test_the_state_does_not_grow_with_the_number_of_parts(two_runs):
    _, state = two_runs
    short = RecordWriter(two_runs[0] / "none").state_dict()
    assert {name: type(value) for name, value in short.items()} == {name: type(value) for name, value in state.items()}
    assert len(short["digest"]) == len(state["digest"]) == 64


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"position": -1}, "at example -1"),
        ({"position": "5"}, "at example '5'"),
        ({"position": 10**15}, r"expected"),
        ({"texts": []}, "have 0 texts"),
    ],
)
def test_a_state_that_does_not_fit_together_is_refused(two_runs, tmp_path, change, words):
    root, state = two_runs
    shutil.copytree(root / "0", tmp_path / "r")
    before = contents(tmp_path / "r")
    with pytest.raises(BadCheckpoint, match=words):
        RecordWriter(tmp_path / "r").load_state_dict({**state, **change})
    assert contents(tmp_path / "r") == before


def test_a_directory_in_the_place_of_the_last_part_is_named_before_anything_changes(two_runs, tmp_path):
    root, state = two_runs
    shutil.copytree(root / "0", tmp_path / "r")
    last = sorted((tmp_path / "r").glob("*.parquet"))[-1]
    last.unlink()
    last.mkdir()
    before = (tmp_path / "r" / "_sha256sums").read_bytes()
    with pytest.raises(BadCheckpoint, match=f"{last.name} is a directory"):
        RecordWriter(tmp_path / "r").load_state_dict(state)
    assert (tmp_path / "r" / "_sha256sums").read_bytes() == before
