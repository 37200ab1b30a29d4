"""The learner of docs/learners.md can be made by name."""

import re
import sys
from pathlib import Path

from prequential import make_learner

PAGE = (Path(__file__).parents[2] / "docs" / "learners.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_learner_of_the_page_by_name(tmp_path, monkeypatch):
    own = next(block for block in BLOCKS if "class Frequency" in block)
    (tmp_path / "my_learners.py").write_text(own.replace("check_learner(Frequency)\n", ""))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = re.search(r'--learner "(.*)"', PAGE)[1]
    assert make_learner(spec, 3).smoothing == 0.5
    sys.modules.pop("my_learners")
