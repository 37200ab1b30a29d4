"""Which checks of the battery the variants of one learner go through."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from prequential.testing.learners import CHECKS

# What these check lies before or around the parts in which variants differ: one variant of each kind goes through them.
SHARED = {
    "check_bad_input",
    "check_classes_left_out",
    "check_conversions",
    "check_gate",
    "check_ids",
    "check_inputs_are_copied",
    "check_memory",
    "check_rows",
    "check_threads",
}


def checks_of(variants: Iterable[str], *, whole: set[str]) -> pytest.MarkDecorator:
    """Every check for the variants in `whole`; for the others, those that depend on the variant."""
    names = list(variants)
    assert whole <= set(names), f"unknown variants: {whole - set(names)}"
    assert {check.__name__ for check in CHECKS} >= SHARED
    pairs = [
        pytest.param(check, variant, id=f"{check.__name__}-{variant}")
        for check in CHECKS
        for variant in names
        if variant in whole or check.__name__ not in SHARED
    ]
    return pytest.mark.parametrize(("check", "variant"), pairs)
