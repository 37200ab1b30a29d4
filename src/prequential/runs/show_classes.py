"""What a run shows of its classes, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from prequential.evaluation.scores import Scores
from prequential.plots.style import cut

MOST = 10  # classes in the table
LONGEST_LABEL = 30


def class_tables(scores: Scores) -> Iterator[RenderableType]:
    """The most frequent classes with their support, recall, precision and F1, and the most frequent mistakes."""
    if not scores.has_classes:
        return
    found = scores.by_class.table(MOST)
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("class")
    for name in ("support", "share", "recall", "precision", "F1"):
        table.add_column(name, justify="right")
    for i, label in enumerate(found["label"]):
        numbers = [found[name][i] for name in ("recall", "precision", "f1")]
        texts = ["–" if number != number else f"{number:.3f}" for number in numbers]
        support = int(found["support"][i])
        name = escape(cut(label, LONGEST_LABEL))
        table.add_row(name, f"{support:,}", f"{support / scores.count:.1%}", *texts)
    yield table
    if (more := scores.by_class.num_labels - MOST) > 0:
        yield f"and {more:,} more classes: scores.json has the 50 most frequent, the records have all"
    mistakes = [
        f"{cut(label, LONGEST_LABEL)} as {cut(predicted, LONGEST_LABEL)} {times:,}×"
        for label, predicted, times in scores.by_class.mistakes()
    ]
    if mistakes:
        yield escape(f"most frequent mistakes: {', '.join(mistakes)}")
