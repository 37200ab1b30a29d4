"""The settings of the transformer learner, with their ranges. No torch here, so that `--help` is quick."""

from __future__ import annotations

import numbers
import re
import typing
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Literal

from prequential.errors import BadSetting
from prequential.renames import SETTINGS, current_names, takes_old_names, warn_of
from prequential.specs import check_kinds, nearest

LARGEST = 10**12  # of any number among the settings
MOST_TREES = 10_000
LOWEST = {
    **dict.fromkeys(
        ("width", "depth", "chunk_size", "num_streams", "num_query_heads", "mlp_width", "lr_decay_examples"), 1
    ),
    **dict.fromkeys(
        (
            "window",
            "warmup_examples",
            "freeze_at",
            "num_neighbors",
            "recent_window",
            "change_half_life",
            "num_trees",
            "seed",
        ),
        0,
    ),
    "label_delay": 0,
    **dict.fromkeys(("learning_rate", "joint_learning_rate", "extractor_learning_rate", "weight_decay"), 0),
    "label_init_std": 0,
}


EXTRACTORS = ("auto", "none", "convnet", "vgg", "convnext", "convnext-atto")


@takes_old_names(SETTINGS)
@dataclass(frozen=True, kw_only=True)
class Settings:
    """Architecture and training of the transformer learner."""

    method: Literal["mixed", "paper", "copy"] = "mixed"
    """What predicts: all experts, weighted by past losses (mixed), the plain transformer (paper), or the copy head."""
    model: Literal["pi", "two-token"] = "pi"
    """How labels enter: added to keys and values (pi), or as tokens of their own (two-token)."""
    width: int = 128
    """Width D of the transformer."""
    depth: int = 4
    """Number of transformer blocks L."""
    num_query_heads: int | None = None
    """Number of query heads H; by default 4, and 8 from width 1024 on. There is one key head."""
    mlp_width: int | None = None
    """Width of the hidden layer of a block's MLP; by default 4 D, and 2 D in mixed, whose other experts cost as much."""
    window: int = 512
    """Context C: how many past tokens each prediction can attend to (two-token has two per example). 0: none."""
    chunk_size: int = 32
    """Chunk length S: examples per gradient step."""
    num_streams: int = 4
    """Number of streams E: the reported one and E - 1 replay streams. 1: no replay."""
    updates: Literal["sequential", "joint"] = "sequential"
    """One gradient step per stream, in turn (as in the paper), or one step on all streams as a batch."""
    positions: Literal["rotary", "none"] = "rotary"
    """Position encoding."""
    label_init_std: float = 1.0
    """Standard deviation of the initial label embeddings."""
    query_init: Literal["random", "key"] = "random"
    """How queries start: random (as in the paper), or every head with the weights of the keys, and labels left out of
    the keys (key): then examples attend to similar ones from the start."""
    use_input: bool = True
    """Off replaces every x by a learned constant: the "no image" ablation."""
    extractor: str = "auto"
    """Network that turns images into features, trained jointly: convnet, vgg, convnext, convnext-atto (a small
    one), none, or your own as MODULE:CLASS; auto: convnet for images, none for vectors."""
    channel_order: Literal["auto", "last", "first"] = "auto"
    """Where the channels of an image are: (height, width, channels) or (channels, height, width). auto: last, unless
    the shape looks like channels first, which is refused."""
    standardize: bool | None = None
    """Standardize features by past statistics; by default on for vectors, off for images."""
    recent_window: int | None = None
    """Add each feature standardized over about this many recent examples; by default 300, up to 256 features. 0: off."""
    num_neighbors: int | None = None
    """kNN expert: also predict from the nearest of this many latest examples; by default 4096 in mixed, fewer from 65
    features on, and none from 257 on. 0: off."""
    neighbor_metric: Literal["learned", "fixed"] = "learned"
    """kNN expert: learn how much each feature counts in the distance, or count all the same."""
    change_half_life: int | None = None
    """Add each feature's difference from its moving average over recent examples, with this half-life in examples; by
    default 16 in mixed, up to 64 features. 0: off."""
    num_trees: int | None = None
    """Trees expert: also predict with this many gradient-boosted trees on the latest examples, continuously renewed; by
    default 100 in mixed, up to 256 features. 0: off."""
    recent_labels: bool | None = None
    """Also predict from the latest labels alone, ignoring the inputs; by default on in mixed."""
    mixing: Literal["steady", "quick"] = "steady"
    """How much weight all experts share after each example: 0.1 % (steady), or 2 %, and less when labels are late
    (quick)."""
    learning_rate: float = 0.06
    """Learning rate alpha_0 of the transformer; the step size is learning_rate / width."""
    joint_learning_rate: float | None = None
    """Learning rate alpha_0 for joint updates; by default the same as learning_rate."""
    extractor_learning_rate: float = 3e-4
    """Step size of the extractor."""
    weight_decay: float = 1e-2
    """AdamW's weight decay; never on norms, biases and embeddings."""
    beta1: float = 0.9
    """AdamW's decay of the first moment."""
    beta2: float = 0.999
    """AdamW's decay of the second moment."""
    warmup_examples: int = 0
    """Examples over which the learning rate rises linearly from 0."""
    lr_decay: Literal["none", "inverse-sqrt", "cosine"] = "none"
    """Learning rate schedule after the warm-up."""
    lr_decay_examples: int = 100_000
    """inverse-sqrt: examples until it starts to fall; cosine: examples until it reaches a tenth."""
    ema_decay: float | None = None
    """Decay per chunk of the EMA of the parameters, which makes the predictions; 0: predict with the latest parameters.
    By default 0.98 in mixed and 0 otherwise."""
    label_delay: int | None = None
    """Train for labels that are at least this many examples late; by default, as late as they are."""
    freeze_at: int | None = None
    """Take no gradient steps from this position on; the context still grows."""
    async_steps: bool = False
    """Run gradient steps in a thread: predictions never wait for them, and use parameters that are one chunk older."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Number format of the matrix products."""
    engine: Literal["auto", "native", "torch"] = "auto"
    """What computes: the native core, torch, or auto: the native core where possible (vectors on a CPU)."""
    seed: int = 0
    """Seed of the initial weights and of the replay."""

    def __post_init__(self) -> None:
        check_kinds("the learner", {field.name: getattr(self, field.name) for field in fields(self)}, _hints())
        if self.extractor not in EXTRACTORS and not re.fullmatch(r"[A-Za-z_][\w.]*:\w+(\(.*\))?", self.extractor):
            known = ", ".join(EXTRACTORS)
            raise BadSetting(
                f"the learner: extractor is {self.extractor[:80]!r}, expected one of {known}, MODULE:CLASS"
            )
        for name, low in LOWEST.items():
            value = getattr(self, name)
            if value is not None and not value >= low:
                raise BadSetting(f"{name} ({say_number(value)}) must be at least {low}")
        if self.num_trees is not None and self.num_trees > MOST_TREES:
            raise BadSetting(f"num_trees ({say_number(self.num_trees)}) must be at most {MOST_TREES:,}")
        for name in ("beta1", "beta2", "ema_decay"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) < 1:
                raise BadSetting(f"{name} ({getattr(self, name)}) must be at least 0 and below 1")
        for field in fields(self):
            value = getattr(self, field.name)
            most = 2**63 - 1 if field.name == "seed" else LARGEST
            is_number = isinstance(value, numbers.Real)
            if is_number and not abs(value) <= most:  # a NaN is not
                raise BadSetting(f"{field.name} ({say_number(value)}) must be at most {most:,}")
        if self.width % self.effective_num_query_heads:
            heads = self.effective_num_query_heads
            raise BadSetting(f"width ({self.width}) must be divisible by num_query_heads ({heads})")
        if self.positions == "rotary" and self.key_width % 2:
            raise BadSetting(f"width / num_query_heads ({self.key_width}) must be even for rotary positions")
        if self.method == "copy" and not self.window_examples:
            raise BadSetting(f"window ({self.window}) must hold at least 1 example where all there is is copied")

    @property
    def effective_num_query_heads(self) -> int:
        return self.num_query_heads or (8 if self.width >= 1024 else 4)

    @property
    def effective_mlp_width(self) -> int:
        return self.mlp_width or (2 if self.method == "mixed" else 4) * self.width

    @property
    def effective_ema_decay(self) -> float:
        """Decay per chunk of the EMA of the parameters; 0: there is no EMA."""
        return (0.98 if self.method == "mixed" else 0.0) if self.ema_decay is None else self.ema_decay

    @property
    def key_width(self) -> int:
        return self.width // self.effective_num_query_heads

    @property
    def step_size(self) -> float:
        """The learning rate that AdamW gets: learning_rate / width."""
        if self.updates == "joint" and self.joint_learning_rate is not None:
            return self.joint_learning_rate / self.width
        return self.learning_rate / self.width

    @property
    def window_examples(self) -> int:
        """The context in examples: two-token spends two tokens on each."""
        return self.window if self.model == "pi" else self.window // 2

    def least_bytes(self, classes: int, features: int = 1) -> float:
        """What a learner with these settings holds in memory at least: parameters and cache, roughly."""
        width, keys = float(self.width), float(self.key_width)
        block = 2 * width * (width + keys + self.effective_mlp_width) + 5000  # the blocks are objects, too
        parameters = self.depth * block + width * (classes + features)
        cache = 2.0 * self.depth * self.num_streams * keys * (self.window + self.chunk_size)
        return 4 * (
            4 * parameters + cache + (self.num_neighbors or 0) + 1000.0 * self.num_streams
        )  # weights, gradients, moments

    if not typing.TYPE_CHECKING:  # a type checker shall know only the names of now

        def __getattr__(self, name: str) -> Any:
            if name not in SETTINGS:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            warn_of([name], SETTINGS)
            return getattr(self, SETTINGS[name])

    def changed(self, **changes: Any) -> Settings:
        """The same settings but for some; for an unknown name the nearest one is suggested."""
        names = [field.name for field in fields(self)]
        changes = current_names(changes, SETTINGS)
        for name in changes:
            if name not in names:
                raise BadSetting(f"unknown setting {name!r}{nearest(name, names)}")
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
    return Settings(
        depth=2, window=256, chunk_size=25, num_streams=8, learning_rate=0.064, recent_window=0, num_neighbors=0,
        change_half_life=0, num_trees=0,
    )  # fmt: skip
