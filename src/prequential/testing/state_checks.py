"""Checks of states: snapshots, saves and copies restore a learner, and nothing is shared or grows."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prequential.errors import BadInput
from prequential.storage.checkpoint import same_state
from prequential.testing.examples import TOLERANCE, Make, RecordedStream, make_examples

CONTAINERS = (dict, list, set, deque)
ROUNDS = 3  # of a check of memory


def check_state_is_a_snapshot(make: Make) -> None:
    """A state must not change while the learner learns on, and loading it, once or twice, must restore that moment."""
    learner, (x, y) = make(3), make_examples(80)
    learner.replay_from(RecordedStream(x, y))
    learner.observe(x[:40], y[:40])
    taken = learner.state_dict()
    then = copy.deepcopy(taken)  # what it was, whatever the learner still holds of it
    first = learner.observe(x[40:], y[40:])
    assert same_state(taken, then), "a state changed while the learner learned on"
    assert not same_state(taken, learner.state_dict()), "learning changed nothing"
    for time in ("once", "twice"):
        learner.load_state_dict(taken)
        assert same_state(learner.state_dict(), then), f"loading a state {time} gave another state"
        again = learner.observe(x[40:], y[40:])
        assert np.array_equal(first.log_loss, again.log_loss), f"after loading a state {time} it goes on otherwise"
        assert same_state(taken, then), "a loaded state changed while the learner learned on"


def check_same_again(make: Make) -> None:
    """Two learners made alike and given the same examples must be equal to the last bit."""
    x, y = make_examples(70)
    first, second = make(3), make(3)
    a, b = first.observe(x, y), second.observe(x, y)
    assert np.array_equal(a.log_loss, b.log_loss), "the same examples gave other losses"
    assert same_state(first.state_dict(), second.state_dict()), "the same examples gave another state"


def check_learners_share_nothing(make: Make) -> None:
    """What happens to one learner must not reach another, nor NumPy's or PyTorch's own random numbers."""
    x, y = make_examples(60)
    alone = make(3).observe(x, y)
    first, second = make(3), make(3)
    np.random.seed(5)  # noqa: NPY002 (the global generator is what is checked)
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    torch_before = torch.random.get_rng_state()
    losses = []
    for t in range(0, 60, 10):
        losses.append(first.observe(x[t : t + 10], y[t : t + 10]).log_loss)
        second.observe(-x[t : t + 10], y[::-1][t : t + 10])
    assert np.allclose(np.concatenate(losses), alone.log_loss, atol=TOLERANCE), "another learner changed the losses"
    assert np.random.random() == expected, "NumPy's global generator was used"  # noqa: NPY002
    assert torch.equal(torch.random.get_rng_state(), torch_before), "PyTorch's global generator was used"


def check_save_load(make: Make) -> None:
    """A learner saved at any moment and loaded must go on exactly as the one that was not."""
    x, y = make_examples(100)
    for cut in (0, 1, 33, 64):
        learner = make(3)
        if cut:
            learner.observe(x[:cut], y[:cut])
        with tempfile.TemporaryDirectory() as folder:
            learner.save(Path(folder) / "learner")
            loaded = type(learner).load(Path(folder) / "learner")
        assert same_state(learner.state_dict(), loaded.state_dict()), f"what was loaded at example {cut} differs"
        a, b = learner.observe(x[cut:], y[cut:]), loaded.observe(x[cut:], y[cut:])
        assert np.array_equal(a.log_loss, b.log_loss), f"loaded at example {cut}, it goes on otherwise"
        assert same_state(learner.state_dict(), loaded.state_dict()), f"loaded at example {cut}, it ends otherwise"


def check_copies(make: Make) -> None:
    """A deep copy must be a learner of its own that goes on alike; pickling must be refused in one sentence."""
    x, y = make_examples(100)
    for cut in (0, 45):
        learner = make(3)
        if cut:
            learner.observe(x[:cut], y[:cut])
        copied = copy.deepcopy(learner)
        assert same_state(learner.state_dict(), copied.state_dict()), f"a copy at example {cut} differs"
        copied.observe(-x[cut:], y[cut:])
        again = copy.deepcopy(learner)
        del copied
        a, b = again.observe(x[cut:], y[cut:]), learner.observe(x[cut:], y[cut:])
        assert np.array_equal(a.log_loss, b.log_loss), f"a copy at example {cut} goes on otherwise"
        assert same_state(learner.state_dict(), again.state_dict()), f"a copy at example {cut} ends otherwise"
        try:
            pickle.dumps(learner)
        except BadInput as error:
            assert "save(path)" in str(error), f"{str(error)!r} does not say how a learner is kept"
        else:
            raise AssertionError("a learner was pickled")


def check_snapshots(make: Make) -> None:
    """A snapshot must predict to the bit as the learner did then, while that learns on, and must refuse to learn."""
    x, y = make_examples(100)
    for cut in (0, 45):
        learner = make(3)
        if cut:
            learner.observe(x[:cut], y[:cut])
        taken = learner.snapshot()
        then = learner.predict_log_proba_many(x).tobytes()
        assert taken.predict_log_proba_many(x).tobytes() == then, f"a snapshot at example {cut} predicts otherwise"
        learner.observe(x[cut:], y[cut:])
        assert taken.predict_log_proba_many(x).tobytes() == then, "a snapshot changed while the learner learned on"
        assert taken.position == cut, f"a snapshot at example {cut} says that it is at example {taken.position}"
        before = learner.state_dict()
        try:
            taken.learn_many(x[:1], y[:1])
        except BadInput as error:
            assert "snapshot" in str(error), f"{str(error)!r} does not say that it is a snapshot"
        else:
            raise AssertionError("a snapshot learned")
        assert same_state(learner.state_dict(), before), "a snapshot changed the learner it was taken of"


def check_ids(make: Make) -> None:
    """What was asked by id must be charged as it was predicted then, learned once as late as it came, and kept."""
    x, y = make_examples(60)
    learner, other = make(3), make(3)
    for one in (learner, other):
        one.learn_many(x[:40], y[:40])
    asked = [learner.predict_log_proba_one(x[t], id=t) for t in range(40, 60)]
    assert learner.position == 40, "a prediction by id changed what was learned"
    order = [*range(50, 40, -1), 55]  # late, not in order, and not all of them
    for i, t in enumerate(order):
        charges = learner.learn(id=t, y=y[t])
        assert charges is not None, f"the label of id {t} was not learned"
        expected = -asked[t - 40][y[t]]
        assert abs(charges.log_loss[0] - expected) < TOLERANCE, (
            f"id {t} was charged {charges.log_loss[0]}, not {expected}"
        )
        other.learn_many(x[t : t + 1], [y[t]], [40] if i else None)
    assert learner.learn(id=order[0], y=y[order[0]]) is None, "the same label was learned twice"
    assert len(learner.asked) == 9, f"of 20 predictions, 11 were answered and {len(learner.asked)} wait"
    kept, expected_state = learner.state_dict(), other.state_dict()
    loaded = make(3)
    loaded.replay_from(RecordedStream(x, y))
    loaded.load_state_dict(kept)
    waiting = kept.pop("asked", None)
    assert waiting is not None, "what waits for labels was not kept with the state"
    assert same_state(loaded.asked.state_dict(), waiting), "what waits for labels came back otherwise"
    assert same_state(kept, expected_state), "learned by id, it is another learner than one that was given the examples"


def check_threads(make: Make) -> None:
    """Predicted from several threads while another learns, each prediction must be that of some moment in between."""
    x, y = make_examples(70)
    alone = make(3)
    alone.learn_many(x[:30], y[:30])
    moments = [alone.predict_log_proba_many(x[:1]).tobytes()]
    for t in range(30, 70):
        alone.learn(x[t], y[t])
        moments.append(alone.predict_log_proba_many(x[:1]).tobytes())
    learner, known = make(3), set(moments)
    learner.learn_many(x[:30], y[:30])
    over, found = threading.Event(), []

    def predict() -> None:
        while not over.is_set():
            try:
                if learner.predict_log_proba_many(x[:1]).tobytes() not in known:
                    found.append("a prediction that belongs to no moment")
                learner.predict(x[0])
            except Exception as error:
                found.append(repr(error))

    threads = [threading.Thread(target=predict) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for t in range(30, 70):
            learner.learn(x[t], y[t])
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not found, f"{len(found)} predictions during learning went wrong: {found[0]}"
    assert same_state(alone.state_dict(), learner.state_dict()), "predictions during learning changed what was learned"


def check_memory(make: Make) -> None:
    """Memory must stay the same however long the stream is."""
    with _NewObjects() as objects:
        learner = make(3)
        x, y = make_examples(200)
        for _ in range(2):  # until everything that is kept has been made
            learner.learn_many(x, y)
        held = _bytes(learner.state_dict())  # also waits for whatever the learner does behind
        total = objects.bytes()
        for _ in range(ROUNDS):  # what leaks grows in each; a cache that another thread happens to fill does not
            for _ in range(6):
                learner.learn_many(x, y)
            held_before, held = held, _bytes(learner.state_dict())
            total_before, total = total, objects.bytes()
            more, more_held = total - total_before, held - held_before
            if more < 5 * 1024 and more_held < 2 * 1024:
                return
    assert more < 5 * 1024, f"1,200 more examples took {more} more bytes"
    assert more_held < 2 * 1024, f"1,200 more examples made the state larger by {more_held} bytes"


class _NewObjects:
    """The size of all Python objects that were made since, counted one by one: tracemalloc makes learning slow.

    What there was before is left out, as walking it takes seconds, but for what its containers hold now in addition: a
    cache of a module may grow, too.
    """

    def __enter__(self) -> _NewObjects:
        gc.collect()
        self._containers = [one for one in gc.get_objects() if issubclass(type(one), CONTAINERS)]
        self._known = set(map(id, gc.get_referents(*self._containers)))
        gc.freeze()  # `gc.get_objects` leaves these out from now on
        return self

    def __exit__(self, *_: object) -> None:
        gc.unfreeze()
        self._containers, self._known = [], set()

    def bytes(self) -> int:
        gc.collect()
        objects = gc.get_objects()
        total = sum(map(_size, objects)) + sum(map(_size, self._containers))
        seen = self._known.union(map(id, objects))
        objects += self._containers
        while objects:  # what these refer to and the garbage collector does not track: arrays, texts, numbers
            referents = gc.get_referents(*objects)
            found = {id(one): one for one in referents if not gc.is_tracked(one)}
            objects = [found[key] for key in found.keys() - seen]
            seen.update(found)
            total += sum(map(_size, objects))
        return total


def _size(one: object) -> int:
    try:
        return sys.getsizeof(one)
    except Exception:  # an object of some library that does not know
        return 0


def _bytes(state: Any) -> int:
    """The size of all arrays and tensors in a state; to Python, a tensor is a small object."""
    if isinstance(state, dict):
        return sum(_bytes(part) for part in state.values())
    if isinstance(state, list):
        return sum(_bytes(part) for part in state)
    return int(getattr(state, "nbytes", 0))
