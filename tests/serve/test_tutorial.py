"""The tutorial of the service: every block is run, in order, as a reader would type it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from serve.conftest import Running, free_port

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial_service.md").read_text()
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", PAGE, re.DOTALL)
PORT = "8000"


class Typed(Running):
    """The service by the command of the page, with tokens that it makes itself."""

    def __init__(self, command: str, folder: Path, port: int) -> None:
        self.command, self.folder, self.port = command, folder, port
        self.url, self.home, self.flags = f"http://127.0.0.1:{port}", folder / "service", ()
        self.start()

    def start(self) -> None:
        words = [sys.executable, "-m", *self.command.split(), "--port", str(self.port)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PREQUENTIAL_")}
        self.printed = self.folder / "printed"
        with self.printed.open("w") as file:
            self.process = subprocess.Popen(
                words, cwd=self.folder, env=environment, stderr=file, start_new_session=True
            )
        self.wait_until_ready()


@pytest.fixture
def typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    started: list[Typed] = []
    yield started
    for service in started:
        with contextlib.suppress(ProcessLookupError):
            service.kill()


def test_the_tutorial(typed, tmp_path, monkeypatch, capsys):
    port, names, printed = free_port(), {}, []
    for language, block in BLOCKS:
        block = block.replace(f":{PORT}", f":{port}")
        if block.startswith("pip install"):
            assert block == "pip install 'prequential[serve]'\n"
        elif block.startswith("prequential serve "):
            typed.append(Typed(block.strip(), tmp_path, port))
            monkeypatch.setenv("PID", str(typed[-1].process.pid))
            found = dict(re.findall(r"^(admin token|token of tickets): (\S+)$", typed[-1].printed.read_text(), re.M))
            assert bool(found) == (len(typed) == 1)  # once
            if found:
                monkeypatch.setenv("ADMIN", found["admin token"])
                monkeypatch.setenv("TOKEN", found["token of tickets"])
        elif language == "bash":
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", block], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            printed.append(done.stdout)
            if block.startswith("kill"):
                typed[-1].process.wait(30)
        else:
            exec(compile(block, "tutorial_service.md", "exec"), names)
    asked, killed, figures = printed
    assert asked.startswith('{"id":"first","label":null,"probabilities":{},"unseen":1.0,"position":0}')
    assert '{"id":"first","position":1,"status":"learned"}' in asked
    assert asked.replace("}{", "}\n{").strip() in PAGE
    assert killed == ""
    assert 'prequential_examples{tenant="tickets"} 701.0' in figures
    told = capsys.readouterr().out.splitlines()
    promised = re.findall(r"^ *print\(.*\)  # ([\w ]+?)(?::.*)?$", PAGE, re.MULTILINE)
    assert [line for line in told if line in promised] == promised == ["401", "known", "681 20", "701"]
    assert re.fullmatch(r"(billing|shipping|returns|other) [01]\.\d+", told[1])


def test_there_are_three_commands_first():
    first = [block.split()[0] for _, block in BLOCKS[:3]]
    assert first == ["pip", "prequential", "curl"]
