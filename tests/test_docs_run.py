"""The blocks of the pages are run as a reader would type them, page by page, in an empty folder.

A block of `python` or `bash` is run here, unless a test of its own runs the page. A block of `sh` is only shown: it
needs data, hours or a service; tests/test_docs_commands.py checks its options.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import pytest

from prequential.cli.app import main

DOCS = Path(__file__).parents[1] / "docs"
ELSEWHERE = {  # pages with a test of their own
    "serve.md": "tests/serve/test_serve_doc.py",
    "tutorial_service.md": "tests/serve/test_tutorial.py",
    "deploy.md": "tests/serve/test_deploy.py",
    "river.md": "tests/test_doors_docs.py",
    "sklearn.md": "tests/test_doors_docs.py",
    "pytorch.md": "tests/test_doors_docs.py",
}
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if BLOCK.search(page.read_text())]
# a page's own text → a smaller one, so that all of them take seconds; nothing else is changed
SMALLER = {
    "tutorial.md": {
        "range(4000)": "range(160)",
        "t > 2500": "t > 90",
        "t >= 1500": "t >= 60",
        "--seeds 0 1 2": "--seeds 0",
    }
}


def run_line(line: str, folder: Path) -> None:
    words = shlex.split(line, comments=True)
    if not words or words[:2] == ["pip", "install"]:
        return  # test_docs_commands.py knows the extras
    if words[0] == "prequential" and not set(words) & {"|", ">", "<"}:
        # in this process, where torch is imported already
        main([*words[1:], "--jobs", "0"] if words[1] == "compare" else words[1:])
    elif words[0] == "python" and words[1].endswith(".py"):
        runpy.run_path(words[1], run_name="__main__")
    else:
        subprocess.run(["bash", "-euc", line], cwd=folder, check=True)


def test_the_list_of_other_tests_is_right():
    tests = [test for page, test in ELSEWHERE.items() if (DOCS / page).is_file()]
    assert [test for test in tests if not (DOCS.parent / test).is_file()] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ELSEWHERE], ids=lambda page: page.name)
def test_blocks_run(page: Path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)
    module = ModuleType("page_in_docs")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # a class of the page is found by name
    text = page.read_text()
    for old, new in SMALLER.get(page.name, {}).items():
        assert old in text
        text = text.replace(old, new)
    count = 0
    for language, block in BLOCK.findall(text):
        if language == "python":
            exec(compile(block, str(page), "exec"), vars(module))
        else:
            for line in block.replace("\\\n", " ").splitlines():
                run_line(line, tmp_path)
        count += 1
    assert count == len(BLOCK.findall(text)) > 0


def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    """Its code cells, in order; without jupyter, and with fewer rows."""
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    cells = json.loads((DOCS / "notebooks" / "first_stream.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    for text in code:
        exec(text.replace("range(800)", "range(120)").replace("t < 400", "t < 60"), names)
    assert names["same"].position == names["learner"].position == len(names["right"]) == 120
    assert [cell for cell in cells if cell["cell_type"] == "code" and not cell["outputs"]] == []
