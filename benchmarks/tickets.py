"""A made stream of support tickets: what reading text is worth, and how wide hashed text should be.

    python benchmarks/tickets.py                       # 4,000 tickets, hashed text of several widths, seed 0
    python benchmarks/tickets.py --kinds category text text:minilm

A ticket has an id, a date, a channel, an amount (often missing) and a body of 8 to 20 words. Two or three words of the
body are of the topic of its queue, inflected at random; one in ten is of another queue's topic, and the others are
common words, whose frequencies follow Zipf's law. Every 1,000 tickets two queues exchange a part of their topics. So
the words decide the queue, and no other column tells much. Two minutes a row on one core.
"""

from __future__ import annotations

from typing import Any

import numpy as np

QUEUES = ("billing", "login", "delivery", "returns", "hardware", "privacy")
SYLLABLES = ("ba", "ko", "ri", "tel", "mu", "san", "de", "vor", "lin", "pa", "gre", "zo", "fi", "nak", "dul", "we")
ENDINGS = ("", "", "s", "ed", "ing")
DRIFT = 1000  # tickets after which two queues exchange words


def make_tickets(count: int = 4000, seed: int = 0) -> dict[str, list[Any]]:
    """The columns of a table, the label last."""
    random = np.random.default_rng(seed)
    common = [_word(random, 1, 3) for _ in range(300)]
    topics = [[_word(random, 2, 4) for _ in range(20)] for _ in QUEUES]
    zipf = 1 / np.arange(1, len(common) + 1)
    zipf /= zipf.sum()
    columns: dict[str, list[Any]] = {name: [] for name in ("id", "opened", "channel", "amount", "body", "queue")}
    opened = np.datetime64("2025-01-01T08:00:00")
    for i in range(count):
        if i and i % DRIFT == 0:
            a, b = random.choice(len(QUEUES), 2, replace=False)
            topics[a][:10], topics[b][:10] = topics[b][:10], topics[a][:10]
        queue = int(random.integers(len(QUEUES)))
        words = [common[j] for j in random.choice(len(common), int(random.integers(6, 18)), p=zipf)]
        for _ in range(int(random.integers(2, 4))):
            of = queue if random.random() < 0.9 else int(random.integers(len(QUEUES)))
            stem = topics[of][int(random.integers(len(topics[of])))]
            words.insert(int(random.integers(len(words) + 1)), stem + ENDINGS[int(random.integers(len(ENDINGS)))])
        opened += np.timedelta64(int(random.integers(30, 900)), "s")
        columns["id"].append(100_000 + i)
        columns["opened"].append(str(opened))
        columns["channel"].append(("mail", "chat", "phone")[int(random.integers(3))])
        columns["amount"].append(None if random.random() < 0.3 else round(float(random.lognormal(3, 1)), 2))
        columns["body"].append(" ".join(words))
        columns["queue"].append(QUEUES[queue])
    return columns


def _word(random: np.random.Generator, fewest: int, most: int) -> str:
    return "".join(random.choice(SYLLABLES, int(random.integers(fewest, most + 1))))
