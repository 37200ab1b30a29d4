"""The report while runs go on: what the server answers, to whom, and that it follows the runs."""

from __future__ import annotations

import json
import shutil
import threading
from http.client import HTTPConnection

import pytest

from prequential.errors import BadInput, BadSetting
from prequential.evaluation.records import RecordWriter
from prequential.reports.live import make_server, serve_report
from reports.report_runs import add, make_run


@pytest.fixture
def serve():
    """Starts a server of some runs; all are ended with the test."""
    started = []

    def start(*paths):
        server = make_server(list(paths), port=0)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(server, path: str, host: str | None = None, method: str = "GET") -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_page_and_newer_data(serve, tmp_path):
    run = make_run(tmp_path / "run", 10)
    shutil.rmtree(run / "records")
    server = serve(run)
    status, page = ask(server, "/")
    assert status == 200
    assert b'data-live="yes"' in page
    before = json.loads(ask(server, "/data.json")[1])
    assert "examples" not in before["runs"][0]  # nothing is recorded yet
    assert ask(server, f"/data.json?version={before['version']}") == (204, b"")
    writer = RecordWriter(run / "records")
    add(writer, 1500)
    status, body = ask(server, f"/data.json?version={before['version']}")
    assert status == 200
    assert json.loads(body)["runs"][0]["examples"] == 1024  # the full part; the rest is in the memory of the run
    writer.close()
    assert json.loads(ask(server, "/data.json")[1])["runs"][0]["examples"] == 1500


def test_a_part_that_cannot_be_read_is_told_and_the_rest_is_shown(serve, tmp_path):
    good, bad = make_run(tmp_path / "good", 50), make_run(tmp_path / "bad", 50, seed=1)
    server = serve(good, bad)
    (bad / "records" / "part-000000000000.parquet").write_bytes(b"nonsense")
    data = json.loads(ask(server, "/data.json")[1])
    assert "part-000000000000.parquet is damaged" in data["problem"]
    assert data["runs"][0]["examples"] == 50


def test_a_run_that_is_gone_is_told(serve, tmp_path):
    run = make_run(tmp_path / "run", 50)
    server = serve(run)
    shutil.rmtree(run)
    data = json.loads(ask(server, "/data.json")[1])
    assert "neither a run nor a folder of runs: it does not exist" in data["problem"]
    assert data["runs"][0]["examples"] == 50


def test_nothing_but_the_page_and_its_data_is_served(serve, tmp_path):
    server = serve(make_run(tmp_path / "run", 20))
    for path in ("/settings.toml", "/../settings.toml", "//etc/passwd", "/records/part-000000000000.parquet"):
        assert ask(server, path)[0] == 404
    assert ask(server, "/", method="POST")[0] == 501
    assert server.server_address[0] == "127.0.0.1"


def test_a_page_from_elsewhere_learns_nothing(serve, tmp_path):
    server = serve(make_run(tmp_path / "run", 20))
    assert ask(server, "/data.json", host="evil.example")[0] == 403
    assert ask(server, "/data.json", host=f"localhost:{server.server_port}")[0] == 200


def test_ctrl_c_ends_it(monkeypatch, tmp_path):
    said = []

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("prequential.reports.live.Server.serve_forever", interrupted)
    serve_report([make_run(tmp_path / "run", 20)], port=0, say=said.append)
    assert said[0].startswith("the report is at http://127.0.0.1:")
    assert said[-1] == "ended"


def test_ports_and_runs_are_checked(serve, tmp_path):
    run = make_run(tmp_path / "run", 20)
    taken = serve(run).server_port
    with pytest.raises(BadSetting, match=f"port {taken} cannot be used"):
        make_server([run], port=taken)
    with pytest.raises(BadSetting, match=r"port \(70000\) must be at least 0 and at most 65535"):
        make_server([run], port=70000)
    with pytest.raises(BadInput, match="got 0 runs"):
        make_server([])
