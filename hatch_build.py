"""The build hooks: one compiles the native core, the other makes the long description of the package.

The native core is compiled where there is a C++ compiler, and left out otherwise. PREQUENTIAL_BUILD=no leaves it out;
PREQUENTIAL_BUILD=required fails where it cannot be built, as for releases.

The long description is the README. Its images and links are relative, which only the page of the repository
understands. Where a build knows the address of the repository (PREQUENTIAL_REPOSITORY=https://github.com/OWNER/NAME;
GitHub's own variables in its workflows), they become absolute, at the tag that is built, and the package gets the
addresses of its project.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class NativeCore(BuildHookInterface):
    """Puts the shared libraries into a wheel, or beside the sources of an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wanted = os.environ.get("PREQUENTIAL_BUILD", "")
        if self.target_name != "wheel" or wanted == "no":
            return
        folder = Path(self.root) / "src" / "prequential" / "native"
        build = load_build(folder / "build.py")
        self._made_in = tempfile.mkdtemp(prefix="prequential-wheel-")
        try:
            built = build.compile_libraries(folder if version == "editable" else Path(self._made_in))
        except (build.CannotBuild, OSError) as problem:
            if wanted == "required":
                raise
            self.app.display_warning(f"prequential is installed without its native core: {problem}")
            return
        for problem in built.problems:
            self.app.display_warning(f"prequential works all the same, maybe slower: {problem}")
        if version == "editable":
            return
        for library in built.libraries:
            build_data["force_include"][str(library)] = f"prequential/native/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(build)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(getattr(self, "_made_in", ""), ignore_errors=True)


class LongDescription(MetadataHookInterface):
    """Fills in what depends on where the repository is: the long description and the addresses of the project."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        address, tag = repository(os.environ), f"v{metadata['version']}"
        if address:
            text = absolute_links(text, address, tag)
            metadata["urls"] = {
                "Homepage": address,
                "Documentation": f"{address}/tree/{tag}/docs",
                "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
                "Issues": f"{address}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def repository(environment: Any) -> str:
    """The address of the repository on the net; empty where the build does not know it."""
    address = environment.get("PREQUENTIAL_REPOSITORY", "")
    if not address and "GITHUB_SERVER_URL" in environment and "GITHUB_REPOSITORY" in environment:
        address = f"{environment['GITHUB_SERVER_URL']}/{environment['GITHUB_REPOSITORY']}"
    return str(address).rstrip("/")


def absolute_links(text: str, address: str, tag: str) -> str:
    """A page of the repository whose relative links lead to the repository at a tag, and whose images are found there.

    >>> absolute_links("![a](docs/a.png) [b](docs/b.md#c) [d](https://d.org) [e](#e)", "https://github.com/o/p", "v1")
    '![a](https://github.com/o/p/raw/v1/docs/a.png) [b](https://github.com/o/p/blob/v1/docs/b.md#c) \
[d](https://d.org) [e](#e)'
    """
    target = r"(?![a-z]+:|#|/)([^)\s]+)"
    text = re.sub(rf"(!\[[^]]*\])\({target}\)", rf"\1({address}/raw/{tag}/\2)", text)
    return re.sub(rf"(\[[^]]*\])\({target}\)", rf"\1({address}/blob/{tag}/\2)", text)


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
