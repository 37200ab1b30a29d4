"""Running scores of a learner, in memory that does not grow with the stream.

All sums are taken one example after the other, so their last bit does not depend on how a stream was cut into chunks:
scores kept during a run, scores of a run that was interrupted, and scores rebuilt from its records are the same.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from prequential.errors import BadCheckpoint, BadInput, BadSetting
from prequential.evaluation.binned_sums import BinnedSums
from prequential.evaluation.class_scores import ClassScores
from prequential.evaluation.metrics import Metrics
from prequential.evaluation.records import read_records, read_task_starts
from prequential.evaluation.references import References

if TYPE_CHECKING:
    import pyarrow as pa

    from prequential.learners.charges import Charges

CURVE_ROWS = 2048  # points of the learning curve before neighbors are merged
TASK_ROWS = 4096  # tasks kept apart before neighbors are merged
CONFIDENCE_BINS = 20
FEW_TASKS = 10  # how many tasks the summary calls "first" and "last"
RECORDED = ("log_loss", "correct", "confidence", "label", "predicted")  # the columns of records that scores are made of
# The numbers of the summary, and those of them that need the labels.
NUMBERS = ("accuracy", "log_loss", "bits", "uniform_bits", "compression", "calibration_error")
CLASS_NUMBERS = (
    "balanced_accuracy",
    "macro_f1",
    "kappa",
    "kappa_m",
    "kappa_temporal",
    "majority_accuracy",
    "last_label_accuracy",
)
MOST_CLASSES = 50  # in the summary, the most frequent ones
SLACK = 1e-3  # by how much single-precision rounding may push a probability above one


def position_bins() -> np.ndarray:
    """The first position of each bin of the positions in a task: 1, 2, 3, 4, 5, 6, 8, 10, 13, … up to a million."""
    first = [1]
    while first[-1] < 1_000_000:
        first.append(max(first[-1] + 1, round(first[-1] * 1.3)))
    return np.array(first)


class Scores:
    """How well a learner did so far: running sums over all examples, none left out.

    Parameters
    ----------
    classes
        How many labels there can be, or None where any number can come. The uniform code pays log2(classes) bits an
        example, with the number that is given or else that of the labels seen so far.
    task_starts
        The positions where tasks begin, the first of them 0; None when the stream knows no tasks.
    metrics
        Metrics of one's own beside these scores, see `prequential.evaluation.metrics.Metrics`.
    delay, label_batches
        How late labels come, as in `evaluate`: what the majority class and the last label were when a row was asked
        depends on it.

    Attributes
    ----------
    by_class
        Scores of each class, the confusion matrix, and label shares over time.
    references
        The majority class and the last label, predicted from the labels that had arrived.

    Examples
    --------
    >>> from prequential.learners.charges import Charges
    >>> scores = Scores(classes=4)
    >>> half, unit = np.full(8, 0.5), np.zeros(8, int)
    >>> scores.update(0, Charges(log_loss=-np.log(half), predicted=unit, correct=np.arange(8) % 4 > 0, confidence=half))
    >>> scores
    Scores: 8 examples, accuracy 75.00 %, 0.6931 nats an example, 8 bits in all (50.0 % of the uniform code)
    >>> scores.accuracy, scores.bits, scores.calibration_error
    (0.75, 8.0, 0.25)
    """

    def __init__(
        self,
        classes: int | None = None,
        task_starts: np.ndarray | None = None,
        *,
        metrics: Iterable[Any] = (),
        delay: int = 0,
        label_batches: int = 1,
    ) -> None:
        if classes is not None and classes < 1:
            raise BadSetting(f"classes ({classes}) must be at least 1")
        self.given_classes = None if classes is None else int(classes)
        self.num_labels = 0  # seen so far
        self.task_starts = None if task_starts is None else _checked_starts(task_starts)
        self.metrics = Metrics(metrics)
        self.by_class = ClassScores()
        self.references = References(delay, label_batches)
        self._unsaved: list[str] = []  # metrics whose state was not in what was loaded
        self.count = 0  # examples so far
        self.total_nats = 0.0  # cumulative log-loss
        self._correct = 0
        self._curve = BinnedSums(CURVE_ROWS)
        self._bins = position_bins()
        self._tasks = BinnedSums(TASK_ROWS, len(self._bins)) if task_starts is not None else None
        self._sure = np.zeros((3, CONFIDENCE_BINS))  # examples, right answers and confidence, by confidence

    def update(
        self,
        position: int,
        charges: Charges,
        labels: Sequence[Hashable] | None = None,
        known_labels: Sequence[Hashable] = (),
    ) -> None:
        """Adds consecutive examples, the first of which is the example at this position of the stream.

        Parameters
        ----------
        position
            How many examples were added before.
        charges
            What was predicted for them before their labels were known, and what it cost.
        labels
            Their labels. Without them there are no scores by class, no kappas, and no metrics of one's own.
        known_labels
            The label of each class id.
        """
        self._add(position, charges.log_loss, charges.correct, charges.confidence)
        self.num_labels = max(self.num_labels, charges.num_labels)
        if labels is not None:
            self.references.add(self.by_class.update(labels, charges.predicted, known_labels))
            self.metrics.update(labels, charges, known_labels)

    def update_from_records(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Adds the next examples of the records of a run, given the columns `RECORDED` of them."""
        columns = (_numpy(batch.column(name)) for name in RECORDED[:3])
        self._add(self.count, *columns)
        self.references.add(self.by_class.update_from_records(*(batch.column(name) for name in RECORDED[3:])))
        self.num_labels = self.by_class.num_labels

    def _add(self, position: int, log_loss: np.ndarray, correct: np.ndarray, confidence: np.ndarray) -> None:
        nats, sure = np.asarray(log_loss, np.float64), np.asarray(confidence, np.float64)
        right = np.asarray(correct, bool)
        n = len(nats)
        if position != self.count:
            raise BadInput(f"scores were given example {position}, but the next one is example {self.count}")
        if not n == len(right) == len(sure):
            raise BadInput(f"example {position}: got {n} losses, {len(right)} answers and {len(sure)} confidences")
        if not (nats >= -SLACK).all():
            i = int(np.argmin(nats >= -SLACK))
            raise BadInput(f"example {position + i}: log_loss is {nats[i]}, expected a number of at least 0")
        if not ((sure >= 0) & (sure <= 1 + SLACK)).all():
            i = int(np.argmin((sure >= 0) & (sure <= 1 + SLACK)))
            raise BadInput(f"example {position + i}: confidence is {sure[i]}, expected a probability")
        if n == 0:
            return
        where = np.arange(position, position + n)
        self.count += n
        self._correct += int(right.sum())
        self.total_nats = float(np.cumsum(np.concatenate([[self.total_nats], nats]))[-1])  # sum() would add pairwise
        self._curve.add(where, np.zeros(n, np.int64), nats, right)
        if self._tasks is not None and self.task_starts is not None:
            task = np.searchsorted(self.task_starts, where, side="right") - 1
            column = np.searchsorted(self._bins, where - self.task_starts[task] + 1, side="right") - 1
            self._tasks.add(task, column, nats, right)
        bins = np.minimum((sure * CONFIDENCE_BINS).astype(np.int64), CONFIDENCE_BINS - 1)
        for table, values in zip(self._sure, (np.ones(n), right, sure), strict=True):
            np.add.at(table, bins, values)

    # Numbers.

    @property
    def classes(self) -> int:
        """How many labels there can be; where that is not given, how many have been seen, and at least 1.

        Chance is one in as many, and the uniform code is that of a coder who knew from the start which labels come.
        """
        return max(self.num_labels, 1) if self.given_classes is None else self.given_classes

    @property
    def accuracy(self) -> float:
        """The share of examples whose label was predicted."""
        return self._correct / self.count if self.count else math.nan

    @property
    def log_loss(self) -> float:
        """The average log-loss of an example, in nats."""
        return self.total_nats / self.count if self.count else math.nan

    @property
    def bits(self) -> float:
        """The description length of all labels: the cumulative log-loss in bits."""
        return self.total_nats / math.log(2)

    @property
    def uniform_bits(self) -> float:
        """What the labels cost when every one of `classes` labels always has the same probability."""
        return self.count * math.log2(self.classes)

    @property
    def compression(self) -> float:
        """The description length as a share of the uniform code; below 1 something was learned."""
        return self.bits / self.uniform_bits if self.uniform_bits else math.nan

    @property
    def calibration_error(self) -> float:
        """How far confidence and accuracy lie apart, averaged over all examples (ECE, 20 equally wide bins)."""
        if not self.count:
            return math.nan
        return float(np.abs(self._sure[1] - self._sure[2]).sum()) / self.count

    @property
    def has_references(self) -> bool:
        """Whether it is known what the majority class and the last label would have reached."""
        return 0 < self.count == self.references.count

    @property
    def has_classes(self) -> bool:
        """Whether the scores by class are known, and those of the references."""
        return self.has_references and self.count == self.by_class.count

    @property
    def balanced_accuracy(self) -> float:
        """The mean of the recalls of all classes that came."""
        return self.by_class.balanced_accuracy if self.has_classes else math.nan

    @property
    def macro_f1(self) -> float:
        """The mean of the F1 scores of all classes that came."""
        return self.by_class.macro_f1 if self.has_classes else math.nan

    @property
    def majority_accuracy(self) -> float:
        """What predicting the most frequent label so far would have reached."""
        return self.references.accuracy("majority") if self.has_references else math.nan

    @property
    def last_label_accuracy(self) -> float:
        """What predicting the last label that had arrived would have reached."""
        return self.references.accuracy("last_label") if self.has_references else math.nan

    @property
    def kappa(self) -> float:
        """Cohen's kappa: accuracy above that of independent predictions with the same frequencies; 1 is perfect."""
        return self._above(self.by_class.chance_agreement)

    @property
    def kappa_m(self) -> float:
        """Accuracy above that of the majority class, as a share of what was left to gain; below 0 it is worse."""
        return self._above(self.majority_accuracy)

    @property
    def kappa_temporal(self) -> float:
        """Accuracy above that of the last label, as a share of what was left to gain; below 0 it is worse."""
        return self._above(self.last_label_accuracy)

    def _above(self, reference: float) -> float:
        return (self.accuracy - reference) / (1 - reference) if self.has_classes and reference < 1 else math.nan

    @property
    def task_count(self) -> int:
        """How many tasks have begun; 0 when the stream knows no tasks."""
        return 0 if self.task_starts is None else int(np.searchsorted(self.task_starts, self.count))

    # Tables: dicts of arrays of one length, so that pandas.DataFrame(scores.curve()) works.

    def curve(self, window: int | None = None) -> dict[str, np.ndarray]:
        """The learning curve at up to 2048 positions.

        Parameters
        ----------
        window
            How many of the latest examples `accuracy` and `log_loss` are averaged over, a hundredth of the stream but
            at least 100 when not given. It is rounded up to whole points; `examples` says how many it really was.
            The running averages are over all examples from the first on.
        """
        count, correct, nats = self._curve.count[:, 0], self._curve.correct[:, 0], self._curve.nats[:, 0]
        asked = max(100, self.count // 100) if window is None else window
        if asked < 1:
            raise BadSetting(f"window ({asked}) must be at least 1 example")
        rows = min(-(-asked // self._curve.group), max(len(count), 1))
        examples = _trailing(count, rows)
        position = np.cumsum(count)
        return {
            "position": position,  # how many examples had been seen
            "examples": examples,
            "accuracy": _ratio(_trailing(correct, rows), examples),
            "log_loss": _ratio(_trailing(nats, rows), examples),
            "running_accuracy": _ratio(np.cumsum(correct), position),
            "running_log_loss": _ratio(np.cumsum(nats), position),
        }

    def calibration(self) -> dict[str, np.ndarray]:
        """Mean confidence and accuracy by confidence, in 20 bins; NaN where a bin is empty."""
        return {
            "center": (np.arange(CONFIDENCE_BINS) + 0.5) / CONFIDENCE_BINS,
            "confidence": _ratio(self._sure[2], self._sure[0]),
            "accuracy": _ratio(self._sure[1], self._sure[0]),
            "count": self._sure[0].astype(np.int64),
        }

    def tasks(self) -> dict[str, np.ndarray]:
        """Accuracy and loss of each task; of each group of neighboring tasks where there are more than 4096."""
        table = self._task_table()
        count = table.count.sum(1)
        first = np.arange(table.used) * table.group
        return {
            "first_task": first,
            "last_task": np.minimum(first + table.group, self.task_count) - 1,
            "count": count,
            "accuracy": _ratio(table.correct.sum(1), count),
            "log_loss": _ratio(table.nats.sum(1), count),
        }

    def within_task(self, first_task: int = 0, last_task: int | None = None) -> dict[str, np.ndarray]:
        """Accuracy and loss by the position in the task, averaged over these tasks, both ends included.

        Positions count from 1; late ones share a bin, `first` to `last`. Where tasks were merged, the groups that hold
        these tasks are taken whole.
        """
        table = self._task_table()
        last_task = self.task_count - 1 if last_task is None else last_task
        if not 0 <= first_task <= last_task < self.task_count:
            raise BadInput(
                f"asked for tasks {first_task} to {last_task}, but only 0 to {self.task_count - 1} have begun"
            )
        rows = slice(first_task // table.group, last_task // table.group + 1)
        count = table.count[rows].sum(0)
        first, last = self._bin_ends()
        held = count > 0
        return {
            "first": first[held],
            "last": last[held],
            "count": count[held],
            "accuracy": _ratio(table.correct[rows].sum(0), count)[held],
            "log_loss": _ratio(table.nats[rows].sum(0), count)[held],
        }

    def heat_map(self, rows: int = TASK_ROWS) -> dict[str, np.ndarray]:
        """Accuracy and loss of each task (rows) by position in the task (columns); NaN where there is no example.

        Neighboring tasks are averaged where there would be more than this many rows.
        """
        table = self._task_table()
        join = max(1, -(-table.used // rows))
        starts = np.arange(0, table.used, join)
        count, correct, nats = (np.add.reduceat(part, starts) for part in (table.count, table.correct, table.nats))
        held = count.sum(0) > 0
        first, last = self._bin_ends()
        return {
            "first_task": starts * table.group,
            "last_task": np.minimum((starts + join) * table.group, self.task_count) - 1,
            "first": first[held],
            "last": last[held],
            "count": count[:, held],
            "accuracy": _ratio(correct, count)[:, held],
            "log_loss": _ratio(nats, count)[:, held],
        }

    def to_dict(self) -> dict[str, Any]:
        """The summary as JSON values; a number that is not finite is None."""
        summary: dict[str, Any] = {"count": self.count, "classes": self.classes}
        summary |= {name: _finite(getattr(self, name)) for name in NUMBERS}
        if self.has_classes:
            summary |= {name: _finite(getattr(self, name)) for name in CLASS_NUMBERS}
            summary["by_class"] = _rows(self.by_class.table(MOST_CLASSES))
        if self.task_count:
            summary["tasks"] = self.task_count
            summary["first_tasks"] = self._some_tasks(0, min(FEW_TASKS, self.task_count) - 1)
            summary["last_tasks"] = self._some_tasks(max(0, self.task_count - FEW_TASKS), self.task_count - 1)
        if self.metrics:
            summary["metrics"] = self.metrics.values()
        return summary

    def __repr__(self) -> str:
        return (
            f"Scores: {self.count:,} examples, accuracy {self.accuracy:.2%}, {self.log_loss:.4f} nats an example, "
            f"{self.bits:,.0f} bits in all ({self.compression:.1%} of the uniform code)"
        ).replace("%", " %") + (f", {self.metrics!r}" if self.metrics else "")

    # Saving.

    def state_dict(self) -> dict[str, Any]:
        """The sums, as arrays and JSON values."""
        return {
            "classes": self.given_classes,
            "num_labels": self.num_labels,
            "tasks": None if self.task_starts is None else len(self.task_starts),
            "count": self.count,
            "correct": self._correct,
            "total_nats": np.array(self.total_nats),  # an array, because JSON knows no infinity
            "curve": self._curve.state_dict(),
            "by_task": None if self._tasks is None else self._tasks.state_dict(),
            "by_confidence": self._sure.copy(),
            "by_class": self.by_class.state_dict(),
            "references": self.references.state_dict(),
            **({"metrics": self.metrics.state_dict()} if self.metrics else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from exactly where `state_dict()` was taken."""
        tasks = None if self.task_starts is None else len(self.task_starts)
        for name, found, expected in (
            ("classes", state["classes"], self.given_classes),
            ("tasks", state["tasks"], tasks),
        ):
            if found != expected:
                raise BadCheckpoint(f"the saved scores have {name} = {found}, expected {expected}")
        self.num_labels = int(state.get("num_labels", 0))  # in an earlier version the number was always given
        self.count, self._correct = int(state["count"]), int(state["correct"])
        self.total_nats = float(state["total_nats"])
        self._curve.load_state_dict(state["curve"])
        if self._tasks is not None:
            self._tasks.load_state_dict(state["by_task"])
        self._sure[:] = state["by_confidence"]
        self._unsaved = self.metrics.load_state_dict(state.get("metrics"))
        if "by_class" in state:  # an earlier version did not count by class
            self.by_class.load_state_dict(state["by_class"])
        if "references" in state:
            self.references.load_state_dict(state["references"])

    def complete_from_records(self, directory: str | Path, known_labels: Sequence[Hashable]) -> list[str]:
        """After `load_state_dict`: computes from the records so far what was not stored.

        That is the scores by class in a checkpoint of an earlier version, and metrics whose state cannot be stored.
        Returns sentences on what cannot be computed from records.
        """
        names, self._unsaved = self._unsaved, []
        sentences = []
        if self.count and not self.by_class.count:
            try:
                for batch in read_records(directory, ["label", "predicted"]):
                    self.references.add(self.by_class.update_from_records(*batch.columns))
            except BadInput as error:
                self.by_class = ClassScores()
                self.references = References(self.references.delay, self.references.label_batches)
                sentences.append(f"there will be no scores by class: {error}")
        try:
            again = self.metrics.recompute(names, _predictions(directory), known_labels) if names else []
            return [*sentences, *again]
        except BadInput as error:  # records are missing
            return [*sentences, f"{', '.join(names)} cannot be computed again and begin anew here: {error}"]

    @classmethod
    def from_records(
        cls,
        directory: str | Path,
        classes: int | None = None,
        task_starts: np.ndarray | None = None,
        *,
        delay: int = 0,
        label_batches: int = 1,
    ) -> Self:
        """The scores of a finished run, rebuilt part by part from its records.

        Where the number of classes or the starts of the tasks are not given, they are taken from the records.
        """
        known = task_starts is not None  # where they are not, the parts are verified while they are looked for
        starts = task_starts if known else read_task_starts(directory)
        scores = cls(classes, starts, delay=delay, label_batches=label_batches)
        for batch in read_records(directory, RECORDED, verify=known):
            scores.update_from_records(batch)
        return scores

    def _task_table(self) -> BinnedSums:
        if self._tasks is None:
            raise BadInput("this stream knows no tasks: Scores was created without task_starts")
        return self._tasks

    def _bin_ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The first and last position of each bin; none is later than the end of the longest task so far."""
        assert self.task_starts is not None
        lengths = np.diff(np.append(self.task_starts[: self.task_count], self.count))
        longest = int(lengths.max(initial=0))
        return self._bins, np.minimum(np.append(self._bins[1:] - 1, longest), longest)

    def _some_tasks(self, first: int, last: int) -> dict[str, Any]:
        table = self._task_table()
        rows = slice(first // table.group, last // table.group + 1)
        count = int(table.count[rows].sum())
        first, stop = rows.start * table.group, min(rows.stop * table.group, self.task_count)
        return {
            "tasks": stop - first,
            "first": first,
            "last": stop - 1,
            "accuracy": int(table.correct[rows].sum()) / count,
            "log_loss": _finite(float(table.nats[rows].sum()) / count),
        }


def _predictions(directory: str | Path) -> Iterator[tuple[str, str | None]]:
    """The texts of the label and of the prediction of every example in records."""
    for batch in read_records(directory, ["label", "predicted"]):
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def _numpy(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    whole = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    values: np.ndarray = whole.to_numpy(zero_copy_only=False)
    return values


def _checked_starts(task_starts: np.ndarray) -> np.ndarray:
    starts = np.asarray(task_starts)
    if starts.ndim != 1 or starts.dtype.kind not in "iu" or len(starts) == 0:
        raise BadInput(
            f"task_starts has shape {starts.shape} and dtype {starts.dtype}, expected a list of whole numbers"
        )
    if starts[0] != 0:
        raise BadInput(f"task 0 starts at example {starts[0]}, expected 0")
    starts = starts.astype(np.int64)
    falls = np.flatnonzero(np.diff(starts) <= 0)
    if len(falls):
        task = int(falls[0]) + 1
        raise BadInput(f"task {task} starts at example {starts[task]}, expected one after {starts[task - 1]}")
    return starts


def _ratio(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    """total / count, NaN where the count is 0."""
    ratio: np.ndarray = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return ratio


def _trailing(values: np.ndarray, rows: int) -> np.ndarray:
    """The sum of each value and those before it, `rows` of them in all. Not by differences: inf - inf is no number."""
    padded = np.concatenate([np.zeros(rows, values.dtype), values])
    sums: np.ndarray = np.lib.stride_tricks.sliding_window_view(padded, rows)[1:].sum(1)
    return sums


def _rows(table: dict[str, Any]) -> list[dict[str, Any]]:
    """A table of columns as rows of JSON values."""
    names = ("support", "predicted", "recall", "precision", "f1")
    numbers = zip(*(table[name].tolist() for name in names), strict=True)
    return [
        {"label": label, **{name: _finite(value) for name, value in zip(names, row, strict=True)}}
        for label, row in zip(table["label"], numbers, strict=True)
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
