"""The documentation site builds without a warning, has no broken link, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'prequential[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if not line.startswith("INFO")]
    assert (done.returncode, said) == (0, [])  # broken links and anchors are warnings, and warnings are errors
    return folder


def test_every_page_is_there(site):
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert [page for page in sorted(pages) if not (site / page).is_file()] == []
    assert (site / "index.html").is_file()  # the README
    assert (site / "CHANGELOG.html").is_file()


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"^ +- .*?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} - listed == set()


def test_nothing_is_loaded_from_elsewhere(site):
    loaded = re.compile(r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(https?:)?//|<link[^>]*\shref=["']?(https?:)?//""")
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text()), page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text()), style


def test_the_public_names_are_in_the_reference(site):
    import prequential

    text = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    missing = [name for name in prequential.__all__ if name != "__version__" and f'.{name}"' not in text]
    assert missing == []
