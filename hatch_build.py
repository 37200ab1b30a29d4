"""The build hook: compiles the native core where there is a C++ compiler, and installs without it otherwise.

PREQUENTIAL_BUILD=no leaves it out; PREQUENTIAL_BUILD=required fails where it cannot be built, as for releases.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeCore(BuildHookInterface):
    """Puts the shared library into a wheel, or beside the sources of an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wanted = os.environ.get("PREQUENTIAL_BUILD", "")
        if self.target_name != "wheel" or wanted == "no":
            return
        folder = Path(self.root) / "src" / "prequential" / "native"
        build = load_build(folder / "build.py")
        self._made_in = tempfile.mkdtemp(prefix="prequential-wheel-")
        try:
            if version == "editable":
                build.compile_library()
                return
            library = build.compile_library(Path(self._made_in) / build.NAME)
        except (build.CannotBuild, OSError) as problem:
            if wanted == "required":
                raise
            self.app.display_warning(f"prequential is installed without its native core: {problem}")
            return
        build_data["force_include"][str(library)] = f"prequential/native/{build.NAME}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(build)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(getattr(self, "_made_in", ""), ignore_errors=True)


def load_build(file: Path) -> Any:
    """The module that compiles, from its file: the package itself cannot be imported before it is installed."""
    spec = importlib.util.spec_from_file_location("prequential_native_build", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def platform_tag(build: Any) -> str:
    """The machines that a library made here runs on, as wheels name them."""
    if sys.platform == "darwin":
        major, _, minor = build.macos_target().partition(".")
        return f"macosx_{major}_{minor.partition('.')[0] or 0}_{platform.machine()}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
