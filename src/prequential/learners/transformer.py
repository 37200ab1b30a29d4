"""The learner of the paper: a transformer with the recent past in context, trained online with replay-streams."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np

from prequential.checkpoint import CheckpointFolder
from prequential.errors import BadInput, BadSetting
from prequential.files import write_atomically
from prequential.learners.base import OnlineLearner, check_missing
from prequential.learners.behind import TrainerBehind
from prequential.learners.device import find_device
from prequential.learners.gate import check_float32
from prequential.learners.inputs import Inputs
from prequential.learners.memory import Memory, beside
from prequential.learners.trainer import Examples, Trainer
from prequential.memory import check_fits
from prequential.models.transformer import Transformer
from prequential.settings import Settings
from prequential.streams.journal import Journal
from prequential.streams.stream import Stream
from prequential.trust import stored_arguments


class Learner(OnlineLearner):
    """A transformer that learns in context at once and by gradient steps on every chunk and its replay-streams.

    Whatever the sizes in which examples arrive, gradient steps are taken on the same chunks of `settings.chunk`
    examples, each with the keys and values that one pass over the whole chunk gives: the state at a chunk border
    depends on the examples alone. In between, each example learnt is in the context of the next prediction.

    By default its prediction is mixed from several: the transformer's, the labels of those examples of the window that
    are most like this one, by their inputs and by what the blocks make of them, and the votes of the nearest of
    thousands before; and an average of the parameters predicts. `method="paper"` is the transformer's alone.

    Parameters
    ----------
    classes
        How many labels there can be, or the labels themselves.
    settings
        What the learner is made of; single settings can be given by name as well.
    home
        A directory in which a live learner keeps its examples and its saves. Without it they are in a temporary
        one, gone with the learner.
    device
        Where to compute: auto, cpu, cuda, cuda:1, ...
    missing
        Whether features may be NaN, meaning "not measured".

    Examples
    --------
    >>> learner = Learner(classes=2, width=16, depth=1, window=8, chunk=4, streams=2)
    >>> for t in range(40):
    ...     learner.learn([t % 3, 1.0], "yes" if t % 3 else "no")
    >>> learner.predict([1, 1.0])
    'yes'
    """

    def __init__(
        self,
        classes: int | Sequence[Hashable],
        *,
        settings: Settings | None = None,
        home: str | Path | None = None,
        device: str = "auto",
        missing: bool = False,
        **changes: Any,
    ) -> None:
        super().__init__(classes, missing=missing)
        self.settings = (settings or Settings()).changed(**changes)
        check_missing(missing, self.settings.standardise)
        self.device = find_device(device)
        self._check_memory(1)
        self.stride = self.settings.chunk
        self.home = None if home is None else Path(home)
        self._inputs: Inputs | None = None  # made when the first example shows what x looks like
        self._trainer: Trainer | None = None
        self._memory = Memory(None if self.home is None else self.home / "journal")
        self._done = 0  # examples in finished chunks
        self._known = self._known_at_border = len(self.labels)  # labels met so far, and up to the last chunk border
        self._pending_x: list[np.ndarray] = []  # the unfinished chunk, as it came
        self._pending_slots: list[int] = []
        if self.home is not None:
            if self.home.exists() and any(self.home.iterdir()):
                raise BadInput(f"{self.home} is not empty; Learner.open goes on with a learner that lives there")
            made = {"config": self.config(), "labels": self.labels.state()}
            write_atomically(self.home / "learner.json", json.dumps(made).encode())

    @property
    def model(self) -> Transformer | None:
        """The network, once there is one."""
        return None if self._trainer is None else self._trainer.model

    def config(self) -> dict[str, Any]:
        return {"classes": self.labels.capacity, "missing": self.missing, **asdict(self.settings)}

    def macs_per_example(self) -> float | None:
        """A forward and a backward pass (twice a forward one) in each of the streams, and the votes of the neighbours.

        One more forward pass where what predicts is not what learns: an average, or steps are behind.
        Where learning was stopped it is the average so far: from there on, there is one forward pass.
        """
        if self.model is None:
            return None
        forward = self.model.macs_per_example() + self.model.extractor_macs_per_example()
        assert self._trainer is not None
        votes = 0.0 if self._trainer.neighbours is None else self._trainer.neighbours.macs()
        apart = self.settings.behind or self.settings.averaging > 0
        learning = (3.0 * self.settings.streams + apart) * forward + votes
        stop = self.settings.freeze_at
        if stop is None or stop >= self.position:
            return learning
        return (stop * learning + (self.position - stop) * (forward + votes)) / self.position

    def replay_from(self, stream: Stream | None) -> None:
        """Replays from this stream instead of keeping a copy; None: what comes next is kept in a journal."""
        self._memory.follow(stream)

    # Predicting and learning.

    def _predict(self, x: np.ndarray) -> np.ndarray:
        if self._inputs is None or self._trainer is None:
            return np.full((len(x), self.labels.capacity), -np.log(self.labels.capacity))
        return self._trainer.predict(self._inputs.alone(x), self._known)

    def _learn(self, x: np.ndarray, slots: np.ndarray) -> None:
        self._take(x, slots, report=False)

    def _observe(self, x: np.ndarray, slots: np.ndarray) -> np.ndarray:
        return self._take(x, slots, report=True)

    def flush(self) -> None:
        """Takes the steps of the unfinished chunk now. The next chunk is the rest of it."""
        if self._pending_slots:
            self._turn(np.concatenate(self._pending_x), np.asarray(self._pending_slots))
            if self.home is not None:  # the journal knows the examples, but not that the chunk was cut short here
                self.save()

    def _take(self, x: np.ndarray, slots: np.ndarray, report: bool) -> np.ndarray:
        """Takes examples, chunk by chunk; their log-probabilities where a report is asked for."""
        reported = []
        start = 0
        while start < len(slots):
            room = self.settings.chunk - (self._done + len(self._pending_slots)) % self.settings.chunk
            part = slice(start, start + room)
            start += room
            self._memory.keep(x[part], [self.labels[slot] for slot in slots[part]])
            reported.append(self._take_part(x[part], slots[part], len(slots[part]) == room, report))
        return np.concatenate(reported) if report else np.empty(0)

    def _take_part(self, x: np.ndarray, slots: np.ndarray, completes: bool, report: bool) -> np.ndarray:
        """Takes examples that lie in one chunk."""
        assert self._inputs is not None
        assert self._trainer is not None
        if completes and not self._pending_slots:
            return self._turn(x, slots)
        log_p = np.empty(0)
        if report or not completes:
            log_p = self._trainer.extend_context((self._inputs.extend(x), slots, self._met(slots)))
        self._known = max(self._known, int(slots.max()) + 1)
        self._pending_x.append(x.copy())  # it is kept beyond this call, and the array is the user's
        self._pending_slots += slots.tolist()
        if completes:
            self._turn(np.concatenate(self._pending_x), np.asarray(self._pending_slots))
        return log_p

    def _turn(self, x: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """One turn on a whole chunk; its log-probabilities from before the steps."""
        assert self._inputs is not None
        assert self._trainer is not None
        self._known = self._known_at_border
        chunk = (self._inputs.finish_chunk(x), slots, self._met(slots))
        self._known = self._known_at_border = max(self._known, int(slots.max()) + 1)
        position = self._done
        self._done += len(slots)
        self._pending_x, self._pending_slots = [], []
        if self.settings.freeze_at is not None and self._done > self.settings.freeze_at:
            return self._trainer.score(chunk)
        following = self._done // self.settings.chunk + 1
        return self._trainer.turn(chunk, self._past_chunk, position=position, following=following)

    def _past_chunk(self, reader: int) -> Callable[[], Examples]:
        """Reads the chunk at which a replay stream stands; calling the result makes it what it was when it was new."""
        inputs, known = self._inputs, self._known
        assert inputs is not None
        assert self._trainer is not None
        number = self._trainer.readers.chunk[reader]
        start = (number - 1) * self.settings.chunk
        chunk = self._memory.read(start, start + self.settings.chunk)
        slots = np.asarray(self.labels.assign(chunk.y))
        return lambda: (inputs.replayed(reader, chunk.x, first=number == 1), slots, np.full(len(slots), known))

    def _met(self, slots: np.ndarray) -> np.ndarray:
        """How many labels had been met before each of these examples, which come next."""
        if len(slots) == 1:
            return np.array([self._known])
        return np.maximum.accumulate(np.concatenate([[self._known], slots[:-1] + 1]))

    def _prepare(self, x: np.ndarray) -> None:
        if self._inputs is None:
            self._build(x.shape[1:], x.dtype)

    def _build(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Makes the network for inputs like the first example."""
        inputs = Inputs(self.settings, shape, dtype)
        if self.missing and not inputs.standardises:
            raise BadSetting(f"features may be missing only where they are standardised, but x has shape {shape}")
        self._check_memory(inputs.features)
        trainer = TrainerBehind if self.settings.behind else Trainer
        self._trainer = trainer(
            self.settings,
            features=inputs.features,
            extractor=inputs.extractor,
            shape=shape,
            classes=self.labels.capacity,
            device=self.device,
            neighbours=inputs.neighbours,
            compared=inputs.compared,
        )
        self._inputs = inputs

    def _check_memory(self, features: int) -> None:
        s, classes = self.settings, self.labels.capacity
        sizes = f"width ({s.width}), depth ({s.depth}), window ({s.window}), streams ({s.streams}), classes ({classes})"
        what = f"{features} features, {sizes}" if features > 1 else sizes
        if self.device.type == "cpu":
            check_fits(s.least_bytes(classes, features), what)

    def _checked(self, xs: Any, ys: Sequence[Hashable] | None = None) -> np.ndarray:
        x = super()._checked(xs, ys)
        if x.ndim > 2 or self.settings.standardise is False:
            check_float32(x, self.position)
        if self._inputs is not None and x.ndim > 2 and (x.dtype == np.uint8) != self._inputs.image_bytes:
            expected = "uint8" if self._inputs.image_bytes else "floats"
            raise BadInput(f"example {self.position}: the image is {x.dtype}, but the first one was {expected}")
        return x

    # Keeping what was learnt.

    def save(self, path: str | Path | None = None) -> None:
        """Writes the learner to one file, atomically; the examples it replays from are copied beside it.

        Without a path it is saved in its home, where `Learner.open` finds it.
        """
        if path is None:
            if self.home is None:
                raise BadInput("save needs a path: this learner was made without a home")
            self._memory.sync()
            CheckpointFolder(self.home / "saves").write(self.position, self.state())
            return
        self._memory.save(beside(path))
        super().save(path)

    @classmethod
    def load(cls, path: str | Path, *, home: str | Path | None = None, device: str = "auto") -> Self:
        """The learner that was saved to this file."""
        return cls._loaded(path, home=home, device=device)

    def _load_beside(self, path: Path, state: dict[str, Any]) -> None:
        if state["learner"]["memory"]["journal"]:
            self._memory.load(beside(path))

    @classmethod
    def open(cls, home: str | Path, *, device: str = "auto") -> Self:
        """The learner that lives in this directory, as it was after the last example it was given.

        It goes on from its newest save and learns again, from the journal, what came after that.
        """
        home = Path(home)
        if not (home / "learner.json").is_file():
            raise BadInput(f"{home} holds no learner; Learner(..., home=...) makes one there")
        made = json.loads((home / "learner.json").read_text())
        learner = cls(**stored_arguments(cls, made.get("config"), home / "learner.json"), device=device)
        learner.home = home
        learner.labels.load_state(made["labels"])
        learner._known = learner._known_at_border = len(learner.labels)
        journal = Journal(home / "journal")

        def ahead(state: dict[str, Any]) -> str | None:
            position = state["position"]
            return (
                f"it was saved at {position} examples, but the journal holds {len(journal)}"
                if position > len(journal)
                else None
            )

        state, _ = CheckpointFolder(home / "saves").newest(ahead)
        if state is not None:
            learner.load_state(state)
        learner.replay_from(journal)
        for start in range(learner.position, len(journal), learner.stride):
            chunk = journal.read(start, start + learner.stride)
            learner.learn_many(chunk.x, chunk.y)
        learner._memory.adopt(journal)
        return learner

    def _state(self) -> dict[str, Any]:
        pending = np.concatenate(self._pending_x) if self._pending_x else None
        trainer = None if self._trainer is None else self._trainer.state()  # first: it waits for steps under way
        return {
            "image_bytes": self._inputs is not None and self._inputs.image_bytes,
            "inputs": None if self._inputs is None else self._inputs.state(),
            "trainer": trainer,
            "memory": self._memory.state(),
            "done": self._done,
            "known": [self._known, self._known_at_border],
            "pending_x": pending,
            "pending_slots": list(self._pending_slots),
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        self._inputs = self._trainer = None
        if state["inputs"] is not None:
            assert self.shape is not None
            self._build(self.shape, np.dtype(np.uint8 if state["image_bytes"] else np.float32))
            assert self._inputs is not None
            assert self._trainer is not None
            self._inputs.load_state(state["inputs"])
            self._trainer.load_state(state["trainer"])
        self._done = int(state["done"])
        self._known, self._known_at_border = (int(count) for count in state["known"])
        self._pending_x = [] if state["pending_x"] is None else [state["pending_x"]]
        self._pending_slots = [int(slot) for slot in state["pending_slots"]]
        self._memory.load_state(state["memory"])
