"""The names under which a study keeps settings: those of the version that began it, so that it can be resumed."""

from __future__ import annotations

from typing import Any

from prequential.registry import TRANSFORMERS
from prequential.renames import OPTIONS, SETTINGS

RENAMED_IN = 3  # the format in which settings got the names they have now
# all settings of format 2, under the names they have now: the folders of its trials are named after all of them
OF_FORMAT_2 = frozenset(
    [
        "stream",
        "learner",
        "tasks",
        "task_length",
        "ways",
        "examples",
        "classes",
        "label",
        "features",
        "time",
        "group",
        "images",
        "download",
        "on_bad_row",
        "device",
        "threads",
        "checkpoint_seconds",
        "out",
        "method",
        "model",
        "width",
        "depth",
        "num_query_heads",
        "mlp_width",
        "window",
        "chunk_size",
        "num_streams",
        "updates",
        "positions",
        "label_init_std",
        "use_input",
        "extractor",
        "standardize",
        "recent_window",
        "num_neighbors",
        "learning_rate",
        "joint_learning_rate",
        "extractor_learning_rate",
        "weight_decay",
        "beta1",
        "beta2",
        "warmup_examples",
        "lr_decay",
        "lr_decay_examples",
        "ema_decay",
        "freeze_at",
        "async_steps",
        "precision",
        "seed",
    ]
)


def stored_name(name: str, version: int) -> str:
    """What a setting or an option of a learner is called in a study of a format.

    >>> stored_name("num_streams", 2), stored_name("er.learning_rate", 2), stored_name("num_streams", 3)
    ('streams', 'er.rate', 'num_streams')
    """
    kind, dot, option = name.rpartition(".")
    table = SETTINGS if kind in ("", *TRANSFORMERS) else OPTIONS
    old = {new: old for old, new in table.items()}
    return name if version >= RENAMED_IN else f"{kind}{dot}{old.get(option, option)}"


def name_now(name: str) -> str:
    """What a setting that a study has under any name is called now.

    >>> name_now("er.rate"), name_now("num_streams")
    ('er.learning_rate', 'num_streams')
    """
    kind, dot, option = name.rpartition(".")
    table = SETTINGS if kind in ("", *TRANSFORMERS) else OPTIONS
    return f"{kind}{dot}{table.get(option, option)}"


def stored_identity(identity: dict[str, Any], version: int) -> dict[str, Any]:
    """What a sweep must keep the same, with the names of a format: keys are a table in brackets and a name."""
    found = {}
    for key, value in identity.items():
        table, bracket, name = key.partition("] ")
        found[f"{table}{bracket}{stored_name(name, version)}" if bracket else key] = value
    return found
