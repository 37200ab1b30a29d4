"""Builds the sources and the wheel, installs the wheel in a new environment, and uses it from outside the repository.

    python .ci/check_wheel.py                   builds with `pip wheel`, from the sources that `build` packs if it is there
    python .ci/check_wheel.py dist/*.whl        takes a wheel that was built
    python .ci/check_wheel.py --packages DIR    takes the dependencies from a site-packages, instead of installing them

Runs on Linux, macOS and Windows.
"""

from __future__ import annotations

import argparse
import email
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
USE = """
import prequential, sys
from importlib.metadata import version
assert prequential.__version__ == version("prequential") == sys.argv[1], prequential.__version__
assert "site-packages" in prequential.__file__, prequential.__file__
from prequential import Learner, digits, evaluate
scores = evaluate(digits(tasks=1, task_length=50), Learner(classes=10, width=16, depth=1, window=16, num_streams=2))
print(f"prequential {prequential.__version__}: {scores.count} digits, accuracy {scores.accuracy:.2f}")
"""


def build(out: Path) -> Path:
    """The wheel, built from the sources as they are packed where the package `build` is there."""
    sources: Path = ROOT
    if importlib.util.find_spec("build"):
        subprocess.run([sys.executable, "-m", "build", "--sdist", "--outdir", out, ROOT], check=True)
        sources = next(out.glob("*.tar.gz"))
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", out, sources], check=True)
    return next(out.glob("*.whl"))


def check_metadata(wheel: Path) -> str:
    """Refuses a wheel without types, license or long description; its version."""
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        metadata = email.message_from_bytes(packed.read(next(n for n in names if n.endswith(".dist-info/METADATA"))))
    assert "prequential/py.typed" in names, "py.typed is missing"
    assert any(name.endswith("licenses/LICENSE") for name in names), "the license is missing"
    text = str(metadata.get_payload())
    assert text.startswith("# prequential"), "the long description is not the README"
    if metadata.get_all("Project-URL"):  # the build knew where the repository is
        relative = [link for link in re.findall(r"\]\(([^)]*)\)", text) if not re.match("https?:|#", link)]
        assert not relative, f"links of the long description that lead nowhere: {relative}"
    return str(metadata["Version"])


def install_and_use(wheel: Path, version: str, folder: Path, packages: str | None) -> None:
    """Installs a wheel in a new environment, and uses it there."""
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if packages is not None:
        where = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, capture_output=True, text=True)  # fmt: skip
        Path(where.stdout.strip(), "outer.pth").write_text(packages + "\n")
    options = [] if packages is None else ["--no-deps", "--ignore-installed"]
    subprocess.run([python, "-m", "pip", "install", "-q", *options, wheel], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, "-c", USE, version], check=True, cwd=folder, env=environment)
    command = [python, "-m", "prequential", "run", "--learner", "last-label", "--tasks", "2", "--task-length", "50"]
    subprocess.run([*command, "--out", folder / "run"], check=True, cwd=folder, env=environment)
    assert (folder / "run" / "scores.json").is_file(), "the run left no scores"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", nargs="?", type=Path)
    parser.add_argument("--packages", help="a site-packages that has the dependencies")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="prequential-wheel-") as name:
        folder = Path(name)
        wheel = given.wheel.resolve() if given.wheel else build(folder)
        version = check_metadata(wheel)
        install_and_use(wheel, version, folder, given.packages)
        print(f"{wheel.name} works")


if __name__ == "__main__":
    main()
