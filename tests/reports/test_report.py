"""The report: what is read, what the page shows of it, and that no text of the data becomes part of the page."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from prequential.errors import BadInput
from prequential.evaluation.records import RecordWriter
from prequential.evaluation.scores import Scores
from prequential.learners.charges import Charges
from prequential.reports import write_report
from prequential.reports.data import group_names, page_data
from prequential.reports.figures import draw_alone, length_panel
from prequential.reports.page import make_page
from prequential.reports.run_reader import RunReader, find_runs
from prequential.reports.write import read_runs
from prequential.storage.checkpoint import write_checkpoint
from reports.report_runs import CLASSES, add, make_run


def data_in(page: Path) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def same(a: Scores, b: Scores) -> bool:
    return (
        a.to_dict() == b.to_dict()
        and all(np.array_equal(a.heat_map()[k], b.heat_map()[k], equal_nan=True) for k in a.heat_map())
        and all(np.array_equal(a.curve()[k], b.curve()[k]) for k in a.curve())
    )


def checkpoint(directory: Path, writer: RecordWriter) -> None:
    """A checkpoint as a run writes it, as far as a report looks at it."""
    state = {"records": writer.state_dict(), "scores": {"classes": CLASSES}}
    write_checkpoint(directory / "checkpoints" / f"{writer.position:012d}.safetensors", state)


# Reading.


def test_one_pass_gives_the_scores_of_the_records(tmp_path):
    reader = RunReader(make_run(tmp_path / "run", 5000))
    assert reader.refresh()
    assert reader.sums is not None
    assert same(reader.sums.scores, Scores.from_records(tmp_path / "run" / "records", CLASSES))
    assert not reader.refresh()  # nothing is new


def test_curve_holds_the_sums_up_to_each_position(tmp_path):
    (reader,) = read_runs([make_run(tmp_path / "run", 70_000)])
    assert reader.sums is not None
    position, correct, nats = reader.sums.curve(1000)
    batches = Scores.from_records(tmp_path / "run" / "records", CLASSES)
    assert position[-1] == 70_000
    assert correct[-1] == round(batches.accuracy * 70_000)
    assert nats[-1] == pytest.approx(batches.total_nats)
    assert len(position) < 1500
    assert position[0] == 1  # the beginning is there example by example, for a logarithmic axis
    truth = np.cumsum(_column(tmp_path / "run" / "records", "correct"))
    assert np.array_equal(correct, truth[position - 1])


def _column(directory: Path, name: str) -> np.ndarray:
    import pyarrow.parquet as pq

    return np.concatenate([pq.read_table(part)[name].to_numpy() for part in sorted(directory.glob("*.parquet"))])


def test_a_run_that_goes_on_is_followed(tmp_path):
    directory = make_run(tmp_path / "run", 10)
    shutil.rmtree(directory / "records")
    (directory / "scores.json").unlink()
    reader, writer = RunReader(directory), RecordWriter(directory / "records")
    reader.refresh()
    assert reader.sums is None
    seen = []
    for _ in range(40):
        add(writer, 100)
        if writer.position % 500 == 0:
            checkpoint(directory, writer)
        reader.refresh()
        seen.append(0 if reader.sums is None else reader.sums.scores.count)
    # full parts at 1024 and 2048, and whatever a checkpoint holds beyond them
    assert seen[3:6] == [0, 500, 500]
    assert seen[9:11] == [1000, 1024]
    assert seen[-1] == 4000
    assert reader.classes == CLASSES
    writer.close()
    reader.refresh()
    assert reader.sums is not None
    assert same(reader.sums.scores, Scores.from_records(directory / "records", CLASSES))


def test_a_run_that_went_back_is_read_again(tmp_path):
    directory = make_run(tmp_path / "run", 10)
    shutil.rmtree(directory / "records")
    reader, writer = RunReader(directory), RecordWriter(directory / "records")
    add(writer, 3000)
    reader.refresh()
    assert reader.sums is not None
    assert reader.sums.scores.count == 2048
    again = RecordWriter(directory / "records")
    again.clear()
    add(again, 1500, seed=1)
    again.close()
    reader.refresh()
    assert same(reader.sums.scores, Scores.from_records(directory / "records", CLASSES))
    assert reader.sums.scores.count == 1500


def test_damaged_missing_and_empty_runs_are_refused_with_a_sentence(tmp_path):
    run = make_run(tmp_path / "run", 5000)
    (run / "records" / "part-000000001024.parquet").rename(tmp_path / "kept")
    with pytest.raises(BadInput, match="starts at example 4096, expected one up to 1024"):
        read_runs([run])
    (run / "records" / "part-000000001024.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(BadInput, match=r"part-000000001024\.parquet is damaged"):
        read_runs([run])
    shutil.rmtree(run / "records")
    with pytest.raises(BadInput, match="has recorded no example yet"):
        read_runs([run])
    with pytest.raises(BadInput, match="neither a run nor a folder of runs: it does not exist"):
        read_runs([tmp_path / "nothing"])
    with pytest.raises(BadInput, match="got 0 runs"):
        read_runs([])


def test_of_a_comparison_the_finished_runs_are_taken_in_its_order(tmp_path):
    names = ["kalman", "last-label", "acm"]
    (tmp_path / "compare.toml").write_text(
        f'[compare]\nlearners = {json.dumps(names)}\nstreams = ["digits"]\nseeds = [0, 10, 9]\ntable1 = false\n'
    )
    for seed in (10, 9):
        for name in names:
            make_run(
                tmp_path / "digits" / name / str(seed), 50, seed=seed, learner={}, scores={"finished": name != "acm"}
            )
    found = [path.relative_to(tmp_path / "digits") for path in find_runs([tmp_path])]
    assert [str(path) for path in found] == ["kalman/9", "kalman/10", "last-label/9", "last-label/10"]
    assert len(find_runs([tmp_path], unfinished=True)) == 6


# The page.


def test_headline_numbers_are_those_of_the_run(tmp_path):
    run = make_run(tmp_path / "run", 3000)
    page = write_report([run])
    assert page == run / "report.html"
    (shown,) = data_in(page)["runs"]
    scores = Scores.from_records(run / "records", CLASSES)
    assert shown["accuracy"] == scores.accuracy
    assert shown["bits"] == scores.bits
    assert shown["compression"] == scores.compression
    assert shown["last"] == {
        "what": "last 10 tasks",
        "accuracy": scores.to_dict()["last_tasks"]["accuracy"],
        "loss": scores.to_dict()["last_tasks"]["log_loss"],
    }
    assert (shown["examples"], shown["tasks"], shown["seconds"], shown["macs"]) == (3000, 30, 12.5, 3e9)
    assert sum(shown["curve"]["right"]) == round(scores.accuracy * 3000)
    assert sum(shown["curve"]["nats"]) / 1000 == pytest.approx(scores.total_nats, abs=1e-3)
    assert shown["fingerprint"] == "0123abcd"
    assert shown["command"] == "prequential run --label y"


def test_by_task_and_map_are_averages_over_examples(tmp_path):
    (reader,) = read_runs([make_run(tmp_path / "run", 2950)])
    (run,) = page_data([reader])["runs"]
    tasks = reader.sums.scores.tasks()
    assert run["inside"]["byTask"]["accuracy"] == pytest.approx(tasks["accuracy"], abs=1e-4)
    assert run["inside"]["byTask"]["loss"] == pytest.approx(tasks["log_loss"], abs=1e-4)
    cells = run["inside"]["map"]
    assert cells["first"][0] == 1
    assert cells["last"][-1] == 100
    assert all(a + 1 == b for a, b in zip(cells["last"][:-1], cells["first"][1:], strict=True))
    lengths = np.array(cells["last"]) - np.array(cells["first"]) + 1
    assert np.dot(cells["accuracy"][3], lengths) / 100 == pytest.approx(tasks["accuracy"][3], abs=1e-3)
    assert cells["accuracy"][-1][-1] is None  # the last task ends early


def test_a_stream_without_tasks_has_no_part_on_tasks(tmp_path):
    (run,) = data_in(write_report([make_run(tmp_path / "run", 2000, task_length=None)]))["runs"]
    assert "inside" not in run
    assert run["tasks"] == 0
    scores = Scores.from_records(tmp_path / "run" / "records", CLASSES)
    assert run["last"]["what"] == "last 10 %"
    assert run["last"]["accuracy"] == scores.curve(window=200)["accuracy"][-1]


def test_infinite_losses_are_no_numbers(tmp_path):
    run = make_run(tmp_path / "run", 100, task_length=None)
    shutil.rmtree(run / "records")
    writer = RecordWriter(run / "records")
    loss, right = np.full(300, 0.5), np.ones(300, bool)
    loss[200], right[200] = np.inf, False
    writer.append(0, ["a"] * 300, Charges(loss, np.zeros(300, int), right, np.full(300, 0.5)), ["a"])
    writer.close()
    (shown,) = data_in(write_report([run]))["runs"]
    assert shown["loss"] is None
    assert shown["bits"] is None
    assert sum(shown["curve"]["right"]) == 299
    assert sum(shown["curve"]["nats"]) == 100_000  # up to the infinite one


def test_no_text_of_the_data_becomes_part_of_the_page(tmp_path):
    evil = "</script><script>alert(1)</script><!--{{script}}"
    run = make_run(tmp_path / "<script>", 200, label=evil, stream=f"{evil}.csv", learner={"learning_rate": 0.5})
    text = write_report([run], tmp_path / "report.html").read_text()
    assert "alert(1)" in text  # it is shown,
    assert "<script>alert" not in text  # but as a text
    assert "<!--" not in text
    assert len(re.findall(r"<script\b", text)) == 2
    assert len(re.findall(r"</script", text)) == 2
    assert data_in(tmp_path / "report.html")["runs"][0]["settings"]["label"] == evil


def test_the_page_is_alone_and_the_same_every_time(tmp_path):
    run = make_run(tmp_path / "run", 500)
    text = write_report([run], tmp_path / "a.html").read_bytes()
    assert write_report([run], tmp_path / "b.html").read_bytes() == text
    assert not re.search(rb'(src|href)="(?!data:)', text)
    assert b"http://" not in text.replace(b"http-equiv", b"")
    assert b"https://" not in text
    assert b"connect-src 'none'" in text
    assert "connect-src 'self'" in make_page(page_data(read_runs([run])), live=True)


def test_runs_are_named_after_what_sets_them_apart(tmp_path):
    def names(*settings: dict) -> list[str]:
        runs = [make_run(tmp_path / f"run-{i}-{len(settings)}", 20, **given) for i, given in enumerate(settings)]
        found = group_names(read_runs(runs))
        for run in runs:
            shutil.rmtree(run)
        return found

    assert names({}) == ["pi-transformer"]
    assert names({}, {"seed": 1}) == ["pi-transformer", "pi-transformer"]
    assert names({}, {"learner": {"window": 8}}) == ["pi-transformer, window 512", "pi-transformer, window 8"]
    assert names({}, {}) == ["pi-transformer (run-0-2)", "pi-transformer (run-1-2)"]
    many = {"window": 8, "chunk_size": 8, "width": 8, "depth": 8}
    assert names({}, {"learner": many}) == ["pi-transformer (run-0-2)", "pi-transformer (run-1-2)"]


def test_settings_that_differ_are_listed(tmp_path):
    runs = [make_run(tmp_path / "a", 20), make_run(tmp_path / "b", 20, seed=3, learner={"freeze_at": 7})]
    data = page_data(read_runs(runs))
    assert data["differing"] == ["freeze-at", "seed"]
    assert [run["differing"] for run in data["runs"]] == [["not set", "0"], ["7", "3"]]


def test_a_million_examples_make_a_small_page(tmp_path):
    run = make_run(tmp_path / "run", 131_072, task_length=1024)
    part = run / "records" / "part-000000065536.parquet"
    for first in range(131_072, 1_000_000, 65_536):
        shutil.copy(part, run / "records" / f"part-{first:012d}.parquet")
    page = write_report([run])
    assert data_in(page)["runs"][0]["examples"] == 16 * 65_536
    assert page.stat().st_size < 1_000_000  # five times below what is allowed


@pytest.mark.parametrize("task_length", [100, None])
def test_figures_for_a_paper(tmp_path, monkeypatch, task_length):
    monkeypatch.setattr("prequential.reports.figures.KINDS", ("pdf",))  # the other two take their time
    runs = [
        make_run(tmp_path / f"run-{i}", 300 + i, seed=i, task_length=task_length, learner={"window": 8 + i})
        for i in (0, 1)
    ]
    write_report(runs, tmp_path / "report.html", tmp_path / "figures")
    found = {path.name for path in (tmp_path / "figures").iterdir()}
    names = {"accuracy", "log-loss", "bits", "description-length", "calibration"}
    if task_length:
        names |= {"few-shot", "tasks-1-pi-transformer-window-8", "tasks-2-pi-transformer-window-9"}
    assert found == {f"{name}.pdf" for name in names}
    assert (tmp_path / "figures" / "accuracy.pdf").read_bytes().startswith(b"%PDF")


def test_the_description_length_grows_to_that_of_the_run(tmp_path):
    (reader,) = read_runs([make_run(tmp_path / "run", 700)])
    scores = reader.sums.scores
    (axes,) = draw_alone(length_panel, {"it": scores}).axes
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(scores.bits)
    assert axes.lines[1].get_ydata()[-1] == pytest.approx(scores.uniform_bits)
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        draw_alone(length_panel, {"it": scores}, tmp_path / f"length.{kind}")
        assert (tmp_path / f"length.{kind}").read_bytes().startswith(start)
