"""The code of the pages on River, scikit-learn and PyTorch runs, each block by itself."""

import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize(
    ("page", "needs", "blocks"), [("river", "river", 3), ("sklearn", "sklearn", 3), ("pytorch", "datasets", 5)]
)
def test_code_runs(page: str, needs: str, blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(needs)
    if page == "pytorch":
        pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(tmp_path)
    found = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL)
    assert len(found) == blocks
    for block in found:
        if name := re.match(r"# (\w+\.py)\n", block):
            (tmp_path / name[1]).write_text(block)
        else:
            exec(compile(block, f"docs/{page}.md", "exec"), {"__name__": "page"})
    sys.modules.pop("my_networks", None)
