"""A transformer trained online: its passes and gradient steps, for the reported stream and the replay streams."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prequential.errors import BadCheckpoint
from prequential.learners.optimiser import Optimiser
from prequential.learners.replay import ReplayReaders
from prequential.models.blocks import KVCache, Past
from prequential.models.extractors import make_extractor, seed_dropout
from prequential.models.pi import PiTransformer
from prequential.models.two_token import TwoTokenTransformer
from prequential.settings import Settings

# inputs (n, ...), the output units of their labels (n,), and how many labels had been met before each of them (n,)
Examples = tuple[np.ndarray, np.ndarray, np.ndarray]


class Trainer:
    """The network, its optimiser, and a cache for each stream.

    Parameters
    ----------
    settings
        What the network is made of and how it learns.
    features
        The length of input vectors; ignored where an extractor makes them.
    extractor
        The name of the network that makes features of images, or "none".
    shape
        The shape of one input as the user gave it.
    classes
        The number of output units.
    device
        Where to compute.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        features: int,
        extractor: str,
        shape: tuple[int, ...],
        classes: int,
        device: torch.device,
    ) -> None:
        self.settings, self.device = settings, device
        with torch.random.fork_rng(
            devices=range(torch.cuda.device_count())
        ):  # reproducible, and nobody else's random numbers are touched
            torch.manual_seed(settings.seed)
            network: nn.Module | None = None
            if extractor != "none" and settings.use_input:
                network = make_extractor(extractor, shape)
                features = int(network.features)
            kind = PiTransformer if settings.model == "pi" else TwoTokenTransformer
            self.model = kind(settings, features=features, classes=classes, extractor=network).to(device)
        self.steps = 0  # gradient steps taken
        self.readers = ReplayReaders(settings.streams - 1, seed=settings.seed)
        self.cache = self.model.new_cache()
        self.replay_caches = [self.model.new_cache() for _ in range(settings.streams - 1)]
        self._dropout = network is not None and bool(network.dropout)
        self._optimiser = Optimiser(self.model, settings)

    def predict(self, x: np.ndarray, known: int) -> np.ndarray:
        """Log-probabilities (n, classes) of n inputs, each as the next one after all that is in the context."""
        self.model.eval()
        past = self.cache.recent()
        with torch.no_grad(), self._precision():
            # the past is repeated for every example, so many are done a few at a time
            parts = [self.model.predict(self._tensor(x[i : i + 64]), past) for i in range(0, len(x), 64)]
            return self._shared(torch.cat(parts), np.full(len(x), known)).cpu().numpy()

    def extend_context(self, examples: Examples) -> np.ndarray:
        """Puts labelled examples of an unfinished chunk in the context; their log-probabilities (n, classes)."""
        log_p, new = self._report(self.cache.recent(), examples)
        self.cache.append(new)
        return log_p.cpu().numpy()

    def score(self, examples: Examples) -> np.ndarray:
        """A pass over a whole chunk without a step, for parameters that are frozen; its log-probabilities."""
        log_p, new = self._report(self.cache.past(), examples)
        self.cache.finish_chunk(new)
        return log_p.cpu().numpy()

    def turn(self, chunk: Examples, replay: Callable[[int], Examples], *, position: int, following: int) -> np.ndarray:
        """One turn: the chunk's log-probabilities from before any step on it, then a step in every stream.

        `replay(r)` reads the chunk at which replay stream r stands, `position` is that of the chunk's first example,
        and `following` is the number of the next turn.
        """
        turn = position // self.settings.chunk + 1
        if self.settings.updates == "joint":
            past_chunks = [replay(reader) if turn > 1 else chunk for reader in range(len(self.readers))]
            log_p = self._joint_step([chunk, *past_chunks], position)
        else:
            log_p = self._step(self.cache, chunk, position, reported=True)
            for reader, cache in enumerate(self.replay_caches):
                self._step(cache, replay(reader) if turn > 1 else chunk, position, reported=False)
        for reader, cache in enumerate(self.replay_caches):
            if self.readers.advance(reader, turn, following):
                cache.clear()
        return log_p.cpu().numpy()

    def _step(self, cache: KVCache, examples: Examples, position: int, *, reported: bool) -> Tensor:
        """A pass over a chunk of one stream and a gradient step; the log-probabilities from before the step."""
        x, y = self._tensors(examples)
        past = cache.past()
        # what is reported comes from a pass without dropout, so with dropout the chunk takes two
        report = self._report(past, examples) if reported and self._dropout else None
        self._begin_step()
        with self._precision():
            raw, new = self.model(x[None], y[None], past, [past[0].shape[2]])
        log_p = self._shared(raw[0], examples[2])
        F.nll_loss(log_p, y).backward()  # type: ignore[no-untyped-call]
        self._end_step(position)
        report = report or (log_p.detach(), new)
        cache.finish_chunk(report[1])
        return report[0]

    def _joint_step(self, chunks: list[Examples], position: int) -> Tensor:
        """One step on the chunks of all streams as a batch; the reported stream's log-probabilities."""
        caches = [self.cache, *self.replay_caches]
        tensors = [self._tensors(chunk) for chunk in chunks]
        report = self._report(self.cache.past(), chunks[0]) if self._dropout else None
        self._begin_step()
        # a last chunk that is short cannot share a batch with the others; the gradients are added up either way
        for length in sorted({len(y) for _, y in tensors}):
            members = [i for i, (_, y) in enumerate(tensors) if len(y) == length]
            past, filled = _stacked([caches[i] for i in members])
            x, y = (torch.stack([tensors[i][part] for i in members]) for part in (0, 1))
            with self._precision():
                raw, (k, v) = self.model(x, y, past, filled)
            log_p = torch.stack([self._shared(raw[row], chunks[i][2]) for row, i in enumerate(members)])
            loss = F.nll_loss(log_p.flatten(0, 1), y.flatten())
            (loss * (len(members) / len(chunks))).backward()  # type: ignore[no-untyped-call]
            for row, i in enumerate(members):
                new = (k[:, row : row + 1], v[:, row : row + 1])
                if i == 0:
                    report = report or (log_p[row].detach(), new)
                else:
                    caches[i].finish_chunk(new)
        self._end_step(position)
        assert report is not None
        self.cache.finish_chunk(report[1])
        return report[0]

    def _report(self, past: Past, examples: Examples) -> tuple[Tensor, Past]:
        x, y = self._tensors(examples)
        self.model.eval()
        with torch.no_grad(), self._precision():
            log_p, new = self.model(x[None], y[None], past, [past[0].shape[2]])
            return self._shared(log_p[0], examples[2]), new

    def _shared(self, log_p: Tensor, known: np.ndarray) -> Tensor:
        """Log-probabilities (n, classes) in which the labels not met yet together start with the weight of one.

        Each with a weight of its own, they would outweigh the few that were met wherever the capacity is generous.
        """
        classes = log_p.shape[1]
        if known[0] >= classes:
            return log_p
        unmet = np.arange(classes) >= known[:, None]
        share = np.where(unmet, -np.log(np.maximum(classes - known, 1))[:, None], 0.0).astype(np.float32)
        return torch.log_softmax(log_p + torch.from_numpy(share).to(self.device), -1)

    def _begin_step(self) -> None:
        self.model.train()
        if self._dropout:
            seed_dropout(self.model, self.settings.seed + 1_000_003 * self.steps)

    def _end_step(self, position: int) -> None:
        self._optimiser.step(position)
        self.steps += 1

    def _tensors(self, examples: Examples) -> tuple[Tensor, Tensor]:
        return self._tensor(examples[0]), torch.from_numpy(examples[1]).to(self.device)

    def _tensor(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(x).to(self.device)

    def _precision(self) -> AbstractContextManager[Any]:
        if self.settings.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def state(self) -> dict[str, Any]:
        return {
            "parameters": {name: value.detach().clone() for name, value in self.model.named_parameters()},
            "optimiser": self._optimiser.state(),
            "cache": self.cache.state(),
            "replay_caches": [cache.state() for cache in self.replay_caches],
            "readers": self.readers.state(),
            "steps": self.steps,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        for name, parameter in self.model.named_parameters():
            saved = torch.tensor(state["parameters"][name])
            if saved.shape != parameter.shape:
                raise BadCheckpoint(
                    f"parameter {name} has shape {tuple(saved.shape)}, expected {tuple(parameter.shape)}"
                )
            parameter.data.copy_(saved)
        self._optimiser.load_state(state["optimiser"])
        self.cache.load_state(state["cache"])
        for cache, saved in zip(self.replay_caches, state["replay_caches"], strict=True):
            cache.load_state(saved)
        self.readers.load_state(state["readers"])
        self.steps = int(state["steps"])


def _stacked(caches: list[KVCache]) -> tuple[Past, list[int]]:
    """The pasts of several streams as a batch, aligned at their ends, and how much of each counts."""
    pasts = [cache.past() for cache in caches]
    filled = [past[0].shape[2] for past in pasts]
    longest = max(filled)
    k, v = ([F.pad(past[i], (0, 0, longest - past[i].shape[2], 0)) for past in pasts] for i in (0, 1))
    return (torch.cat(k, 1), torch.cat(v, 1)), filled
