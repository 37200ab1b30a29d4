"""Against what people would use instead, doing the same work.

Chunks of tokens: a training step (forward, loss, backward, fused AdamW) of the 2-token learner, on a chunk behind a window
of C cached tokens, against the same number of GPT-2 blocks of the same width in Hugging Face `transformers` with its
key-value cache, and in x-transformers with its memories. The learner's figure is that of all it does, checks and
journal included.

One example at a time: predict and learn on Electricity, against River's trees, with the accuracy beside the speed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import Row, compared, in_turns, missing
from torch import Tensor, nn
from torch.nn import functional as F
from workloads import TWO_TOKEN, Workload, steady

from prequential.learners.transformer.learner import Learner
from prequential.settings import Settings
from prequential.streams.datasets.tabular import electricity
from prequential.streams.stream import Stream

Step = Callable[[], None]
HUGGING_FACE, X_TRANSFORMERS = "Hugging Face GPT-2 blocks", "x-transformers with memories"
# where the products are too small to hide anything else
SMALL_TWO_TOKEN = replace(TWO_TOKEN.changed(width=128, depth=2, window=256, chunk_size=50), name="2-token, 2 x 128")
# No blocks and no replay: what is left is three numbers and a map of x, which bear a higher rate.
SMALL_LEARNER = Settings(method="copy", width=32, window=64, num_streams=1, learning_rate=0.2)
RIVER: dict[str, tuple[str, dict[str, Any]]] = {
    "adaptive random forest, 10 trees": ("forest.ARFClassifier", {"n_models": 10, "seed": 0}),
    "SRP, 10 trees": ("ensemble.SRPClassifier", {"n_models": 10, "seed": 0}),
    "Hoeffding tree": ("tree.HoeffdingTreeClassifier", {}),
}


def measure(quick: bool) -> list[Row]:
    work = TWO_TOKEN.changed(depth=1, width=256, window=64, chunk_size=16) if quick else TWO_TOKEN
    rows = on_chunks(work, 2 if quick else 9, target=2.0)
    if not quick:
        rows += on_chunks(SMALL_TWO_TOKEN, 25)
    return [*rows, *one_at_a_time(120 if quick else 4000, slices=3 if quick else 10)]


def on_chunks(work: Workload, rounds: int, target: float | None = None) -> list[Row]:
    """The 2-token learner against other libraries' blocks."""
    peers: dict[str, Step] = {}
    rows = []
    if find_spec("transformers"):
        # the faster of the two ways it has to compute attention on a processor
        ways = {way: hugging_face(work, way) for way in ("eager", "sdpa")}
        tried = in_turns({way: step for way, step in ways.items()}, 2)
        faster = min(tried, key=lambda way: min(tried[way]))
        peers[HUGGING_FACE] = ways[faster]
    if find_spec("x_transformers"):
        peers[X_TRANSFORMERS] = x_transformers(work)
    with steady():
        _, turn = work.turns()
        seconds = in_turns({"learner": turn, **peers}, rounds)
    for name, package in ((HUGGING_FACE, "transformers"), (X_TRANSFORMERS, "x-transformers")):
        more: dict[str, Any] = {
            "target": target if name == HUGGING_FACE else None,
            "meaning": "training steps a second over those of the same number of blocks, width, window and tokens",
        }
        title = f"{work.name} learner over {name}"
        if name in peers:
            note = f"attention: {faster}" if name == HUGGING_FACE else ""
            rows.append(compared(title, seconds, slow=name, fast="learner", note=note, **more))
        else:
            rows.append(missing(title, f"not installed: pip install {package}", **more))
    return rows


class Tokens(nn.Module):
    """Input and output of a 2-token model: examples as two tokens each, and labels read off the first of them."""

    def __init__(self, work: Workload) -> None:
        super().__init__()
        width = work.settings.width
        self.embed = nn.Linear(work.shape[0], width)
        self.label = nn.Embedding(work.classes, width)
        self.readout = nn.Linear(width, work.classes)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([self.embed(x), self.label(y)], 1).flatten(0, 1)[None]  # (1, 2S, D)

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.readout(h[0, ::2]), y)


def hugging_face(work: Workload, attention: str) -> Step:
    """A training step of GPT-2 blocks behind a cache that is cropped to the window."""
    library: Any = import_module("transformers")

    s = work.settings
    tokens = 2 * s.chunk_size
    config = library.GPT2Config(
        vocab_size=1, n_embd=s.width, n_layer=s.depth, n_head=s.effective_num_query_heads, n_positions=s.window + tokens,
        bos_token_id=None, eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation=attention,
    )  # fmt: skip
    blocks, ends = library.GPT2Model(config), Tokens(work)
    optimizer = _adamw(blocks, ends)
    x, y = (torch.as_tensor(part) for part in work.chunk())
    key_width = s.width // s.effective_num_query_heads
    past = [(torch.zeros(1, s.effective_num_query_heads, s.window, key_width),) * 2 for _ in range(s.depth)]
    places = torch.arange(s.window, s.window + tokens)[None]
    # each token sees itself and the C before it; made once, so that the library need not do it in every step
    query, key = torch.arange(tokens)[:, None] + s.window, torch.arange(s.window + tokens)[None]
    mask = torch.zeros(1, 1, tokens, s.window + tokens)
    mask.masked_fill_((key > query) | (key < query - s.window), torch.finfo(torch.float32).min)

    def step() -> None:
        nonlocal past
        made = blocks(
            inputs_embeds=ends(x, y),
            past_key_values=library.DynamicCache(past),
            attention_mask=mask,
            position_ids=places,
            use_cache=True,
        )
        _take(optimizer, ends.loss(made.last_hidden_state, y))
        past = [
            (layer.keys[:, :, -s.window :].detach(), layer.values[:, :, -s.window :].detach())
            for layer in made.past_key_values.layers
        ]

    return step


def x_transformers(work: Workload) -> Step:
    """A training step of x-transformers' decoder with the last C tokens of each layer as its memory."""
    library: Any = import_module("x_transformers")

    s = work.settings
    blocks = library.ContinuousTransformerWrapper(
        max_mem_len=s.window,
        attn_layers=library.Decoder(
            dim=s.width, depth=s.depth, heads=s.effective_num_query_heads, attn_dim_head=s.width // s.effective_num_query_heads,
            attn_one_kv_head=True, rotary_pos_emb=True, attn_flash=True,
        ),
    )  # fmt: skip
    ends = Tokens(work)
    optimizer = _adamw(blocks, ends)
    x, y = (torch.as_tensor(part) for part in work.chunk())
    memories: Any = None

    def step() -> None:
        nonlocal memories
        h, between = blocks(ends(x, y), mems=memories, return_intermediates=True)
        _take(optimizer, ends.loss(h, y))
        new = [hidden.detach() for hidden in between.hiddens]
        old = memories or [hidden[:, :0] for hidden in new]
        memories = [torch.cat(pair, 1)[:, -s.window :] for pair in zip(old, new, strict=True)]

    for _ in range(-(-s.window // (2 * s.chunk_size))):  # fills the memory
        step()
    return step


def _adamw(*modules: nn.Module) -> torch.optim.Optimizer:
    parameters = [parameter for module in modules for parameter in module.parameters()]
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True)


def _take(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def one_at_a_time(examples: int, slices: int) -> list[Row]:
    """Predict, then learn, one example after the other: this learner and River's take turns on slices of the stream."""
    x, y, said = _drifting(examples)
    title = "one at a time over River's "
    if not find_spec("river"):
        return [missing(title + name, "not installed: pip install river") for name in RIVER]
    ours = {"default": Learner(2), "small": Learner(2, settings=SMALL_LEARNER)}
    right: dict[str, list[bool]] = {}
    works = {name: _slices(_ours(learner), x, y, slices, right.setdefault(name, [])) for name, learner in ours.items()}
    for name, (path, settings) in RIVER.items():
        works[name] = _slices(_rivers(path, settings), x, y, slices, right.setdefault(name, []))
    seconds = in_turns({name: lambda work=work: next(work) for name, work in works.items()}, slices - 1)  # type: ignore[misc]
    accuracy = {name: sum(hits) / len(hits) for name, hits in right.items()}
    size = examples // slices

    def rate(name: str) -> str:
        return f"{size / np.median(seconds[name]):,.0f}/s at {accuracy[name]:.1%}"

    return [
        compared(
            f"{title}{name}: {us} learner",
            seconds,
            slow=name,
            fast=us,
            target=1.0 if "forest" in name else None,
            holds=accuracy[us] > accuracy[name],
            meaning=f"examples a second over River's, {said}",
            note=f"{rate(us)} against {rate(name)} accuracy",
        )
        for us in ours
        for name in RIVER
    ]


def _ours(learner: Learner) -> Callable[[np.ndarray, int], bool]:
    def turn(x: np.ndarray, y: int) -> bool:
        predicted = learner.predict_log_proba_many(x[None])[0].argmax()
        known = learner.labels.known
        right = predicted < len(known) and known[predicted] == y
        learner.learn(x, y)
        return bool(right)

    return turn


def _rivers(path: str, settings: dict[str, Any]) -> Callable[[np.ndarray, int], bool]:
    module, name = path.split(".")
    model = getattr(import_module(f"river.{module}"), name)(**settings)

    def turn(x: np.ndarray, y: int) -> bool:
        example = dict(enumerate(x.tolist()))
        right = model.predict_one(example) == y
        model.learn_one(example, y)
        return bool(right)

    return turn


def _slices(
    turn: Callable[[np.ndarray, int], bool], x: np.ndarray, y: np.ndarray, slices: int, right: list[bool]
) -> Iterator[None]:
    """Each `next` goes over one slice of the stream."""
    size = len(y) // slices
    for start in range(0, slices * size, size):
        right += [turn(x[t], int(y[t])) for t in range(start, start + size)]
        yield


def _drifting(examples: int) -> tuple[np.ndarray, np.ndarray, str]:
    """The beginning of Electricity where it is there, else a made stream whose border between the classes turns."""
    folder = os.environ.get("PREQUENTIAL_DATA")
    if folder and (file := Path(folder) / "elec2.npz").is_file():
        stream: Stream = electricity(file)
        chunk = stream.read(0, examples)
        return chunk.x, np.asarray(chunk.y), f"on the first {len(chunk):,} examples of Electricity"
    random = np.random.default_rng(0)
    x = random.normal(size=(examples, 8)).astype(np.float32)
    angle = np.arange(examples) / 500
    y = (x[:, 0] * np.cos(angle) + x[:, 1] * np.sin(angle) + 0.3 * random.normal(size=examples) > 0).astype(int)
    return x, y, f"on {examples:,} examples of a made stream that drifts (no PREQUENTIAL_DATA with elec2.npz)"
