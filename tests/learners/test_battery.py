"""The transformer learner, in its variants, through the battery every learner must pass."""

from __future__ import annotations

from tests.shared.battery import checks_of

from prequential.learners.transformer.learner import Learner

SMALL = {"width": 16, "num_query_heads": 2, "depth": 2, "window": 20, "chunk_size": 16, "num_streams": 3}
VARIANTS = {
    "pi": {},
    "two-token": {"model": "two-token"},
    "joint": {"updates": "joint"},
    "no-attention": {"window": 0},
    "no-input": {"use_input": False},
    "no-replay": {"num_streams": 1},
    "short-window": {"window": 5},
    "schedule": {"warmup_examples": 50, "lr_decay": "cosine", "lr_decay_examples": 200, "positions": "none"},
    "raw": {"standardize": False},
    "recent_window": {"recent_window": 10, "num_streams": 2},
    "frozen": {"freeze_at": 64},
}


@checks_of(VARIANTS, whole={"pi", "two-token"})
def test_battery(check, variant):
    changes = {**SMALL, **VARIANTS[variant]}
    check(lambda classes: Learner(classes, **changes))
