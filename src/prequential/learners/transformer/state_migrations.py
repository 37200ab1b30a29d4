"""States of the transformer learner as earlier versions wrote them."""

from __future__ import annotations

import re
from typing import Any

from prequential.learners.inputs import migrate_statistics

# names of parameters, before and now
RENAMED = (
    (r"\.into\.weight$", ".in_proj.weight"),
    (r"^(blocks\.\d+)\.out\.weight$", r"\1.out_proj.weight"),
    (r"^(blocks\.\d+)\.threshold$", r"\1.mlp_bias"),
    (r"^heads\.", "output_heads."),
    (r"\.sharpness$", ".log_temperature"),
    (r"^(output_heads\.(?:deep-)?copy)\.slope$", r"\1.recency_slope"),
    (r"^(output_heads\.(?:deep-)?copy)\.null$", r"\1.null_logit"),
    (r"^(output_heads\.deep-copy)\.map\.", r"\1.key_proj."),
    (r"^label\.weight$", "label_embedding.weight"),
    (r"^kind\.weight$", "token_type.weight"),
)


def migrate_learner_state(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a learner from before states were split into inputs, ensemble, replay and trainer."""
    known, known_at_border = state["known"]
    return {
        "num_committed": state["done"],
        "pending_x": state["pending_x"],
        "pending_class_ids": state["pending_slots"],
        "num_seen": {"committed": known_at_border, "current": known},
        "memory": state["memory"],
        "parts": None if state["inputs"] is None else _migrate_parts(state),
    }


def _migrate_parts(state: dict[str, Any]) -> dict[str, Any]:
    inputs, trainer = state["inputs"], state["trainer"]
    asynchronous = "front" in trainer
    front = trainer["front"] if asynchronous else trainer
    trained = trainer["back"] if asynchronous else trainer
    normalizers = [migrate_statistics(saved) for saved in inputs.get("replays", [])]
    others = {} if front["neighbours"] is None else {"knn": _migrate_knn(front["neighbours"])}
    # the context that learns was written only where it is another one than that of the predictions
    reported = trained["learning_context"] or trained["context"]
    new = {
        "image_bytes": state["image_bytes"],
        "inputs": inputs,  # `Inputs` reads these itself, as other learners have them too
        "ensemble": {
            "network": {"context": _migrate_context(front["context"])},
            "others": others,
            "mixer": _migrate_mixer(front["mixer"]),
        },
        "replay": {
            **trained["readers"],
            "normalizers": normalizers or list[Any]([None]) * len(trained["replay_contexts"]),
        },
        "trainer": {
            "model": rename_parameters(trained["parameters"]),
            "ema_model": rename_parameters(trained["shown"]),
            "optimizer": rename_parameters(trained["optimiser"]),
            "contexts": [_migrate_context(saved) for saved in (reported, *trained["replay_contexts"])],
            "num_steps": trained["steps"],
            "skipped_steps": trained.get("skipped", 0),
        },
    }
    if asynchronous:
        new["trainer"]["prediction_model"] = rename_parameters(front["parameters"])
    return new


def rename_parameters(saved: dict[str, Any]) -> dict[str, Any]:
    """What is saved by the names of parameters, by their present names."""
    renamed = {}
    for name, value in saved.items():
        for pattern, now in RENAMED:
            name = re.sub(pattern, now, name)
        renamed[name] = value
    return renamed


def _migrate_context(saved: dict[str, Any]) -> dict[str, Any]:
    caches = ("tokens", "examples")
    return {name: {"k": saved[name]["k"], "v": saved[name]["v"], "num_fresh": saved[name]["fresh"]} for name in caches}


def _migrate_knn(saved: dict[str, Any]) -> dict[str, Any]:
    return {"x": saved["x"], "class_ids": saved["slots"], "count": saved["count"], "num_fresh": saved["fresh"]}


def _migrate_mixer(saved: dict[str, Any]) -> dict[str, Any]:
    return {
        now: {"log_weights": saved[before]["weight"], "exponents": saved[before]["exponent"]}
        for now, before in (("committed", "border"), ("current", "live"))
    }
