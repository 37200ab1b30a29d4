import numpy as np
import pytest

from prequential.streams.datasets.digits import digits, load_digits
from prequential.testing.streams import check_stream


@pytest.mark.parametrize("images", [False, True])
def test_battery(images):
    check_stream(lambda: digits(tasks=5, images=images), lambda: digits(tasks=5, images=not images))


def test_the_data_is_that_of_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets")
    theirs = datasets.load_digits()
    x, y = load_digits()
    assert x.dtype == y.dtype == np.uint8
    np.testing.assert_array_equal(x, theirs.images)
    np.testing.assert_array_equal(y, theirs.target)


def test_vectors_and_images_show_the_same():
    vectors = digits(tasks=2).read(0, 400)
    images = digits(tasks=2, images=True).read(0, 400)
    assert vectors.x.dtype == np.float32
    assert vectors.x.shape == (400, 64)
    assert images.x.dtype == np.uint8
    assert images.x.shape == (400, 8, 8)
    assert (images.x.min(), images.x.max()) == (0, 255)
    np.testing.assert_allclose(images.x.reshape(400, 64) / 255, vectors.x, atol=1 / 255)
    assert vectors.y == images.y
    assert set(vectors.y) == set(range(10))


def test_the_licence_travels_with_the_data():
    from importlib import resources

    text = (resources.files("prequential") / "streams" / "datasets" / "data" / "DIGITS-LICENSE.md").read_text()
    assert "CC BY 4.0" in text
    assert "10.24432/C50P49" in text
