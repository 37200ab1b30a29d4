"""What a scoreboard has counted outlives the process, line by line."""

from __future__ import annotations

import json
import os

import pytest

from prequential.serve import score_log
from prequential.serve.score_log import ScoreLog
from prequential.serve.scoreboard import Scoreboard


def count(log: ScoreLog, scores: Scoreboard, position: int) -> None:
    """A prediction, and its label."""
    asked = {"id": f"i{position}", "label": "a", "p": 0.5, "position": position - 1, "time": 10.0}
    scored = {
        "id": f"i{position}", "y": "ab"[position % 2], "text": "ab"[position % 2], "predicted": "a", "nats": 0.7,
        "correct": position % 2 == 0, "delay": 2.0, "position": position, "time": 12.0,
    }  # fmt: skip
    scores.predicted(**asked)
    log.add("predicted", asked)
    scores.scored(**scored)
    log.add("scored", scored)


def saved(log: ScoreLog, scores: Scoreboard) -> dict:
    found: dict = json.loads(json.dumps({**scores.state_dict(), "number": log.number}))
    return found


def reopened(path, position: int, kept: dict | None = None) -> tuple[ScoreLog, Scoreboard]:
    scores, number = Scoreboard(), 0
    if kept is not None:
        scores.load_state_dict(kept)
        number = kept["number"]
    log = ScoreLog(path, number)
    log.replay(scores, position)
    return log, scores


def test_everything_is_counted_again(tmp_path):
    path, scores = tmp_path / "scores.log", Scoreboard()
    log = ScoreLog(path)
    for position in range(1, 21):
        count(log, scores, position)
    again = reopened(path, 20)[1]
    assert again.state_dict() == scores.state_dict()
    assert again.count == 20


def test_what_a_save_has_is_not_counted_twice(tmp_path):
    path, scores = tmp_path / "scores.log", Scoreboard()
    log = ScoreLog(path)
    for position in range(1, 6):
        count(log, scores, position)
    kept = saved(log, scores)  # killed before `clear`
    log, scores = reopened(path, 5, kept)
    assert scores.count == 5
    count(log, scores, 6)
    kept = saved(log, scores)
    log.clear()
    count(log, scores, 7)
    assert reopened(path, 7, kept)[1].state_dict() == scores.state_dict()


@pytest.mark.parametrize("cut", [2, 20, 60])
def test_a_line_that_was_cut_off_is_left_out_and_the_next_one_is_not(tmp_path, cut):
    path, scores = tmp_path / "scores.log", Scoreboard()
    log = ScoreLog(path)
    for position in range(1, 4):
        count(log, scores, position)
    os.truncate(path, path.stat().st_size - cut)
    log, scores = reopened(path, 3)
    assert scores.count == 2
    count(log, scores, 4)
    assert reopened(path, 4)[1].count == 3


def test_examples_that_a_power_cut_took_are_not_counted(tmp_path):
    path, scores = tmp_path / "scores.log", Scoreboard()
    log = ScoreLog(path)
    for position in range(1, 6):
        count(log, scores, position)
    assert reopened(path, 3)[1].count == 3


def test_a_full_disk_takes_nothing_away(tmp_path, monkeypatch):
    path, scores = tmp_path / "scores.log", Scoreboard()
    log = ScoreLog(path)
    count(log, scores, 1)

    def half(handle: int, data: bytes) -> None:
        os.write(handle, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(score_log, "write_all", half)
        count(log, scores, 2)
    count(log, scores, 3)
    assert reopened(path, 3)[1].state_dict() == scores.state_dict()
