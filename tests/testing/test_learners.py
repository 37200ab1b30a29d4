"""The battery itself: for every check there is a mutant, a learner broken on purpose, that the check must catch."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from prequential import OnlineLearner, check_learner
from prequential.labels import weigh_unseen
from prequential.learners.gate import as_examples
from prequential.testing.learners import CHECKS


class Counts(OnlineLearner):
    """Predicts by how often each label came with a positive and with a negative first feature. Passes every check."""

    def __init__(self, classes, *, missing=False):
        super().__init__(classes, missing=missing)
        self.counts = np.ones((2, self.labels.capacity))

    def _predict(self, x):
        counts = self.counts[(x[:, 0] > 0).astype(int)]
        return weigh_unseen(np.log(counts / counts.sum(1, keepdims=True)), np.full(len(x), self.num_seen))

    def _grow(self, capacity):
        self.counts = np.pad(self.counts, ((0, 0), (0, capacity - self.counts.shape[1])), constant_values=1)

    def _learn(self, x, class_ids):
        np.add.at(self.counts, ((x[:, 0] > 0).astype(int), class_ids), 1)

    def _state_dict(self):
        return {"counts": self.counts.copy()}

    def _load_state_dict(self, state):
        self.counts = state["counts"].copy()


# Each mutant is caught by the check of the same name.


class PredictIsPure(Counts):
    def _predict(self, x):
        self.counts[0, 0] += 1e-9
        return super()._predict(x)


class Probabilities(Counts):
    def _predict(self, x):
        return super()._predict(x) + 0.01  # they sum to more than 1


class ProbabilitiesZero(Counts):
    def __init__(self, classes, *, missing=False):
        super().__init__(classes, missing=missing)
        self.counts[:] = 1e-300  # what came once is all there is: in float32 the others have probability 0

    def _predict(self, x):
        with np.errstate(divide="ignore"):
            return np.log(np.exp(super()._predict(x)).astype(np.float32))


class OneAndMany(Counts):
    def _predict(self, x):
        return super()._predict(x - x.mean(0))  # statistics of the batch


class NoFuture(Counts):
    def _observe(self, x, class_ids):
        self._learn(x, class_ids)  # the labels are in the counts that predict them
        return self._predict(x)


class NoFutureOfTheChunk(Counts):
    """Standardizes a chunk by its own mean, which the later ones of it take part in."""

    def _observe(self, x, class_ids):
        shifted = np.where(len(x) > 1, x - x.mean(0) + 1e-3 * x.std(0), x)
        return super()._observe(shifted, class_ids)


class PastCounts(Counts):
    def _learn(self, x, class_ids):
        self.counts[0, 0] += 1e-6  # so little that nothing is learned


class Replaying(Counts):
    """Reads the example at some distance from the present again, and swallows what is raised."""

    ahead = -1

    def replay_from(self, stream):
        self.stream = stream

    def _learn(self, x, class_ids):
        super()._learn(x, class_ids)
        at = self.position + self.ahead
        if getattr(self, "stream", None) is not None and 0 <= at < len(self.stream):
            try:
                self.stream.read(at, at + 1)
            except Exception:
                return


class NoFutureReplay(Replaying):
    ahead = 1  # the example after the one it learns


class NoFutureReplayInChunks(Replaying):
    """Reads the chunk that it has just been handed again, as if it were the past."""

    stride, ahead = 40, 0


class OneByOne(Counts):
    def _learn(self, x, class_ids):
        super()._learn(x, class_ids)
        self.counts[0, 0] += 1  # once a call, however many examples it brings

    def _observe(self, x, class_ids):
        rows = [self._predict(x[:1])]
        for i in range(1, len(class_ids)):
            Counts._learn(self, x[i - 1 : i], class_ids[i - 1 : i])
            rows.append(self._predict(x[i : i + 1]))
        self._learn(x[-1:], class_ids[-1:])
        return np.concatenate(rows)


class StateIsASnapshot(Counts):
    def _load_state_dict(self, state):
        self.counts += state["counts"] - 1  # right for a new learner, and for no other


class StateIsASnapshotShared(Counts):
    def _state_dict(self):
        return {"counts": self.counts}


class StateIsASnapshotTakenOver(Counts):
    def _load_state_dict(self, state):
        self.counts = state["counts"]  # which learning changes from now on


class SameAgain(Counts):
    number = itertools.count()

    def __init__(self, classes, *, missing=False):
        super().__init__(classes, missing=missing)
        self.counts += 1e-3 * next(self.number)


class LearnersShareNothing(Counts):
    shared = np.ones((2, 10))

    def __init__(self, classes, *, missing=False):
        super().__init__(classes, missing=missing)
        self.counts = self.shared[:, : self.labels.capacity]


class LearnersShareNothingGenerator(Counts):
    def _learn(self, x, class_ids):
        super()._learn(x, class_ids)
        torch.rand(1)


class InputsAreCopied(Counts):
    def _learn(self, x, class_ids):
        self.last = x  # counted at the next example
        super()._learn(x, class_ids)

    def _state_dict(self):
        return {**super()._state_dict(), "last": getattr(self, "last", None)}


class SaveLoad(Counts):
    """Forgets a part of its state when it is loaded."""

    def _load_state_dict(self, state):
        self.counts = np.round(state["counts"]) + 0.5


class NewClasses(Counts):
    def _predict(self, x):
        log_p = super()._predict(x)
        if "b" in self.labels:  # the name of a label changes what is predicted
            log_p = np.log(0.9 * np.exp(log_p) + 0.1 / log_p.shape[1])
        return log_p


class ClassesLeftOut(Counts):
    def _grow(self, capacity):  # for a whole call, before its first example
        super()._grow(capacity)
        self.counts[:] = 1


class UnseenLabels(Counts):
    def _predict(self, x):
        counts = self.counts[(x[:, 0] > 0).astype(int)]
        return np.log(counts / counts.sum(1, keepdims=True))


class Growth(Counts):
    def _grow(self, capacity):
        super()._grow(capacity)
        self.counts[:, 8:] = 0.5


class GrowthOfAll(Counts):
    def _grow(self, capacity):
        super()._grow(capacity)
        self.counts += 1


class GrownState(Counts):
    def _state_dict(self):
        return {"counts": self.counts[:, :8].copy()}


class GrownStateLeftBehind(Counts):
    def _begin_call(self, class_ids):
        super()._begin_call(class_ids)
        self.grown = self.labels.capacity

    def _accept(self, x, ys):
        self.grown = self.labels.capacity_for(len(set(map(str, ys))))
        return super()._accept(x, ys)

    def _state_dict(self):
        return {**super()._state_dict(), "grown": getattr(self, "grown", 8)}


class BadInput(Counts):
    def _admitted(self, xs, ys, **more):
        return super()._admitted(
            np.nan_to_num(as_examples(xs, self.position, missing=True)), ys, **more
        )  # NaN passes as 0


class Gate(Counts):
    def _one(self, x):
        return np.asarray([[0.0] * 4]) if isinstance(x, dict) else super()._one(x)  # a dict is taken as something


class Conversions(Counts):
    def _admitted(self, xs, ys, **more):
        x, y = super()._admitted(xs, ys, **more)
        order = isinstance(xs, np.ndarray) and not xs.flags.c_contiguous
        return (x[:, ::-1] if order else x), y


class BrokenValues(Counts):
    """Standardizes by plain sums of squares, in which one absurd value never fades."""

    def __init__(self, classes, *, missing=False):
        super().__init__(classes, missing=missing)
        self.squares = 1.0

    def _learn(self, x, class_ids):
        super()._learn(x, class_ids)
        with np.errstate(over="ignore"):
            self.squares = np.float32(self.squares) + np.float32((x.astype(np.float32) ** 2).sum())

    def _predict(self, x):
        return super()._predict(x) * (1.0 if np.isfinite(self.squares) else np.float64(np.inf))

    def _state_dict(self):
        return {**super()._state_dict(), "squares": np.array([self.squares])}

    def _load_state_dict(self, state):
        super()._load_state_dict(state)
        self.squares = float(state["squares"][0])


class AllOrNothing(Counts):
    def learn_many(self, xs, ys):
        for x, y in zip(xs, ys, strict=True):
            super().learn_many(np.asarray(x)[None], [y])


class Copies(Counts):
    def __deepcopy__(self, memo):
        copied = Copies(self.labels.capacity)
        copied.__dict__.update(self.__dict__)  # shares the counts
        return copied


class CopiesPickled(Counts):
    def __reduce_ex__(self, protocol):
        return (Counts, (self.labels.capacity,))


class RowsForgotten(Counts):
    def _whole_state(self):
        return {name: part for name, part in super()._whole_state().items() if name != "schema"}


class SnapshotsShared(Counts):
    def _take_copy(self, other, *, snapshot):
        super()._take_copy(other, snapshot=snapshot)
        if snapshot:
            self.counts = other.counts  # the same array: what is learned later shows


class SnapshotsRounded(Counts):
    def _take_copy(self, other, *, snapshot):
        super()._take_copy(other, snapshot=snapshot)
        if snapshot:
            self.counts[:, 0] *= 1 + 1e-9


class SnapshotsLearn(Counts):
    def _check_can_learn(self):
        pass


class IdsForgotten(Counts):
    def _whole_state(self):
        return {name: part for name, part in super()._whole_state().items() if name != "asked"}


class IdsTwice(Counts):
    def _take_in(self, xs, ys, act, asked_at=None, *, ids=None, **more):
        if ids:
            super()._take_in(xs, ys, act)
        return super()._take_in(xs, ys, act, asked_at, ids=ids, **more)


class IdsLearned(Counts):
    def _predict_late(self, x, waiting, since):
        self.position += 1
        return super()._predict_late(x, waiting, since)


class Threads(Counts):
    """Predicts without a lock while it learns in two steps."""

    def _learn(self, x, class_ids):
        super()._learn(x, class_ids)
        self.counts *= 2
        time.sleep(1e-3)
        self.counts /= 2
        self.counts += 0.0

    def _predict(self, x):
        return super()._predict(x) + 1e-6 * self.counts.sum()  # shows whether the counts are doubled

    def predict_log_proba_many(self, xs):
        return self._predict(self._checked(xs))


class Evaluate(Counts):
    def observe(self, xs, ys):
        charges = super().observe(xs, ys)
        cut = len(charges.log_loss) - 1 if len(charges.log_loss) % 2 else len(charges.log_loss)
        names = ("log_loss", "predicted", "correct", "confidence")
        return replace(charges, **{name: getattr(charges, name)[:cut] for name in names})


class LateLabels(Counts):
    """Learns a whole piece of labels before it answers what was asked before they arrived."""

    def _observe_late(self, rows, class_ids, since):
        self._learn(rows[: len(class_ids)], class_ids)
        return self._predict(rows[-len(class_ids) :])


class LateLabelsInputs(Counts):
    """Shifts what is asked together by its mean, which later questions take part in."""

    def _predict_late(self, x, waiting, since):
        return super()._predict_late(x - x.mean(0), waiting, since)


class Memory(Counts):
    """Keeps a reference for every example, and nothing of it in its state."""

    def _learn(self, x, class_ids):
        super()._learn(x, class_ids)
        self.__dict__.setdefault("hoard", []).extend([None] * len(class_ids))


class MemoryOfTheModule(Counts):
    """Keeps every example where all learners of the process can find it."""

    hoard: ClassVar[list] = []

    def _learn(self, x, class_ids):
        super()._learn(x, class_ids)
        self.hoard.extend(float(value) for value in x[:, 0])


class MemoryOfTheState(Counts):
    def _learn(self, x, class_ids):
        super()._learn(x, class_ids)
        self.hoard = np.concatenate([getattr(self, "hoard", np.zeros(0, np.int8)), np.zeros(2 * len(x), np.int8)])

    def _state_dict(self):
        return {**super()._state_dict(), "hoard": getattr(self, "hoard", None)}


MUTANTS = {  # what the check must say of each
    "check_predict_is_pure": {PredictIsPure: "predicting example 0 changed the learner"},
    "check_probabilities": {Probabilities: "sum to", ProbabilitiesZero: "has probability 0"},
    "check_one_and_many": {OneAndMany: "differs by"},
    "check_no_future": {NoFuture: "changed with what came later", NoFutureOfTheChunk: "changed with what came later"},
    "check_past_counts": {PastCounts: "no more than at the start"},
    "check_no_future_replay": {
        NoFutureReplay: "example 1 was read from the stream when only those before 1",
        NoFutureReplayInChunks: "example 40 was read from the stream when only those before 40",
    },
    "check_one_by_one": {OneByOne: "one by one and"},
    "check_state_is_a_snapshot": {
        StateIsASnapshot: "loading a state once gave another state",
        StateIsASnapshotShared: "a state changed while the learner learned on",
        StateIsASnapshotTakenOver: "a loaded state changed",
    },
    "check_same_again": {SameAgain: "the same examples gave"},
    "check_learners_share_nothing": {
        LearnersShareNothing: "another learner changed the losses",
        LearnersShareNothingGenerator: "PyTorch's global generator was used",
    },
    "check_inputs_are_copied": {InputsAreCopied: "kept hold of an array"},
    "check_save_load": {SaveLoad: "what was loaded at example 0 differs"},
    "check_new_classes": {NewClasses: "the names of the labels changed the losses"},
    "check_classes_left_out": {ClassesLeftOut: "and is predicted at"},
    "check_unseen_labels": {UnseenLabels: "the others have a probability of"},
    "check_growth": {Growth: "changed the probabilities", GrowthOfAll: "changed the probabilities"},
    "check_grown_state": {GrownState: "goes on otherwise", GrownStateLeftBehind: "learner that has grown differs"},
    "check_bad_input": {BadInput: "no error was raised"},
    "check_gate": {Gate: "no fields was accepted"},
    "check_conversions": {Conversions: "gave another state"},
    "check_rows": {RowsForgotten: "a loaded learner has the schema None"},
    "check_broken_values": {BrokenValues: "after a feature of 1e30"},
    "check_all_or_nothing": {AllOrNothing: "a refused label changed the learner"},
    "check_copies": {Copies: "goes on otherwise", CopiesPickled: "a learner was pickled"},
    "check_snapshots": {
        SnapshotsShared: "changed while the learner learned on",
        SnapshotsRounded: "predicts otherwise",
        SnapshotsLearn: "a snapshot learned",
    },
    "check_ids": {
        IdsForgotten: "was not kept with the state",
        IdsTwice: "it is another learner",
        IdsLearned: "a prediction by id changed what was learned",
    },
    "check_threads": {Threads: "predictions during learning went wrong"},
    "check_evaluate": {Evaluate: "of 131 examples 130 were scored"},
    "check_late_labels": {
        LateLabels: "the label of example 21 changed predictions that were asked before it arrived",
        LateLabelsInputs: "later inputs changed earlier predictions",
    },
    "check_memory": {
        Memory: r"1,200 more examples took \d+ more bytes",
        MemoryOfTheModule: r"1,200 more examples took \d+ more bytes",
        MemoryOfTheState: "more examples",
    },
}


def test_every_check_has_a_mutant():
    assert list(MUTANTS) == [check.__name__ for check in CHECKS]
    assert all(MUTANTS.values())


def test_the_learner_they_are_mutants_of_passes_every_check():
    assert check_learner(lambda classes: Counts(classes)) is None


@pytest.mark.parametrize(
    ("check", "mutant", "sentence"),
    [(check, mutant, said) for check in CHECKS for mutant, said in MUTANTS[check.__name__].items()],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_it_is_caught(check, mutant, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check(lambda classes: mutant(classes))


def test_a_check_says_in_its_docstring_what_it_is_for():
    for check in CHECKS:
        assert check.__doc__, check.__name__
        first = check.__doc__.split("\n\n")[0]
        assert first.endswith("."), check.__name__
