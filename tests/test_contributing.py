"""The exercises of CONTRIBUTING.md, run as they are written there."""

from __future__ import annotations

import importlib
import inspect
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from prequential.cli.app import main
from prequential.models import heads

PAGE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
SECTIONS = dict(re.findall(r"^### (.*?)\n(.*?)(?=^###? |\Z)", PAGE, flags=re.M | re.S))


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def run(command: str) -> None:
    words = shlex.split(command, comments=True)
    if words[0] == "python":
        runpy.run_path(words[1], run_name="__main__")
    else:
        assert words[0] == "prequential"
        main(words[1:])


def add_line(line: str, module: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Adds a line to `make_heads`, whose names a module has; the names of the heads that are made with it."""
    source = inspect.getsource(heads.make_heads)
    changed = source.replace("    return", f"{line}    return")
    assert changed != source
    names = {**vars(heads), **vars(importlib.import_module(module))}
    exec(changed, names)
    made: list[str] = []

    def make_heads(*given: Any, **named: Any) -> Any:
        found = names["make_heads"](*given, **named)
        made.extend(found)
        return found

    monkeypatch.setattr("prequential.models.transformer.make_heads", make_heads)
    return made


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A new folder in which modules are found, as on the command line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("prequential.runs.run.draw_run", lambda *_, **__: None)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("my_"):
            del sys.modules[name]


@pytest.mark.parametrize("title", SECTIONS)
def test_exercise(title: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = blocks(SECTIONS[title], "python")
    commands = [line for text in blocks(SECTIONS[title], "text") for line in text.replace("\\\n", " ").splitlines()]
    assert len(files) == 1
    assert commands
    path = folder / files[0].splitlines()[0].removeprefix("# ")
    path.write_text(files[0])
    lines = {line: add_line(line.removeprefix("+"), path.stem, monkeypatch) for line in blocks(SECTIONS[title], "diff")}
    for command in commands:
        run(command)
    for line, made in lines.items():
        assert any(f'["{name}"]' in line for name in made)
    (scores,) = folder.glob("runs/*/scores.json")
    assert '"finished": true' in scores.read_text()
