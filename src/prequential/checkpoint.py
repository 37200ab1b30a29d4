"""Checkpoints: nested dicts of arrays, tensors and JSON values in one checksummed safetensors file.

Writing is atomic (temporary name, sync, rename); reading executes nothing from the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadCheckpoint
from prequential.files import write_atomically

FORMAT = "prequential-checkpoint-1"
Refuse = Callable[[dict[str, Any]], str | None]


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Writes a state to one file."""
    from safetensors.numpy import save

    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(_take_arrays(state, "", arrays))
    metadata = {"format": FORMAT, "state": text, "sha256": _checksum(text, arrays)}
    write_atomically(path, save(arrays, metadata))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The state that was written to this file; arrays and tensors come back as NumPy arrays."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise BadCheckpoint(f"{path} does not exist")
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise BadCheckpoint(f"{path} has format {metadata.get('format')!r}, expected {FORMAT!r}")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise BadCheckpoint(f"{path} is damaged: {error}") from None
    text, expected = metadata.get("state", ""), metadata.get("sha256", "none")
    found = _checksum(text, arrays)
    if found != expected:
        raise BadCheckpoint(f"{path} is damaged: its checksum is {found[:12]}…, expected {expected[:12]}…")
    state: dict[str, Any] = _put_arrays(json.loads(text), arrays)
    return state


class CheckpointFolder:
    """The newest checkpoints of a run or of a live learner; when the newest is damaged, the one before it is used.

    Parameters
    ----------
    directory
        Where they are kept.
    keep
        How many of them.
    """

    def __init__(self, directory: str | Path, *, keep: int = 2) -> None:
        self.directory, self.keep = Path(directory), keep

    def write(self, position: int, state: dict[str, Any]) -> None:
        """Writes the checkpoint of a position and removes those that are no longer needed."""
        write_checkpoint(self.directory / f"{position:012d}.safetensors", state)
        for old in [*self._paths()[: -self.keep], *self.directory.glob(".*.tmp")]:  # some a killed process has left
            old.unlink()

    def newest(self, refuse: Refuse | None = None) -> tuple[dict[str, Any] | None, list[str]]:
        """The newest state that can be used (None if there is none), and a sentence on each that could not.

        `refuse` may say why a state that can be read is not one to go on with.
        """
        refused: list[str] = []
        for path in reversed(self._paths()):
            try:
                state = read_checkpoint(path)
            except BadCheckpoint as error:
                refused.append(str(error))
                continue
            reason = None if refuse is None else refuse(state)
            if reason is None:
                return state, refused
            refused.append(f"{path} does not belong here: {reason}")
        return None, refused

    def _paths(self) -> list[Path]:
        return sorted(self.directory.glob("[0-9]*.safetensors"))


def same_state(a: Any, b: Any) -> bool:
    """Whether two states are equal to the last bit."""
    arrays_a: dict[str, np.ndarray] = {}
    arrays_b: dict[str, np.ndarray] = {}
    text_a, text_b = json.dumps(_take_arrays(a, "", arrays_a)), json.dumps(_take_arrays(b, "", arrays_b))
    return _checksum(text_a, arrays_a) == _checksum(text_b, arrays_b)


def _take_arrays(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """The value with every array replaced by a reference to its name; the arrays are collected."""
    if isinstance(value, dict):
        return {str(key): _take_arrays(part, f"{name}/{key}", arrays) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_take_arrays(part, f"{name}/{i}", arrays) for i, part in enumerate(value)]
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "detach"):  # a torch tensor, without importing torch here
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        arrays[name] = np.ascontiguousarray(value)
        return {"$array": name, "shape": list(value.shape)}
    return value


def _put_arrays(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if "$array" in value:
            return arrays[value["$array"]].reshape(value["shape"])
        return {key: _put_arrays(part, arrays) for key, part in value.items()}
    if isinstance(value, list):
        return [_put_arrays(part, arrays) for part in value]
    return value


def _checksum(text: str, arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].dtype}{arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()
