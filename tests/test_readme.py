"""The README's code runs, and its commands are the ones that exist."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_there_is_code():
    assert len(BLOCKS) == 2


def test_code_runs(capsys):
    names: dict = {}
    for block in BLOCKS:  # one after the other, as a reader would type them
        exec(compile(block, "README.md", "exec"), names)
    unseen, accuracy, log_loss, bits = map(float, capsys.readouterr().out.split())
    assert unseen == pytest.approx(1.0)
    assert 0 < accuracy < 1
    assert bits == pytest.approx(1000 * log_loss / 0.693147, rel=1e-4)


def test_there_are_two_commands_and_what_they_refer_to_exists():
    commands = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    assert [command.split(" && ")[0] for command in commands] == ["pip install .", "pip install '.[test]'"]
    root = Path(__file__).parent.parent
    for link in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (root / link).exists(), link
