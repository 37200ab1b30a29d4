import numpy as np
import pytest

from prequential.errors import BadInput, BadSetting
from prequential.streams.datasets.geo_images import album_numbers, draw_images
from prequential.streams.open import open_stream
from prequential.testing.streams import check_stream

START = 1_200_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """200 photos of 12 photographers at 6 places, and 90 images of 3 classes."""
    folder = tmp_path_factory.mktemp("geo")
    rng = np.random.default_rng(0)
    user = np.repeat(rng.integers(0, 12, 40), 5)
    time = START + np.sort(rng.integers(0, 10**6, 40)).repeat(5) + np.tile(np.arange(5), 40)
    place = rng.integers(0, 6, 40).repeat(5)
    order = np.argsort(time, kind="stable")
    np.savez(
        folder / "records.npz", y=place[order], user=user[order], time=time[order], classes=np.array(list("abcdef"))
    )
    kind = np.repeat(np.arange(3), 30)
    np.savez(folder / "images.npz", x=(rng.normal(size=(90, 8)) + 3 * kind[:, None]).astype(np.float32), y=kind)
    return folder


def geo(folder, **options):
    return open_stream(f"geo-images:{folder / 'images.npz'}", records=str(folder / "records.npz"), **options)


def test_battery(folder):
    check_stream(lambda: geo(folder), lambda: geo(folder, seed=1))


def test_labels_are_the_places_and_a_place_shows_one_class(folder):
    stream = geo(folder)
    places, kinds = stream._records._y, np.repeat(np.arange(3), 30)[stream.image]
    assert stream.read(0, 200).y == places.tolist()
    assert stream.classes == 6
    shown = {place: set(kinds[places == place].tolist()) for place in range(6)}
    assert all(len(kind) == 1 for kind in shown.values())
    assert sorted(kind for (kind,) in shown.values()) == [0, 0, 1, 1, 2, 2]


def test_no_image_twice_before_the_class_is_used_up(folder):
    stream = geo(folder)
    kinds = np.repeat(np.arange(3), 30)[stream.image]
    for kind in range(3):
        drawn = stream.image[kinds == kind]
        for start in range(0, len(drawn), 30):
            some = drawn[start : start + 30]
            assert len(set(some.tolist())) == len(some)


def test_an_album_goes_on_with_the_most_similar_image():
    x = np.array([[0.0], [10.0], [1.0], [11.0], [2.5]])
    drawn = draw_images(x, np.zeros(5, int), np.zeros(3, int), np.array([0, 0, 0]), seed=0)
    first = x[drawn[0], 0]
    distances = sorted(abs(x[:, 0] - first))
    assert abs(x[drawn[1], 0] - first) == distances[1]
    # two albums at once do not mix, and end where the photographer leaves for longer
    apart = album_numbers(np.array([1, 2, 1, 2]), np.zeros(4, int), np.array([0, 1, 2, 5000]), 3600)
    assert apart[0] == apart[2]
    assert len(set(apart.tolist())) == 3


def test_the_most_similar_image_by_other_features(folder):
    kind = np.repeat(np.arange(3), 30)
    other = np.random.default_rng(1).normal(size=(90, 2))
    np.savez(folder / "other.npz", x=other, y=kind)
    by_other = geo(folder, similar_by=str(folder / "other.npz"))
    assert (by_other.image != geo(folder).image).any()
    alone = open_stream(f"geo-images:{folder / 'other.npz'}", records=str(folder / "records.npz"))
    assert (by_other.image == alone.image).all()
    assert by_other.fingerprint() not in (geo(folder).fingerprint(), alone.fingerprint())
    assert (by_other.read(3, 9).x == np.load(folder / "images.npz")["x"][by_other.image[3:9]]).all()


def test_records_as_dense_as_one_likes(folder):
    dense = geo(folder, overlay_days=2)
    check_stream(lambda: geo(folder, overlay_days=2), lambda: geo(folder, overlay_days=2, seed=1))
    assert sorted(dense.read(0, 200).y) == sorted(geo(folder).read(0, 200).y)
    assert dense._records._time[-1] - dense._records._time[0] < 2 * 86400
    orders = {tuple(geo(folder, overlay_days=2, seed=seed).read(0, 200).y) for seed in range(3)}
    assert len(orders) == 3  # a seed turns the pieces, too


def test_not_every_photo_shows_what_its_place_is_known_for(folder):
    kinds, plain = np.repeat(np.arange(3), 30), geo(folder)
    places = np.array(plain.read(0, 200).y)
    known_for = {place: kinds[plain.image[places == place][0]] for place in set(places.tolist())}

    def typical(share):
        image = geo(folder, typical_share=share).image
        assert all(len(set(image[kinds[image] == kind][:30].tolist())) == 30 for kind in range(3))
        return float(np.mean([kinds[one] == known_for[place] for one, place in zip(image, places, strict=True)]))

    assert (geo(folder, typical_share=1.0).image == plain.image).all()
    assert typical(1.0) == 1
    assert typical(0.0) == pytest.approx(1 / 3, abs=0.1)
    assert typical(0.4) == pytest.approx(0.4 + 0.6 / 3, abs=0.1)
    with pytest.raises(BadSetting, match=r"typical_share \(1.5\) must be from 0 to 1"):
        geo(folder, typical_share=1.5)


def test_features_of_other_images_are_refused(folder):
    kind = np.repeat(np.arange(3), 30)
    for wrong, sentence in (
        (kind[:80], "similar_by has 80 examples, expected those of the 90 images"),
        (kind[::-1], "similar_by, example 0: the class has number 2, expected that of the image, 0"),
    ):
        np.savez(folder / "wrong.npz", x=np.zeros((len(wrong), 2)), y=wrong)
        with pytest.raises(BadInput, match=sentence):
            geo(folder, similar_by=str(folder / "wrong.npz"))


def test_images_of_a_stream_of_tasks(folder):
    plain = geo(folder)
    split = open_stream(f"geo-images:split:{folder / 'images.npz'}", records=str(folder / "records.npz"), ways=3)
    assert (split.image == plain.image).all()
    assert (split.read(0, 50).x == plain.read(0, 50).x).all()


def test_bad_settings(folder):
    with pytest.raises(BadSetting, match="album_gap"):
        geo(folder, album_gap=-1.0)
    with pytest.raises(BadInput, match="needs records"):
        open_stream(f"geo-images:{folder / 'images.npz'}")
    with pytest.raises(BadInput, match="cannot be drawn"):
        open_stream("geo-images:photos(length=10)", records=str(folder / "records.npz"))
