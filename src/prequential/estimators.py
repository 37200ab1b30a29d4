"""What the estimators of other libraries share: the learner's settings as their parameters, and pickling."""

from __future__ import annotations

import functools
import inspect
import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from prequential.errors import BadSetting
from prequential.learners.transformer.learner import Learner
from prequential.settings import Settings
from prequential.specs import nearest
from prequential.storage.checkpoint import in_one_order

Init = TypeVar("Init", bound=Callable[..., None])
SETTINGS = tuple(field.name for field in fields(Settings))
KEYWORD = inspect.Parameter.KEYWORD_ONLY


def takes_settings(*without: str) -> Callable[[Init], Init]:
    """Gives `__init__` all settings of the learner as keyword parameters, but for some, and keeps all as attributes.

    Both scikit-learn and River read the signature to clone an estimator and to show it.
    """

    def decorate(init: Init) -> Init:
        own = [p for p in inspect.signature(init).parameters.values() if p.kind is not p.VAR_KEYWORD]
        settings = [
            inspect.Parameter(field.name, KEYWORD, default=field.default, annotation=field.type)
            for field in fields(Settings)
            if field.name not in without
        ]
        signature = inspect.Signature([*own, *settings])
        names = [name for name in signature.parameters if name != "self"]

        @functools.wraps(init)
        def keep_settings(self: Any, **given: Any) -> None:
            for name in given:
                if name not in names:
                    raise BadSetting(f"unknown setting {name!r}{nearest(name, names)}")
            for name in names:
                setattr(self, name, given.get(name, signature.parameters[name].default))
            init(self, **given)

        keep_settings.__signature__ = signature  # type: ignore[attr-defined]
        return keep_settings  # type: ignore[return-value]

    return decorate


def settings_of(estimator: Any) -> dict[str, Any]:
    """The settings of the learner among the attributes of an estimator."""
    return {name: getattr(estimator, name) for name in SETTINGS if hasattr(estimator, name)}


class PackedLearner:
    """A learner as bytes, its past included: what goes into a pickle in its place.

    They are the file that `save` writes, and the journal beside it.
    """

    def __init__(self, learner: Learner) -> None:
        with tempfile.TemporaryDirectory() as directory:
            learner.save(Path(directory) / "learner")
            paths = sorted(path for path in Path(directory).rglob("*") if path.is_file() and path.name != ".lock")
            self.files = {str(path.relative_to(directory)): path.read_bytes() for path in paths}
            self.files["learner"] = in_one_order(self.files["learner"])  # equal learners have equal pickles

    def unpack(self, device: str) -> Learner:
        """The learner again."""
        with tempfile.TemporaryDirectory() as directory:
            for name, content in self.files.items():
                path = Path(directory) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            # an extractor of one's own is imported by name, as pickle imports everything else
            return Learner.load(Path(directory) / "learner", device=device, trust=True)


class PickledLearner:
    """An estimator whose learner goes into pickles as bytes."""

    device: str

    def __getstate__(self) -> dict[str, Any]:
        state: Any = super().__getstate__()
        return {name: PackedLearner(it) if isinstance(it, Learner) else it for name, it in state.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        device = state["device"]
        state = {name: it.unpack(device) if isinstance(it, PackedLearner) else it for name, it in state.items()}
        parent = super()
        if hasattr(parent, "__setstate__"):
            parent.__setstate__(state)
        else:
            self.__dict__.update(state)
