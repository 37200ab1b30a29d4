"""A made stream of support tickets: what reading text is worth, and how wide hashed text should be.

    python benchmarks/tickets.py                                  # reading 1 and 2, seed 0
    python benchmarks/tickets.py --kinds text:64 text:256 text:1024 text:minilm --seeds 0 1 2

A ticket has an id, a date, a channel, an amount (often missing) and a body of 8 to 20 words. Two or three words of the
body are of the topic of its queue, inflected at random; one in ten of those is of another queue's topic, and all others
are common words, whose frequencies follow Zipf's law. Every 1,000 tickets two queues exchange half of their topics. So
the words decide the queue, and no other column tells anything. A row of 4,000 tickets takes half a minute on one core.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
import pyarrow as pa

from prequential import Learner, TableStream, evaluate

TOPICS = {
    "billing": "invoice charge payment card bank receipt price discount coupon tax fee balance debit statement account "
    "renewal subscription billing amount currency",
    "login": "password login reset code token session browser lock email username access verify sign profile device "
    "captcha permission timeout security register",
    "delivery": "parcel courier address delivery track package driver ship customs warehouse route pickup depot label "
    "weight carrier doorstep neighbor delay arrive",
    "returns": "return refund exchange damage size color defect replace warranty scratch fit sew button zip fabric wrong "
    "broken missing sleeve box",
    "hardware": "printer screen battery cable keyboard router charger adapter fan noise pixel speaker camera port mouse "
    "sensor firmware restart overheat hinge",
    "privacy": "data consent delete export cookie policy newsletter tracking record law request share partner history "
    "anonymous archive notice form officer withdraw",
}
COMMON = [
    "the",
    "to",
    "i",
    "and",
    "a",
    "my",
    "is",
    "it",
    "for",
    "in",
    "of",
    "on",
    "that",
    "you",
    "this",
    "not",
    "have",
    "with",
    "was",
    "but",
    "at",
    "be",
    "can",
    "from",
    "please",
    "we",
    "an",
    "your",
    "me",
    "or",
    "so",
    "when",
    "there",
    "if",
    "they",
    "what",
    "will",
    "do",
    "would",
    "has",
    "been",
    "now",
    "am",
    "are",
    "just",
    "how",
    "no",
    "any",
    "get",
    "up",
    "out",
    "after",
    "since",
    "still",
    "again",
    "about",
    "here",
    "then",
    "could",
    "day",
    "time",
    "today",
    "week",
    "help",
    "need",
    "want",
    "know",
    "tell",
    "think",
    "see",
    "try",
    "find",
    "work",
    "make",
    "use",
    "give",
    "ask",
    "back",
    "same",
    "other",
    "more",
    "very",
    "also",
    "only",
    "before",
    "first",
    "last",
    "next",
    "new",
    "old",
    "long",
    "already",
    "yet",
    "soon",
    "never",
    "always",
    "once",
    "twice",
    "really",
    "thanks",
    "hello",
    "dear",
    "regards",
    "team",
    "support",
    "customer",
    "service",
    "company",
    "people",
    "thing",
    "way",
    "problem",
    "question",
    "answer",
    "reason",
    "case",
    "part",
    "nothing",
    "something",
    "everything",
    "anyone",
    "someone",
    "because",
    "while",
    "although",
    "however",
    "therefore",
    "between",
    "without",
    "during",
    "several",
    "another",
    "morning",
    "evening",
    "yesterday",
    "tomorrow",
    "monday",
    "friday",
    "month",
    "year",
    "number",
    "two",
    "three",
    "few",
    "many",
]
ENDINGS = ("", "", "s", "ed", "ing")
DRIFT = 1000  # tickets after which two queues exchange words


def make_tickets(count: int = 4000, seed: int = 0) -> dict[str, list[Any]]:
    """The columns of a table, the label last."""
    random = np.random.default_rng(seed)
    queues, topics = list(TOPICS), [words.split() for words in TOPICS.values()]
    zipf = 1 / np.arange(1, len(COMMON) + 1)
    zipf /= zipf.sum()
    columns: dict[str, list[Any]] = {name: [] for name in ("id", "opened", "channel", "amount", "body", "queue")}
    opened = np.datetime64("2025-01-01T08:00:00")
    for i in range(count):
        if i and i % DRIFT == 0:
            a, b = random.choice(len(queues), 2, replace=False)
            topics[a][:10], topics[b][:10] = topics[b][:10], topics[a][:10]
        queue = int(random.integers(len(queues)))
        words = [COMMON[j] for j in random.choice(len(COMMON), int(random.integers(6, 18)), p=zipf)]
        for _ in range(int(random.integers(2, 4))):
            of = queue if random.random() < 0.9 else int(random.integers(len(queues)))
            stem = topics[of][int(random.integers(len(topics[of])))]
            words.insert(int(random.integers(len(words) + 1)), stem + ENDINGS[int(random.integers(len(ENDINGS)))])
        opened += np.timedelta64(int(random.integers(30, 900)), "s")
        columns["id"].append(100_000 + i)
        columns["opened"].append(str(opened))
        columns["channel"].append(("mail", "chat", "phone")[int(random.integers(3))])
        columns["amount"].append(None if random.random() < 0.3 else round(float(random.lognormal(3, 1)), 2))
        columns["body"].append(" ".join(words))
        columns["queue"].append(queues[queue])
    return columns


def measure(kind: str, seeds: list[int], count: int) -> str:
    """One line: accuracy and log-loss of the default learner where the body is of this kind; or `reading=1`."""
    how: dict[str, Any] = {"reading": 1} if kind == "reading=1" else {"kinds": {"body": kind}}
    accuracy, nats, begun = [], [], time.perf_counter()
    for seed in seeds:
        stream = TableStream(pa.table(make_tickets(count, seed)), label="queue", **how)
        scores = evaluate(stream, Learner(len(TOPICS), seed=seed))
        accuracy.append(scores.accuracy)
        nats.append(scores.log_loss)
    width, seconds = len(stream.feature_names), (time.perf_counter() - begun) / len(seeds)
    return f"| {kind} | {width} | {np.mean(accuracy):.3f} | {np.mean(nats):.3f} | {seconds:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kinds", nargs="+", default=["reading=1", "text"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--count", type=int, default=4000)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| body | features | accuracy | nats | seconds |\n|---|---|---|---|---|")
    for kind in given.kinds:
        print(measure(kind, given.seeds, given.count), flush=True)


if __name__ == "__main__":
    main()
