"""What an installation holds: the library where it can be built, and the sources always."""

import fnmatch
import importlib.util
import re
import sys
import sysconfig
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from prequential.native.build import CannotBuild, find_compiler, targets

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def hook(monkeypatch):
    """The build hook, as hatchling calls it; that package itself is there only while something is built."""
    for name, base in (("builders.hooks", "BuildHookInterface"), ("metadata", "MetadataHookInterface")):
        parts = f"hatchling.{name}.plugin.interface".split(".")
        for count in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:count]), ModuleType(".".join(parts[:count])))
        setattr(sys.modules[".".join(parts)], base, type(base, (), {}))
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.NativeCore()
    made.root, made.target_name = str(ROOT), "wheel"
    made.said = []
    made.app = SimpleNamespace(display_warning=made.said.append)
    return made


def initialize(hook, target="wheel", version="standard"):
    hook.target_name = target
    data = {"force_include": {}, "pure_python": True, "tag": None}
    hook.initialize(version, data)
    hook.finalize(version, data, "")
    return data


def test_without_a_compiler_the_wheel_is_pure_and_one_line_says_so(hook, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert initialize(hook) == {"force_include": {}, "pure_python": True, "tag": None}
    assert hook.said == [
        "prequential is installed without its native core: the C++ compiler that CXX names (no-such-compiler) does not "
        "exist"
    ]
    assert initialize(hook, version="editable")["pure_python"]
    monkeypatch.setenv("PREQUENTIAL_BUILD", "required")
    with pytest.raises(Exception, match="no-such-compiler") as caught:
        initialize(hook)
    assert type(caught.value).__name__ == CannotBuild.__name__


def test_it_can_be_left_out_and_is_not_in_the_sources(hook, monkeypatch):
    monkeypatch.setenv("PREQUENTIAL_BUILD", "no")
    assert initialize(hook)["force_include"] == {}
    monkeypatch.delenv("PREQUENTIAL_BUILD")
    assert initialize(hook, target="sdist")["force_include"] == {}
    assert hook.said == []


def test_with_a_compiler_all_libraries_are_in_a_wheel_of_this_platform(hook, tmp_path):
    try:
        find_compiler()
    except CannotBuild as problem:
        pytest.skip(str(problem))
    native = tmp_path / "src" / "prequential" / "native"
    native.mkdir(parents=True)
    for name in ("build.py", "abi.cpp"):
        (native / name).write_text((ROOT / "src" / "prequential" / "native" / name).read_text())
    hook.root = str(tmp_path)
    data = initialize(hook)
    names = {target.name for target in targets()}
    assert set(data["force_include"].values()) == {f"prequential/native/{name}" for name in names}
    assert hook.said == []
    assert not data["pure_python"]
    assert re.fullmatch(r"py3-none-\w+", data["tag"])
    if sys.platform == "linux":
        assert data["tag"].endswith(sysconfig.get_platform().replace("-", "_"))
    for built in data["force_include"]:
        assert not Path(built).exists(), "what was made for the wheel is removed when it is written"
    assert {file.name for file in native.iterdir()} == {"build.py", "abi.cpp"}
    assert initialize(hook, version="editable")["pure_python"]
    beside = {file.name for file in native.iterdir()}
    assert beside == {"build.py", "abi.cpp", *names}, "an editable install has them beside the sources"


def test_libraries_that_were_built_in_place_are_in_no_package():
    """They belong to one machine; a dot in the name keeps Python from taking the second for a module."""
    excluded = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["exclude"]
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    for target in targets():
        file = f"/src/prequential/native/{target.name}"
        assert any(fnmatch.fnmatch(file, pattern) for pattern in excluded)
        assert any(fnmatch.fnmatch(file, pattern) for pattern in ignored)


def test_the_workflow_of_releases_builds_it_for_each_platform():
    workflow = pytest.importorskip("yaml").safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text())
    native = workflow["jobs"]["native"]
    assert {entry["platform"] for entry in native["strategy"]["matrix"]["include"]} >= {"linux-x86_64", "macos-arm64"}
    (step,) = [step for step in native["steps"] if "cibuildwheel" in step.get("uses", "")]
    assert "PREQUENTIAL_BUILD=required" in step["env"]["CIBW_ENVIRONMENT"]
    for name in re.findall(r"\{project\}/(\S+)", step["env"]["CIBW_TEST_COMMAND"]):
        assert (ROOT / name).is_file()
    assert set(workflow["jobs"]["publish"]["needs"]) == {"native", "pure", "use"}
