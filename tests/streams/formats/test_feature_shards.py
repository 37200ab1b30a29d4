import os

import pytest

from prequential.errors import BadInput
from prequential.streams.formats import feature_shards as feature_files
from prequential.streams.formats.feature_shards import pieces, shards_hash


def test_pieces_of_a_large_shard():
    found = pieces(1_000_000, whole=False)
    assert [start for start, _ in found] == [0, 331968, 663936, 995904]
    assert {length for _, length in found} == {4096}
    assert pieces(1_000_000, whole=True) == [(0, 1_000_000)]
    assert pieces(16_384, whole=False) == [(0, 16_384)]


@pytest.mark.parametrize(("small", "noticed"), [(64 * 2**20, {0, 7000, 50_000, 99_999}), (0, {0, 99_999})])
def test_what_a_hash_of_shards_notices(tmp_path, monkeypatch, small, noticed):
    monkeypatch.setattr(feature_files, "SMALL", small)
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_bytes(bytes(100_000))
    before = shards_hash(paths)
    os.utime(paths[0], (0, 0))
    assert shards_hash(paths) == before
    for place in (0, 7000, 50_000, 99_999):
        changed = bytearray(100_000)
        changed[place] = 1
        paths[1].write_bytes(changed)
        assert (shards_hash(paths) != before) == (place in noticed)
    paths[1].write_bytes(bytes(100_001))
    assert shards_hash(paths) != before
    paths[1].unlink()
    with pytest.raises(BadInput, match=r"b cannot be read: No such file or directory"):
        shards_hash(paths)
