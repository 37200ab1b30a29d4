import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from prequential.errors import BadInput
from prequential.streams.datasets.cloc import ClocRecords, ClocStream, convert_metadata
from prequential.testing.streams import check_stream

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")
N = 40
MISSING, BROKEN, CUT = 5, 11, 23  # rows whose photos are bad


@pytest.fixture
def release(tmp_path):
    """Metadata in the five-column form and photos, three of them bad."""
    rng = np.random.default_rng(0)
    images = tmp_path / "images"
    lines = []
    for i in range(N):
        path = images / "data" / f"{i % 3}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if i != MISSING:
            colour = np.full((90 + i, 120, 3), 5 * i, np.uint8) + rng.integers(0, 9, (90 + i, 120, 3)).astype(np.uint8)
            Image.fromarray(colour).save(path, quality=95)
        lines.append(f"{i % 7},2004-01-{i // 2 + 1:02d},{1000 + 10 * i},{i % 4}@N00,data/{i % 3}/{i}.jpg\n")
    (images / "data" / f"{BROKEN % 3}" / f"{BROKEN}.jpg").write_bytes(b"no photo")
    cut = images / "data" / f"{CUT % 3}" / f"{CUT}.jpg"
    cut.write_bytes(cut.read_bytes()[:300])
    (tmp_path / "meta.csv").write_text("".join(lines))
    return tmp_path


def test_battery(release, tmp_path):
    lines = (release / "meta.csv").read_text().splitlines()
    lines[3] = "6" + lines[3][1:]
    (release / "other.csv").write_text("\n".join(lines) + "\n")
    check_stream(
        lambda: ClocStream(release / "meta.csv", release / "images", size=16, workers=2),
        lambda: ClocStream(release / "other.csv", release / "images", size=16, workers=2),
    )


def test_bad_photos_are_skipped_and_counted(release):
    calls = []
    stream = ClocStream(release / "meta.csv", release / "images", progress=lambda *numbers: calls.append(numbers))
    good = [i for i in range(N) if i not in (MISSING, BROKEN, CUT)]
    assert len(stream) == N - 3
    assert stream.skipped == 3
    assert calls == [(N, N, 3)]
    chunk = stream.read(0, N)
    assert chunk.x.shape == (N - 3, 160, 160, 3)
    assert chunk.x.dtype == np.uint8
    assert chunk.y == [i % 7 for i in good]
    assert np.abs(chunk.x.mean((1, 2, 3)) - (5 * np.array(good) + 4)).max() < 2  # the right photo for each label
    assert stream.classes == 7
    assert stream.times(0, 3).tolist() == [1000, 1010, 1020]
    users = stream.users(0, N)
    assert len(set(users.tolist())) == 4
    # opened again, nothing is tried anew
    again = ClocStream(release / "meta.csv", release / "images", progress=lambda *numbers: calls.append(numbers))
    assert len(calls) == 1
    assert again.fingerprint() == stream.fingerprint()


def test_an_interrupted_trial_goes_on(release, monkeypatch):
    import prequential.streams.datasets.cloc as cloc

    monkeypatch.setattr(cloc, "TRIED_AT_ONCE", 8)
    tried = []

    def stop_at_24(done, total, skipped):
        tried.append(done)
        if done == 24:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ClocStream(release / "meta.csv", release / "images", size=16, progress=stop_at_24)
    decoded = []
    original = cloc._one_by_one
    monkeypatch.setattr(
        cloc, "_one_by_one", lambda records, rows: decoded.append(rows.start) or original(records, rows)
    )
    stream = ClocStream(release / "meta.csv", release / "images", size=16)
    assert decoded == [24, 32]
    assert len(stream) == N - 3
    assert stream.skipped == 3


def test_all_forms_of_the_metadata_agree(release):
    rows = [line.split(",") for line in (release / "meta.csv").read_text().splitlines()]
    short = release / "short.csv"
    short.write_text("".join(f"{row[0]},{row[2]},{row[3]},{row[4]}\n" for row in rows))
    labels, times = [int(row[0]) for row in rows], [int(row[2]) for row in rows]
    users, paths = [row[3] for row in rows], [row[4] + "\n" for row in rows]
    for name, values in (("labels", labels), ("time", torch.tensor(times)), ("userID", users), ("store_loc", paths)):
        (release / "torch").mkdir(exist_ok=True)
        torch.save(values, release / "torch" / f"train_{name}.torchSave")
    np.savez(release / "meta.npz", label=labels, time=times, user=users, path=paths)
    convert_metadata(release / "meta.csv", release / "converted")
    forms = [short, release / "torch", release / "meta.npz", release / "converted"]
    streams = [ClocStream(form, release / "images", size=16) for form in [release / "meta.csv", *forms]]
    assert len({stream.fingerprint() for stream in streams}) == 1
    assert all((stream.users(0, 9) == streams[0].users(0, 9)).all() for stream in streams)


def test_numpy_arrays_in_torch_files(release):
    for name, values in (
        ("labels", np.arange(N) % 7),
        ("time", np.arange(N)),
        ("userID", [1] * N),
        ("store_loc", ["x"] * N),
    ):
        torch.save(values, release / f"train_{name}.torchSave")
    records = ClocRecords(release, release / "images")
    assert records.column("label", slice(5, 9)).tolist() == [5, 6, 0, 1]


def test_rows_are_put_in_order(release):
    lines = (release / "meta.csv").read_text().splitlines()
    (release / "mixed.csv").write_text("\n".join(lines[20:] + lines[:20]) + "\n")
    a, b = (ClocStream(release / name, release / "images", size=16) for name in ("meta.csv", "mixed.csv"))
    assert (a.read(0, N).x == b.read(0, N).x).all()
    assert a.read(0, N).y == b.read(0, N).y


def test_a_source_for_extraction(release):
    records = ClocRecords(release / "meta.csv", release / "images", size=20)
    images, labels, bad = records.attempt(4, 13)
    assert images.shape == (7, 20, 20, 3)
    assert labels == [i % 7 for i in range(4, 13) if i not in (MISSING, BROKEN)]
    assert sorted(bad) == [MISSING, BROKEN]
    assert f"{MISSING % 3}/{MISSING}.jpg cannot be decoded (" in bad[MISSING]
    assert records.attempt(MISSING, MISSING + 1)[0].shape == (0, 20, 20, 3)
    columns = records.columns(3, 6)
    assert columns["time"].tolist() == [1030, 1040, 1050]
    assert len(set(columns["user"].tolist())) == 3


def test_features_keep_times_and_users(release):
    from prequential.features import Network, extract

    mean = Network("mean", lambda x: x.mean((2, 3)), width=3, size=16)
    good = [i for i in range(N) if i not in (MISSING, BROKEN, CUT)]
    stream = ClocStream(release / "meta.csv", release / "images", size=16)
    for name, source in (("a", ClocRecords(release / "meta.csv", release / "images", size=16)), ("b", stream)):
        made = extract(source, mean, release / name, batch=8)
        assert np.load(release / name / "time.npy").tolist() == [1000 + 10 * i for i in good]
        assert (np.load(release / name / "user.npy") == stream.users(0, N)).all()
        assert made.read(0, N).y == [i % 7 for i in good]
    assert np.load(release / "a" / "position.npy").tolist() == good  # rows of the metadata
    assert np.load(release / "b" / "position.npy").tolist() == list(range(N - 3))  # examples of the stream


def test_the_list_belongs_to_its_metadata_and_its_folder(release):
    """Each pair of metadata and folder has its own list; what one of them says never holds for another."""
    first = ClocStream(release / "meta.csv", release / "images", converted=release / "arrays")
    shutil.copytree(release / "images", release / "fewer")
    (release / "fewer" / "data" / "0" / "0.jpg").unlink()
    fewer = ClocStream(release / "meta.csv", release / "fewer", converted=release / "arrays")
    assert (len(first), len(fewer)) == (N - 3, N - 4)
    assert first.good != fewer.good
    assert first.fingerprint() != fewer.fingerprint()
    # other metadata does not silently get the arrays of the first
    lines = (release / "meta.csv").read_text().splitlines()
    (release / "half.csv").write_text("\n".join(lines[::2]) + "\n")
    with pytest.raises(BadInput, match=r"arrays was made from metadata with checksum \w+…, and .*half\.csv has \w+…"):
        ClocStream(release / "half.csv", release / "images", converted=release / "arrays")
    # nor its list, when the arrays are made anew in the same folder
    convert_metadata(release / "half.csv", release / "arrays")
    half = ClocStream(release / "arrays", release / "images")
    assert half.good != first.good
    assert len(half) == N // 2  # the bad ones are all at odd rows


def test_the_fingerprint_covers_metadata_list_and_sizes(release):
    def opened(metadata="meta.csv", **options):
        return ClocStream(release / metadata, release / "images", **options)

    before = opened().fingerprint()
    assert opened(size=32).fingerprint() != before
    for i, field in enumerate(("6", "2004-02-02", "1001", "9@N00")):
        lines = [line.split(",") for line in (release / "meta.csv").read_text().splitlines()]
        lines[0][i] = field
        (release / f"other{i}.csv").write_text("".join(",".join(line) + "\n" for line in lines))
        same = i == 1  # the date is not read, the time is
        assert (opened(f"other{i}.csv").fingerprint() == before) == same
    photo = release / "images" / "data" / "0" / "3.jpg"
    photo.write_bytes(photo.read_bytes() + b"\0")
    assert opened().fingerprint() != before
    photo.write_bytes(photo.read_bytes()[:-1])
    assert opened().fingerprint() == before
    # a photo that came later changes nothing, until it is looked for
    missing = release / "images" / "data" / f"{MISSING % 3}" / f"{MISSING}.jpg"
    shutil.copy(photo, missing)
    assert (opened().fingerprint(), len(opened())) == (before, N - 3)
    again = opened(recheck=True)
    assert (len(again), again.skipped) == (N - 2, 2)
    assert again.fingerprint() != before
    assert opened().fingerprint() == again.fingerprint()
    # deleting the list, as the sentences say, does the same
    missing.unlink()
    again.good.unlink()
    assert opened().fingerprint() == before


def test_an_interrupted_recheck_goes_on(release, monkeypatch):
    import prequential.streams.datasets.cloc as cloc

    monkeypatch.setattr(cloc, "TRIED_AT_ONCE", 8)
    ClocStream(release / "meta.csv", release / "images")

    def stop_at_24(done, total, skipped):
        if done == 24:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ClocStream(release / "meta.csv", release / "images", recheck=True, progress=stop_at_24)
    decoded = []
    original = cloc._one_by_one
    monkeypatch.setattr(
        cloc, "_one_by_one", lambda records, rows: decoded.append(rows.start) or original(records, rows)
    )
    assert len(ClocStream(release / "meta.csv", release / "images", recheck=True)) == N - 3
    assert decoded == [24, 32]


def test_photos_that_vanish_are_told_of(release, monkeypatch):
    stream = ClocStream(release / "meta.csv", release / "images", size=16)
    (release / "images" / "data" / "0" / "9.jpg").unlink()
    sentence = (
        rf"example 8: .*9\.jpg could be decoded before and cannot now .*; bring it back, or delete .*{stream.good.name}"
    )
    with pytest.raises(BadInput, match=sentence):
        stream.read(0, 20)
    with pytest.raises(BadInput, match=sentence):
        ClocStream(release / "meta.csv", release / "images", size=16)
    assert len(ClocStream(release / "meta.csv", release / "images", recheck=True)) == N - 4


def test_a_disk_that_is_taken_away_spoils_no_list(release, monkeypatch):
    monkeypatch.setattr("prequential.streams.datasets.cloc.TRIED_AT_ONCE", 8)
    away = release / "away"

    def take_away(done, total, skipped):
        if done == 16:
            (release / "images").rename(away)

    with pytest.raises(BadInput, match="images is gone or empty; open the stream again when it is back"):
        ClocStream(release / "meta.csv", release / "images", progress=take_away)
    away.rename(release / "images")
    assert len(ClocStream(release / "meta.csv", release / "images")) == N - 3


def test_a_bar_on_a_terminal(release):
    """Whoever opens the stream on a terminal sees how far the first pass is; in a file it leaves no trace."""
    pty = pytest.importorskip("pty")
    code = "import sys; from prequential.streams.open import open_stream; open_stream(sys.argv[1], images=sys.argv[2])"
    command = [sys.executable, "-c", code, f"cloc:{release / 'meta.csv'}", str(release / "images")]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, stderr=theirs, stdout=subprocess.PIPE, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # the other end is closed
            pass
        assert process.communicate()[0] == b""
        assert process.returncode == 0
    os.close(ours)
    assert b"trying all photos once" in shown
    assert b"3 skipped" in shown
    next(Path(os.environ["PREQUENTIAL_CACHE"]).glob("cloc-*/good-*")).unlink()
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stderr == b""


def test_pickled_code_is_not_run(release):
    class Bad:
        def __reduce__(self):
            return (open, (str(release / "ran"), "w"))

    (release / "torch").mkdir()
    for name in ("labels", "time", "userID", "store_loc"):
        torch.save(Bad(), release / "torch" / f"train_{name}.torchSave")
    with pytest.raises(BadInput, match="more than lists, tensors and arrays; it was not read"):
        ClocStream(release / "torch", release / "images")
    assert not (release / "ran").exists()


def test_bad_input(release):
    images = release / "images"
    with pytest.raises(BadInput, match="is not a folder"):
        ClocStream(release / "meta.csv", release / "nowhere")
    with pytest.raises(
        BadInput, match=r"gone\.csv does not exist; expected CLOC's metadata: a text file with a line class,"
    ):
        ClocStream(release / "gone.csv", images)
    for text, sentence in (
        ("1,5,u,p\nx,6,u,p\n", "bad.csv, line 2: the class is 'x', expected a whole number"),
        ("1,5,u,p\n", "none of the 1 photos can be decoded"),
    ):
        (release / "bad.csv").write_text(text)
        with pytest.raises(BadInput, match=sentence):
            ClocStream(release / "bad.csv", images)
    np.savez(release / "a.npz", label=[1, 2], time=[1, 2], user=[1, 2], path=["a"])
    with pytest.raises(BadInput, match="2 of label, 2 of time, 2 of user, 1 of path"):
        ClocStream(release / "a.npz", images)
    stream = ClocStream(release / "meta.csv", images, size=16)
    (images / "data" / "0" / "0.jpg").unlink()
    with pytest.raises(BadInput, match=r"example 0: .*0\.jpg could be decoded before and cannot now"):
        stream.read(0, 3)
    (release / "broken.npz").write_bytes((release / "a.npz").read_bytes()[:300])
    with pytest.raises(BadInput, match=r"broken\.npz is no NumPy file that can be read"):
        ClocStream(release / "broken.npz", images)
    convert_metadata(release / "meta.csv", release / "converted")
    (release / "converted" / "index.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(BadInput, match="has format 'other'"):
        ClocStream(release / "converted", images)
    (release / "converted" / "index.json").write_text("{")
    with pytest.raises(BadInput, match=r"index\.json cannot be read: .*; delete the folder"):
        ClocStream(release / "converted", images)
