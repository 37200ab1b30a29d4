"""Every command that a page shows has only options that there are, whether it is run elsewhere or not."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from cyclopts.exceptions import CycloptsError, MissingArgumentError

from prequential.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
STARTS = "prequential|torchrun|python|pip install"


def commands(page: Path) -> list[tuple[str, bool]]:
    """The commands of a page: lines of its blocks, and what stands between backquotes, which may be cut short."""
    text = page.read_text()
    fences = re.findall(r"^```(?:bash|sh|text)\n(.*?)^```", text, flags=re.M | re.S)
    inline = re.findall(r"(?<!`)`([^`]+)`(?!`)", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    lines = [line for block in fences for line in block.replace("\\\n", " ").splitlines()]
    found = [part.strip() for line in lines for part in re.split(r"\s*(?:\||&&)\s*(?=[a-z])", line)]
    both = [(one, False) for one in found] + [(" ".join(text.split()), True) for text in inline]
    return [
        (re.sub(r"^(\w+=\S+ )+", "", one), short) for one, short in both if re.match(rf"(\w+=\S+ )*({STARTS})\s", one)
    ]


def words_of(command: str) -> list[str]:
    """Its words, without what stands for others."""
    words = shlex.split(re.sub(r"\s+(?:2?>|&$).*", "", command), comments=True)
    return ["1" if word == "N" else word for word in words if word not in ("...", "…")]


def check(command: str) -> None:
    words = words_of(command)
    if words[0] == "torchrun" and "-m" in words:
        words = words[words.index("-m") + 1 :]
    if words[:3] == ["python", "-m", "prequential"]:
        words = words[2:]
    if words[0] == "prequential" and not words[1].isupper():  # COMMAND stands for any of them
        app.parse_args(words[1:], print_error=False, exit_on_error=False)
    elif words[0] == "python" and words[1].startswith("benchmarks/"):
        source = (ROOT / words[1]).read_text()
        for option in (word.split("=")[0] for word in words if word.startswith("--")):
            assert option in source or option[2:].replace("-", "_") in source, option
    elif words[0] == "pip":
        for extras in re.findall(r"\[([\w,]+)\]", command):
            assert set(extras.split(",")) <= EXTRAS, extras


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_only_options_that_there_are(page: Path):
    wrong = []
    for command, short in commands(page):
        try:
            check(command)
        except MissingArgumentError:
            if not short:
                wrong.append(command)
        except (AssertionError, CycloptsError, OSError, ValueError) as error:
            wrong.append(f"{command}: {type(error).__name__} {error}")
    assert wrong == []


@pytest.mark.parametrize(
    "command",
    [
        "prequential run --no-such-option 3",
        "prequential run --width wide",
        "prequential no-such-command",
        "python benchmarks/kills.py --no-such-option",
        "pip install 'prequential[no_such_extra]'",
    ],
)
def test_wrong_ones_are_noticed(command):
    with pytest.raises((AssertionError, CycloptsError)):
        check(command)


def test_many_commands_are_checked():
    assert sum(len(commands(page)) for page in PAGES) > 150
