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
from prequential.learners.mixing import Mixer
from prequential.learners.optimiser import Optimiser
from prequential.learners.ranks import here
from prequential.learners.replay import ReplayReaders
from prequential.models.context import Context, Seen, stacked
from prequential.models.extractors import make_extractor, seed_dropout
from prequential.models.pi import PiTransformer
from prequential.models.two_token import TwoTokenTransformer
from prequential.settings import Settings

# inputs (n, ...), the output units of their labels (n,), and how many labels had been met before each of them (n,)
Examples = tuple[np.ndarray, np.ndarray, np.ndarray]
# reads the chunk at which a replay stream stands; what is left to do with it may be done later, and elsewhere
Replay = Callable[[int], Callable[[], Examples]]
Report = tuple[list[Tensor], Seen]  # each head's log-probabilities (n, classes), and what is to be kept of the examples


class Trainer:
    """The network, its optimiser, a context for each stream, and the weights by which the heads are mixed.

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
        self.ranks = here()
        self.ranks.check(settings.streams, settings.updates)
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
        self.context = self.model.new_context()
        self.replay_contexts = [self.model.new_context() for _ in range(settings.streams - 1)]
        self.mixer = Mixer(len(self.model.heads))
        self._foreseen: tuple[np.ndarray, list[Tensor], Seen] | None = None  # the last prediction, if it was of one x
        self._dropout = network is not None and bool(network.dropout)
        self._optimiser = Optimiser(self.model, settings)

    def predict(self, x: np.ndarray, known: int) -> np.ndarray:
        """Log-probabilities (n, classes) of n inputs, each as the next one after all that is in the context."""
        if self.model.training:  # asked first, as telling every module takes time
            self.model.eval()
        past = self.context.recent()
        with torch.no_grad(), self._precision():
            # the past is repeated for every example, so many are done a few at a time
            parts = [self.model.foresee(self._tensor(x[i : i + 64]), past) for i in range(0, len(x), 64)]
            outs = [torch.cat(of_head) for of_head in zip(*(part[0] for part in parts), strict=True)]
            self._foreseen = (x.copy(), outs, parts[0][1]) if len(x) == 1 else None
            return self.mixer.predict(_numbers(self._log_p(outs, np.full(len(x), known))))

    def extend_context(self, examples: Examples) -> np.ndarray:
        """Puts labelled examples of an unfinished chunk in the context; their log-probabilities (n, classes)."""
        log_p = None
        if self.ranks.first:
            log_p, new = self._told(examples) or self._report(self.context.recent(), examples)
            self.context.append(new)
        self._foreseen = None
        return self.mixer.extend(self._shared(log_p, examples), examples[1])

    def score(self, examples: Examples) -> np.ndarray:
        """A pass over a whole chunk without a step, for parameters that are frozen; its log-probabilities."""
        log_p = None
        if self.ranks.first:
            log_p, new = self._report(self.context.past(), examples)
            self.context.finish_chunk(new)
        self._foreseen = None
        return self.mixer.finish_chunk(self._shared(log_p, examples), examples[1])

    def turn(self, chunk: Examples, replay: Replay, *, position: int, following: int) -> np.ndarray:
        """One turn: the chunk's log-probabilities from before any step on it, then a step in every stream.

        `replay(r)` reads the chunk at which replay stream r stands, `position` is that of the chunk's first example,
        and `following` is the number of the next turn.
        """
        log_p = self.take_steps(chunk, replay, position=position, following=following)
        return self.mixer.finish_chunk(self._shared(log_p, chunk), chunk[1])

    def take_steps(self, chunk: Examples, replay: Replay, *, position: int, following: int) -> list[Tensor] | None:
        """The steps of a turn, and each head's log-probabilities from before them, where they are computed."""
        self._foreseen = None
        turn = position // self.settings.chunk + 1
        log_p: list[Tensor] | None
        if self.settings.updates == "joint":
            past_chunks = [replay(reader)() if turn > 1 else chunk for reader in range(len(self.readers))]
            log_p = self._joint_step([chunk, *past_chunks], position)
        else:
            log_p = self._step(self.context, chunk, position, reported=True)
            for reader, context in enumerate(self.replay_contexts):
                self._step(context, replay(reader)() if turn > 1 else chunk, position, reported=False)
        for reader, context in enumerate(self.replay_contexts):
            if self.readers.advance(reader, turn, following):
                context.clear()
        return log_p

    def _step(self, context: Context, examples: Examples, position: int, *, reported: bool) -> list[Tensor]:
        """A pass over a chunk of one stream and a gradient step; the log-probabilities from before the step."""
        x, y = self._tensors(examples)
        past = context.past()
        # what is reported comes from a pass without dropout, so with dropout the chunk takes two
        report = self._report(past, examples) if reported and self._dropout else None
        self._begin_step()
        with self._precision():
            outs, new = self.model(x[None], y[None], past)
        log_p = self._log_p([out[0] for out in outs], examples[2])
        self._loss(log_p, y).backward()  # type: ignore[no-untyped-call]
        self._end_step(position)
        report = report or ([of_head.detach() for of_head in log_p], new)
        context.finish_chunk(report[1])
        return report[0]

    def _joint_step(self, chunks: list[Examples], position: int) -> list[Tensor] | None:
        """One step on the chunks of all streams as a batch; the reported stream's log-probabilities, where it is computed."""
        contexts = [self.context, *self.replay_contexts]
        tensors = {i: self._tensors(chunk) for i, chunk in enumerate(chunks) if self.ranks.owns(i)}
        report = self._report(self.context.past(), chunks[0]) if self._dropout and self.ranks.first else None
        self._begin_step()
        # a last chunk that is short cannot share a batch with the others; the gradients are added up either way
        for length in sorted({len(y) for _, y in tensors.values()}):
            members = [i for i, (_, y) in tensors.items() if len(y) == length]
            x, y = (torch.stack([tensors[i][part] for i in members]) for part in (0, 1))
            with self._precision():
                outs, new = self.model(x, y, stacked([contexts[i] for i in members]))
            rows = [self._log_p([out[row] for out in outs], chunks[i][2]) for row, i in enumerate(members)]
            loss = self._loss([torch.cat(of_head) for of_head in zip(*rows, strict=True)], y.flatten())
            (loss * (len(members) / len(chunks))).backward()  # type: ignore[no-untyped-call]
            for row, i in enumerate(members):
                if i == 0:
                    report = report or ([of_head.detach() for of_head in rows[row]], new.stream(row))
                else:
                    contexts[i].finish_chunk(new.stream(row))
        self.ranks.add_up(self.model.parameters())
        self._end_step(position)
        if report is None:
            return None
        self.context.finish_chunk(report[1])
        return report[0]

    def _shared(self, log_p: list[Tensor] | None, examples: Examples) -> np.ndarray:
        """Each head's log-probabilities (heads, n, classes), in every process."""
        if self.ranks.count == 1:
            assert log_p is not None
            return _numbers(log_p)
        shape = (len(self.model.heads), len(examples[1]), self.model.classes)
        given = torch.empty(shape, device=self.device) if log_p is None else torch.stack(log_p)
        return self.ranks.from_first(given.float()).cpu().numpy()

    def _loss(self, log_p: list[Tensor], y: Tensor) -> Tensor:
        """Every head's own loss; the loss of their mixture would let a head rest on what another one can do."""
        losses = [F.nll_loss(of_head, y) for of_head in log_p]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _told(self, examples: Examples) -> Report | None:
        """The report on an example that was the last one to be predicted, for which no other pass is needed."""
        if self._foreseen is None or not np.array_equal(self._foreseen[0], examples[0]):
            return None
        with torch.no_grad():
            new = self.model.told(self._foreseen[2], self._tensors(examples)[1][None])
            return None if new is None else (self._log_p(self._foreseen[1], examples[2]), new)

    def _report(self, past: Seen, examples: Examples) -> Report:
        x, y = self._tensors(examples)
        if self.model.training:
            self.model.eval()
        with torch.no_grad(), self._precision():
            outs, new = self.model(x[None], y[None], past)
            return self._log_p([out[0] for out in outs], examples[2]), new

    def _log_p(self, outs: list[Tensor], known: np.ndarray) -> list[Tensor]:
        """Each head's log-probabilities (n, classes), in which labels not met yet together start with the weight of one.

        Each with a weight of its own, they would outweigh the few that were met wherever the capacity is generous.
        """
        share, classes = None, outs[0].shape[1]
        if known[0] < classes:
            unmet = np.arange(classes) >= known[:, None]
            weight = np.where(unmet, -np.log(np.maximum(classes - known, 1))[:, None], 0.0).astype(np.float32)
            share = torch.from_numpy(weight).to(self.device)
        return [head.log_probabilities(out, share) for head, out in zip(self.model.all_heads, outs, strict=True)]

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
            "context": self.context.state(),
            "replay_contexts": self._replay_states(),
            "mixer": self.mixer.state(),
            "readers": self.readers.state(),
            "steps": self.steps,
        }

    def _replay_states(self) -> list[dict[str, Any]]:
        """The contexts of the replay streams; in the first process of several, those of all of them."""
        owned = {i: c.state() for i, c in enumerate(self.replay_contexts) if self.ranks.owns(i + 1)}
        found = self.ranks.gathered(owned)
        return [found[i] if i in found else c.state() for i, c in enumerate(self.replay_contexts)]

    def load_state(self, state: dict[str, Any]) -> None:
        self._foreseen = None
        for name, parameter in self.model.named_parameters():
            saved = torch.tensor(state["parameters"][name])
            if saved.shape != parameter.shape:
                raise BadCheckpoint(
                    f"parameter {name} has shape {tuple(saved.shape)}, expected {tuple(parameter.shape)}"
                )
            parameter.data.copy_(saved)
        self._optimiser.load_state(state["optimiser"])
        self.context.load_state(state["context"])
        for context, saved in zip(self.replay_contexts, state["replay_contexts"], strict=True):
            context.load_state(saved)
        self.mixer.load_state(state["mixer"])
        self.readers.load_state(state["readers"])
        self.steps = int(state["steps"])


def _numbers(log_p: list[Tensor]) -> np.ndarray:
    return np.stack([of_head.cpu().numpy() for of_head in log_p])  # (M, n, classes)
