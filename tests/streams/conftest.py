"""What all tests of streams share: nothing is written to the user's cache."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PREQUENTIAL_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


@pytest.fixture(scope="session")
def data():
    """The folder with real data; tests that want it are skipped where it is not given."""
    folder = os.environ.get("PREQUENTIAL_DATA")
    if not folder:
        pytest.skip("PREQUENTIAL_DATA is not set")
    return Path(folder)
