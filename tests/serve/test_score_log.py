"""What a scoreboard has counted outlives the process, line by line."""

from __future__ import annotations

import json
import os
import time

import pytest

from prequential.serve import score_log
from prequential.serve.score_log import ScoreLog
from prequential.serve.scoreboard import Scoreboard
from prequential.serve.tenant_learner import TenantLearner
from prequential.serve.tenants import Tenants
from prequential.serve.work import Work

from .conftest import SMALL


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
    log.flush()


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


def learn(tenant: TenantLearner, *rows: dict) -> None:
    several = [{"id": None, "x": None, **row} for row in rows]
    work = Work(1, {"rows": several, "several": True, "key": None, "print": ""})
    while tenant.learn(work) is None:
        time.sleep(0.001)


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_examples_without_a_line_are_scored_when_they_are_learned_again(tmp_path, lost):
    made = Tenants(tmp_path).create("one", settings={**SMALL, "async_steps": False})[0].to_dict()
    place = tmp_path / "tenants" / "one"
    tenant = TenantLearner("one", place, made)
    learn(tenant, *({"x": [i, 1.0], "y": "ab"[i % 2]} for i in range(20)))
    for i in range(20, 26):
        tenant.predict({"rows": [{"id": str(i), "x": [i, 1.0]}], "remember": True})
    learn(tenant, *({"id": str(i), "y": "ab"[i % 2]} for i in range(20, 25)))
    before = tenant.figures()
    tenant.flush()
    tenant.learner.close()  # as after a kill: nothing is saved
    lines = (place / "scores.log").read_bytes().splitlines(keepends=True)
    (place / "scores.log").write_bytes(b"".join(lines[: len(lines) - lost]))
    tenant = TenantLearner("one", place, made)
    after = tenant.figures()
    assert (after["scored"], after["unscored"]) == (25, 0)
    assert (after["correct"], after["counts"]) == (before["correct"], before["counts"])
    assert after["nats"] == pytest.approx(before["nats"], abs=1e-12)
    assert [entry["fate"] for entry in tenant.scores.recent.values()].count("waiting") == 1
    tenant.close()
    tenant = TenantLearner("one", place, made)
    assert tenant.figures()["scored"] == 25
    assert (place / "scores.log").read_bytes().strip() == b""
    tenant.learner.close()


def test_delays_do_not_follow_a_clock_that_is_set(tmp_path, monkeypatch):
    made = Tenants(tmp_path).create("one", settings={**SMALL, "async_steps": False})[0].to_dict()
    tenant = TenantLearner("one", tmp_path / "tenants" / "one", made)
    for i, jump in enumerate((86400, -86400, 0)):
        tenant.predict({"rows": [{"id": str(i), "x": [i, 1.0]}], "remember": True})
        wall = time.time() + jump
        monkeypatch.setattr(time, "time", lambda wall=wall: wall)
        learn(tenant, {"id": str(i), "y": "a"})
        monkeypatch.undo()
    assert tenant.scores.delays.count == 3
    assert 0 <= tenant.scores.delays.sum < 60
    tenant.learner.close()
