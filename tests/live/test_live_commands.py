"""The commands predict and learn: from a run to predictions, and a home that goes on after any interruption."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import prequential
from prequential.cli import main
from prequential.errors import BadInput
from prequential.evaluation.scores import Scores
from prequential.live.learn_home import learn_all
from prequential.live.learn_rows import LabelReader, Stop, learn_rows
from prequential.live.predict_rows import predict_all
from prequential.live.row_input import open_rows
from prequential.settings import Settings
from prequential.storage.checkpoint import read_checkpoint, same_state
from prequential.streams.journal.journal import Journal

SMALL = {"width": 8, "num_query_heads": 2, "depth": 1, "window": 16, "chunk_size": 10, "num_streams": 2}
FLAGS = [part for name, value in SMALL.items() for part in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)


class Lines:
    """Takes what a command says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def print(self, text: str, **_) -> None:
        self.lines.append(text)


def write_rows(path: Path, start: int = 0, stop: int = 60, label: bool = True) -> Path:
    lines = ["price,shop,when" + (",up" if label else "")]
    for t in range(start, stop):
        draws = np.random.default_rng([7, t])
        price, shop = draws.normal(), draws.choice(["a", "b", ""])
        lines.append(f"{price:.3f},{shop},2026-01-{1 + t % 28:02d}" + (f",{int(price > 0)}" if label else ""))
    path.write_text("\n".join(lines) + "\n")
    return path


def predictions(learner: Path, rows: Path, **options) -> list[dict]:
    text = io.StringIO()
    with open_rows(str(rows)) as source:
        predict_all(learner, source, text.write, **options)
    if options.get("json_lines"):
        return [json.loads(line) for line in text.getvalue().splitlines()]
    return list(csv.DictReader(io.StringIO(text.getvalue())))


def learn(home: Path, rows: Path, *, source: str | None = "rows", **options) -> list[str]:
    said = Lines()
    with open_rows(str(rows)) as found:
        learn_all(home, found, said, source=source, settings=Settings(**SMALL), device="cpu", **options)
    return said.lines


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    table = write_rows(folder / "table.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)
        main(["run", "--stream", str(table), "--label", "up", "--out", str(folder / "run"), *FLAGS])
    return folder / "run"


class TestPredict:
    def test_rows_are_read_as_the_run_read_them(self, run, tmp_path):
        rows = write_rows(tmp_path / "rows.csv", 60, 75, label=False)
        found = predictions(run, rows, keep=["shop"])
        assert list(found[0]) == ["row", "shop", "predicted", "p(1)", "p(0)", "p(other)"]
        stream = prequential.TableStream(write_rows(tmp_path / "all.csv", 0, 75), label="up")
        learner = prequential.open(run)
        expected = learner.predict_proba_many(stream.read(60, 75).x)
        assert [int(row["row"]) for row in found] == list(range(1, 16))
        np.testing.assert_allclose(
            [[float(row["p(1)"]), float(row["p(0)"])] for row in found], expected[:, :2], 0, 1e-6
        )
        labels = learner.predict_many(stream.read(60, 75).x)
        assert [int(row["predicted"]) for row in found] == labels
        as_json = predictions(run, rows, json_lines=True)
        assert [row["predicted"] for row in as_json] == labels
        assert [list(row["probabilities"].values()) for row in as_json] == [
            [float(row["p(1)"]), float(row["p(0)"])] for row in found
        ]

    def test_json_lines_and_missing_fields(self, run, tmp_path):
        rows = [{"price": 2.5, "shop": "a", "when": "2026-01-03"}, {"price": -1}]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = predictions(run, tmp_path / "rows.jsonl", json_lines=True)
        assert [row["predicted"] for row in found] == prequential.open(run).predict_many(rows)

    def test_in_a_pipe_each_row_is_written_at_once(self, run):
        command = [sys.executable, "-m", "prequential", "predict", str(run), "-", "--device", "cpu"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            process.stdin.write("price,shop,when\n1.5,a,2026-01-02\n")
            process.stdin.flush()
            assert process.stdout.readline() == "row,predicted,p(1),p(0),p(other)\n"
            assert process.stdout.readline().startswith("1,")  # the pipe is still open
            process.stdin.write("-1.5,a,2026-01-02\n")
            process.stdin.close()
            assert process.stdout.readline().startswith("2,")
            assert process.wait() == 0

    def test_bad_rows_are_named(self, run, tmp_path):
        (tmp_path / "rows.csv").write_text("price,shop\n1.0,a\ncheap,b\n")
        with pytest.raises(BadInput, match=r"example 2: column 'price' is 'cheap', expected a number") as error:
            predictions(run, tmp_path / "rows.csv")
        assert len(str(error.value)) <= 300
        with pytest.raises(BadInput, match=r"row 1 has no column 'ticket'"):
            predictions(run, write_rows(tmp_path / "rows.csv"), keep=["ticket"])
        with pytest.raises(BadInput, match="is no home, and what it is asked by id would be forgotten"):
            predictions(run, tmp_path / "rows.csv", id="shop")

    def test_a_learner_of_arrays(self, tmp_path):
        learner = prequential.Majority(2)
        learner.learn_many([[1.0, 2.0], [3.0, 4.0]], ["x", "y"])
        learner.save(tmp_path / "file")
        (tmp_path / "rows.csv").write_text("a,b,c\n1,2,q\n3,4,q\n")
        found = predictions(tmp_path / "file", tmp_path / "rows.csv", label="c")
        assert [row["p(x)"] for row in found] == [str(learner.predict_proba([1.0, 2.0])["x"])] * 2
        with pytest.raises(BadInput, match="column 'c' is 'q', expected a number"):
            predictions(tmp_path / "file", tmp_path / "rows.csv")


class TestLearn:
    def test_a_home_from_the_first_rows_that_goes_on(self, tmp_path):
        whole = tmp_path / "whole"
        learn(whole, write_rows(tmp_path / "all.csv", 0, 90))
        home = tmp_path / "home"
        rows = write_rows(tmp_path / "rows.csv", 0, 60)
        assert any("60 rows learned, accuracy" in line for line in learn(home, rows))
        said = learn(home, rows)  # the same again: nothing is learned twice
        assert said == ["60 rows of rows.csv were learned before", "rows.csv has no new rows"]
        said = learn(home, write_rows(rows, 0, 90))  # it has grown
        assert any("30 rows learned" in line for line in said)
        one, other = prequential.open(whole), prequential.open(home)
        assert one.position == other.position == 90
        assert one.schema.feature_names == other.schema.feature_names
        x = one.schema.encode([{"price": 0.5, "shop": "a"}])
        assert one.predict_log_proba_many(x).tobytes() == other.predict_log_proba_many(x).tobytes()
        assert one.labels.known == [1, 0]
        one.close()
        other.close()
        with pytest.raises(BadInput, match=r"rows.csv is not what was learned from it before: row 90 is another one"):
            learn(home, write_rows(rows, 5, 120))
        with pytest.raises(BadInput, match=r"rows.csv is not what was learned from it before: it has 10 rows"):
            learn(home, write_rows(rows, 0, 10))
        assert any("10 rows learned" in line for line in learn(home, rows, source="others"))
        assert Journal(home / "journal").origins(99, 100)[0].endswith(":others")

    def test_killed_it_goes_on_behind_the_last_row(self, tmp_path, monkeypatch):
        rows = write_rows(tmp_path / "rows.csv", 0, 150)
        whole, home = tmp_path / "whole", tmp_path / "home"
        learn(whole, rows)
        learn(home, write_rows(tmp_path / "first.csv", 0, 20), source="first")
        with monkeypatch.context() as patch:
            patch.setattr(prequential.Learner, "save", lambda self: None)  # nothing but the journal is left
            (tmp_path / "broken.csv").write_text("\n".join(rows.read_text().splitlines()[:100]) + "\n1,2,3,4,5\n")
            with pytest.raises(BadInput, match="row 100 has 5 fields, expected 4"):
                learn(home, tmp_path / "broken.csv")
        taken = len(Journal(home / "journal")) - 20
        assert taken in (64, 99)
        said = learn(home, rows)
        assert said[0] == f"{taken} rows of rows.csv were learned before"
        assert any(f"{150 - taken} rows learned" in line for line in said)
        origins = Journal(home / "journal").origins(20, 170)
        assert [int(origin.split(":")[0]) for origin in origins] == list(range(1, 151))

    def test_ctrl_c_ends_it_with_everything_saved(self, tmp_path):
        learn(tmp_path / "home", write_rows(tmp_path / "rows.csv", 0, 20))
        learner = prequential.open(tmp_path / "home")
        scores = Scores()
        with open_rows(str(write_rows(tmp_path / "rows.csv", 20, 150))) as rows, Stop() as stop:

            def waiting():
                yield next(iter(rows))
                stop._handle(signal.SIGINT, None)  # while it waits for more
                raise AssertionError("it went on")

            learn_rows(learner, waiting(), labels=LabelReader("up", [0, 1]), scores=scores, stop=stop)
        assert (learner.position, scores.count, stop.requested) == (84, 64, True)
        assert read_checkpoint(sorted((tmp_path / "home" / "saves").iterdir())[-1])["position"] == 84

    def test_a_home_from_a_run(self, run, tmp_path):
        home = tmp_path / "home"
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        learn(home, write_rows(tmp_path / "more.csv", 60, 80), start=run)
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
        learner = prequential.open(home)
        assert learner.position == 80
        expected = prequential.open(run)
        stream = prequential.TableStream(tmp_path / "more.csv", label="up", schema=expected.schema)
        expected.observe(*(lambda chunk: (chunk.x, chunk.y))(stream.read(0, 20)))
        state, other = learner.state_dict(), expected.state_dict()
        assert same_state(state["learner"]["parts"], other["learner"]["parts"])
        learner.close()
        with pytest.raises(BadInput, match="is there already and goes on as it is; leave --from"):
            learn(home, tmp_path / "more.csv", start=run)

    def test_labels_by_id(self, tmp_path):
        home = tmp_path / "home"
        learn(home, write_rows(tmp_path / "rows.csv", 0, 20))
        rows = tmp_path / "asked.csv"
        rows.write_text("ticket,price,shop\nt1,2.5,a\nt2,-2.5,b\nt3,0.1,a\n")
        first = predictions(home, rows, id="ticket", keep=["ticket"])
        assert [row["ticket"] for row in first] == ["t1", "t2", "t3"]
        labels = tmp_path / "labels.csv"
        labels.write_text("ticket,up\nt2,0\nt1,1\nt9,1\n")
        said = learn(home, labels, id="ticket", label="up", source=None)
        assert any("2 rows learned" in line for line in said)
        learn(home, labels, id="ticket", label="up", source=None)  # once more: accepted and ignored
        learner = prequential.open(home)
        assert (learner.position, list(learner.asked.pending), list(learner.asked.labels)) == (22, ["t3"], ["t9"])
        assert learner.asked.log_loss == pytest.approx(
            -np.log([float(first[0]["p(1)"]), float(first[1]["p(0)"])]).mean(), abs=1e-6
        )
        learner.close()

    def test_what_does_not_fit_is_refused_and_leaves_no_home(self, tmp_path):
        rows = tmp_path / "rows.csv"
        rows.write_text("price,up\n1,yes\n2,\n")
        with pytest.raises(BadInput, match="row 2: column 'up' is empty, expected a label"):
            learn(tmp_path / "home", rows)
        assert not (tmp_path / "home").exists()
        with pytest.raises(BadInput, match="has no column 'down'"):
            learn(tmp_path / "home", rows, label="down")
        learn(tmp_path / "home", write_rows(rows, 0, 20))
        rows.write_text("price,shop,up\n1,a,maybe\n")
        with pytest.raises(BadInput, match="column 'up' is 'maybe', expected a whole number like the labels before"):
            learn(tmp_path / "home", rows, source="other")


def test_the_help_names_them(capsys):
    for command in ("predict", "learn"):
        main([command, "--help"])
        assert command in capsys.readouterr().out
