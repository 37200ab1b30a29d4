"""The structures and functions of transformer.cpp for ctypes, and how they are filled from a model."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prequential.models.transformer import Transformer
from prequential.native.library import library

HEADS = {  # the output heads that it knows, with their parameters
    "softmax": ["norm.weight", "norm.bias", "readout.weight", "readout.bias"],
    "copy": ["log_temperature", "recency_slope", "null_logit"],
    "deep-copy": ["log_temperature", "recency_slope", "null_logit", "key_proj.weight"],
}

_pointer, _int = ctypes.c_void_p, ctypes.c_int32


class ParameterStruct(ctypes.Structure):
    _fields_ = [
        *((name, _pointer) for name in ("value", "exp_avg", "exp_avg_sq", "step")),
        ("size", ctypes.c_int64),
        ("weight_decay", ctypes.c_double),
    ]


class ModelStruct(ctypes.Structure):
    _fields_ = [
        ("parameters", ctypes.POINTER(ParameterStruct)),
        ("rotary", _pointer),
        ("rotary_columns", _pointer),
        *((name, _int) for name in ("num_parameters", "rotary_length", "rotary_columns_length")),
        *((name, _int) for name in ("features", "width", "num_heads")),
        *((name, _int) for name in ("mlp_width", "depth", "num_classes", "window")),
        *((name, _int) for name in ("use_input", "has_softmax", "has_copy", "has_deep_copy", "tokens_per_example")),
    ]


class StreamStruct(ctypes.Structure):
    _fields_ = [
        *((name, _pointer) for name in ("x", "y", "num_seen", "visible")),
        *((name, _pointer) for name in ("keys", "values", "example_keys", "example_labels")),
        *((name, _pointer) for name in ("log_probs", "new_keys", "new_values")),
        *((name, _pointer) for name in ("new_example_keys", "new_example_labels")),
        *((name, ctypes.c_int64) for name in ("block_stride", "new_block_stride")),
        *((name, _int) for name in ("length", "past", "past_examples", "padding")),
    ]


class StepStruct(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in ("learning_rate", "beta1", "beta2", "eps")]


class Bound(NamedTuple):
    """The structure of a model with its parameters, and what must stay alive for it."""

    address: int
    pointers: list[int]
    alive: list[Any]


def bind(
    model: Transformer,
    given: Sequence[nn.Parameter],
    pointers: list[int],
    moments: Sequence[Tensor] | None = None,
    adamw: torch.optim.AdamW | None = None,
) -> Bound:
    """Fills the structure of a model: its parameters in order, and AdamW's two moments and step of each."""
    settings = model.settings
    decay = {} if adamw is None else _weight_decay(adamw)
    parameters = (ParameterStruct * len(given))()
    alive: list[Any] = [parameters]
    for i, parameter in enumerate(given):
        value = parameter.detach()
        of_it = [] if moments is None else moments[3 * i : 3 * i + 3]
        for tensor in (value, *of_it):
            if tensor.dtype != torch.float32 or not tensor.is_contiguous():
                raise ValueError("the native core takes contiguous tensors in float32 only")
        if of_it and (of_it[0].shape != value.shape or of_it[1].shape != value.shape or of_it[2].numel() != 1):
            raise ValueError(f"moments have shape {tuple(of_it[0].shape)}, expected {tuple(value.shape)}")
        parameters[i] = ParameterStruct(
            value.data_ptr(),
            *((moment.data_ptr() for moment in of_it) if of_it else (None, None, None)),
            value.numel(),
            decay.get(id(parameter), 0.0),
        )
        alive += [value, *of_it]
    rotary = columns = None
    if settings.positions == "rotary" and settings.window and len(model.blocks):
        rotary = torch.view_as_real(model.rotary.table).contiguous()  # (length, width / 2, 2)
        columns = F.pad(rotary.permute(1, 2, 0), (0, 16)).contiguous()
        alive += [rotary, columns]
    heads = model.output_heads
    made = ModelStruct(
        parameters,
        None if rotary is None else rotary.data_ptr(),
        None if columns is None else columns.data_ptr(),
        len(parameters),
        len(model.rotary.table),
        len(model.rotary.table) + 16,
        *(model.features, settings.width, settings.effective_num_query_heads, settings.effective_mlp_width),
        *(len(model.blocks), model.num_classes, settings.window, settings.use_input),
        *("softmax" in heads, "copy" in heads, "deep-copy" in heads, model.tokens_per_example),
    )
    alive.append(made)
    return Bound(ctypes.addressof(made), pointers, alive)


def parameters_in_order(model: Transformer) -> list[nn.Parameter]:
    """The parameters in the order that model.h says."""
    named = dict(model.named_parameters())
    names = ["embed.weight", "embed.bias"] if model.settings.use_input else ["constant"]
    names += ["label_embedding.weight", "token_type.weight"] if model.tokens_per_example == 2 else []
    for i, block in enumerate(model.all_blocks):
        of_block = ["mlp_bias", "norm.weight", "norm.bias", "in_proj.weight", "out_proj.weight"]
        of_block += ["key_labels.weight", "value_labels.weight"] if block.key_labels is not None else []
        names += [f"blocks.{i}.{name}" for name in of_block]
    names += [f"output_heads.{head}.{name}" for head in model.output_heads for name in HEADS[head]]
    if set(names) != set(named):
        raise ValueError(f"the native core does not know the parameters {sorted(set(named) - set(names))}")
    return [named[name] for name in names]


def _weight_decay(adamw: torch.optim.AdamW) -> dict[int, float]:
    first = adamw.param_groups[0]
    for group in adamw.param_groups:
        if (group["lr"], group["betas"], group["eps"]) != (first["lr"], first["betas"], first["eps"]):
            raise ValueError("the native core takes one learning rate for all parameters")
        if group.get("amsgrad") or group.get("maximize"):
            raise ValueError("the native core has plain AdamW only")
    return {id(p): float(group["weight_decay"]) for group in adamw.param_groups for p in group["params"]}


def address_of(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]


def transformer_functions() -> ctypes.CDLL:
    found = library().library
    assert found is not None
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    found.transformer_error.restype = ctypes.c_char_p
    found.transformer_error.argtypes = [integer]
    found.transformer_forward.argtypes = [pointer, pointer, integer]
    found.transformer_train.argtypes = [
        *(pointer, pointer, pointer, integer, pointer),
        *(pointer, ctypes.c_double, integer, integer, pointer, pointer),
    ]
    found.transformer_lerp.argtypes = [pointer, pointer, ctypes.c_double]
    found.transformer_append.argtypes = [
        *(pointer, ctypes.c_int64, pointer, pointer, pointer, pointer, pointer),
        *(ctypes.c_int64, ctypes.c_int64, pointer, pointer),
    ]
    return found
