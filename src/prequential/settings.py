"""The settings of the transformer learner, with their ranges. No torch here, so that `--help` is quick."""

from __future__ import annotations

import numbers
import typing
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal

from prequential.errors import BadSetting
from prequential.specs import check_kinds

LARGEST = 10**12  # of any number among the settings


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the transformer learner is made of and how it learns."""

    method: Literal["mixed", "paper", "copy"] = "mixed"
    """What predicts: the transformer and the copy path, mixed by what each was worth (mixed), or one of them alone."""
    model: Literal["pi", "two-token"] = "pi"
    """How labels enter: added to keys and values (pi), or as tokens of their own (two-token)."""
    width: int = 128
    """Width D of the transformer."""
    depth: int = 4
    """Number of transformer blocks L."""
    heads: int | None = None
    """Number of query heads H; by default 4, and 8 from width 1024 on. There is one key head."""
    hidden: int | None = None
    """Width of the hidden layer of a block; by default 4 D, and 2 D in mixed, which pays for what it has beside."""
    window: int = 512
    """Context C: how many past tokens each prediction can attend to (two-token has two tokens an example). 0: none."""
    chunk: int = 32
    """Chunk length S: examples per gradient step."""
    streams: int = 4
    """Number of streams E: the reported one and E - 1 replay streams. 1: no replay."""
    updates: Literal["sequential", "joint"] = "sequential"
    """One step per stream, one after the other (as in the paper), or one step on all streams as a batch."""
    positions: Literal["rotary", "none"] = "rotary"
    """How a prediction knows how long ago something was."""
    label_scale: float = 1.0
    """Standard deviation of the label tables at the start."""
    use_input: bool = True
    """False replaces every x by a learned constant: the "no image" ablation."""
    extractor: Literal["auto", "none", "convnet", "vgg", "convnext"] = "auto"
    """Network that turns images into features, learned jointly; auto: convnet for images, none for vectors."""
    standardise: bool | None = None
    """Standardise features by past statistics; by default on for vectors, off for images."""
    recent: int | None = None
    """Also give each feature relative to about so many latest examples; by default 300 for up to 256 features. 0: not."""
    neighbours: int | None = None
    """Also predict by the nearest of so many latest examples; by default 4096 in mixed, fewer from 65
    features on and none from 257 on. 0: not."""
    rate: float = 0.06
    """Learning rate alpha_0 of the transformer; the step size is rate / width."""
    joint_rate: float | None = None
    """Learning rate alpha_0 where updates are joint; by default the same as rate."""
    extractor_rate: float = 3e-4
    """Step size of the extractor."""
    weight_decay: float = 1e-2
    """AdamW's weight decay; never on norms, biases and embeddings."""
    beta1: float = 0.9
    """AdamW's decay of the mean of the gradient."""
    beta2: float = 0.999
    """AdamW's decay of the mean of the squared gradient."""
    warmup: int = 0
    """Examples over which the learning rate rises linearly from 0."""
    decay: Literal["none", "inverse-sqrt", "cosine"] = "none"
    """How the learning rate falls after the warm-up."""
    decay_examples: int = 100_000
    """inverse-sqrt: examples until it starts to fall; cosine: examples until it reaches a tenth."""
    average: float | None = None
    """Predictions come from a moving average of the parameters that keeps this share in each turn; 0: from the latest
    parameters. By default 0.98 in mixed and 0 otherwise."""
    freeze_at: int | None = None
    """Position from which on nothing is learnt by gradient any more; the context goes on."""
    behind: bool = False
    """Gradient steps run behind the predictions, which then come from parameters one chunk older and never wait."""
    graphs: bool = False
    """On CUDA: a whole gradient step (forward, backward, optimiser) is captured once and replayed as one graph."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Number format of the matrix products."""
    seed: int = 0
    """Seed of the initial weights and of the replay."""

    def __post_init__(self) -> None:
        check_kinds("the learner", {field.name: getattr(self, field.name) for field in fields(self)}, _hints())
        for name, low in (
            ("width", 1), ("depth", 1), ("window", 0), ("chunk", 1), ("streams", 1), ("warmup", 0),
            ("decay_examples", 1), ("label_scale", 0), ("rate", 0), ("extractor_rate", 0), ("weight_decay", 0),
            ("seed", 0), ("freeze_at", 0), ("heads", 1), ("hidden", 1), ("neighbours", 0), ("recent", 0), ("joint_rate", 0),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not value >= low:
                raise BadSetting(f"{name} ({say_number(value)}) must be at least {low}")
        for name in ("beta1", "beta2", "average"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) < 1:
                raise BadSetting(f"{name} ({getattr(self, name)}) must be at least 0 and below 1")
        for field in fields(self):
            value = getattr(self, field.name)
            most = 2**63 - 1 if field.name == "seed" else LARGEST
            is_number = isinstance(value, numbers.Real)
            if is_number and not abs(value) <= most:  # a NaN is not
                raise BadSetting(f"{field.name} ({say_number(value)}) must be at most {most:,}")
        if self.width % self.query_heads:
            raise BadSetting(f"width ({self.width}) must be divisible by heads ({self.query_heads})")
        if self.positions == "rotary" and self.key_width % 2:
            raise BadSetting(f"width / heads ({self.key_width}) must be even for rotary positions")
        if self.method == "copy" and not self.window_examples:
            raise BadSetting(f"window ({self.window}) must hold at least 1 example where all there is is copied")

    @property
    def query_heads(self) -> int:
        return self.heads or (8 if self.width >= 1024 else 4)

    @property
    def hidden_width(self) -> int:
        return self.hidden or (2 if self.method == "mixed" else 4) * self.width

    @property
    def averaging(self) -> float:
        """How much of the average of the parameters is kept in each turn; 0: there is none."""
        return (0.98 if self.method == "mixed" else 0.0) if self.average is None else self.average

    @property
    def key_width(self) -> int:
        return self.width // self.query_heads

    @property
    def step_size(self) -> float:
        """What AdamW steps with: the rate over the width."""
        joint = self.updates == "joint" and self.joint_rate is not None
        return (self.joint_rate if joint and self.joint_rate is not None else self.rate) / self.width

    @property
    def window_examples(self) -> int:
        """The context in examples: two-token spends two tokens on each."""
        return self.window if self.model == "pi" else self.window // 2

    def least_bytes(self, classes: int, features: int = 1) -> float:
        """What a learner with these settings holds in memory at least: parameters and cache, roughly."""
        width, keys = float(self.width), float(self.key_width)
        block = 2 * width * (width + keys + self.hidden_width) + 5000  # the blocks are objects, too
        parameters = self.depth * block + width * (classes + features)
        cache = 2.0 * self.depth * self.streams * keys * (self.window + self.chunk)
        return 4 * (
            4 * parameters + cache + (self.neighbours or 0) + 1000.0 * self.streams
        )  # weights, gradients, moments

    def changed(self, **changes: Any) -> Settings:
        """The same settings but for some; an unknown name gets the nearest ones suggested."""
        names = [field.name for field in fields(self)]
        for name in changes:
            if name not in names:
                near = get_close_matches(name, names, 1)
                raise BadSetting(f"unknown setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return replace(self, **changes)


@cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(Settings)


def say_number(value: Any) -> str:
    """A number in a sentence, however long it is.

    >>> say_number(10**5000)
    'a number of more than 20 digits'
    """
    return "a number of more than 20 digits" if isinstance(value, int) and abs(value) >= 10**20 else str(value)


def for_digits() -> Settings:
    """The settings of the demonstration: fewer blocks and more replay, as its tasks are short and many."""
    return Settings(depth=2, window=256, chunk=50, streams=8, rate=0.064, recent=0, neighbours=0)
