"""The files for deployment name commands, flags and files that exist, and can be parsed where there is a parser."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from prequential.cli.serve_command import serve, token

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FLAGS = {f"--{name.replace('_', '-')}" for name in inspect.signature(serve).parameters}
TOKEN_FLAGS = {f"--{name}" for name in inspect.signature(token).parameters}
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def serve_commands() -> dict[str, list[str]]:
    """Where `prequential serve` is called, and its arguments."""
    compose = (DEPLOY / "compose.yaml").read_text()
    unit = re.search(r"^ExecStart=\S+/prequential (serve .*)$", (DEPLOY / "prequential.service").read_text(), re.M)
    image = re.search(r"^CMD (\[.*\])$", DOCKERFILE, re.M)
    listed = re.search(r"command:\n((?: +- .*\n)+)", compose)
    assert unit is not None
    assert image is not None
    assert listed is not None
    return {
        "unit": unit[1].split(),
        "image": json.loads(image[1]),
        "compose": re.findall(r"- (\S+)", listed[1]),
    }


@pytest.mark.parametrize("place", ["unit", "image", "compose"])
def test_flags_exist(place):
    command = serve_commands()[place]
    given = [word.partition("=")[0] for word in command if word.startswith("--")]
    assert command[0] == "serve"
    assert {"--home", "--port"} <= set(given)
    assert [flag for flag in given if flag not in FLAGS] == []


def test_flags_in_the_pages_exist():
    pages = "".join((ROOT / "docs" / name).read_text() for name in ("deploy.md", "tutorial_service.md"))
    pages += (ROOT / "src/prequential/serve/page/page.html").read_text()
    called = re.findall(r"prequential serve( token)?((?: +[^\s`<]+)*)", pages)
    assert len(called) > 4
    for kind, arguments in called:
        flags = re.findall(r"--[a-z-]+", arguments)
        assert set(flags) <= (TOKEN_FLAGS if kind else FLAGS), arguments


def test_what_the_image_copies_exists_and_is_not_ignored():
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.M)
    names = [name for line in copied for name in line.split()]
    assert {"pyproject.toml", "hatch_build.py", "src"} <= set(names)
    kept = [line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")]
    assert [name for name in names if not (ROOT / name).exists() or name not in kept] == []
    extras = re.search(r'pip install "\.\[(.*)\]"', DOCKERFILE)
    assert extras is not None
    project = (ROOT / "pyproject.toml").read_text()
    assert [extra for extra in extras[1].split(",") if not re.search(rf"^{extra} = \[", project, re.M)] == []
    torch = re.search(r'"(torch[^"]*)"', DOCKERFILE)
    assert torch is not None
    assert f'"{torch[1]}"' in project  # the same versions, else pip would take another one from elsewhere
    assert DOCKERFILE.index("USER prequential") < DOCKERFILE.index("ENTRYPOINT")


def test_compose():
    yaml = pytest.importorskip("yaml")
    content = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = content["services"]
    servers = [name for name in services if name.startswith("nats-")]
    assert len(servers) == 3
    assert len([name for name in services if name.startswith("prequential-")]) == 2
    log = next(word for word in services["prequential-1"]["command"] if word.startswith("--log="))
    assert log == "--log=nats://" + ",".join(f"{name}:4222" for name in servers)
    routes = re.findall(r"nats://([\w-]+):6222", (DEPLOY / "nats.conf").read_text())
    assert routes == servers
    for name, service in services.items():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (DEPLOY / source).is_file() if source.startswith("./") else source in content["volumes"], name
        assert set(service.get("depends_on", [])) <= set(services), name
    assert (DEPLOY / services["prequential-1"]["build"]["context"] / "deploy/Dockerfile").is_file()


def test_the_probes_exist():
    files = {path.name: path.read_text() for path in DEPLOY.iterdir()}
    assert "127.0.0.1:8000/ready" in files["Dockerfile"]
    assert "health_uri /ready" in files["Caddyfile"]
    routes = (ROOT / "src/prequential/serve/routes.py").read_text()
    assert '"/ready"' in routes
    assert '"/health"' in routes


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path):
    unit = (DEPLOY / "prequential.service").read_text().replace("/opt/prequential/bin/prequential", "/bin/true")
    (tmp_path / "prequential.service").write_text(unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "prequential.service")], capture_output=True, text=True
    )
    lines = [line for line in done.stderr.splitlines() if "prequential.service" in line]
    assert (done.returncode, lines) == (0, [])


@pytest.mark.skipif(shutil.which("nginx") is None or shutil.which("openssl") is None, reason="there is no nginx")
def test_nginx_takes_its_configuration(tmp_path):
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    made += ["-subj", "/CN=learn.example.com", "-keyout", "privkey.pem", "-out", "fullchain.pem"]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    site = (DEPLOY / "nginx.conf").read_text().replace("/etc/letsencrypt/live/learn.example.com", str(tmp_path))
    (tmp_path / "site.conf").write_text(site)
    main = f"pid {tmp_path}/pid;\nevents {{}}\nhttp {{ access_log off; include {tmp_path}/site.conf; }}\n"
    (tmp_path / "nginx.conf").write_text(main)
    command = ["nginx", "-t", "-e", str(tmp_path / "log"), "-c", str(tmp_path / "nginx.conf")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "[warn]" not in done.stderr


@pytest.mark.skipif(shutil.which("caddy") is None, reason="there is no caddy")
def test_caddy_takes_its_configuration(tmp_path):
    variables = {**os.environ, "HOME": str(tmp_path), "SITE": "learn.example.com", "UPSTREAMS": "127.0.0.1:8000"}
    command = ["caddy", "validate", "--adapter", "caddyfile", "--config", str(DEPLOY / "Caddyfile")]
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    assert "not formatted" not in done.stderr  # caddy fmt


@pytest.mark.skipif(shutil.which("nats-server") is None, reason="nats-server is not installed")
def test_nats_takes_its_configuration():
    command = ["nats-server", "--config", str(DEPLOY / "nats.conf"), "-t"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "SERVER_NAME": "nats-1"})
    assert done.returncode == 0, done.stderr
