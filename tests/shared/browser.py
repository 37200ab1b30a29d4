"""A real browser for tests of pages. They are skipped where Playwright or Chromium is not installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
# how many colors a canvas has, and what share of it is drawn on
DRAWN = """id => { const c = document.querySelector(`#${id} canvas`); const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
const seen = new Set(); let inked = 0; for (let i = 0; i < d.length; i += 4) if (d[i + 3]) { inked++; seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); }
return [seen.size, inked / (c.width * c.height)]; }"""


@contextmanager
def chromium() -> Iterator[Any]:
    """Chromium without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with playwright.sync_playwright() as started:
        path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        try:
            found = started.chromium.launch(executable_path=path, args=FLAGS)
        except playwright.Error as error:
            pytest.skip(f"Chromium cannot be started: {str(error).splitlines()[0]}")
        yield found
        found.close()
