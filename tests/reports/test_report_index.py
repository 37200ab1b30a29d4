"""Reports, lists and `show` of any folder of runs."""

from __future__ import annotations

import json
import shutil

import pytest

from prequential.cli.app import main
from prequential.errors import BadInput, BadSetting
from prequential.reports import write_report
from prequential.reports.data import page_data
from prequential.reports.run_list import list_runs
from prequential.reports.run_reader import find_runs
from prequential.reports.write import read_runs
from prequential.storage.checkpoint import write_checkpoint
from reports.report_runs import add, make_run

NUMBERS = {"state": "finished", "count": 300, "majority_accuracy": 0.3, "last_label_accuracy": 0.9, "kappa": 0.5}


@pytest.fixture
def folder(tmp_path):
    """Two learning rates with two seeds each, deep in a folder, and a run of another learner."""
    for rate in (0.1, 0.0123456789):
        for seed in (0, 1):
            scores = {**NUMBERS, "accuracy": 0.5 + rate + seed / 10}
            make_run(
                tmp_path / "a" / f"{rate}" / str(seed), 300, seed=seed, learner={"learning_rate": rate}, scores=scores
            )
    make_run(tmp_path / "kalman", 300, learner={}, scores={**NUMBERS, "accuracy": 0.95}, **{"stream": "x.csv"})
    return tmp_path


def test_runs_are_found_however_deep(folder):
    assert len(find_runs([folder])) == 5
    assert len(find_runs([folder / "a"])) == 4
    (folder / "empty").mkdir()
    with pytest.raises(BadInput, match="has 0 runs that have recorded something, of 0 runs in it"):
        find_runs([folder / "empty"])
    with pytest.raises(BadInput, match="it does not exist"):
        find_runs([folder / "nowhere"])


def test_one_bad_run_does_not_hide_the_others(folder):
    part = folder / "kalman" / "records" / "part-000000000000.parquet"
    part.write_bytes(part.read_bytes()[:-50])
    page = write_report([folder]).read_text()
    assert "part-000000000000.parquet is damaged" in page
    assert len(read_runs([folder])) == 4
    with pytest.raises(BadInput, match="is damaged"):
        write_report([folder / "kalman"])


def test_names_have_short_numbers_and_settings_exact_ones(folder):
    data = page_data(read_runs([folder / "a"]), index=True)
    assert data["index"]
    assert set(data["groups"]) == {"pi-transformer, learning-rate 0.01235", "pi-transformer, learning-rate 0.1"}
    assert {run["settings"]["learning-rate"] for run in data["runs"]} == {"0.0123456789", "0.1"}
    (run, *_) = data["runs"]
    assert run["majority"] is not None
    assert sum(map(sum, run["classScores"]["confusion"]["count"])) >= 299
    assert len(run["classScores"]["table"]["label"]) == 5


def test_list_is_sorted_filtered_and_folded(folder):
    lines, problems = list_runs(folder, sort="accuracy", by="seed")
    assert problems == []
    assert [(line.name, len(line.results)) for line in lines] == [
        ("pi-transformer", 1),
        ("pi-transformer, learning-rate 0.1", 2),
        ("pi-transformer, learning-rate 0.01235", 2),
    ]
    assert lines[1].text("accuracy") == "65.0 % (60.0–70.0)"
    assert [line.name for line in list_runs(folder, match=["seed=1"], sort="name")[0]] == [
        "a/0.0123456789/1  pi-transformer",
        "a/0.1/1  pi-transformer",
    ]
    assert len(list_runs(folder, by="learning_rate")[0]) == 3
    with pytest.raises(BadSetting, match="sorted by 'acuracy'"):
        list_runs(folder, sort="acuracy")
    with pytest.raises(BadSetting, match="folded by 'learning_rat'"):
        list_runs(folder, by="learning_rat")


def test_commands(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    main(["runs", str(folder), "--by", "seed", "--sort", "accuracy"])
    listed = capsys.readouterr().out
    assert "95.0%" in listed
    assert "2 runs" in listed
    assert "5 runs; prequential report" in listed
    main(["show", str(folder)])
    assert capsys.readouterr().out == listed
    main(["report", str(folder), "--out", str(folder / "all.html")])
    assert (folder / "all.html").is_file()


def test_time_is_known_while_a_run_goes_on(tmp_path):
    from prequential.evaluation.records import RecordWriter

    run = make_run(tmp_path / "run", 10)
    shutil.rmtree(run / "records")
    (run / "scores.json").unlink()
    writer = RecordWriter(run / "records")
    add(writer, 500)
    state = {"records": writer.state_dict(), "scores": {"classes": 10}, "seconds": 2.5}
    write_checkpoint(run / "checkpoints" / "000000000500.safetensors", state)
    (shown,) = page_data(read_runs([run]))["runs"]
    assert (shown["examples"], shown["seconds"]) == (500, 2.5)
    assert shown["kappa"] is not None
    assert json.dumps(shown)  # everything is JSON
