"""Frozen pretrained networks by name: from Hugging Face, from timm where it runs, or from a local folder."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import math
import os
import pickle  # only to name the error that PyTorch's reader of plain data raises
import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional as F

from prequential.errors import BadInput, BadSetting, MissingExtra

NAMES = {  # short names of the networks in the paper and their kin; any other name on the hub works too
    "resnet50": "microsoft/resnet-50",
    "mae-vit-b": "facebook/vit-mae-base",
    "mae-vit-l": "facebook/vit-mae-large",
    "mae-vit-h": "facebook/vit-mae-huge",
    "dinov2-s": "facebook/dinov2-small",
    "dinov2-b": "facebook/dinov2-base",
    "dinov2-l": "facebook/dinov2-large",
    "dinov2-g": "facebook/dinov2-giant",
}
MOST_LAYERS, MOST_PIXELS, MOST_NUMBER = 4096, 2**14, 2**24  # in a configuration: layers, length of an image, any other
CONFIGS = ("config.json", "preprocessor_config.json", "processor_config.json", "generation_config.json")
CODE = (  # entries of a configuration that name code or other weights
    "auto_map", "custom_generate", "custom_pipelines", "quantization_config", "use_pretrained_backbone",
    "kernel_config",
)  # fmt: skip
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and standard deviation


class Network:
    """A frozen network: images in, one row of features for each out.

    Images are scaled to `size` × `size`, to [0, 1], and standardized with `mean` and `std`.

    Parameters
    ----------
    name
        What it is called; kept with the features.
    run
        From standardized images (n, 3, size, size) to features (n, width).
    width
        How many features there are.
    size
        Height and width of the images it takes.
    mean, std
        Of the three channels.
    checksum
        SHA-256 of the weights; kept with the features.
    device
        Where `run` computes.

    Examples
    --------
    >>> color = Network("color", lambda images: images.mean((2, 3)), width=3, size=8, mean=(0, 0, 0), std=(1, 1, 1))
    >>> color(np.full((1, 8, 8, 3), 255, np.uint8)).tolist()
    [[1.0, 1.0, 1.0]]
    """

    def __init__(
        self,
        name: str,
        run: Callable[[torch.Tensor], torch.Tensor],
        *,
        width: int,
        size: int,
        mean: tuple[float, ...] = IMAGENET[0],
        std: tuple[float, ...] = IMAGENET[1],
        checksum: str = "",
        device: str | torch.device = "cpu",
    ) -> None:
        self.name, self.run, self.width, self.size, self.checksum = name, run, width, size, checksum
        self.mean, self.std = (torch.tensor(three, device=device).view(1, 3, 1, 1) for three in (mean, std))
        self.device = torch.device(device)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Features (n, width) float32 of images (n, height, width), (n, height, width, 1 or 3), uint8."""
        if images.ndim == 4 and images.shape[3] == 1:
            images = images[..., 0]
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] != 3):
            raise BadInput(f"images are {images.dtype} {images.shape}, expected uint8 (n, height, width, 3)")
        if images.ndim == 3:
            images = np.repeat(images[..., None], 3, axis=3)
        with torch.inference_mode():
            x = torch.as_tensor(np.array(images, order="C")).to(self.device).permute(0, 3, 1, 2).float() / 255
            if x.shape[2:] != (self.size, self.size):
                x = F.interpolate(x, (self.size, self.size), mode="bicubic", antialias=True).clamp(0, 1)
            features = self.run((x - self.mean) / self.std)  # (n, width)
        if features.shape != (len(images), self.width):
            raise BadInput(f"{self.name} gave {tuple(features.shape)}, expected {(len(images), self.width)}")
        rows: np.ndarray = features.float().cpu().numpy()
        return rows


def load_network(
    name: str | Path,
    *,
    pooling: str = "auto",
    size: int | None = None,
    device: str | torch.device = "cpu",
    revision: str | None = None,
) -> Network:
    """The frozen network of this name.

    Parameters
    ----------
    name
        resnet50, mae-vit-b, mae-vit-l, dinov2-b and the like, any vision model on the Hugging Face hub as owner/name,
        timm:NAME where timm runs, or a local folder with config.json and model.safetensors.
    pooling
        How a transformer's tokens become one row: "cls" takes the class token, "mean" the mean of the patches. "auto"
        is the mean for MAE, which trains no class token of its own accord, and the class token for the others.
        Convolutional networks have their own global average.
    size
        Height and width of the images it gets; by default what it was trained with.
    device
        Where it computes.
    revision
        A commit of the hub's repository, to be sure of the very same weights later.
    """
    if pooling not in ("auto", "cls", "mean"):
        raise BadSetting(f"pooling is {pooling!r}, expected 'auto', 'cls' or 'mean'")
    if str(name).startswith("timm:"):
        return _from_timm(str(name), size, device)
    folder = _folder(name, revision)
    checksum = _check_weights(folder, str(name))
    try:  # only now: it takes seconds to import, and a wrong name should be reported at once
        from transformers import AutoModel
    except ImportError:
        raise MissingExtra(f"the network {name}", "features") from None
    from safetensors import SafetensorError

    if not (folder / "config.json").is_file():
        raise BadInput(f"{folder} has no config.json, which says what kind of network its weights are of")
    _check_config(folder)
    try:
        with _silence(), _no_pickles():
            model, loading = AutoModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise BadInput(f"the network in {folder} cannot be loaded: {_first_line(error)}") from None
    # weights that are not in the file would be random; a pooler is, in many, and is not used
    absent = sorted(key for key in loading["missing_keys"] if not key.startswith("pooler."))
    if absent:
        raise BadInput(
            f"{folder} has no weights for {len(absent)} parts of the {model.config.model_type} that its config.json tells "
            f"of, the first is {absent[0]}"
        )
    model.eval().requires_grad_(False).to(device)
    kind = model.config.model_type
    shown = _json(folder / "preprocessor_config.json")
    size = size or _input_size(shown, model.config)
    run, width = _tokens_to_row(model, kind, pooling, size)
    mean, std = (
        tuple(shown.get(key, default)) for key, default in zip(("image_mean", "image_std"), IMAGENET, strict=True)
    )
    called = Path(name).resolve().name if Path(name).is_dir() else str(name)  # from wherever it is asked for
    label = called if pooling == "auto" else f"{called}, {pooling}"
    return Network(label, run, width=width, size=size, mean=mean, std=std, checksum=checksum, device=device)


def _tokens_to_row(
    model: Any, kind: str, pooling: str, size: int
) -> tuple[Callable[[torch.Tensor], torch.Tensor], int]:
    """What turns standardized images into rows, and how wide they are."""
    config = model.config
    if not (hasattr(config, "hidden_sizes") or hasattr(config, "patch_size")):
        raise BadInput(f"{kind} is not a network that this can take features from; expected a vision model")
    trained = getattr(config, "image_size", size)
    options: dict[str, Any] = {}
    if size != trained and "interpolate_pos_encoding" in inspect.signature(model.forward).parameters:
        options["interpolate_pos_encoding"] = True
    if kind == "vit_mae":
        config.mask_ratio = 0.0  # all patches are seen
        patches = (size // config.patch_size) ** 2

    def outputs(x: torch.Tensor) -> Any:
        if kind == "vit_mae":  # it sorts the patches by noise, at random unless given: rising noise keeps their order
            options["noise"] = torch.arange(patches, device=x.device).float().expand(len(x), -1)
        return model(x, **options)

    try:
        with torch.inference_mode():
            found = outputs(torch.zeros(1, int(getattr(config, "num_channels", 3)), size, size, device=model.device))
        shape = found.last_hidden_state.shape
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise BadInput(f"{kind} gives no features of images of {size} × {size}: {_first_line(error)}") from None
    if len(shape) == 4:  # convolutional: the average over the last feature map
        if getattr(found, "pooler_output", None) is not None:
            return lambda x: outputs(x).pooler_output.flatten(1), int(found.pooler_output.flatten(1).shape[1])
        return lambda x: outputs(x).last_hidden_state.mean((2, 3)), int(shape[1])
    # tokens (n, others + patches, width), where the others are a class token and perhaps registers; Swin has none
    others = shape[1] - (size // _one(config.patch_size)) ** 2
    if pooling == "cls" and others < 1:
        raise BadSetting(f"pooling is 'cls', but {kind} has no class token; expected 'auto' or 'mean'")
    if pooling == "mean" or others < 1 or (pooling == "auto" and kind == "vit_mae"):
        return lambda x: outputs(x).last_hidden_state[:, max(0, others) :].mean(1), int(shape[2])
    return lambda x: outputs(x).last_hidden_state[:, 0], int(shape[2])


def _one(size: Any) -> int:
    """Height and width in one number."""
    return int(size if isinstance(size, int) else size[0])


def _first_line(error: Exception) -> str:
    """What an error of a library says, without its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".:")


@contextmanager
def _silence() -> Iterator[None]:
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


def _input_size(shown: dict[str, Any], config: Any) -> int:
    """The height and width that the network was trained with, from what its folder says."""
    for found in (shown.get("crop_size") if shown.get("do_center_crop") else None, shown.get("size")):
        if isinstance(found, int):
            return found
        if isinstance(found, dict):
            return int(found.get("height") or found["shortest_edge"])
    size = getattr(config, "image_size", None) or 224
    return _one(size)


def _folder(name: str | Path, revision: str | None) -> Path:
    """The local folder with the network's configuration and weights, fetched from the hub if it is not there yet."""
    if Path(name).is_dir():
        return Path(name)
    repository = NAMES.get(str(name), str(name))
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", repository):
        raise BadInput(
            f"{str(name)!r} is no network and no folder; expected {', '.join(NAMES)}, owner/name on the hub, timm:NAME "
            "or a folder"
        )
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.constants import ENDPOINT
    except ImportError:
        raise MissingExtra(f"the network {name}", "features") from None

    def fetch(local: bool) -> Path:
        patterns = ["*.json", "*.safetensors"]
        return Path(snapshot_download(repository, revision=revision, allow_patterns=patterns, local_files_only=local))

    with suppress(OSError, ValueError):  # not fetched yet
        folder = fetch(local=True)
        if any(folder.glob("*.safetensors")):
            return folder
    reason = _no_network(ENDPOINT)
    if not reason:
        try:
            return fetch(local=False)
        except (OSError, ValueError) as error:
            reason = _first_line(error)
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


def _check_weights(folder: Path, name: str) -> str:
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


def _check_config(folder: Path) -> None:
    """Refuses a folder that asks for more than a network of this library with the weights in it."""
    if (folder / "adapter_config.json").exists():
        raise BadInput(
            f"{folder} holds an adapter (adapter_config.json), which could load another network; expected one"
        )
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    for path in (folder / name for name in CONFIGS):
        try:
            content = _json(path)
            found = _asks_for_code(content)
        except (ValueError, RecursionError, OSError) as error:
            raise BadInput(f"the network in {folder} cannot be loaded: {path.name}: {_first_line(error)}") from None
        if found:
            raise BadInput(
                f"{path} has {found}, which would run or fetch what is not in the folder; nothing was loaded"
            )
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
def _no_pickles() -> Iterator[None]:
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


def _from_timm(name: str, size: int | None, device: str | torch.device) -> Network:
    if not re.fullmatch(r"timm:[\w.]+", name):
        raise BadInput(f"{name!r} is no network of timm's own; expected timm:NAME with letters, digits, '_' and '.'")
    try:
        timm: Any = importlib.import_module("timm")
    except (ImportError, RuntimeError):  # it needs torchvision, which fails to load beside some builds of torch
        raise MissingExtra(f"the network {name}", "timm") from None
    try:
        with _no_pickles():
            model = timm.create_model(name.removeprefix("timm:"), pretrained=True, num_classes=0)
    except (OSError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        raise BadInput(f"{name} cannot be loaded: {_first_line(error)}") from None
    model.eval().requires_grad_(False).to(device)
    data_config = timm.data.resolve_model_data_config(model)
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode() + value.cpu().numpy().tobytes())
    return Network(
        name,
        model,
        width=int(model.num_features),
        size=size or int(data_config["input_size"][-1]),
        mean=data_config["mean"],
        std=data_config["std"],
        checksum=digest.hexdigest(),
        device=device,
    )


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found
