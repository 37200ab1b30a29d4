"""The pages can be read in a terminal, and what they name is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
WIDEST = 120
FOLDERS = "src|tests|benchmarks|deploy|docs|results|experiments"  # what a path in a page starts with


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_is_too_long(page: Path):
    lines = enumerate(page.read_text().splitlines(), 1)
    # the row of a table cannot be broken
    assert [number for number, line in lines if len(line) > WIDEST and not line.lstrip().startswith("|")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_lead_somewhere(page: Path):
    text = page.read_text()
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    paths = re.findall(rf"(?<![\w/.-])((?:{FOLDERS})/[\w./-]*\w)", re.sub(r"\]\([^)]*\)", "", text))
    missing = [link for link in links if not (page.parent / link).exists()]
    assert missing + [path for path in paths if not (ROOT / path).exists()] == []


def test_the_architecture_names_what_there_is():
    names = re.findall(r"`(prequential[\w.]*):([\w.]+)`", (ROOT / "docs" / "architecture.md").read_text())
    assert len(names) > 20
    for module, name in names:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
