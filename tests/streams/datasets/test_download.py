import hashlib
import http.client
import io

import pytest

from prequential.errors import BadInput
from prequential.streams.datasets.download import download


def test_a_file_is_fetched_checked_and_kept(tmp_path):
    (tmp_path / "source").write_bytes(b"data" * 1000)
    url, target = (tmp_path / "source").as_uri(), tmp_path / "cache" / "file"
    md5 = hashlib.md5(b"data" * 1000).hexdigest()
    assert download(url, target, md5=md5).read_bytes() == b"data" * 1000
    (tmp_path / "source").unlink()
    assert download(url, target, md5=md5) == target  # not fetched again


def test_another_content_is_not_kept(tmp_path):
    (tmp_path / "source").write_bytes(b"other")
    with pytest.raises(
        BadInput, match=f"gave a file with MD5 {hashlib.md5(b'other').hexdigest()}, expected 1234; it was not kept"
    ):
        download((tmp_path / "source").as_uri(), tmp_path / "cache" / "file", md5="1234")
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_network(tmp_path):
    with pytest.raises(BadInput, match=r"cannot be fetched .*; fetch it where there is a network and give its path"):
        download("http://127.0.0.1:9/file", tmp_path / "file", md5="1234", timeout=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [TimeoutError(), http.client.IncompleteRead(b""), ConnectionResetError("reset")])
def test_a_connection_that_breaks(tmp_path, monkeypatch, error):
    class Answer(io.BytesIO):
        def read(self, *_):
            raise error

    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: Answer())
    with pytest.raises(BadInput, match=r"^https://a/b cannot be fetched \(.+\); fetch it where there is a network"):
        download("https://a/b", tmp_path / "file", md5="1234")
    assert list(tmp_path.iterdir()) == []
