"""What each gain is worth: the learner as it is, against the same learner without that gain.

Where a gain should change nothing but the time, both learn the same chunks first and must be charged the same; where they
are not, the benchmark stops. A gain is one function here that undoes it on a new learner.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch._inductor.config
from measuring import Row, compared, in_turns, missing, per_round
from torch import Tensor, nn
from torch.nn import functional as F
from workloads import CLOC, DIGITS, EMNIST, TWO_TOKEN, Workload, has_bfloat16, steady

from prequential.learners.transformer.learner import Learner
from prequential.learners.transformer.optimizer import Optimiser
from prequential.learners.transformer.reading import Reader
from prequential.models import transformer
from prequential.models.attention import Past, Turn, attend, rotary_table
from prequential.models.block import Block
from prequential.models.context import Seen
from prequential.models.extractors.convolution import Conv3x3
from prequential.models.transformer import Transformer
from prequential.runs.allocation import keep_freed_memory
from prequential.streams.formats.images import ImageStream

Undo = Callable[[Learner], Callable[[], None] | None]
"""Undoes a gain on a learner that has its network; gives what is to be done before each turn, if anything."""
MEANING = "turns a second with it over those without"
# where the products are too small to hide anything else
NARROW = replace(CLOC.changed(width=256, num_query_heads=4, chunk_size=64), name="CLOC model, 4 x 256, S 64")


def measure(quick: bool) -> list[Row]:
    rounds = 2 if quick else 9
    digits, emnist, narrow, two_token = DIGITS.changed(num_streams=2), EMNIST.changed(num_streams=2), NARROW, TWO_TOKEN
    long = replace(NARROW.changed(chunk_size=256), name="CLOC model, 4 x 256, S 256")
    if quick:
        long = NARROW.changed(depth=1, window=64, chunk_size=128)
        digits = DIGITS.changed(num_streams=1, depth=1, window=50)
        emnist, narrow = (
            EMNIST.changed(depth=1, window=8, chunk_size=8, num_streams=1),
            NARROW.changed(depth=1, window=64),
        )
        two_token = TWO_TOKEN.changed(depth=1, window=32, chunk_size=8)
    rows = [
        against("fused projections", narrow, separate_projections, rounds),
        against("band mask kept", narrow, rebuild_bands, rounds),
        against("attention in parts, without what the band hides", long, whole_band, rounds),
        against("gradient by hand, none for the past", narrow, gradients_by_autograd, rounds),
        against("gradient by hand, none for the past, 2-token", two_token, gradients_by_autograd, rounds),
        against("gradient by hand, none for the past, default run", digits, gradients_by_autograd, rounds),
        against("rotary table kept", narrow, rebuild_rotary, rounds),
        against("fused AdamW over the default one", narrow, adamw(foreach=False), rounds),
        against("fused AdamW over foreach", narrow, adamw(foreach=True), rounds),
        against("fused AdamW, default run", digits, adamw(foreach=False), rounds),
        against("channels-last", emnist, contiguous, rounds),
        against("gradients of late convolutions as products", emnist, library_gradients, rounds),
        bfloat16(emnist, rounds),
        joint(digits.changed(num_streams=4) if quick else DIGITS, rounds),
        read_ahead(EMNIST.changed(chunk_size=8, num_streams=8, **({"depth": 1, "window": 8} if quick else {})), rounds),
        freed_memory(quick),
        compiled(narrow, rounds, quick),
        compiled(digits.changed(method="paper"), rounds, quick, whole=True),
    ]
    return rows


def against(name: str, work: Workload, undo: Undo, rounds: int) -> Row:
    """A gain over the same without it, after making sure that both are charged the same."""
    charged = [charges(work, how) for how in (None, undo)]
    np.testing.assert_allclose(charged[0], charged[1], rtol=1e-4, atol=1e-4, err_msg=f"{name} changes the losses")
    with steady():
        _, fast = work.turns()
        learner, turn = work.turns()
        prepare = undo(learner)

        def slow() -> None:
            if prepare is not None:
                prepare()
            turn()

        seconds = in_turns({"with": fast, "without": slow}, rounds)
    apart = float(np.abs(charged[0] - charged[1]).max())
    note = f"{work.name}; losses {apart:.0e} nats apart at most"
    return compared(name, seconds, slow="without", fast="with", meaning=MEANING, note=note)


def charges(work: Workload, undo: Undo | None, chunks: int = 3) -> np.ndarray:
    """What a new learner is charged for a few chunks."""
    learner = Learner(list(range(work.classes)), settings=work.settings)
    learner._prepare(work.chunk()[0])  # the network is made by the first example, and is needed before it
    prepare = undo(learner) if undo is not None else None
    charged = []
    for i in range(chunks):
        if prepare is not None:
            prepare()
        charged.append(learner.observe(*work.chunk(i)).log_loss)
    return np.concatenate(charged)


class SeparateBlock(nn.Module):
    """The same block with a matrix of its own for each projection."""

    attention = True

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.heads, self.norm, self.threshold = block.heads, block.norm, block.threshold
        self.key_labels, self.value_labels = block.key_labels, block.value_labels
        into = block.into.weight.detach().split(block.parts)  # type: ignore[no-untyped-call]
        out = block.out.weight.detach().split([block.parts[3], block.parts[0]], 1)  # type: ignore[no-untyped-call]
        self.q, self.k, self.v, self.up, self.down, self.o = (_linear(weight) for weight in (*into, *out))

    def forward(self, h: Tensor, y: Tensor, past: Past, bias: list[Tensor], turn: Turn | None) -> tuple[Tensor, Past]:
        x = self.norm(h)
        k, v = self.k(x), self.v(x)
        if self.key_labels is not None and self.value_labels is not None:
            k, v = k + self.key_labels(y), v + self.value_labels(y)
        a = attend(self.q(x), k, v, past, bias, turn, self.heads).found
        return h + self.o(a) + self.down(F.gelu(self.up(x) + self.threshold)), (k.detach(), v.detach())


def _linear(weight: Tensor) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    made.weight.data.copy_(weight)
    return made


def separate_projections(learner: Learner) -> None:
    trainer = learner._trainer
    assert trainer is not None
    for network in {trainer.model, trainer.shown}:  # what learns, and its average where that predicts
        network.blocks = nn.ModuleList(SeparateBlock(block) for block in network._blocks)
    if trainer.shown is not trainer.model:
        trainer.shown.requires_grad_(False)
    trainer._optimiser = Optimiser(trainer.model, learner.settings)


def rebuild_bands(learner: Learner) -> Callable[[], None]:
    assert learner.model is not None
    return learner.model._bands.clear


def whole_band(learner: Learner) -> None:
    """One attention over all keys that any query of the chunk may see."""
    model = learner.model
    assert model is not None

    def bias(tokens: int, past: Seen) -> list[Tensor]:
        with patch.object(transformer, "parts", lambda all_of_them: [(0, all_of_them)]):
            return Transformer._bias(model, tokens, past)

    model._bias = bias  # type: ignore[method-assign]


def gradients_by_autograd(learner: Learner) -> None:
    assert learner.model is not None
    for block in learner.model._blocks:
        block.by_hand = False


def rebuild_rotary(learner: Learner) -> Callable[[], None]:
    model = learner.model
    assert model is not None

    def rebuild() -> None:
        model._rotary = rotary_table(len(model._rotary), learner.settings.key_width)

    return rebuild


def adamw(*, foreach: bool) -> Undo:
    """AdamW without its fused kernel."""

    def undo(learner: Learner) -> None:
        assert learner._trainer is not None
        for group in learner._trainer._optimiser._adamw.param_groups:
            group["fused"], group["foreach"] = False, foreach

    return undo


def contiguous(learner: Learner) -> None:
    assert learner.model is not None
    assert learner.model.extractor is not None
    learner.model.extractor.memory_format = torch.contiguous_format  # type: ignore[assignment]


def library_gradients(learner: Learner) -> None:
    assert learner.model is not None
    for module in learner.model.modules():
        if isinstance(module, Conv3x3):
            module.__class__ = nn.Conv2d  # type: ignore[assignment]


def bfloat16(work: Workload, rounds: int) -> Row:
    name = f"bfloat16 over float32, {work.name}"
    more: dict[str, Any] = {"target": 1.6, "meaning": MEANING}
    if not has_bfloat16():
        return missing(name, "not on this processor", **more)
    with steady():
        works = {p: work.changed(precision=p).turns()[1] for p in ("float32", "bfloat16")}
        seconds = in_turns(dict(works), rounds)
    return compared(name, seconds, slow="float32", fast="bfloat16", **more)


def joint(work: Workload, rounds: int) -> Row:
    """Joint updates are another method, so losses differ; a turn of both goes over the same examples."""
    with steady():
        works = {updates: work.changed(updates=updates).turns()[1] for updates in ("sequential", "joint")}
        seconds = in_turns(dict(works), rounds)
    return compared(
        f"joint updates share a batch, E {work.settings.num_streams}",
        seconds,
        slow="sequential",
        fast="joint",
        meaning="turns a second over those of sequential updates",
        note=f"{work.name}; one step on all streams instead of one each, so losses differ by design",
    )


def read_ahead(work: Workload, rounds: int) -> Row:
    """Where reading is slow: a folder of JPEG photos, learnt at 32 x 32 pixels, each round a turn on the next chunk."""
    name = "replayed chunks read ahead"
    if importlib.util.find_spec("PIL") is None:
        return missing(name, "Pillow is not installed", meaning=MEANING)
    from decoding import CLASSES, write

    chunk, before = work.settings.chunk_size, 3  # turns until it is known how long reads take
    charged: dict[str, list[np.ndarray]] = {"with": [], "without": []}
    with tempfile.TemporaryDirectory() as folder, steady():
        write(Path(folder), chunk * (before + rounds + 1))
        stream = ImageStream(folder, size=32)

        def turns(how: str) -> Callable[[], None]:
            learner = Learner(CLASSES, settings=work.settings)
            learner.replay_from(stream)
            learner._prepare(stream.read(0, chunk).x)
            assert learner._trainer is not None
            if how == "without":
                learner._trainer._reader = Reader(slow=math.inf)

            def turn() -> None:
                read = stream.read(learner.position, learner.position + chunk)
                charged[how].append(learner.observe(read.x, read.y).log_loss)

            for _ in range(before):
                turn()
            return turn

        seconds = in_turns({how: turns(how) for how in charged}, rounds)
    if not np.array_equal(np.concatenate(charged["with"]), np.concatenate(charged["without"])):
        raise AssertionError(f"{name}: the losses differ")
    note = f"JPEG photos of 500 x 375 at 32 x 32, ConvNet, S {chunk}, E {work.settings.num_streams}; losses identical"
    return compared(name, seconds, slow="without", fast="with", meaning=MEANING, note=note)


def freed_memory(quick: bool) -> Row:
    """Each way in processes of its own: how the C library keeps memory cannot be undone in one."""
    rounds, seconds = 1 if quick else 4, dict[str, list[float]]({"with": [], "without": []})
    losses = set()
    for _ in range(rounds):
        for name, option in (("with", ["--keep"]), ("without", [])):
            command = [sys.executable, str(Path(__file__)), *option, *(["--quick"] if quick else [])]
            told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            seconds[name].append(told["seconds"])
            losses.add(told["loss"])
    if len(losses) != 1:
        raise AssertionError(f"freed memory kept: the losses differ ({losses})")
    return compared(
        "freed memory kept",
        seconds,
        slow="without",
        fast="with",
        meaning=MEANING,
        note=f"{EMNIST.name}; losses identical",
    )


def one_process(keep: bool, quick: bool) -> None:
    """Prints the median seconds of a turn in this process, and the loss after it."""
    if keep:
        keep_freed_memory()
    work = EMNIST.changed(num_streams=1, window=50 if quick else 512, depth=1 if quick else 4)
    with steady():
        learner, turn = work.turns()
        seconds = in_turns({"turn": turn}, 3 if quick else 10)["turn"]
    loss = float(learner.observe(*work.chunk(1)).log_loss.sum())
    print(json.dumps({"seconds": statistics.median(seconds), "loss": loss}))


def compiled(work: Workload, rounds: int, quick: bool, whole: bool = False) -> Row:
    """`torch.compile` of the blocks, or of the whole network without Python between its operations; both cost seconds once."""
    name = f"torch.compile of the {'whole network' if whole else 'blocks'}"
    more: dict[str, Any] = {"meaning": "turns a second with it over those without; not in use"}
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        return missing(name, "no C++ compiler here", **more)
    if quick:
        return missing(name, "left out of --quick: compiling takes longer than all the rest", **more)
    with steady(), torch._inductor.config.patch(cpp_wrapper=whole):
        _, plain = work.turns()
        learner, turn = work.turns()
        assert learner.model is not None
        gradients_by_autograd(learner)  # whose gradients it compiles too
        for module in [learner.model] if whole else learner.model._blocks:
            module.compile(dynamic=False)
        begun = time.perf_counter()
        turn()
        turn()
        cost = time.perf_counter() - begun
        seconds = in_turns({"plain": plain, "compiled": turn}, rounds)
    saved = statistics.median(a - b for a, b in zip(seconds["plain"], seconds["compiled"], strict=True))
    gain = statistics.median(per_round(seconds["plain"], seconds["compiled"]))
    pays = f"pays after {cost / saved:,.0f} turns" if saved > 0 and gain > 1.01 else "does not pay"
    note = f"{work.name}; compiling took {cost:.0f} s, {pays}"
    return compared(name, seconds, slow="plain", fast="compiled", note=note, **more)


def main() -> None:
    parser = argparse.ArgumentParser(description="One measurement of `freed memory kept`, in a process of its own.")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    one_process(given.keep, given.quick)


if __name__ == "__main__":
    main()
