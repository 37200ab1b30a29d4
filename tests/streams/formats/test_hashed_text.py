"""Free text as numbers."""

import numpy as np
import pyarrow as pa

from prequential import TableStream
from prequential.streams.formats.hashed_text import WIDTH, fill_text


def encoded(*texts, width=256):
    out = np.full((len(texts), width), 7.0)
    fill_text(texts, out)
    return out


def likeness(a, b):
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def test_a_text_is_its_words():
    a, b, c, none, empty = encoded("The PRINTER broke", "broke, the printer!", "refund my order", None, "")
    np.testing.assert_allclose(a, b)
    assert likeness(a, c) < 0.5
    assert not none.any()
    assert not empty.any()


def test_words_never_seen_resemble_those_they_share_letters_with():
    known, inflected, other = encoded("cancellation", "cancellations", "thermometer")
    half = slice(128, None)
    assert likeness(known[half], inflected[half]) > 0.7 > 0.3 > likeness(known[half], other[half])


def test_long_texts_do_not_outweigh_short_ones():
    for row in encoded("order", "order " * 500 + " ".join(f"word{i}" for i in range(1000)), "a" * 10**6):
        np.testing.assert_allclose([row[:128] @ row[:128], row[128:] @ row[128:]], 1)


def test_a_column_of_text():
    body = [f"ticket about {topic} number {i}" for i in range(300) for topic in ("billing", "login")]
    stream = TableStream(pa.table({"body": body, "label": [0, 1] * 300}))
    assert [column.kind for column in stream.schema.columns] == ["text"]
    assert len(stream.feature_names) == WIDTH
    assert "text: body" in stream.describe()
    x = stream.read(0, 600).x
    np.testing.assert_array_equal(stream.read(499, 501).x, x[499:501])  # decoded in parts
    assert stream._part < 600
    as_category = TableStream(pa.table({"body": body, "label": [0, 1] * 300}), kinds={"body": "category"})
    assert len(as_category.feature_names) == 16
    short = pa.table({"name": ["a", "b"] * 300, "label": [0, 1] * 300})
    assert len(TableStream(short, kinds={"name": "text"}).feature_names) == WIDTH
