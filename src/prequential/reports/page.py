"""Makes the page of a report: one HTML file with its data, its style and its script inside."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib.resources import files
from typing import Any

SCRIPTS = ("chart.js", "common.js", "figures.js", "classes.js", "index.js", "page.js")
# What a browser may do with the page. Even if a text of the data were taken for code, it would not run.
POLICY = "default-src 'none'; img-src data:; connect-src {connect}; style-src '{style}'; script-src '{script}'"


def make_page(data: dict[str, Any], *, live: bool = False) -> str:
    """The page that shows these data.

    Parameters
    ----------
    data
        What `page_data` gave.
    live
        Whether the page asks the server it came from for newer data.
    """
    style = asset("page.css")
    script = "\n".join(asset(name) for name in SCRIPTS)
    policy = POLICY.format(
        connect="'self'" if live else "'none'", style=digest(style), script=digest(script)
    )  # a hash admits this script and no other
    parts = {
        "policy": html.escape(policy, quote=True).replace("&#x27;", "'"),
        "title": html.escape(" · ".join(["prequential report", *data["streams"][:3]])),
        "live": "yes" if live else "no",
        "style": style,
        "data": to_json(data),
        "script": script,
    }
    # all in one go: what was put in is never looked at again
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match.group(1)], asset("page.html"))


def to_json(data: dict[str, Any]) -> str:
    """The data as JSON that can stand inside a script element: no text in it can end that element.

    >>> to_json({"label": "</script>"})
    '{"label":"\\\\u003c/script>"}'
    """
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c")


def asset(name: str) -> str:
    """A script or style of these pages."""
    return files("prequential.reports").joinpath(name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """By which a Content-Security-Policy admits this text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
