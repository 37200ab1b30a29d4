"""Steps as graphs: on a processor the same path runs with calls in place of replays, and must change no bit."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from prequential.errors import BadSetting
from prequential.learners.transformer import graphs as module
from prequential.learners.transformer import trainer
from prequential.learners.transformer.distributed import Ranks
from prequential.learners.transformer.graphs import Batch, CudaGraphs, Graphs, Made
from prequential.learners.transformer.learner import Learner
from prequential.learners.transformer.optimizer import Optimiser
from prequential.models.context import Seen
from prequential.models.pi import PiTransformer
from prequential.settings import Settings
from prequential.storage.checkpoint import same_state
from prequential.streams.datasets.digits import digits

SMALL = {"width": 16, "num_query_heads": 2, "depth": 1, "window": 20, "chunk_size": 16, "num_streams": 3}
JOINT = {"updates": "joint", "num_streams": 2, "chunk_size": 8, "window": 12}  # soon all windows are full at once
VARIANTS = {
    "pi": {},
    "two-token": {"model": "two-token", "window": 21},
    "paper": {"method": "paper"},
    "two-token-paper": {"model": "two-token", "method": "paper"},
    "copy": {"method": "copy", "num_streams": 1},
    "joint": JOINT,
    "joint-two-token-paper": {**JOINT, "model": "two-token", "method": "paper"},
    "async_steps": {"async_steps": True},
    "behind-joint": {**JOINT, "async_steps": True},
    "no-window": {"window": 0, "num_streams": 2},
    "bfloat16": {"precision": "bfloat16", "num_streams": 2},
    "rates": {"warmup_examples": 40, "lr_decay": "inverse-sqrt", "lr_decay_examples": 60},
}
LENGTH = 170  # ends with a short chunk


def make(classes=10, **changes):
    return Learner(classes, **{**SMALL, **changes})


def examples(images=False):
    chunk = digits(tasks=1, task_length=LENGTH, images=images).read(0, LENGTH)
    return chunk.x, chunk.y


@pytest.fixture
def taken(monkeypatch):
    """How many steps were taken as graphs, and how many of them were recorded."""
    counts = {"all": 0, "recorded": 0}
    call, new = Graphs.__call__, Graphs._new

    def counting(self, batch):
        counts["all"] += 1
        return call(self, batch)

    def recording(self, batch):
        counts["recorded"] += 1
        return new(self, batch)

    monkeypatch.setattr(Graphs, "__call__", counting)
    monkeypatch.setattr(Graphs, "_new", recording)
    return counts


def overwriting(work):
    """Like a CUDA graph: every replay writes its results where those of the one before are."""
    first = work()
    made = first.copied()

    def replay():
        again = work()
        for ours, theirs in zip(
            [*made.log_p, *made.new.tokens, *made.new.examples],
            [*again.log_p, *again.new.tokens, *again.new.examples],
            strict=True,
        ):
            ours.copy_(theirs)
        return made

    return replay


@pytest.mark.parametrize("classes", [10, 12])  # all labels are met after a while, or never
@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_parameters_are_the_same_to_the_bit(variant, classes, taken, monkeypatch):
    monkeypatch.setattr(trainer, "called", overwriting)
    x, y = examples()
    plain, graphed = (make(classes, **VARIANTS[variant], graphs=graphs) for graphs in (False, True))
    losses = []
    for learner in (plain, graphed):
        losses.append(learner.observe(x[:80], y[:80]).log_loss)
        losses.append(np.concatenate([learner.observe(x[t : t + 9], y[t : t + 9]).log_loss for t in range(80, 170, 9)]))
        learner.flush()
    assert np.array_equal(losses[0], losses[2])
    assert np.array_equal(losses[1], losses[3])
    states = [learner.state_dict()["learner"]["trainer"] for learner in (plain, graphed)]
    assert same_state(*states)
    assert taken["all"] >= 5
    # the reported chunk's labels may be all met or not, and so may those of the replayed ones
    assert 1 <= taken["recorded"] <= 3


def test_images_are_learnt_the_same(taken):
    x, y = examples(images=True)
    plain, graphed = (make(extractor="convnet", num_streams=2, graphs=graphs) for graphs in (False, True))
    assert np.array_equal(plain.observe(x[:96], y[:96]).log_loss, graphed.observe(x[:96], y[:96]).log_loss)
    assert same_state(plain.state_dict()["learner"]["trainer"], graphed.state_dict()["learner"]["trainer"])
    assert taken["all"] > 2


@pytest.mark.parametrize("variant", ["pi", "two-token-paper", "joint", "behind"])
def test_a_resumed_learner_goes_on_to_the_bit(variant, tmp_path, taken):
    x, y = examples()
    learner = make(**VARIANTS[variant], graphs=True)
    learner.learn_many(x[:100], y[:100])
    before = taken["recorded"]
    learner.save(tmp_path / "saved")
    loaded = Learner.load(tmp_path / "saved")
    assert loaded.settings.graphs
    losses = [other.observe(x[100:], y[100:]).log_loss for other in (learner, loaded)]
    assert np.array_equal(*losses)
    assert same_state(learner.state_dict(), loaded.state_dict())
    assert before >= 1
    assert taken["recorded"] > before  # by the loaded one: recording it anew has changed nothing


def test_a_state_is_loaded_where_graphs_find_it():
    x, y = examples()
    learner = make(graphs=True)
    learner.learn_many(x[:96], y[:96])
    made = learner._trainer
    state = made.state_dict()
    optimiser = made._optimiser
    memory = [tensor.data_ptr() for tensor in tensors_of(optimiser)]
    learner.learn_many(x[96:128], y[96:128])
    assert not same_state(made.state_dict()["optimiser"], state["optimiser"])
    made.load_state_dict(state)
    assert same_state(made.state_dict(), state)
    assert [tensor.data_ptr() for tensor in tensors_of(optimiser)] == memory


def tensors_of(optimiser):
    states = [tensor for state in optimiser._adamw.state.values() for tensor in state.values()]
    rates = [group["lr"] for group in optimiser._adamw.param_groups]
    return [*optimiser._parameters, *states, *rates, optimiser._broken, optimiser._one, optimiser._skipped]


@pytest.mark.parametrize("steps", [0, 3])
def test_steps_are_undone_in_place(steps):
    settings = Settings(width=8, num_query_heads=2, depth=1, window=4, chunk_size=4, graphs=True)
    torch.manual_seed(0)
    model = PiTransformer(settings, features=3, classes=2)
    optimiser = Optimiser(model, settings)

    def step():
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimiser.set_rate(5)
        optimiser.step()

    for _ in range(steps):
        step()
    values, state = [p.detach().clone() for p in model.parameters()], optimiser.state_dict()
    with optimiser.undone():
        step()
        step()
        memory = [tensor.data_ptr() for tensor in tensors_of(optimiser)]
        assert not torch.equal(next(iter(model.parameters())), values[0])
        next(iter(model.parameters())).grad = torch.ones_like(values[0])
    assert [tensor.data_ptr() for tensor in tensors_of(optimiser)] == memory
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), values, strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    if steps:
        assert same_state(optimiser.state_dict(), state)
    else:
        assert all(not tensor.any() for of_one in optimiser.state_dict().values() for tensor in of_one.values())


class Watching(TorchDispatchMode):
    """Notes tensors that come from nowhere: from the host, on a GPU, which a capture forbids; and what asks for numbers."""

    def __init__(self, known):
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.kept = []  # so that no memory is used again
        self.strange = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [tensor for arg in (*args, *(kwargs or {}).values()) for tensor in flat(arg)]
        if any(tensor.numel() and tensor.untyped_storage().data_ptr() not in self.known for tensor in given):
            self.strange.append(str(func))
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            self.strange.append(str(func))
        out = func(*args, **(kwargs or {}))
        made = list(flat(out))
        self.kept += made
        self.known |= {tensor.untyped_storage().data_ptr() for tensor in made}
        return out


def flat(value):
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from flat(part)


@pytest.mark.parametrize("variant", ["pi", "two-token", "paper", "copy", "joint", "no-window"])
def test_a_step_reads_nothing_but_what_stays_where_it_is(variant, monkeypatch):
    """What the graph of a GPU could not hold: an array from the host, or a decision by a number."""
    x, y = examples()
    learner = make(12, **VARIANTS[variant], graphs=True)
    watched = []

    def record(work):
        work()
        optimiser = learner._trainer._optimiser
        (static,) = (cell.cell_contents for cell in work.__closure__ if isinstance(cell.cell_contents, Batch))
        known = [*tensors_of(optimiser), *learner.model.tables(), *(t for t in static.tensors() if t is not None)]
        with Watching(known) as watching:
            work()
        watched.append(watching)
        return work

    monkeypatch.setattr(trainer, "called", record)
    learner.learn_many(x, y)
    assert watched
    assert [watching.strange for watching in watched] == [[]] * len(watched)
    assert all(len(watching.kept) > 50 for watching in watched)


def test_the_watch_sees_what_comes_from_nowhere():
    inside = torch.ones(3)
    with Watching([inside]) as watching:
        inside + 1
        inside + torch.from_numpy(np.ones(3, np.float32))
        (inside[0] * 2).item()
    assert watching.strange == ["aten.lift_fresh.default", "aten._local_scalar_dense.default"]


def test_tables_are_kept_with_their_graph():
    x, y = examples()
    learner = make(graphs=True, method="paper", num_streams=1)
    learner.learn_many(x[:64], y[:64])
    model = learner.model
    (band,) = (band for (tokens, _), band in model._bands.items() if tokens == 16)
    model._bands.clear()
    recorded = learner._trainer._graphs._recorded.values()
    assert any(table is band for _, _, tables in recorded for table in tables)


def test_what_graphs_cannot_hold_is_refused(monkeypatch):
    x = np.zeros((1, 16, 16), np.uint8)
    with pytest.raises(BadSetting, match=r"graphs \(True\) needs an extractor without dropout.*vgg"):
        make(extractor="vgg", graphs=True).learn_many(x, [0])
    monkeypatch.setattr(trainer, "here", lambda: Ranks(0, 2))
    with pytest.raises(BadSetting, match=r"graphs \(True\) needs one process, but 2 share the streams"):
        make(graphs=True, updates="joint").learn([1.0], 0)


def test_a_cuda_graph_is_captured_after_a_warm_up_and_replayed(monkeypatch):
    """Without a GPU, what torch offers for it is played: this is about the order of the calls."""
    told = []

    class Stream:
        def __init__(self, name="side"):
            self.name = name

        def wait_stream(self, other):
            told.append(f"{self.name} waits for {other.name}")

    class Graph:
        def replay(self):
            told.append("replay")

    @contextmanager
    def capture(graph, pool, capture_error_mode):
        assert (pool, capture_error_mode) == ("pool", "thread_local")
        told.append("capture")
        yield
        told.append("captured")

    for name, played in {
        "device": lambda _: nullcontext(),
        "Stream": Stream,
        "current_stream": lambda: Stream("current"),
        "stream": lambda _: nullcontext(),
        "CUDAGraph": Graph,
        "graph": capture,
        "graph_pool_handle": lambda: "pool",
    }.items():
        monkeypatch.setattr(torch.cuda, name, played)
    empty = torch.zeros(0)
    made = Made([torch.ones(2)], Seen((empty, empty), (empty, empty)))

    def work():
        told.append("work")
        return made

    replay = CudaGraphs(torch.device("cuda"))(work)
    assert told == [
        "side waits for current",
        *["work"] * module.WARM_UP,
        "current waits for side",
        "capture",
        "work",
        "captured",
    ]
    told.clear()
    assert replay() is made
    assert told == ["replay"]
