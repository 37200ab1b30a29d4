import numpy as np
import pytest

from prequential.errors import BadInput, BadSetting
from prequential.streams.tasks import SplitStream
from prequential.testing.streams import check_stream


def pool(n=400, classes=12):
    rows = np.arange(n)
    return np.stack([rows, rows % classes], 1).astype(np.float32), rows % classes


def test_battery():
    x, y = pool()
    other = x.copy()
    other[7, 0] += 1
    make = lambda: SplitStream(x, y, tasks=6, task_length=90, ways=5)  # noqa: E731
    wrong = x.copy()
    wrong[50, 1] = np.nan
    check_stream(
        make,
        lambda: SplitStream(other, y, tasks=6, task_length=90, ways=5),
        bad=lambda: SplitStream(wrong, y, tasks=6, task_length=90, ways=5),
        match=r"example \d+, which is row 50 of the data: feature 1 is nan, expected a finite number",
    )


def test_the_same_seed_gives_the_same_stream_on_any_machine():
    # numbers written down once: a change of them breaks every published stream
    x, y = pool(40, 4)
    stream = SplitStream(x, y, tasks=3, task_length=6, ways=3, seed=5)
    chunk = stream.read(4, 14)
    assert chunk.y == [2, 0, 2, 0, 2, 1, 1, 0, 0, 0]
    assert chunk.x[:, 0].astype(int).tolist() == [5, 22, 14, 1, 2, 28, 20, 17, 35, 39]


def test_labels_mean_the_classes_of_their_task():
    x, y = pool()
    stream = SplitStream(x, y, tasks=8, task_length=50, ways=4)
    maps = []
    for task, start in enumerate(stream.task_starts()):
        chunk = stream.read(int(start), int(start) + 50)
        names = stream.task_classes(task)
        assert len(set(names)) == 4
        assert [names[label] for label in chunk.y] == chunk.x[:, 1].astype(int).tolist()
        maps.append(tuple(names))
    assert len(set(maps)) == 8


def test_no_image_twice_in_a_task_while_the_class_lasts():
    x, y = pool(400, 4)  # 100 of each class
    stream = SplitStream(x, y, tasks=5, task_length=160, ways=4)
    for start in stream.task_starts():
        images = stream.read(int(start), int(start) + 160).x[:, 0]
        assert len(set(images.tolist())) == 160


def test_a_class_that_runs_out_starts_a_fresh_permutation():
    x, y = pool(12, 4)  # 3 of each class
    stream = SplitStream(x, y, tasks=1, task_length=400, ways=4)
    chunk = stream.read(0, 400)
    for label in range(4):
        images = [int(image) for image, mine in zip(chunk.x[:, 0], chunk.y, strict=True) if mine == label]
        rounds = [images[i : i + 3] for i in range(0, len(images) // 3 * 3, 3)]
        assert all(len(set(one)) == 3 for one in rounds)
        assert len({tuple(one) for one in rounds}) > 1


def test_labels_and_classes_are_uniform():
    x, y = pool(1200, 12)
    stream = SplitStream(x, y, tasks=200, task_length=50, ways=5)
    counts = np.bincount(stream.read(0, len(stream)).y, minlength=5)
    assert ((counts - 2000) ** 2 / 2000).sum() < 18.5  # chi-square, 4 degrees of freedom, p = 0.001
    drawn = np.bincount([name for task in range(200) for name in stream.task_classes(task)], minlength=12)
    assert ((drawn - 1000 / 12) ** 2 / (1000 / 12)).sum() < 31.3  # 11 degrees of freedom, p = 0.001


def test_seeds_and_parameters_change_stream_and_fingerprint():
    x, y = pool()
    base = {"tasks": 5, "task_length": 40, "ways": 5, "seed": 0}
    prints = {SplitStream(x, y, **base).fingerprint()}
    for key, value in {"tasks": 6, "task_length": 41, "ways": 4, "seed": 1}.items():
        prints.add(SplitStream(x, y, **(base | {key: value})).fingerprint())
    assert len(prints) == 5
    a, b = SplitStream(x, y, **base), SplitStream(x, y, **(base | {"seed": 1}))
    assert a.read(0, 40).y != b.read(0, 40).y


def test_text_classes_and_a_memory_map(tmp_path):
    x, y = pool()
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    names = [f"class {k:02}" for k in y]
    a = SplitStream(mapped, names, tasks=3, ways=4, task_length=30)
    b = SplitStream(x, y, tasks=3, ways=4, task_length=30)
    np.testing.assert_array_equal(a.read(0, 90).x, b.read(0, 90).x)
    assert a.task_classes(1) == [f"class {k:02}" for k in b.task_classes(1)]


def test_bad_settings():
    x, y = pool(12, 4)
    with pytest.raises(BadSetting, match=r"ways \(5\) must be at most the number of classes in the data \(4\)"):
        SplitStream(x, y, ways=5)
    with pytest.raises(BadSetting, match=r"tasks \(0\) must be at least 1"):
        SplitStream(x, y, tasks=0, ways=2)
    with pytest.raises(BadSetting, match=r"seed \(-1\)"):
        SplitStream(x, y, ways=2, seed=-1)
    with pytest.raises(BadInput, match=r"the classes have shape \(12, 2\), expected \(12,\), one for each example"):
        SplitStream(x, np.stack([y, y], 1), ways=2)
    with pytest.raises(BadInput, match=r"the classes cannot be put in order .*; expected all numbers or all text"):
        SplitStream(x[:2], np.array([None, 3], object), ways=2)
    with pytest.raises(BadInput, match="got 12 examples and 11 classes"):
        SplitStream(x, y[:-1], ways=2)
