"""The code of docs/live.md runs."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "live.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_code_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)
    names: dict = {}
    for block in BLOCKS:
        exec(compile(block, "docs/live.md", "exec"), names)
    assert names["learner"].position > 0
