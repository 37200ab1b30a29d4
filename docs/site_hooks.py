"""What MkDocs needs to build the site from pages that also read well in the repository.

Pages link to files of the repository by relative paths: to the README, to results, to sources. The README becomes the
first page, other Markdown pages and pictures that are linked become part of the site, and a link to a folder becomes
plain text. Notebooks become pages.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(!?\[(?:[^\]\[]|\[[^\]]*\])*\])\(([^)\s]+)\)")
FENCE = re.compile(r"(^ *```.*?^ *```[^\n]*\n)", re.MULTILINE | re.DOTALL)

FILE_NAME = re.compile(r"\[[\w./-]+\.md\]")  # the text of a link that is only the name of a file


def title(path: Path) -> str:
    """The title of a page, which says more to a reader of the site than the name of its file."""
    return path.read_text().split("\n", 1)[0].removeprefix("# ")


def place(path: Path) -> str:
    """Where a file of the repository is in the site."""
    inside = path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT).as_posix()
    return "index.md" if inside == "README.md" else inside.removesuffix(".ipynb") + ".md" * inside.endswith(".ipynb")


def page_of_notebook(path: Path) -> str:
    """Markdown with the cells of a notebook and what they printed."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"]).rstrip()
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(f"![](data:image/png;base64,{''.join(data['image/png']).strip()})")
            elif printed := "".join(output.get("text", data.get("text/plain", ""))).rstrip():
                parts.append(f"```text\n{printed}\n```")
    return "\n\n".join(parts) + "\n"


def linked(path: Path) -> list[Path]:
    """What a page links to that exists outside docs/."""
    targets = (target.split("#")[0] for _, target in LINK.findall(FENCE.sub("", path.read_text())))
    found = ((path.parent / target).resolve() for target in targets if target and ":" not in target)
    return [file for file in found if file.is_file() and file.is_relative_to(ROOT) and not file.is_relative_to(DOCS)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the README, notebooks, and what is linked from pages, whatever folder it is in."""
    waiting = [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]
    seen = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        if path.suffix == ".ipynb":
            files.append(File.generated(config, place(path), content=page_of_notebook(path)))
        elif not path.is_relative_to(DOCS):
            files.append(File.generated(config, place(path), abs_src_path=str(path)))
        if path.suffix == ".md":
            waiting += linked(path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites relative links from their place in the repository to their place in the site."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # it has no other pages beside it
    source = Path(page.file.abs_src_path) if page.file.abs_src_path else DOCS / page.file.src_uri
    depth = "../" * page.file.src_uri.count("/")

    def rewrite(match: re.Match[str]) -> str:
        text, (target, _, anchor) = match[1], match[2].partition("#")
        if not target or ":" in target or target.startswith("/"):
            return match[0]
        path = (source.parent / target).resolve()
        if path.is_dir():
            return text[1:-1]
        if not path.is_relative_to(ROOT) or not path.is_file():
            return match[0]  # MkDocs says what is wrong with it
        if FILE_NAME.fullmatch(text):
            text = f"[{title(path)}]"
        return f"{text}({depth}{place(path)}{'#' * bool(anchor)}{anchor})"

    parts = FENCE.split(markdown)
    return "".join(part if part.lstrip().startswith("```") else LINK.sub(rewrite, part) for part in parts)
