"""Trains the network's blocks on random small streams: what a start that has learned to learn in context would be.

python benchmarks/prior.py FILE.safetensors --macs 1e13 [--seed 0] [--rate 0.001] [--most-steps N]

Every synthetic stream has its own random input map, as a learner's is at its start, and its own random label codes; the
blocks, both copy heads' scalars, and linear maps from codes to label embeddings and readout are trained. The state is
saved every 60 seconds beside FILE; the same command goes on where it stopped, to the bit on one thread. 1e13
multiply-accumulates are about 2,800 steps and 17 minutes of one core at 10e9 a second. What it was worth is in
docs/results.md.

Shape letters: B streams, S rows, D width, H query heads, K key width, C classes.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from prior_streams import random_stream
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from prequential.learners.normalizer import Normalizer
from prequential.models.attention import apply_rotary
from prequential.models.heads.copy import EPSILON, PRIOR_SHARE, SPEEDUP, CopyHead
from prequential.models.heads.softmax import SoftmaxHead
from prequential.models.pi import PiTransformer
from prequential.models.transformer import Transformer
from prequential.native.experts import native_experts
from prequential.settings import Settings

CLASSES = 10
CODE = 32  # the width of a label's code
# streams, rows, and the size of the batches in which labels arrive; 1: at once. In each step as many tokens.
SHAPES = ((16, 128, 1), (8, 256, 1), (8, 256, 100), (16, 128, 1), (8, 256, 1), (8, 256, 40), (4, 512, 1))
CHUNK = 32  # rows that wait for labels see those of their chunk that wait, too
EMA = 0.995


class Prior(nn.Module):
    """The network with what makes its label tables: each class has a random code, drawn anew for every stream.

    Label embeddings and the readout are linear maps of the code, so that nothing depends on the number of a class and
    there may be any number of them.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.model = PiTransformer(settings, features=1, num_classes=1)
        self.settings = settings
        depth, key_width, width = settings.depth, settings.key_width, settings.width
        self.key_codes = nn.Parameter(torch.randn(depth, CODE, key_width) / CODE**0.5)
        self.value_codes = nn.Parameter(torch.randn(depth, CODE, key_width) / CODE**0.5)
        self.readout_codes = nn.Parameter(torch.zeros(CODE, width))
        self._begin_with_likeness()

    @torch.no_grad()
    def _begin_with_likeness(self) -> None:
        """Two query heads of each block begin as its keys, and the readout as what turns their values into labels.

        So every block begins by averaging the labels of rows like this one. From random queries it takes several times
        as many steps until the softmax head is better than the frequencies of the labels.
        """
        D, K = self.settings.width, self.settings.key_width
        for i, block in enumerate(self.model.all_blocks):
            self.key_codes[i] *= 0.2
            for head in range(2):
                queries = slice(head * K, (head + 1) * K)
                block.in_proj.weight[queries] = (head + 1) * block.in_proj.weight[D : D + K]
                out = block.out_proj.weight[:, -D:][:, queries]
                self.readout_codes.add_(0.03 * self.value_codes[i] @ out.T)

    def trained(self) -> dict[str, nn.Parameter]:
        """What is trained, by name: all but the input map and the tables that the codes make."""
        left_out = ("embed.", "key_labels", "value_labels", "readout.")
        of_model = {n: p for n, p in self.model.named_parameters() if not any(part in n for part in left_out)}
        return {**of_model, **{n: p for n, p in self.named_parameters() if n.endswith("_codes")}}

    @torch.no_grad()
    def apply_to(self, model: Transformer, codes: Tensor) -> None:
        """Gives a new model what was trained, with these codes (C, CODE) of its classes; its input map stays."""
        for name, parameter in model.named_parameters():
            if (trained := self.trained().get(name)) is not None:
                parameter.copy_(trained)
        for i, block in enumerate(model.all_blocks):
            assert block.key_labels is not None
            assert block.value_labels is not None
            block.key_labels.weight.copy_(codes @ self.key_codes[i])
            block.value_labels.weight.copy_(codes @ self.value_codes[i])
        softmax = model.output_heads["softmax"]
        assert isinstance(softmax, SoftmaxHead)
        softmax.readout.weight.copy_(codes @ self.readout_codes)

    def forward(self, batch: Batch) -> list[Tensor]:
        """The log-probability (B, S) of each label by each head, from the labels before it.

        The same as the model's own pass with empty caches, up to rounding, with fused attention: the null key comes
        first and every key one place later, so that the mask that hides an example from itself is the causal one.
        """
        code = torch.gather(batch.codes, 1, batch.y[..., None].expand(-1, -1, CODE))  # (B, S, CODE)
        h = embedded = batch.embedded
        B, S, D = h.shape
        H = self.settings.effective_num_query_heads
        rotation = self.model.rotary(0, S)
        labeled, waiting = visible_rows(S, batch.label_batch)
        mask = None
        if batch.label_batch > 1:
            mask = torch.cat([torch.ones(S, 1, dtype=torch.bool), labeled[:, :-1], waiting], 1)
        for i, block in enumerate(self.model.all_blocks):
            q, k, v, u = block.in_proj(block.norm(h)).split(block.in_sizes, -1)
            q = apply_rotary(q.view(B, S, H, -1), rotation.queries)
            keys = apply_rotary(k + code @ self.key_codes[i], rotation.keys[:S])
            keys, values = _behind_null(keys), _behind_null(v + code @ self.value_codes[i])
            if mask is not None:
                keys = torch.cat([keys, apply_rotary(k.contiguous(), rotation.keys[:S])], 1)
                values = torch.cat([values, v], 1)
            keys, values = (of[:, None].expand(-1, H, -1, -1) for of in (keys, values))
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2), keys, values, attn_mask=mask, is_causal=mask is None, scale=1.0
            )
            out = torch.cat([F.gelu(u + block.mlp_bias), attended.transpose(1, 2).reshape(B, S, D)], -1)
            h = h + block.out_proj(out)
        softmax, copy, deep_copy = self.model.all_heads
        assert isinstance(softmax, SoftmaxHead)
        assert isinstance(copy, CopyHead)
        assert isinstance(deep_copy, CopyHead)
        assert deep_copy.key_proj is not None
        logits = torch.einsum("bsd,ed,bce->bsc", softmax.norm(h), self.readout_codes, batch.codes)
        label = batch.y[..., None]
        found = [torch.log_softmax(logits + batch.log_prior, -1).gather(2, label)[..., 0]]
        prior = torch.softmax(batch.log_prior, -1).gather(2, label)[..., 0]
        one_hot = F.one_hot(batch.y, CLASSES).float()
        for head, compared in ((copy, embedded), (deep_copy, deep_copy.key_proj(h))):
            copied = (1 - PRIOR_SHARE) * self._copy(head, compared, one_hot, labeled)
            found.append(torch.log(copied.gather(2, label)[..., 0] + (1 - copied.sum(-1)) * prior))
        return found

    def _copy(self, head: CopyHead, h: Tensor, one_hot: Tensor, labeled: Tensor) -> Tensor:
        """What each label gets by a copy head, (B, S, C)."""
        S = h.shape[1]
        key = h * torch.rsqrt(h.square().sum(-1, keepdim=True) + EPSILON)
        slope = SPEEDUP * head.recency_slope
        position = torch.arange(S) / self.settings.window_examples * slope
        scores = torch.exp(SPEEDUP * head.log_temperature) * key @ key.transpose(1, 2) + position
        scores = scores.masked_fill(~labeled, -math.inf)
        null = (position + SPEEDUP * head.null_logit)[:, None].expand(len(h), S, 1)
        return torch.softmax(torch.cat([scores, null], -1), -1)[..., :-1] @ one_hot

    def macs(self, tokens: int, rows: int) -> float:
        """Multiply-accumulates of a training step: three times those of the forward pass."""
        m = self.model
        per_token = sum(block.macs((rows + 1) / 2) for block in m.all_blocks)
        return 3 * tokens * (per_token + sum(head.macs((rows + 1) / 2) for head in m.all_heads))


def _behind_null(x: Tensor) -> Tensor:
    """Keys or values (B, S, K) behind a null one, without the last, which no row sees."""
    return F.pad(x, (0, 0, 1, -1))


def visible_rows(rows: int, label_batch: int) -> tuple[Tensor, Tensor]:
    """What each row sees, (S, S): rows whose labels have arrived, and rows of its chunk that wait for theirs."""
    row = torch.arange(rows)
    arrived = row // label_batch * label_batch
    waits = (row >= arrived[:, None]) & (row < row[:, None]) & (row // CHUNK == row[:, None] // CHUNK)
    return row < arrived[:, None], waits


class Batch(NamedTuple):
    """Streams of equal length, as the network takes them."""

    embedded: Tensor  # (B, S, D) rows by the input map of each stream
    y: Tensor  # (B, S)
    codes: Tensor  # (B, C, CODE)
    log_prior: Tensor  # (B, S, C) of labels seen and not seen; -inf for those that a stream does not have
    label_batch: int  # labels arrive in batches of so many


def make_batch(rng: np.random.Generator, streams: int, rows: int, label_batch: int, width: int) -> Batch:
    """So many streams of the prior, each with a new input map."""
    made = [_one(rng, rows, label_batch, width) for _ in range(streams)]
    embedded, y, codes, log_prior = (torch.from_numpy(np.stack(parts)) for parts in zip(*made, strict=True))
    return Batch(embedded, y, codes, log_prior, label_batch)


def _one(rng: np.random.Generator, rows: int, label_batch: int, width: int) -> tuple[np.ndarray, ...]:
    x, y, num_classes = random_stream(rng, rows)
    features = normalized(x)
    columns = features.shape[1]
    weight = rng.standard_normal((columns, width), dtype=np.float32) * np.float32(0.3 * columns**-0.5)
    seen = np.concatenate([[0], np.maximum.accumulate(y) + 1])[np.arange(rows) // label_batch * label_batch]
    ids = np.arange(CLASSES)
    log_prior = np.where(ids >= seen[:, None], -np.log(np.maximum(num_classes - seen, 1))[:, None], 0.0)
    log_prior[:, num_classes:] = -np.inf
    return features @ weight, y, label_codes(rng, CLASSES), log_prior.astype(np.float32)


def normalized(x: np.ndarray, chunk_size: int = 32) -> np.ndarray:
    """Rows as a learner normalizes them: by all before, and by about the latest 300."""
    normalizer = Normalizer(x.shape[1], recent=300, native=native_experts())
    parts = []
    for start in range(0, len(x), chunk_size):
        features, after = normalizer.transform_sequence(x[start : start + chunk_size])
        normalizer.take(after)
        normalizer.forget()
        parts.append(features)
    return np.concatenate(parts)


def label_codes(rng: np.random.Generator, num_classes: int) -> np.ndarray:
    """Codes (C, CODE) of entries of deviation 1: orthogonal for as many classes as that is possible for."""
    drawn = rng.standard_normal((num_classes, CODE))
    first = drawn[:CODE]
    q, r = np.linalg.qr(first.T)
    drawn[:CODE] = (q * np.sign(np.diag(r))).T * CODE**0.5
    return drawn.astype(np.float32)


class Progress(NamedTuple):
    """How far the training is."""

    step: int = 0
    macs: float = 0.0
    nats: tuple[float, ...] = (1.0,) * 6  # recent means: of each head, over all rows and over the second half of them


def train(file: Path, *, macs: float, seed: int = 0, rate: float = 0.001, most_steps: int | None = None) -> Progress:
    """Trains until so many multiply-accumulates are done; goes on with what is beside the file.

    `most_steps` ends it earlier, as if it were killed there, but with its state saved.
    """
    torch.manual_seed(seed)
    prior = Prior(Settings(seed=seed))
    trained = prior.trained()
    matrices = [p for p in trained.values() if p.ndim >= 2]
    others = [p for p in trained.values() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=True)
    average = {name: value.detach().clone() for name, value in trained.items()}
    progress, state_file, asked = Progress(), file.with_suffix(".state"), {"macs": macs, "seed": seed, "rate": rate}
    if state_file.exists():
        saved = torch.load(state_file, weights_only=True)
        if saved["asked"] != asked:
            raise SystemExit(f"{state_file} was begun with {saved['asked']}, now asked for {asked}")
        prior.load_state_dict(saved["model"])
        adamw.load_state_dict(saved["adamw"])
        average, progress = saved["average"], Progress(*saved["progress"])
    saved_at, began, cpu = time.monotonic(), progress.macs, time.process_time()
    while progress.macs < macs and progress.step != most_steps:
        progress = _step(prior, adamw, average, progress, seed=seed, rate=rate * _factor(progress, macs))
        done = progress.macs >= macs or progress.step == most_steps
        if done or time.monotonic() - saved_at > 60:
            saved_at = time.monotonic()
            state = {"model": prior.state_dict(), "adamw": adamw.state_dict(), "average": average, "asked": asked}
            torch.save({**state, "progress": tuple(progress)}, state_file.with_suffix(".new"))
            os.replace(state_file.with_suffix(".new"), state_file)
        if done or progress.step % 20 == 0:
            speed = (progress.macs - began) / 1e9 / (time.process_time() - cpu)
            nats = " ".join(f"{value:.3f}" for value in progress.nats)
            print(f"step {progress.step}: {progress.macs:.3g} MACs at {speed:.1f}e9/s of CPU; nats {nats}", flush=True)
    made = f"{progress.macs:.4g} MACs, seed {seed}, rate {rate}"  # one entry: safetensors writes several in any order
    save_file(average, file.with_suffix(".new"), {"made": made})
    os.replace(file.with_suffix(".new"), file)
    return progress


def _factor(progress: Progress, macs: float) -> float:
    """What the learning rate is multiplied by: a short rise, then a cosine down to 2 %."""
    return min(1.0, (progress.step + 1) / 50) * (0.02 + 0.49 * (1 + math.cos(math.pi * progress.macs / macs)))


def _step(
    prior: Prior,
    adamw: torch.optim.AdamW,
    average: dict[str, Tensor],
    progress: Progress,
    *,
    seed: int,
    rate: float,
) -> Progress:
    """One step of AdamW on new streams, with the loss of the learner: the sum of all heads' own."""
    step, trained = progress.step, list(prior.trained().values())
    streams, rows, label_batch = SHAPES[step % len(SHAPES)]
    batch = make_batch(np.random.default_rng([seed, step]), streams, rows, label_batch, prior.settings.width)
    for group in adamw.param_groups:
        group["lr"] = rate
    log_probs = prior(batch)
    losses = [-of_head.mean() for of_head in log_probs]
    torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(trained, 1.0)
    adamw.step()
    adamw.zero_grad(set_to_none=True)
    with torch.no_grad():
        torch._foreach_lerp_(list(average.values()), tuple(trained), 1 - min(EMA, step / (step + 9)))
    late = [-of_head[:, rows // 2 :].mean() for of_head in log_probs]
    decay = min(0.98, step / (step + 1))
    nats = (decay * old + (1 - decay) * new.item() for old, new in zip(progress.nats, (*losses, *late), strict=True))
    return Progress(step + 1, progress.macs + prior.macs(streams * rows, rows), tuple(nats))


def load_prior(file: Path) -> Prior:
    """The trained prior from its file."""
    prior, saved = Prior(Settings()), load_file(file)
    for name, parameter in prior.trained().items():
        parameter.data.copy_(saved[name])
    return prior


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--macs", type=float, default=1e13)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--most-steps", type=int, help="stop earlier, on the same schedule")
    args = parser.parse_args()
    torch.set_num_threads(1)
    train(args.file, macs=args.macs, seed=args.seed, rate=args.rate, most_steps=args.most_steps)


if __name__ == "__main__":
    main()
