import pytest

from prequential.runs import pool


@pytest.mark.parametrize(
    ("cores", "runs", "allowed", "threads"),
    [
        (8, 3, None, 2),
        (2, 4, None, 1),
        (8, 0, None, 8),  # in the process itself
        (8, 1, "2", 2),
        (8, 1, "2,1", 2),
        (2, 1, "16", 2),
        (8, 2, "0", 1),
        (8, 2, "many", 4),
    ],
)
def test_runs_share_the_cores_and_use_no_more_threads_than_the_user_allows(monkeypatch, cores, runs, allowed, threads):
    monkeypatch.setattr(pool, "available_cores", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if allowed is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", allowed)
    assert pool.threads_each(runs) == threads
