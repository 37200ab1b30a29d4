"""A short run of the fuzzer; `python benchmarks/fuzz.py --count 100000` is the long one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

FUZZ = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"


@pytest.fixture(scope="module")
def fuzzer() -> Any:
    spec = importlib.util.spec_from_file_location("fuzzer", FUZZ)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("target", "count"), [("learners", 240), ("toml", 240), ("cli", 30), ("files", 120)])
def test_everything_is_accepted_or_refused_in_one_sentence(fuzzer: Any, target: str, count: int) -> None:
    counts, failures = fuzzer.fuzz(target, 0, count, say=False)
    assert not failures, "\n".join(failures)
    assert counts.total() == count
    assert counts["accepted"] > count // 100
    assert counts["refused"] > count // 4


def test_a_case_is_the_same_again_alone(fuzzer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PREQUENTIAL_CACHE", "")
    for target in ("learners", "toml"):
        numbers = range(3 * 40, 3 * 40 + 12)
        together = dict(fuzzer.run_cases(target, 7, numbers, tmp_path))
        ((number, alone),) = fuzzer.run_cases(target, 7, range(numbers[-1], numbers[-1] + 1), tmp_path)
        assert alone == together[number]
