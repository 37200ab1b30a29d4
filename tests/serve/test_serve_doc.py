"""The curl commands of docs/serve.md are run, in their order, against a service."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import ADMIN, SMALL

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl_examples(service):
    token = service.call("PUT", "/v1/tickets", {"settings": SMALL}).json()["token"]
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands = [one.strip() for block in blocks for one in re.split(r"\n(?=curl )", block)]
    assert len(commands) >= 7
    replies = []
    for command in commands:
        variables = {"URL": service.url, "TOKEN": token, "ADMIN": ADMIN}
        done = subprocess.run(["bash", "-c", command], env=variables | {"PATH": "/usr/bin:/bin"}, capture_output=True)
        replies.append(json.loads(done.stdout))
    assert [reply for reply in replies if "error" in reply] == []
    assert replies[0]["id"] == "a7"
    assert replies[1] == {"id": "a7", "position": 1, "status": "learned"}
    assert service.call("GET", "/v1/tickets", token=token).json()["position"] == 6
    assert replies[-1]["token"]
