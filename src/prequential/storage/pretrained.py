"""Pretrained networks of Hugging Face on disk: fetched, and checked so that loading them executes nothing."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from prequential.errors import BadInput, MissingExtra

MOST_LAYERS, MOST_PIXELS, MOST_NUMBER = 4096, 2**14, 2**24  # in a configuration: layers, length of an image, any other
CONFIGS = (
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "generation_config.json",
    "tokenizer_config.json",
)
CODE = (  # entries of a configuration that name code or other weights
    "auto_map", "custom_generate", "custom_pipelines", "quantization_config", "use_pretrained_backbone",
    "kernel_config",
)  # fmt: skip


def pretrained_folder(
    name: str | Path,
    revision: str | None = None,
    *,
    names: Mapping[str, str],
    extra: str,
    others: str = "",
    files: Sequence[str] = ("*.json", "*.safetensors"),
) -> Path:
    """The local folder with a network's configuration and weights, fetched from the hub if it is not there yet.

    Parameters
    ----------
    name
        A folder, a short name, or owner/name on the hub.
    revision
        A commit of the hub's repository.
    names
        Short names, and what they are called on the hub.
    extra
        The optional packages of prequential that it takes.
    others
        What else a name could be, for messages.
    files
        Which files of the repository are fetched.
    """
    if Path(name).is_dir():
        return Path(name)
    repository = names.get(str(name), str(name))
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", repository):
        raise BadInput(
            f"{str(name)!r} is no network and no folder; expected {', '.join(names)}, owner/name on the hub"
            f"{others} or a folder"
        )
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.constants import ENDPOINT
    except ImportError:
        raise MissingExtra(f"the network {name}", extra) from None

    def fetch(local: bool) -> Path:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=[*files], local_files_only=local))

    with suppress(OSError, ValueError):  # not fetched yet
        folder = fetch(local=True)
        if any(folder.glob("*.safetensors")):
            return folder
    reason = _no_network(ENDPOINT)
    if not reason:
        try:
            return fetch(local=False)
        except (OSError, ValueError) as error:
            reason = first_line(error)
    raise BadInput(
        f"the weights of {repository} are not on this machine and cannot be fetched ({reason}); "
        f"fetch them where there is a network with: hf download {repository} --local-dir FOLDER, and give that folder"
    )


def _no_network(endpoint: str) -> str:
    """Why the hub cannot be reached, found out in seconds where the hub's own client would try for half a minute."""
    if urllib.request.getproxies():
        return ""  # a proxy answers for all names; let the client find out
    place = urllib.parse.urlsplit(endpoint)
    try:
        socket.create_connection((place.hostname or "", place.port or 443), timeout=10).close()
    except OSError as error:
        return str(error)
    return ""


def check_weights(folder: Path, name: str) -> str:
    """SHA-256 of the weights; the hub's cache names a file after its own, with which it is compared."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        place = f"the folder {folder}" if Path(name).is_dir() else f"what was fetched of {name} to {folder}"
        raise BadInput(
            f"{place} has no .safetensors weights in it; expected config.json and model.safetensors (pickled weights are "
            "not read, as they could run code)"
        )
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        promised = path.resolve().name
        if re.fullmatch("[0-9a-f]{64}", promised) and found != promised:
            raise BadInput(f"{path} has checksum {found[:12]}…, expected {promised[:12]}…; delete it to fetch it again")
        total.update(found.encode())
    return found if len(files) == 1 else total.hexdigest()


def check_config(folder: Path) -> None:
    """Refuses a folder that asks for more than a network of this library with the weights in it."""
    if (folder / "adapter_config.json").exists():
        raise BadInput(
            f"{folder} holds an adapter (adapter_config.json), which could load another network; expected one"
        )
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    for path in (folder / name for name in CONFIGS):
        try:
            content = read_config(path)
            found = _asks_for_code(content)
        except (ValueError, RecursionError, OSError) as error:
            raise BadInput(f"the network in {folder} cannot be loaded: {path.name}: {first_line(error)}") from None
        if found:
            raise BadInput(
                f"{path} has {found}, which would run or fetch what is not in the folder; nothing was loaded"
            )
        if path.name == "tokenizer_config.json":  # it allocates nothing, and some have 1e30 for "any length"
            continue
        if too_large := _too_large(content, weights):
            raise BadInput(f"{path} has {too_large}; nothing was loaded")


def _asks_for_code(content: Any) -> str:
    """The first entry, at any depth, by which a configuration names code, kernels or other weights; else ""."""
    todo = [content]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        if isinstance(one, dict):
            for key, value in one.items():
                named = key.endswith("_implementation") or key == "backbone"
                if value and (key in CODE or (named and not _is_plain(value))):
                    return f"{key} = {str(value)[:60]!r}"
                todo.append(value)
    return ""


def _too_large(content: Any, weights: int) -> str:
    """The first size, at any depth, that no network with so many bytes of weights has; "" if there is none.

    A layer has at least hidden_size x hidden_size weights and as many as hidden_size x intermediate_size, and a weight
    takes at least a byte.
    """
    todo = [content]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        if not isinstance(one, dict):
            continue
        todo += one.values()
        for key, value in one.items():
            numbers = [number for number in (value if isinstance(value, list) else [value]) if type(number) is int]
            if re.fullmatch(r"depths?|num_\w*(layers|blocks|stages)", key):
                most = MOST_LAYERS
            elif key in ("image_size", "size"):
                most = MOST_PIXELS
            elif re.fullmatch(r"(\w+_)?(hidden_sizes?|embed_dim|hidden_dim|d_model|width)", key):
                most = math.isqrt(weights)
            else:
                most = max(weights, MOST_NUMBER)
            if max(numbers, default=0) > most:
                return f"{key} = {str(max(numbers))[:40]}, expected at most {most}"
        sizes = [one.get(key) for key in ("hidden_size", "intermediate_size", "num_hidden_layers")]
        if all(type(size) is int for size in sizes) and math.prod(cast(list[int], sizes)) > weights:
            said = " x ".join(map(str, sizes))
            return f"hidden_size x intermediate_size x num_hidden_layers = {said}, more than its {weights} bytes of weights"
    return ""


def _is_plain(value: Any) -> bool:
    """Whether a value names what comes with PyTorch or transformers, and no repository of the hub (owner/name)."""
    return isinstance(value, bool) or (isinstance(value, str) and re.fullmatch(r"[\w-]+", value) is not None)


@contextmanager
def no_pickles() -> Iterator[None]:
    """Whatever a library asks PyTorch to load, it loads weights only."""
    before = {
        name: os.environ.get(name) for name in ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    }
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def silence() -> Iterator[None]:
    """Keeps transformers from drawing progress bars of its own and from telling which weights it does not need."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """What an error of a library says, without its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".:")


def read_config(path: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing where there is none."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found
