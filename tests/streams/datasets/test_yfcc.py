import numpy as np
import pytest

from prequential.errors import BadInput, BadSetting
from prequential.streams.datasets.yfcc import FIRST, YfccStream, overlay
from prequential.testing.streams import check_stream

HOUR, DAY = 3600, 86400
START = 946684800 + 10 * 365 * 86400


def write(path, n=300, **other):
    rng = np.random.default_rng(0)
    arrays = {
        "y": rng.integers(0, 9, n).astype(np.int16),
        "user": rng.integers(0, 20, n).astype(np.int32),
        "time": START + np.sort(rng.integers(0, 10**6, n)),
        "classes": np.array([f"p{i}" for i in range(12)]),
    }
    arrays.update(other)
    np.savez(path, **arrays)
    return path


def test_battery(tmp_path):
    path = write(tmp_path / "a.npz")
    y = np.load(path)["y"]
    y[7] += 1
    other = write(tmp_path / "b.npz", y=y)
    check_stream(lambda: YfccStream(path), lambda: YfccStream(other))


def test_rows_outside_the_years_are_left_out(tmp_path):
    time = np.array([946684799, 946684800, 1514764799, 1514764800])
    stream = YfccStream(write(tmp_path / "a.npz", 4, time=time, y=np.arange(4)))
    assert list(stream.read(0, 10).y) == [1, 2]
    assert stream.classes == 12


def test_features_tell_the_photographer_and_only_the_past(tmp_path):
    user = np.array([3, 5, 3, 3])
    time = START + np.array([0, HOUR, 2 * HOUR, 50 * HOUR])
    stream = YfccStream(write(tmp_path / "a.npz", 4, user=user, time=time, y=np.arange(4)))
    x = stream.read(0, 4).x
    codes, gap, new = x[:, :32], x[:, -3], x[:, -2]
    assert set(np.unique(codes)) == {-1, 1}
    assert (codes[0] == codes[2]).all()
    assert (codes[0] != codes[1]).any()
    assert new.tolist() == [1, 1, 0, 0]
    assert 0 < gap[2] < gap[3] < 1
    # the hour of day is the same for records 2 days apart
    assert np.allclose(x[2, [32, 35]], x[3, [32, 35]], atol=1e-5)
    # later records change nothing in earlier examples
    shorter = YfccStream(write(tmp_path / "b.npz", 2, user=user[:2], time=time[:2], y=np.arange(2)))
    assert (shorter.read(0, 2).x == x[:2]).all()


def test_bad_input(tmp_path):
    with pytest.raises(BadSetting, match=r"user_code \(65\) must be from 0 to 64"):
        YfccStream(write(tmp_path / "a.npz"), user_code=65)
    with pytest.raises(BadSetting, match=r"overlay_days \(-1\) must be from 0 to 6575"):
        YfccStream(write(tmp_path / "a.npz"), overlay_days=-1)
    np.savez(tmp_path / "b.npz", y=np.arange(3))
    with pytest.raises(BadInput, match="has no array 'user', only y"):
        YfccStream(tmp_path / "b.npz")
    with pytest.raises(BadInput, match=r"record 2 has time \d+, earlier"):
        YfccStream(write(tmp_path / "c.npz", 3, time=START + np.array([0, 5, 4])))
    with pytest.raises(BadInput, match="3 places, 2 photographers and 3 times"):
        YfccStream(write(tmp_path / "d.npz", 3, user=np.arange(2)))
    (tmp_path / "e.npz").write_text("no")
    with pytest.raises(BadInput, match=r"e\.npz is no NumPy file that can be read"):
        YfccStream(tmp_path / "e.npz")
    with pytest.raises(BadInput, match="is no NumPy file that can be read"):
        YfccStream(tmp_path / "missing.npz")


def test_pieces_of_days_are_laid_over_each_other(tmp_path):
    rng = np.random.default_rng(1)
    time = START + np.sort(rng.integers(0, 400 * DAY, 300))
    path = write(tmp_path / "a.npz", time=time)
    saved = np.load(path)
    stream = YfccStream(path, overlay_days=7)
    check_stream(lambda: YfccStream(path, overlay_days=7), lambda: YfccStream(path, overlay_days=7, seed=1))
    assert (np.diff(stream._time) >= 0).all()
    assert stream._time[-1] - stream._time[0] < 7 * DAY  # 57 times as dense
    whole = [(y, user % (1 << 33), t % DAY) for y, user, t in zip(stream._y, stream._user, stream._time, strict=True)]
    assert sorted(whole) == sorted(zip(saved["y"], saved["user"], (time - FIRST) % DAY, strict=True))
    assert YfccStream(path, overlay_days=0).fingerprint() == YfccStream(path).fingerprint() != stream.fingerprint()


def test_overlaid_records_can_be_gone_through_again(tmp_path):
    path = write(tmp_path / "a.npz")
    once, longer = YfccStream(path, overlay_days=2), YfccStream(path, overlay_days=2, length=700)
    check_stream(lambda: YfccStream(path, overlay_days=2, length=700), lambda: once)
    assert len(longer) == 700
    assert (np.diff(longer._time) >= 0).all()
    rounds = [slice(0, 300), slice(300, 600)]
    assert [sorted(longer._y[some]) for some in rounds] == [sorted(once._y)] * 2
    assert longer._y[rounds[0]].tolist() != longer._y[rounds[1]].tolist()
    assert not set(longer._user[rounds[0]]) & set(longer._user[rounds[1]])
    for wrong in ({"length": 5}, {"overlay_days": 2, "length": -1}):
        with pytest.raises(BadSetting, match=r"length \(-?\d\) must be at least 0"):
            YfccStream(path, **wrong)


def test_what_a_photographer_does_in_one_piece_stays_as_it_was():
    """The same pauses in the same order; across the borders of pieces there is nobody whose past could be known."""
    rng = np.random.default_rng(2)
    user, time = rng.integers(0, 9, 500), FIRST + np.sort(rng.integers(0, 60 * DAY, 500))
    order, photographer, when = overlay(user, time, 5, seed=3, rounds=2)
    piece = (time - FIRST) // (5 * DAY)
    assert len(np.unique(photographer)) >= len(np.unique(user + 100 * piece))
    for one in np.unique(photographer):
        mine = photographer == one
        assert (np.diff(order[mine]) > 0).all()  # nobody is there in both rounds
        assert (np.diff(when[mine]) == np.diff(time[order[mine]])).all()
        assert len({(user[i], piece[i]) for i in order[mine]}) == 1


def test_broken_and_foreign_files(tmp_path):
    """Cut off or changed anywhere, a file is read right or gets one sentence."""
    whole = write(tmp_path / "a.npz", 20).read_bytes()
    broken = tmp_path / "broken.npz"
    refused = 0
    for i in range(0, len(whole), 41):
        for content in (whole[:i], whole[:i] + bytes([whole[i] ^ 0xFF]) + whole[i + 1 :]):
            broken.write_bytes(content)
            try:
                YfccStream(broken)
            except BadInput as error:
                refused += 1
                assert "\n" not in str(error)
    assert refused > len(whole) // 41
    np.save(tmp_path / "single.npy", np.arange(3))
    for name, sentence in {
        "y": (np.array(list("abc")), r"the array 'y' is <U1 \(3,\), expected whole numbers"),
        "user": (np.zeros((3, 2), int), r"the array 'user' is int64 \(3, 2\), expected whole numbers"),
        "time": (np.zeros(3), r"the array 'time' is float64 \(3,\), expected whole numbers"),
    }.items():
        with pytest.raises(BadInput, match=sentence[1]):
            YfccStream(write(tmp_path / "b.npz", 3, **{name: sentence[0]}))
    with pytest.raises(BadInput, match="record 1 has place 12, expected 0 to 11"):
        YfccStream(write(tmp_path / "b.npz", 3, y=np.array([0, 12, -1])))
    with pytest.raises(BadInput, match="has 0 records, expected at least 1"):
        YfccStream(write(tmp_path / "b.npz", 0))
    with pytest.raises(BadInput, match=r"holds a single array, expected a \.npz file"):
        YfccStream(tmp_path / "single.npy")
    with pytest.raises(BadInput, match="is no NumPy file that can be read"):
        YfccStream(tmp_path)


def test_real_records(data, tmp_path):
    stream = YfccStream(data / "yfcc_poi9.npz")
    assert len(stream) == 169_796
    assert stream.classes == 434
    y = np.array(stream.read(0, len(stream)).y)
    assert abs((y[1:] == y[:-1]).mean() - 0.704) < 0.001
    with np.load(data / "yfcc_poi9.npz") as file:
        arrays = {name: file[name] for name in ("y", "user", "time", "classes")}
    inside = int(np.flatnonzero(arrays["time"] >= 946684800)[1000])
    arrays["y"][inside] = (arrays["y"][inside] + 1) % 434
    np.savez(tmp_path / "changed.npz", **arrays)
    check_stream(lambda: YfccStream(data / "yfcc_poi9.npz"), lambda: YfccStream(tmp_path / "changed.npz"))
