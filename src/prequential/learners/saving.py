"""Saving, loading and copying learners."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Self

from prequential.errors import BadCheckpoint, BadInput, one_line, short
from prequential.learners.asked import Asked
from prequential.learners.atomic import AtomicLearner
from prequential.storage.checkpoint import allow, loading, read_checkpoint, write_checkpoint
from prequential.storage.files import remove_temporaries, storage
from prequential.trust import stored_arguments


class SavedLearner(AtomicLearner):
    """A learner that can be saved to a file, copied and shown; pickling it is refused."""

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything that future predictions depend on: nested dicts of arrays, tensors and JSON values."""
        self._check_can_learn()  # a snapshot has not all of it
        with self._alone():
            return self._whole_state()

    def _whole_state(self) -> dict[str, Any]:
        shape = None if self.shape is None else list(self.shape)
        return {
            "labels": self.labels.state_dict(),
            "position": self.position,
            "shape": shape,
            **({} if self.schema is None else {"schema": self.schema.to_dict()}),
            **({"asked": self.asked.state_dict()} if self.asked.used else {}),
            "learner": self._state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores exactly the moment at which `state_dict()` was taken."""
        with self._guard.changing(), self._guard.inside(whole=False):
            self._check_state(state)
            schema = self._stored_schema(state)
            try:
                if schema is not None:
                    self._rows.load(schema)
                self.labels.load_state_dict(state["labels"])
                self.num_seen = len(self.labels)
                self.position = int(state["position"])
                self.shape = None if state["shape"] is None else tuple(state["shape"])
                self.asked = Asked()
                if "asked" in state:
                    self.asked.load_state_dict(state["asked"])
                self._load_state_dict(state["learner"])
            except BaseException as error:
                self._mark_broken(error)
                raise
            self._guard.broken = self._guard.mend = None

    @staticmethod
    def _stored_schema(state: dict[str, Any]) -> Any:
        """How rows are read, as it was saved; None where nothing was."""
        if (stored := state.get("schema")) is None:
            return None
        from prequential.streams.formats.schema import Schema

        schema = Schema.from_dict(stored)
        if state["shape"] is not None and list(state["shape"]) != [schema.width]:
            raise BadCheckpoint(f"its schema makes {schema.width} features, but x has shape {state['shape']!r}")
        return schema

    def _check_state(self, state: dict[str, Any]) -> None:
        """Refuses the state of another kind of learner, before anything is allocated for it."""
        capacity, position, shape = state["labels"]["capacity"], state["position"], state["shape"]
        classes = None if state["labels"].get("open_ended", False) else capacity
        if classes != self.labels.classes:
            raise BadCheckpoint(f"it was saved with classes {classes!r}, expected {self.labels.classes}")
        if type(capacity) is not int or capacity < 1:
            raise BadCheckpoint(f"it was saved with {short(capacity)} class ids, expected a whole number")
        sizes = [1] if shape is None else shape
        if type(position) is not int or not all(type(size) is int and size > 0 for size in sizes):
            raise BadCheckpoint(
                f"it was saved at example {position!r} with x of shape {shape!r}, expected whole numbers"
            )
        if position < 0 or len(state["labels"]["known"]) > capacity:
            raise BadCheckpoint(f"it was saved at example {position} with {len(state['labels']['known'])} labels")
        allow(8 * capacity, f"{capacity} classes")
        allow(8 * math.prod(sizes), f"x of shape {tuple(sizes)}")

    def save(self, path: str | Path) -> None:
        """Writes the learner to one file, atomically."""
        self._check_can_learn()
        with self._alone(), storage(Path(path)), self._beside(Path(path)) as more:
            kind = {"kind": type(self).__name__, "module": type(self).__module__}
            saved = {**kind, "config": self.config(), "state": self._whole_state(), **more}
            write_checkpoint(Path(path), saved)
            remove_temporaries(Path(path).parent, shared=True, of=Path(path).name)  # of saves that were killed

    @contextmanager
    def _beside(self, path: Path) -> Iterator[dict[str, Any]]:
        """Writes data that does not go into the file beside it; yields what the file says of it. By default nothing."""
        yield {}

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The learner that was saved to this file."""
        return cls._loaded(path)

    @classmethod
    def _loaded(cls, path: str | Path, **more: Any) -> Self:
        """`load`, with arguments of the constructor that are not part of what was saved."""
        saved = read_checkpoint(Path(path))
        if saved.get("kind") != cls.__name__:
            raise BadCheckpoint(f"{path} holds a {saved.get('kind')}, not a {cls.__name__}")
        with loading(Path(path)):
            learner = cls(**stored_arguments(cls, saved.get("config"), path), **more)
            learner._load_beside(Path(path), saved)
            learner.load_state_dict(saved["state"])
        return learner

    def _load_beside(self, path: Path, saved: dict[str, Any]) -> None:
        """Reads what `save` left beside the file, before the state is loaded. By default nothing."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if self._is_snapshot:  # nothing can change it
            return self
        with self._alone():
            copied = self._copied(snapshot=False)
        memo[id(self)] = copied
        return copied

    def snapshot(self) -> Self:
        """A copy of this moment to predict from while the learner learns on; it cannot learn.

        It copies what predicts, and nothing that only learning needs: no journal, no optimizer.
        """
        if self._is_snapshot:
            return self
        with self._alone():
            return self._copied(snapshot=True)

    def _copied(self, *, snapshot: bool) -> Self:
        copied = type(self)(**self.config(), **self._unsaved())
        asked = self.asked
        try:
            self.asked = Asked() if snapshot else asked  # a snapshot remembers nothing
            copied._take_copy(self, snapshot=snapshot)
        finally:
            self.asked = asked
        copied._is_snapshot = snapshot
        return copied

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={one_line(repr(value), 60)}" for name, value in self._shown_settings().items())
        return f"<{type(self).__name__}({given}): {', '.join(self._standing())}>"

    def _shown_settings(self) -> dict[str, Any]:
        """The arguments that differ from the defaults."""
        defaults = {name: given.default for name, given in inspect.signature(type(self)).parameters.items()}
        return {name: value for name, value in self.config().items() if name not in defaults or value != defaults[name]}

    def _standing(self) -> list[str]:
        """Where it stands, for `repr`."""
        known = len(self.labels)
        return [
            f"{self.position:,} example{'s' * (self.position != 1)} learned",
            f"{known:,} label{'s' * (known != 1)} seen",
            *([f"{len(self.asked):,} predictions wait for labels"] if len(self.asked) else []),
            *(["a snapshot"] if self._is_snapshot else []),
        ]

    def _unsaved(self) -> dict[str, Any]:
        """Arguments of the constructor that are not part of what is saved."""
        return {}

    def _take_copy(self, other: Self, *, snapshot: bool) -> None:
        """Copies the state of another learner that was made with the same arguments; for a snapshot, not its past."""
        self.load_state_dict(other._whole_state())

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        name = type(self).__name__
        raise BadInput(
            f"a {name} cannot be pickled: save(path) and {name}.load(path) bring it to another process, and "
            "copy.deepcopy(learner) makes another one here"
        )
