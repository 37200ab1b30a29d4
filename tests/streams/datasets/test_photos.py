import gc
import hashlib
import time
import tracemalloc

import numpy as np
import pytest

from prequential.errors import BadSetting
from prequential.streams.datasets.photos import BLOCK, FITS, PhotoStream
from prequential.streams.open import open_stream
from prequential.testing.streams import check_stream


def test_battery():
    check_stream(lambda: PhotoStream(3 * BLOCK + 5, width=16), lambda: PhotoStream(3 * BLOCK + 5, width=16, seed=1))


def test_far_blocks_are_the_same_whatever_was_read_before():
    fresh, used = PhotoStream(40_000_000), PhotoStream(40_000_000)
    for start in (0, 7 * BLOCK, 20_000_000):
        used.read(start, start + 10)
    a, b = (stream.read(33_000_000 - 100, 33_000_000 + BLOCK) for stream in (fresh, used))
    assert (a.x == b.x).all()
    assert a.y == b.y


@pytest.mark.parametrize(
    ("fit", "labels", "features", "first", "numbers"),
    [
        (1, "66619243b60c6bf5", "4f376908a2d225c0", [617, 400, 432], [-0.303398, 1.146843, 1.659325]),
        (2, "dccca19d020495a5", "8de3b3ab57f40960", [137, 671, 569], [0.422554, -1.168434, 0.744024]),
    ],
)
def test_the_same_on_every_machine(fit, labels, features, first, numbers):
    """All of it is whole-number hashing and correctly rounded arithmetic, so these bits never change."""
    stream = PhotoStream(10_000_000, fit=fit)
    digest = {"labels": hashlib.sha256(), "features": hashlib.sha256()}
    for start in (0, 5_000_000):
        chunk = stream.read(start, start + 6000)
        digest["labels"].update(np.array(chunk.y, "<i8").tobytes())
        digest["features"].update(chunk.x.astype("<f4").tobytes())
    assert digest["labels"].hexdigest()[:16] == labels
    assert digest["features"].hexdigest()[:16] == features
    few = stream.read(0, 3)
    assert few.y == first
    assert np.allclose(few.x[0, :3], numbers, atol=1e-6)


def test_earlier_runs_go_on_with_the_first_fit():
    assert open_stream("photos(length=50)").fit == open_stream("photos(length=50)", reading=3).fit == 2
    old = open_stream("photos(length=50)", reading=2)
    assert old.fingerprint() == PhotoStream(50, fit=1).fingerprint() != PhotoStream(50).fingerprint()
    assert open_stream("photos(fit=2)", reading=1).fit == 2


def test_shorter_streams_are_beginnings_of_longer_ones():
    assert PhotoStream(1000).read(500, 1000).y == PhotoStream(10**9).read(500, 1000).y
    assert PhotoStream(1000).fingerprint() != PhotoStream(1001).fingerprint()


def test_the_width_changes_the_features_alone():
    narrow, wide = PhotoStream(500, width=8).read(0, 500), PhotoStream(500, width=2048).read(0, 500)
    assert narrow.y == wide.y
    assert wide.x.shape == (500, 2048)
    assert abs(wide.x.std() - 1) < 0.1
    # distances are kept: photos that are close in the wide features are close in the narrow ones
    a, b = (np.corrcoef(chunk.x)[np.triu_indices(500, 1)] for chunk in (narrow, wide))
    assert np.corrcoef(a, b)[0, 1] > 0.2


def test_statistics_of_cloc():
    """Wide margins around what benchmarks/photos_fit.py prints."""
    stream = PhotoStream(2_000_000)
    behind = stream.latent(1_000_000, 1_120_000)
    y = behind.place
    assert 0.105 < (y[1:] == y[:-1]).mean() < 0.14
    oracle = [_oracle(y, window) for window in (1, 10, 100, 512)]
    assert oracle == sorted(oracle)
    assert oracle[0] == pytest.approx((y[1:] == y[:-1]).mean(), abs=1e-3)
    assert oracle[1] > 0.4
    assert 0.7 < oracle[2] < 0.9
    sizes = np.unique(behind.outing, return_counts=True)[1]
    assert 5.5 < sizes.mean() < 8.5
    assert np.median(sizes) == 2
    assert 0.35 < (sizes == 1).mean() < 0.55
    per_album = np.unique(np.stack([behind.album, y.astype(np.uint64)]), axis=1).shape[1]
    assert per_album == len(np.unique(behind.album))  # an album is at one place
    share = np.bincount(y) / len(y)
    assert 0.01 < share.max() < 0.07


def test_photographers_return_to_their_place():
    """P(same place | same photographer, gap) lies between those of real records by spot and by city."""
    stream, n = PhotoStream(500_000), 250_000
    behind = stream.latent(0, n)
    order = np.argsort(behind.user, kind="stable")
    user, place, gap = behind.user[order], behind.place[order], np.diff(order) * FITS[2].seconds_per_photo
    same = place[1:] == place[:-1]
    for low, high, spot, expected, city in ((8, 24, 0.29, 0.74, 0.98), (24, 168, 0.23, 0.74, 0.95)):
        found = same[(user[1:] == user[:-1]) & (gap >= 3600 * low) & (gap < 3600 * high)].mean()
        assert spot < found < city
        assert found == pytest.approx(expected, abs=0.06)


def test_places_appear_over_the_years():
    stream = PhotoStream(40_000_000)
    seen = [set(stream.latent(start, start + 40 * BLOCK).place.tolist()) for start in (0, 1_000_000, 30_000_000)]
    assert 300 < len(seen[0]) < len(seen[1]) < len(seen[2]) <= 713
    before, after = (np.bincount(stream.latent(a, a + 20 * BLOCK).place, minlength=713) for a in (0, 5_000_000))
    assert np.corrcoef(before, after)[0, 1] < 0.95  # popularity changes


def test_photos_of_an_album_resemble_each_other():
    stream = PhotoStream(100_000)
    behind, x = stream.latent(0, 4096), stream.read(0, 4096).x
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    hits = chances = place = 0
    for t in range(512, 4096, 5):
        if (behind.album[t - 512 : t] == behind.album[t]).any():
            nearest = t - 512 + int((x[t - 512 : t] @ x[t]).argmax())
            chances += 1
            hits += behind.album[nearest] == behind.album[t]
    assert 0.4 < hits / chances < 0.65
    # the place alone tells little: strangers at one place are hardly more alike than strangers elsewhere
    similar = x @ x.T
    strangers = behind.outing[:, None] != behind.outing
    same_place = behind.place[:, None] == behind.place
    same_album = behind.album[:, None] == behind.album
    place = similar[strangers & same_place].mean() - similar[strangers & ~same_place].mean()
    assert 0.02 < place < 0.12
    # within an album: some near-duplicates, many that are no more alike than strangers
    low, middle, high = np.quantile(similar[same_album & ~np.eye(4096, dtype=bool)], [0.1, 0.5, 0.99])
    assert low < 0.1 < 0.2 < middle < 0.4 < 0.9 < high


def test_reading_anywhere_is_fast():
    stream = PhotoStream(10**12)
    start = time.perf_counter()
    stream.read(9 * 10**11, 9 * 10**11 + 256)
    assert time.perf_counter() - start < 2
    start = time.perf_counter()
    for position in range(0, 10 * BLOCK, 256):
        stream.read(position, position + 256)
    assert 10 * BLOCK / (time.perf_counter() - start) > 10_000


def test_memory_does_not_grow():
    """What is held after 200 blocks is what is held after 50."""
    stream, held = PhotoStream(10**6, width=8), []
    tracemalloc.start()
    try:
        for block in range(200):
            stream.read(block * BLOCK, block * BLOCK + 64)
            if block in (49, 199):
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[1] < 1.05 * held[0]
    assert held[1] < 12e6


def test_bad_settings():
    for name, value in (("length", 0), ("classes", 1), ("width", 0), ("seed", -1)):
        with pytest.raises(BadSetting, match=rf"{name} \({value}\) must be at least"):
            PhotoStream(**{name: value})
    with pytest.raises(BadSetting, match=r"fit \(3\) must be 1 or 2"):
        PhotoStream(fit=3)
    few = PhotoStream(5000, classes=2).read(0, 5000)
    assert set(few.y) == {0, 1}


def _oracle(y, window):
    last, hits = {}, 0
    for t, label in enumerate(y.tolist()):
        hits += t - last.get(label, -(10**9)) <= window
        last[label] = t
    return hits / len(y)
