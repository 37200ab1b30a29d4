"""A transformer trained online: its passes and gradient steps, for the reported stream and the replay streams."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prequential.errors import BadCheckpoint, BadSetting
from prequential.learners.device import on_device
from prequential.learners.replay import ReplayReaders
from prequential.learners.transformer.distributed import here
from prequential.learners.transformer.graphs import Batch, CudaGraphs, Graphs, Made, called, full
from prequential.learners.transformer.knn import Neighbours
from prequential.learners.transformer.mixer import Mixer
from prequential.learners.transformer.optimizer import Optimiser
from prequential.learners.transformer.reading import Reader
from prequential.models.context import Context, Seen, stacked
from prequential.models.extractors import make_extractor, seed_dropout
from prequential.models.heads import with_doubt
from prequential.models.pi import PiTransformer
from prequential.models.two_token import TwoTokenTransformer
from prequential.settings import Settings

# inputs (n, ...), the output units of their labels (n,), and how many labels had been met before each of them (n,)
Examples = tuple[np.ndarray, np.ndarray, np.ndarray]
# reads the chunk at which a replay stream stands; what is left to do with it may be done later, and elsewhere
Replay = Callable[[int], Callable[[], Examples]]
Report = tuple[list[Tensor], Seen]  # each head's log-probabilities (n, classes), and what is to be kept of the examples


class _Foreseen(NamedTuple):
    """A prediction of one x: all that learning it next would compute again."""

    x: bytes
    known: int  # labels met before it
    log_p: list[Tensor]
    new: Seen  # what is to be kept of it but for its label


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
    neighbours, compared
        How many of the latest examples vote beside the heads, and by how many of their inputs they are compared.
    reports
        Whether what is reported is predicted here; otherwise only steps are taken.
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
        neighbours: int = 0,
        compared: int = 0,
        reports: bool = True,
    ) -> None:
        self.settings, self.device = settings, device
        self.ranks = here()
        self.ranks.check(settings.num_streams, settings.updates)
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
        # what predicts: an average of the parameters that learn, or these themselves
        self.shown = (
            copy.deepcopy(self.model).requires_grad_(False).eval() if settings.effective_ema_decay else self.model
        )
        self.steps = 0  # gradient steps taken
        self.readers = ReplayReaders(settings.num_streams - 1, seed=settings.seed)
        self.context = self.model.new_context()
        # a pass that learns looks back on what the parameters that learn have made of the past
        apart = reports and self.shown is not self.model
        self.learning_context = self.model.new_context() if apart else self.context
        self.replay_contexts = [self.model.new_context() for _ in range(settings.num_streams - 1)]
        self.neighbours: Neighbours | None = None
        if neighbours and reports:
            self.neighbours = Neighbours(memory=neighbours, chunk=settings.chunk_size, width=compared, classes=classes)
        self.mixer = Mixer(len(self.model.heads) + (self.neighbours is not None))
        self._foreseen: _Foreseen | None = None  # the last prediction, if it was of one x
        self._dropout = network is not None and bool(network.dropout)
        # where what is reported does not come from the pass that learns, the chunk takes two
        self._twice = self._dropout or apart
        self._optimiser = Optimiser(self.model, settings)
        self._reader = Reader()
        self._graphs = self._make_graphs() if settings.graphs else None

    @property
    def busy(self) -> bool:
        """Whether steps are under way."""
        return False

    def check(self) -> None:
        """Raises what went wrong behind the last call, if anything did."""

    def wait(self) -> None:
        """Waits until no steps are under way."""

    @property
    def skipped(self) -> int:
        """Gradient steps that were not taken because the gradient was not finite."""
        return self._optimiser.skipped

    def predict(self, x: np.ndarray, known: int) -> np.ndarray:
        """Log-probabilities (n, classes) of n inputs, each as the next one after all that is in the context."""
        if self.shown.training:  # asked first, as telling every module takes time
            self.shown.eval()
        past = self.context.recent()
        with torch.no_grad(), self._precision():
            # the past is repeated for every example, so many are done a few at a time
            parts = [self.shown.foresee(self._tensor(x[i : i + 64]), past) for i in range(0, len(x), 64)]
            outs, new = parts[0]
            if len(parts) > 1:
                outs = [torch.cat(of_head) for of_head in zip(*(part[0] for part in parts), strict=True)]
            log_p = self._log_p(outs, np.full(len(x), known))
        self._foreseen = _Foreseen(x.tobytes(), known, log_p, new) if len(x) == 1 else None
        votes = None if self.neighbours is None else self.neighbours.predict(x)
        return self.mixer.predict(self._experts(_numbers(log_p), votes, np.full(len(x), known)))

    def extend_context(self, examples: Examples) -> np.ndarray:
        """Puts labelled examples of an unfinished chunk in the context; their log-probabilities (n, classes)."""
        log_p = None
        if self.ranks.first:
            log_p, new = self._told(examples) or self._report(self.context.recent(), examples)
            self.context.append(new)
        self._foreseen = None
        votes = None if self.neighbours is None else self.neighbours.extend(*examples[:2])
        return self.mixer.extend(self._experts(self._shared(log_p, examples), votes, examples[2]), examples[1])

    def score(self, examples: Examples) -> np.ndarray:
        """A pass over a whole chunk without a step, for parameters that are frozen; its log-probabilities."""
        log_p = None
        if self.ranks.first:
            log_p, new = self._report(self.context.past(), examples)
            self.context.finish_chunk(new)
        self._foreseen = None
        return self._mixed(log_p, examples)

    def turn(self, chunk: Examples, replay: Replay, *, position: int, following: int) -> np.ndarray:
        """One turn: the chunk's log-probabilities from before any step on it, then a step in every stream.

        `replay(r)` reads the chunk at which replay stream r stands, `position` is that of the chunk's first example,
        and `following` is the number of the next turn.
        """
        log_p = self.take_steps(chunk, replay, position=position, following=following)
        return self._mixed(log_p, chunk)

    def take_steps(self, chunk: Examples, replay: Replay, *, position: int, following: int) -> list[Tensor] | None:
        """The steps of a turn, and each head's log-probabilities from before them, where they are computed."""
        self._foreseen = None
        turn = position // self.settings.chunk_size + 1
        past: Replay = replay if turn > 1 else (lambda _: lambda: chunk)
        if self.settings.updates == "joint":
            past_chunks = [past(reader)() for reader in range(len(self.readers))]
            # of a chunk that is damaged on disk, nothing may be left
            log_p = self._step({i: c for i, c in enumerate([chunk, *past_chunks]) if len(c[1])}, position)
        else:
            with self._reader.turn(past, len(self.readers)) as read:
                log_p = self._step({0: chunk}, position)
                for stream, past_chunk in enumerate(read, 1):
                    if len((examples := past_chunk())[1]):  # of a chunk that is damaged on disk, nothing may be left
                        self._step({stream: examples}, position)
        for reader, context in enumerate(self.replay_contexts):
            if self.readers.advance(reader, turn, following):
                context.clear()
        if self.shown is not self.model:
            self._follow(turn)
        return log_p

    def _follow(self, turn: int) -> None:
        """Moves the average of the parameters towards those after this turn, farther at the start."""
        share = min(self.settings.effective_ema_decay, turn / (turn + 9))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.shown.parameters()), list(self.model.parameters()), 1 - share)

    def _step(self, chunks: dict[int, Examples], position: int) -> list[Tensor] | None:
        """One gradient step on the chunks of some streams, each by its number; 0 is the reported one.

        Gives the log-probabilities of the reported one from before the step, if it is among those computed here.
        """
        contexts = [self.learning_context, *self.replay_contexts]
        mine = {stream: chunk for stream, chunk in chunks.items() if self.ranks.owns(stream)}
        report = self._report(self.context.past(), mine[0]) if self._twice and 0 in mine else None
        # a last chunk that is short cannot share a batch with the others; the gradients are added up either way
        lengths = sorted({len(y) for _, y, _ in mine.values()})
        groups = [[stream for stream in mine if len(mine[stream][1]) == length] for length in lengths]
        batches = [self._batch([contexts[i] for i in group], [mine[i] for i in group]) for group in groups]
        self._begin_step(position)
        if self._graphs is not None and lengths == [self.settings.chunk_size] and all(full(contexts[i]) for i in mine):
            made = [self._graphs(batches[0])]
        else:
            made = self._learn(batches, len(chunks))
        self.steps += 1
        for group, of_group in zip(groups, made, strict=True):
            for row, stream in enumerate(group):
                new = of_group.new if len(group) == 1 else of_group.new.stream(row)
                if stream == 0:  # always the first of its group
                    report = report or (of_group.log_p, new)
                    self.context.finish_chunk(report[1])
                if stream or self.learning_context is not self.context:
                    contexts[stream].finish_chunk(new)
        return None if report is None else report[0]

    def _batch(self, contexts: list[Context], chunks: list[Examples]) -> Batch:
        """The chunks of some streams, all of one length, with their pasts."""
        tensors = [self._tensors(chunk) for chunk in chunks]
        shares = [self._share(known) for _, _, known in chunks]
        if len(chunks) == 1:
            return Batch(tensors[0][0][None], tensors[0][1], contexts[0].past(), shares)
        x, y = torch.stack([x for x, _ in tensors]), torch.cat([y for _, y in tensors])
        return Batch(x, y, stacked(contexts), shares)

    def _learn(self, batches: list[Batch], streams: int) -> list[Made]:
        """All that is computed in a step on so many streams: their gradients, added up, and the step along them."""
        made = [self._backward(batch, len(batch.shares) / streams) for batch in batches]
        self.ranks.add_up(self.model.parameters())
        self._optimiser.step()
        return made

    def _backward(self, batch: Batch, weight: float) -> Made:
        """A pass over a batch, and the gradients of its loss, which counts with this weight."""
        with self._precision():
            outs, new = self.model(batch.x, batch.y.view(batch.x.shape[:2]), batch.past)
        rows = [self._by_head([out[row] for out in outs], share) for row, share in enumerate(batch.shares)]
        log_p = rows[0] if len(rows) == 1 else [torch.cat(of_head) for of_head in zip(*rows, strict=True)]
        loss = self._loss(log_p, batch.y)
        (loss if weight == 1 else loss * weight).backward()  # type: ignore[no-untyped-call]
        return Made([of_head.detach() for of_head in rows[0]], new)

    def _make_graphs(self) -> Graphs:
        """What takes the steps of full chunks behind full windows, which all have the same shapes."""
        if self.ranks.count > 1:
            raise BadSetting(f"graphs (True) needs one process, but {self.ranks.count} share the streams")
        if self._dropout:
            raise BadSetting(
                f"graphs (True) needs an extractor without dropout, as its masks are new in every step, but "
                f"{self.settings.extractor} has some"
            )
        return Graphs(
            lambda batch: self._learn([batch], len(batch.shares))[0],
            optimiser=self._optimiser,
            tables=self.model.tables,
            record=CudaGraphs(self.device) if self.device.type == "cuda" else called,
        )

    def _mixed(self, log_p: list[Tensor] | None, chunk: Examples) -> np.ndarray:
        """The mixture of all that was predicted on a whole chunk."""
        votes = None if self.neighbours is None else self.neighbours.finish_chunk(*chunk[:2])
        return self.mixer.finish_chunk(self._experts(self._shared(log_p, chunk), votes, chunk[2]), chunk[1])

    def _experts(self, log_p: np.ndarray, votes: Tensor | None, known: np.ndarray) -> np.ndarray:
        """The log-probabilities (experts, n, classes) of the heads and, where they vote, of the neighbours."""
        if votes is None:
            return log_p
        share = self._share(known)
        voted = with_doubt(votes, None if share is None else share.cpu())
        return np.concatenate([log_p, voted.numpy()[None]])

    def _shared(self, log_p: list[Tensor] | None, examples: Examples) -> np.ndarray:
        """Each head's log-probabilities (heads, n, classes), in every process."""
        if self.ranks.count == 1:
            assert log_p is not None
            return _numbers(log_p)
        shape = (len(self.model.heads), len(examples[1]), self.model.classes)
        given = torch.empty(shape, device=self.device) if log_p is None else torch.stack(log_p)
        return _certain(self.ranks.from_first(given.float()).cpu().numpy())

    def _loss(self, log_p: list[Tensor], y: Tensor) -> Tensor:
        """Every head's own loss; the loss of their mixture would let a head rest on what another one can do."""
        losses = [F.nll_loss(of_head, y) for of_head in log_p]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _told(self, examples: Examples) -> Report | None:
        """The report on an example that was the last one to be predicted, for which no other pass is needed."""
        x, y, known = examples
        foreseen = self._foreseen
        # by their bytes, as 0 and -0 are equal
        if foreseen is None or len(y) > 1 or known[0] != foreseen.known or x.tobytes() != foreseen.x:
            return None
        with torch.no_grad():
            new = self.shown.told(foreseen.new, self._tensor(y)[None])
        return None if new is None else (foreseen.log_p, new)

    def _report(self, past: Seen, examples: Examples) -> Report:
        x, y = self._tensors(examples)
        if self.shown.training:
            self.shown.eval()
        with torch.no_grad(), self._precision():
            outs, new = self.shown(x[None], y[None], past)
            return self._log_p([out[0] for out in outs], examples[2]), new

    def _log_p(self, outs: list[Tensor], known: np.ndarray) -> list[Tensor]:
        """Each head's log-probabilities (n, classes), in which labels not met yet together start with the weight of one.

        Each with a weight of its own, they would outweigh the few that were met wherever the capacity is generous.
        """
        return self._by_head(outs, self._share(known))

    def _share(self, known: np.ndarray) -> Tensor | None:
        """The log-weight (n, classes) of each label when nothing is known about the example; None: all were met."""
        classes = self.model.classes
        if known[0] >= classes:
            return None
        unmet = np.arange(classes) >= known[:, None]
        weight = np.where(unmet, -np.log(np.maximum(classes - known, 1))[:, None], 0.0)
        return self._tensor(weight.astype(np.float32))

    def _by_head(self, outs: list[Tensor], share: Tensor | None) -> list[Tensor]:
        return [head.log_probabilities(out, share) for head, out in zip(self.model.all_heads, outs, strict=True)]

    def _begin_step(self, position: int) -> None:
        self.model.train()
        if self._dropout:
            seed_dropout(self.model, self.settings.seed + 1_000_003 * self.steps)
        self._optimiser.set_rate(position)

    def _tensors(self, examples: Examples) -> tuple[Tensor, Tensor]:
        return self._tensor(examples[0]), self._tensor(examples[1])

    def _tensor(self, x: np.ndarray) -> Tensor:
        return on_device(x, self.device)

    def _precision(self) -> AbstractContextManager[Any]:
        if self.settings.precision == "float32":
            return nullcontext()
        # a graph would go on with the weights that were in the cache when it was captured
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=not self.settings.graphs)

    def state_dict(self) -> dict[str, Any]:
        return {
            "parameters": _copies(self.model),
            "shown": {} if self.shown is self.model else _copies(self.shown),
            "optimiser": self._optimiser.state_dict(),
            "context": self.context.state_dict(),
            "learning_context": None if self.learning_context is self.context else self.learning_context.state_dict(),
            "replay_contexts": self._replay_states(),
            "neighbours": None if self.neighbours is None else self.neighbours.state_dict(),
            "mixer": self.mixer.state_dict(),
            "readers": self.readers.state_dict(),
            "steps": self.steps,
            "skipped": self.skipped,
        }

    def _replay_states(self) -> list[dict[str, Any]]:
        """The contexts of the replay streams; in the first process of several, those of all of them."""
        owned = {i: c.state_dict() for i, c in enumerate(self.replay_contexts) if self.ranks.owns(i + 1)}
        found = self.ranks.gathered(owned)
        return [found[i] if i in found else c.state_dict() for i, c in enumerate(self.replay_contexts)]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._foreseen = None
        _load_parameters(self.model, state["parameters"])
        if self.shown is not self.model:
            _load_parameters(self.shown, state["shown"])
        self._optimiser.load_state_dict(state["optimiser"])
        self.context.load_state_dict(state["context"])
        if self.learning_context is not self.context:
            self.learning_context.load_state_dict(state["learning_context"])
        if self.neighbours is not None:
            self.neighbours.load_state_dict(state["neighbours"])
        for context, saved in zip(self.replay_contexts, state["replay_contexts"], strict=True):
            context.load_state_dict(saved)
        self.mixer.load_state_dict(state["mixer"])
        self.readers.load_state_dict(state["readers"])
        self.steps = int(state["steps"])
        self._optimiser.skipped = int(state.get("skipped", 0))  # an earlier version counted none


def _copies(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.named_parameters()}


def _load_parameters(network: nn.Module, saved: dict[str, Any]) -> None:
    for name, parameter in network.named_parameters():
        value = torch.as_tensor(saved[name])
        if value.shape != parameter.shape:
            raise BadCheckpoint(f"parameter {name} has shape {tuple(value.shape)}, expected {tuple(parameter.shape)}")
        parameter.data.copy_(value)


def _numbers(log_p: list[Tensor]) -> np.ndarray:
    return _certain(np.array([of_head.cpu().numpy() for of_head in log_p]))  # (M, n, classes)


def _certain(log_p: np.ndarray) -> np.ndarray:
    """Log-probabilities (M, n, classes), uniform where a network that has diverged gives no number."""
    broken = np.isnan(log_p)
    if not broken.any():
        return log_p
    return np.where(broken.any(-1, keepdims=True), -np.log(log_p.shape[-1]), log_p).astype(log_p.dtype)
