"""What columns are, where their type alone does not tell: dates written as text, free text, and ids.

All rules look at the first rows of a stream only, those that decide how columns are read.

| rule | a column is                                                                                       |
|------|---------------------------------------------------------------------------------------------------|
| time | text of which nine in ten values are dates or times as ISO 8601 writes them                       |
| text | text of three words or more on average, of which more than half, or more than 64, are different   |
| id   | whole numbers or text without gaps, different in every row: 100 rows of text or of numbers that rise \
or fall, 1,000 rows of other numbers; or text of UUIDs                                                         |
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from prequential.streams.formats.csv_rows import DATE, MOSTLY
from prequential.streams.formats.encoding import is_plain_text

WORDS = 3  # on average, from which on text is free text
FEW = 64  # different values are categories, however long they are
MANY = 100  # rows from which on a column can be seen to be an id
MANY_NUMBERS = 1000  # and for whole numbers in no order, which may be measurements
LETTER = re.compile(r"[^\W\d_]")
UNSPACED = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]")  # scripts that put no blanks between words
UUID = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)


def kind_of_values(found: pa.DataType, sample: pa.ChunkedArray) -> str | None:
    """The kind of a column of text by its first values: time, text or id; None where its type tells.

    Parameters
    ----------
    found
        The type of the column in the table; that of the sample may be wider.
    sample
        Its first values.

    Examples
    --------
    >>> kind_of_values(pa.string(), pa.chunked_array([["2024-05-01", "2024-05-02"]]))
    'time'
    >>> kind_of_values(pa.string(), pa.chunked_array([["the printer is on fire", "cannot log in any more"]]))
    'text'
    >>> kind_of_values(pa.int64(), pa.chunked_array([range(200)]))
    'id'
    >>> kind_of_values(pa.string(), pa.chunked_array([["red", "green"]]))
    """
    if pa.types.is_integer(found):
        return "id" if _counts(sample) else None
    if not is_plain_text(found):
        return None
    texts = [text.strip() for text in sample.drop_null().to_pylist()]
    texts = [text for text in texts if text]
    if not texts:
        return None
    if sum(re.match(DATE, text) is not None for text in texts) >= MOSTLY * len(texts):
        return "time"
    different = len(set(texts))
    if sum(map(count_words, texts)) >= WORDS * len(texts) and different > min(FEW, len(texts) / 2):
        return "text"
    without_gaps = different == len(sample)
    if without_gaps and (len(texts) >= MANY or all(map(UUID.fullmatch, texts))):
        return "id"
    return None


def count_words(text: str) -> float:
    """How many words a text has: what blanks separate and has a letter; two signs where a script has no blanks.

    >>> count_words("Error 502 at the gateway")
    4.0
    """
    unspaced = len(UNSPACED.findall(text))
    return sum(LETTER.search(word) is not None for word in text.split()) + unspaced / 2


def _counts(sample: pa.ChunkedArray) -> bool:
    """Whether whole numbers are different in every row, so that they name it."""
    if len(sample) < MANY or sample.null_count:
        return False
    numbers = sample.to_numpy()
    steps = np.diff(numbers)
    if bool((steps > 0).all() or (steps < 0).all()):
        return True
    return len(numbers) >= MANY_NUMBERS and len(np.unique(numbers)) == len(numbers)
