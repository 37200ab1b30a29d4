"""A network of one's own as the extractor: any `nn.Module` from images to vectors."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from prequential.errors import BadSetting, one_line
from prequential.models.extractors.dropout import Dropout
from prequential.specs import parse_call


class OwnExtractor(nn.Module):
    """Wraps a module so that it can be trained jointly with the transformer.

    The module gets float images (N, channels, height, width), those of uint8 scaled to 0..1, and gives (N, features),
    or the outputs of a model of Hugging Face, of which the pooled one or the last hidden state is taken.
    How many features is found by a pass over two blank images. A method `macs()`, if it has one, says how many
    multiply-accumulates one image takes. Its `nn.Dropout` modules are replaced by ones whose masks depend on the
    learner's seed and step alone, so that a run resumes exactly.

    Parameters
    ----------
    network
        The module, or what makes one: called with channels, height and width where it needs arguments. A module must
        be one that its class makes again, as a saved learner has to; see `name_of`.
    shape
        Channels, height and width of an image.
    options
        Arguments for what makes the module.

    Examples
    --------
    >>> net = OwnExtractor(lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5)), (3, 8, 8), {})
    >>> net.features
    5
    """

    def __init__(
        self, network: nn.Module | Callable[..., nn.Module], shape: tuple[int, int, int], options: dict[str, Any]
    ) -> None:
        super().__init__()
        if isinstance(network, nn.Module):
            _check_made_again(network, shape, options)
            self.network = network
        else:
            self.network = _make(network, shape, options)
        _replace_dropout(self.network)
        self.shape = shape
        try:
            with torch.no_grad():
                made = _features(self.network.eval()(torch.zeros(2, *shape)))
        except Exception as error:
            why = f"{type(error).__name__}: {one_line(error, 120)}"
            raise BadSetting(f"extractor {_name(network)} cannot take images of shape {shape}: {why}") from error
        if not isinstance(made, Tensor) or made.ndim != 2 or len(made) != 2:
            given = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise BadSetting(f"extractor {_name(network)} gave {given} for 2 images, expected (2, features)")
        self.features = made.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """The features (N, features) of images (N, channels, height, width)."""
        out: Tensor = _features(self.network(x))
        return out

    def macs(self) -> float:
        """What the module itself says; 0 where it says nothing."""
        return float(getattr(self.network, "macs", lambda: 0)())


def _features(made: Any) -> Any:
    """What a network gives as vectors, where it is the outputs of a Hugging Face model; else as it is."""
    pooled, hidden = getattr(made, "pooler_output", None), getattr(made, "last_hidden_state", None)
    if isinstance(pooled, Tensor):
        return pooled.flatten(1)
    if isinstance(hidden, Tensor) and hidden.ndim in (3, 4):  # a class token first, or a feature map
        return hidden[:, 0] if hidden.ndim == 3 else hidden.mean((2, 3))
    return made


def name_of(network: nn.Module | Callable[..., nn.Module]) -> str:
    """The name by which a saved learner finds an extractor again, with the arguments to make it with.

    These are what the module's method `config()` gives, if it has one; else it is made with its default arguments.

    Examples
    --------
    >>> name_of(nn.Flatten)
    'torch.nn.modules.flatten:Flatten'
    """
    factory = type(network) if isinstance(network, nn.Module) else network
    name = f"{factory.__module__}:{_name(factory)}"
    if getattr(sys.modules.get(factory.__module__), _name(factory), None) is not factory:
        raise BadSetting(
            f"extractor {_name(factory)} cannot be found as {name!r}, as a saved learner has to find it; move it to the "
            "top level of a module"
        )
    config = getattr(network, "config", None) if isinstance(network, nn.Module) else None
    options = config() if callable(config) else {}
    if not isinstance(options, dict) or _parsed(name, options) != (name, options):
        raise BadSetting(
            f"extractor {_name(factory)}: config() gave {one_line(repr(options), 80)}, expected a dict of the arguments it "
            "is made with: numbers, texts, truth values and lists of these"
        )
    return _call(name, options)


def _call(name: str, options: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})" if options else name


def _parsed(name: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    try:
        return parse_call(_call(name, options))
    except BadSetting:
        return None


def _check_made_again(network: nn.Module, shape: tuple[int, int, int], options: dict[str, Any]) -> None:
    """Refuses a module that its class with these arguments would not make: loading a saved learner makes it so."""
    remedy = "give a function that makes it, or the module a config() that returns its arguments"
    with torch.random.fork_rng(devices=[]):
        try:
            again = _make(type(network), shape, options)
        except BadSetting as error:
            raise BadSetting(f"{one_line(error, 160)}, which loading a saved learner has to do; {remedy}") from error
    if _layout(network) != _layout(again):
        raise BadSetting(
            f"extractor {_name(network)} was given as a module that {_call(_name(network), options)} does not make, but "
            f"loading a saved learner has to; {remedy}"
        )


def _layout(network: nn.Module) -> list[Any]:
    """What a module is made of: its layers as it prints them, and the shapes of its parameters and buffers."""
    return [repr(network), *((name, tuple(value.shape)) for name, value in network.state_dict().items())]


def _make(factory: Callable[..., nn.Module], shape: tuple[int, int, int], options: dict[str, Any]) -> nn.Module:
    try:
        parameters = inspect.signature(factory).parameters
        names = [name for name in ("channels", "height", "width") if name in parameters and name not in options]
        sizes = dict(zip(("channels", "height", "width"), shape, strict=True))
        network = factory(**{name: sizes[name] for name in names}, **options)
    except Exception as error:
        why = f"{type(error).__name__}: {one_line(error, 120)}"
        raise BadSetting(f"extractor {_name(factory)} cannot be made for images of shape {shape}: {why}") from error
    if not isinstance(network, nn.Module):
        raise BadSetting(f"extractor {_name(factory)} gave a {type(network).__name__}, expected a torch.nn.Module")
    return network


def _replace_dropout(network: nn.Module) -> None:
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Dropout):
                setattr(module, name, Dropout(child.p))


def _name(network: object) -> str:
    return getattr(network, "__name__", type(network).__name__)
