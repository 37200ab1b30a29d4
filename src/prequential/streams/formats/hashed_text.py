"""Free text as numbers: hashed words and hashed character n-grams, each text by itself.

Half of the features belong to words, half to the n-grams of 3 and 4 characters inside them, so that words that were
never seen before, inflected or misspelt ones, resemble known ones. A word counts 1 + log of how often it occurs, and
less if it is short, as the commonest words of most languages are. Each half is scaled to length 1, so that long texts
do not outweigh short ones. Nothing is fitted, so a row is the same numbers whenever it is read. What is learned of how
common words are, the learner learns: it standardizes every feature by statistics of the past, which gives features of
rare words more weight.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

WIDTH = 512  # features of a text; benchmarks/tickets.py measures others
WORD = re.compile(r"\w+")
GRAMS = (3, 4)  # lengths of the n-grams
MOST_CHARACTERS = 20_000  # of a text that are read
MOST_IN_WORD = 64  # characters of a word that are cut into n-grams
LONG = 7  # characters from which on a word has its full weight


def fill_text(texts: Sequence[str | None], out: np.ndarray) -> None:
    """Writes the features of texts into out (rows, features); a missing or empty text is all zeros.

    >>> out = np.zeros((3, 8))
    >>> fill_text(["Printer broken", "printer  BROKEN!", None], out)
    >>> bool((out[0] == out[1]).all()), bool(out[2].any())
    (True, False)
    """
    width = out.shape[1]
    out[:] = 0
    for row, text in zip(out, texts, strict=True):
        if text:
            _fill_row(Counter(WORD.findall(text[:MOST_CHARACTERS].lower())), row[: width // 2], row[width // 2 :])


def _fill_row(words: Counter[str], of_words: np.ndarray, of_grams: np.ndarray) -> None:
    grams: dict[int, tuple[int, float]] = {}  # how often they occur, and the weight of the longest word they are in
    for word, count in words.items():
        own, parts, weight = _hashes(word)
        if len(of_words):
            of_words[own % len(of_words)] += weight * (1 + math.log(count))
        for part in parts:
            before, most = grams.get(part, (0, 0.0))
            grams[part] = before + count, max(most, weight)
    for part, (count, weight) in grams.items():
        of_grams[part % len(of_grams)] += weight * (1 + math.log(count))
    for half in (of_words, of_grams):
        if length := math.sqrt(half @ half):
            half /= length


@lru_cache(maxsize=2**14)
def _hashes(word: str) -> tuple[int, tuple[int, ...], float]:
    """The hash of a word, those of its n-grams, and its weight; the same everywhere."""
    marked = f"<{word[:MOST_IN_WORD]}>"
    grams = (marked[i : i + size] for size in GRAMS for i in range(len(marked) - size + 1))
    weight = min(1.0, max(0.5, len(word) - 1) / (LONG - 1))
    return _hash(f"w{word}"), tuple(_hash(f"g{gram}") for gram in grams), weight


def _hash(text: str) -> int:
    content = text.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
