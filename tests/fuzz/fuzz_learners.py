"""Examples and labels of any kind, for every learner: accepted, or one sentence and nothing has changed."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import random
import shutil
import uuid
import warnings
from collections import deque
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import scipy.sparse
import torch
from judging import NUMBERS, Lies, Outcome, Raises, judge, place, safe, tree

from prequential.errors import PrequentialError
from prequential.learners.base import OnlineLearner
from prequential.learners.transformer.learner import Learner
from prequential.registry import TRANSFORMERS, built_in, make_learner
from prequential.settings import Settings
from prequential.storage.checkpoint import same_state

BLOCK = 40  # consecutive cases that meet the same learner
CLASSES = 4
TINY = Settings(
    width=8, num_query_heads=2, depth=1, window=8, chunk_size=4, num_streams=2, num_neighbors=8, recent_window=8
)
IMAGES = TINY.changed(num_neighbors=0)
SMALL = {  # options that make a learner small and quick
    "er": "(hidden_sizes=[4], batch=2)", "er-polrs": "(hidden_sizes=[4], batch=2)", "er-adrep": "(hidden_sizes=[4], batch=2)",
    "er-polrs-adrep": "(hidden_sizes=[4], batch=2)", "replay-streams": "(hidden_sizes=[4])", "kalman": "(block=4, samples=2)",
    "kalman-network": "(hidden_sizes=[4], chunk_size=4, samples=2)",
}  # fmt: skip
OTHERS = (
    "river:naive_bayes.GaussianNB", "river:tree.HoeffdingTreeClassifier", "river:linear_model.SoftmaxRegression",
    "sklearn:naive_bayes.GaussianNB", "sklearn:linear_model.SGDClassifier", "sklearn:linear_model.Perceptron",
)  # fmt: skip
RAW = (
    "transformer(standardize=false)",
    "er(hidden_sizes=[4], batch=2, standardize=false)",
    "kalman(standardize=false)",
    "acm(standardize=false)",
)
SPECS = [*(f"{name}{SMALL.get(name, '')}" for name in (*TRANSFORMERS, *built_in())), *OTHERS, *RAW]


class Cases:
    """The cases of a seed, by number; a block of consecutive ones must be run in order, from its start."""

    block = BLOCK

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder = seed, folder
        self.learner: OnlineLearner | None = None
        self.homes = 0

    def run(self, number: int) -> Outcome:
        try:
            return self._run(number)
        except Exception as error:  # its state cannot be looked at
            self.learner = None
            return Outcome("failed", self.name, f"{type(error).__name__}: {safe(error)[:200]} {place(error)}")

    def _run(self, number: int) -> Outcome:
        if number % BLOCK == 0 or self.learner is None:
            self._begin(random.Random(f"{self.seed} learner {number // BLOCK}"), number // BLOCK)
        rng = random.Random(f"{self.seed} input {number}")
        assert self.learner is not None
        learner, before, files = self.learner, self.learner.state_dict(), self._files()
        position = learner.position
        xs, what_x = some_examples(rng, self.shape)
        ys, what_y = some_labels(rng, count_of(xs))
        name, call = some_call(rng, learner, xs, ys)
        what = f"{self.name}: {name}({what_x}, {what_y})"

        def judged() -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                call()

        outcome = judge(what, judged)
        learns = name in ("learn", "learn_many", "observe")
        if outcome.kind == "refused" or not learns:
            if not same_state(before, learner.state_dict()):
                self.learner = None
                return Outcome("failed", what, f"the state changed ({outcome.kind}: {outcome.why})")
            if files != self._files():
                return Outcome("failed", what, f"the files of the home changed ({outcome.kind}: {outcome.why})")
            if learner.position != position:
                return Outcome("failed", what, f"position {position} became {learner.position}")
        elif outcome.kind == "accepted":
            if learner.position <= position:
                return Outcome("failed", what, f"learnt, but position {position} is {learner.position}")
            after = judge(what, lambda: self._check_predictions(learner))
            if after.kind == "failed":
                self.learner = None
                return after
        if outcome.kind == "failed":
            if not same_state(before, learner.state_dict()):
                outcome = Outcome("failed", what, outcome.why + " and the state changed")
            self.learner = None  # what comes next in this block meets a new one
        return outcome

    def _begin(self, rng: random.Random, block: int) -> None:
        """A new learner: one of all kinds, with or without missing features, a past, images and a home."""
        spec = SPECS[block % len(SPECS)]
        shape = rng.choice([(3,), (3,), (3,), (1,), (8, 8), (8, 8, 3)])
        missing = rng.random() < 0.5 and len(shape) == 1 and spec not in RAW
        for old in self.folder.glob("home-*"):
            shutil.rmtree(old, ignore_errors=True)
        home = None
        transformer = spec in ("transformer", "two-token", "no-image", "no-attention")
        settings = TINY if len(shape) == 1 else IMAGES
        if transformer and rng.random() < 0.3:
            self.homes += 1
            home = self.folder / f"home-{self.homes}"  # a learner that is gone may still hold the last one
            learner: OnlineLearner = Learner(CLASSES, settings=settings, home=home, missing=missing, device="cpu")
        else:
            learner = make_learner(spec, CLASSES, settings=settings, missing=missing)
        self.home, self.shape, self.learner = home, shape, learner
        self.name = f"{spec}, {shape}{', missing' if missing else ''}{', home' if home else ''}"
        count = rng.choice((0, 0, 1, 9))
        if count:
            x = np.random.default_rng(block).normal(size=(count, *shape))
            learner.learn_many(x, [i % 3 for i in range(count)])

    def _files(self) -> str:
        """A digest of what is in the home."""
        digest = hashlib.sha256()
        for path in sorted(self.home.rglob("*")) if self.home else ():
            digest.update(f"{path} ".encode())
            if path.is_file():
                digest.update(path.read_bytes())
        return digest.hexdigest()

    def _check_predictions(self, learner: OnlineLearner) -> None:
        assert learner.shape is not None
        try:
            log_p = learner.predict_log_proba_many(np.ones((2, *learner.shape), image_dtype(learner)))
        except PrequentialError as error:
            assert "oracle" in str(error) or "the image is" in str(error), f"a good example is refused: {error}"
            return
        check_log_p(log_p)


def count_of(xs: Any) -> int:
    try:
        return min(len(xs), 100)
    except Exception:
        return 2


def image_dtype(learner: OnlineLearner) -> Any:
    inputs = getattr(getattr(learner, "_parts", None), "inputs", None) or getattr(learner, "inputs", None)
    return np.uint8 if getattr(inputs, "image_bytes", False) else np.float64


def check_log_p(log_p: np.ndarray) -> None:
    assert np.isfinite(log_p).all(), f"log-probabilities are {log_p.tolist()}"
    total = np.exp(log_p.astype(np.float64)).sum(1)
    assert np.allclose(total, 1, atol=1e-3), f"probabilities add up to {total}"


def some_call(rng: random.Random, learner: OnlineLearner, xs: Any, ys: Any) -> tuple[str, Callable[[], Any]]:
    """One of the calls that take examples."""

    def first(values: Any) -> Any:
        try:
            return values[0]
        except Exception:
            return values

    name = rng.choice(
        ("learn", "learn_many", "learn_many", "observe", "observe", "predict", "predict_proba", "predict_log_proba")
    )
    match name:
        case "learn":
            return name, lambda: learner.learn(first(xs), first(ys))
        case "learn_many":
            return name, lambda: learner.learn_many(xs, ys)
        case "observe":
            return name, lambda: _check_charges(learner.observe(xs, ys))
        case "predict":
            return name, lambda: learner.predict(first(xs))
        case "predict_proba":
            return name, lambda: _check_p(learner.predict_proba(first(xs)))
    return name, lambda: check_log_p(learner.predict_log_proba_many(xs))


def _check_p(p: Any) -> None:
    total = sum(p.values()) + p.unseen * (CLASSES - len(p))
    assert abs(total - 1) < 1e-3, f"probabilities add up to {total}: {dict(p)}"


def _check_charges(charges: Any) -> None:
    assert not np.isnan(charges.log_loss).any(), f"losses are {charges.log_loss.tolist()}"
    assert (charges.log_loss > -1e-3).all(), f"losses are {charges.log_loss.tolist()}"


# Examples.


def some_examples(rng: random.Random, shape: tuple[int, ...]) -> tuple[Any, str]:
    """Examples that may be fine but mostly are not, and what they are."""
    if rng.random() < 0.1:
        value = tree(rng, 4)
        return value, f"tree {type(value).__name__}"
    numbers = np.random.default_rng(rng.getrandbits(32))
    n = rng.choice((1, 2, 2, 2, 2, 3, 5, 0))
    if rng.random() < 0.2:
        shape = rng.choice([(), (0,), (2,), (4,), (3, 3), (8, 8), (8, 8, 1), (2, 2, 2, 2), (3,), (1000,)])
    x = numbers.normal(size=(n, *shape))
    done = [f"{(n, *shape)}"]
    for _ in range(rng.choice((0, 0, 1, 1, 2))):  # values
        if x.size:
            value = rng.choice([value for value in NUMBERS if not (isinstance(value, int) and value > 2**64)])
            x[tuple(rng.randrange(side) for side in x.shape)] = value
            done.append(str(value))
    name, change = rng.choice(WAYS)
    done.append(name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return change(x, rng), " ".join(done)
    except BaseException as error:  # not every array can be that; polars even panics
        _pass_on(error)
        return x, " ".join(done[:-1])


def _pass_on(error: BaseException) -> None:
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error


def _masked(x: np.ndarray, rng: random.Random) -> Any:
    return np.ma.MaskedArray(x, mask=np.random.default_rng(rng.getrandbits(32)).random(x.shape) < 0.3)


def _ragged(x: np.ndarray, rng: random.Random) -> Any:
    rows = x.tolist()
    i = rng.randrange(len(rows))
    rows[i] = rng.choice([rows[i][:-1], [rows[i]], rows[i] + [1.0], 3.0, [], None, "abc", rows])
    return rows


def _odd_element(x: np.ndarray, rng: random.Random) -> Any:
    rows = x.tolist()
    row = rows[rng.randrange(len(rows))]
    while isinstance(row[0], list):
        row = row[0]
    odd = [None, "3", b"3", 10**400, Raises(), Lies(), decimal.Decimal("NaN"), decimal.Decimal("1e400"), Fraction(1, 3), np.ma.masked, pd.NA, pd.NaT,
           np.datetime64("NaT"), torch.tensor(1.0, requires_grad=True), [1.0], {}, 1j, np.float128(10) ** 4000, True, np.uint64(2**64 - 1), object()]  # fmt: skip
    row[rng.randrange(len(row))] = rng.choice(odd)
    return rows


def _looped(x: np.ndarray, rng: random.Random) -> Any:
    rows = x.tolist()
    rows[rng.randrange(len(rows))] = rows
    return rows


def _deep(x: np.ndarray, rng: random.Random) -> Any:
    value: Any = x.tolist()
    for _ in range(rng.choice((3, 40, 3000))):
        value = [value]
    return value if rng.random() < 0.5 else [x[0].tolist(), value]


class _Series:
    """Something with a length and elements, such as a foreign array."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: Any) -> Any:
        return self.rows[i]


DTYPES = [
    "f2",
    "f4",
    "f8",
    "g",
    "i1",
    "i8",
    "u1",
    "u8",
    "?",
    "c8",
    "c16",
    "M8[s]",
    "m8[s]",
    "U5",
    "S5",
    "O",
    ">f4",
    ">f8",
    ">i8",
    "V8",
]
TENSORS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int64, torch.bool, torch.complex64,
           torch.float8_e4m3fn, torch.uint16]  # fmt: skip
WAYS: list[tuple[str, Callable[[np.ndarray, random.Random], Any]]] = [
    ("as it is", lambda x, rng: x),
    ("as it is", lambda x, rng: x),
    ("dtype", lambda x, rng: x.astype(rng.choice(DTYPES))),
    ("dtype", lambda x, rng: x.astype(rng.choice(DTYPES))),
    ("uint8", lambda x, rng: np.clip(np.nan_to_num(x) * 50, 0, 255).astype(np.uint8)),
    ("float32", lambda x, rng: x.astype(np.float32)),
    ("longdouble", lambda x, rng: x.astype(np.longdouble) * np.longdouble(10) ** rng.choice((0, 0, 300, 4000))),
    ("list", lambda x, rng: x.tolist()),
    ("tuples", lambda x, rng: tuple(map(tuple, x.tolist()))),
    ("list of arrays", lambda x, rng: list(x)),
    ("list of tensors", lambda x, rng: [torch.tensor(row, requires_grad=rng.random() < 0.5) for row in x]),
    ("ragged", _ragged),
    ("odd element", _odd_element),
    ("odd element", _odd_element),
    ("odd element in an object array", lambda x, rng: np.array(_odd_element(x, rng), dtype=object)),
    ("holds itself", _looped),
    ("deep", _deep),
    ("Fortran", lambda x, rng: np.asfortranarray(x)),
    ("reversed", lambda x, rng: x[..., ::-1]),
    ("strided", lambda x, rng: np.repeat(x, 2, axis=-1)[..., ::2]),
    ("broadcast", lambda x, rng: np.broadcast_to(x[:1], (rng.choice((2, 100)), *x.shape[1:]))),
    ("read-only", lambda x, rng: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape)),
    ("transposed", lambda x, rng: x.T),
    ("matrix", lambda x, rng: np.matrix(x)),
    ("masked", _masked),
    ("masked", _masked),
    ("masked integers", lambda x, rng: _masked(np.nan_to_num(x).astype(int), rng)),
    ("list of masked", lambda x, rng: list(_masked(x, rng))),
    ("records", lambda x, rng: np.zeros(len(x), dtype=[("a", float), ("b", "U3")])),
    ("tensor", lambda x, rng: torch.tensor(x).to(rng.choice(TENSORS))),
    ("tensor", lambda x, rng: torch.tensor(x).to(rng.choice(TENSORS))),
    ("tensor with grad", lambda x, rng: torch.tensor(x, requires_grad=True)),
    ("tensor with a history", lambda x, rng: torch.tensor(x, requires_grad=True) * 2),
    ("sparse tensor", lambda x, rng: rng.choice((torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr))(torch.tensor(x))),
    ("meta tensor", lambda x, rng: torch.tensor(x).to("meta")),
    ("parameter", lambda x, rng: torch.nn.Parameter(torch.tensor(x))),
    ("nested tensor", lambda x, rng: torch.nested.nested_tensor(list(torch.tensor(x)))),
    ("sparse", lambda x, rng: rng.choice((scipy.sparse.csr_matrix, scipy.sparse.coo_array))(x)),
    ("pandas", lambda x, rng: pd.DataFrame(x)),
    ("pandas with NA", lambda x, rng: pd.DataFrame(x).convert_dtypes().mask(pd.DataFrame(x) > 1)),
    ("pandas with text", lambda x, rng: pd.DataFrame(x).assign(z="text")),
    ("pandas with dates", lambda x, rng: pd.DataFrame(x).assign(z=pd.Timestamp(0))),
    ("series of rows", lambda x, rng: pd.Series(list(x))),
    ("polars", lambda x, rng: pl.DataFrame(x)),
    ("polars with nulls", lambda x, rng: pl.DataFrame(x).with_columns(pl.lit(None).alias("z"))),
    ("polars series", lambda x, rng: pl.Series(x.tolist())),
    ("pyarrow", lambda x, rng: pa.table({str(i): column for i, column in enumerate(x.T)})),
    ("pyarrow list", lambda x, rng: pa.array(x.tolist())),
    ("memoryview", lambda x, rng: memoryview(x)),
    ("bytes", lambda x, rng: x.tobytes()),
    ("generator", lambda x, rng: (row for row in x)),
    ("generators", lambda x, rng: [iter(row) for row in x]),
    ("map", lambda x, rng: map(list, x)),
    ("deque", lambda x, rng: deque(x.tolist())),
    ("foreign", lambda x, rng: _Series(x)),
    ("dict", lambda x, rng: dict(enumerate(x))),
    ("dicts", lambda x, rng: [dict(enumerate(row)) for row in x]),
    ("raises", lambda x, rng: Raises()),
    ("lies", lambda x, rng: Lies()),
    ("nothing", lambda x, rng: None),
    ("class", lambda x, rng: np.ndarray),
    ("text", lambda x, rng: str(x)),
]


# Labels.


class Word(str):
    """A kind of text that is not str."""


ODD_LABELS: list[Any] = [
    None, True, 1, 1.0, -0.0, 0.5, float("nan"), float("inf"), 10**5000, 2**70, "", "a", "a" * 100_000, "\ud800", "\x00", b"", b"a", (), (1, "a"), (1, [2]),
    ((((1,),),),), frozenset({1, 2}), frozenset({frozenset()}), datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    datetime.time(1), datetime.timedelta(1), decimal.Decimal("1.0"), decimal.Decimal("NaN"), decimal.Decimal("sNaN"), uuid.UUID(int=3), Fraction(1, 3),
    1j, np.int64(3), np.float32(0.1), np.str_("a"), np.bytes_(b"a"), np.bool_(True), np.datetime64("2020-01-01"), np.datetime64("NaT"), np.timedelta64(1),
    np.longdouble(1) / 3, np.float16(0.1), np.complex64(1), np.array(1), np.array([1]), np.ma.masked, pd.NA, pd.NaT, pd.Timestamp(0), pd.Timedelta(1),
    pd.Interval(0, 1), pd.Period("2020"), pa.scalar(1), torch.tensor(1), torch.tensor([1]), [1], {}, {"a": 1}, set(), Raises(), Lies(), object(), int,
    len, Ellipsis, NotImplemented, Word("a"), range(3), 0, "0", b"0", False,
]  # fmt: skip


def some_labels(rng: random.Random, count: int) -> tuple[Any, str]:
    """Labels that may be fine, and what they are."""
    if rng.random() < 0.05:
        value = tree(rng, 3)
        return value, f"tree {type(value).__name__}"
    labels: list[Any] = [rng.randrange(3) for _ in range(rng.choice((count, count, count, count, 1, 3, 5, 0)))]
    done = [f"{len(labels)} labels"]
    if labels and rng.random() < 0.4:
        odd = rng.randrange(len(ODD_LABELS))
        labels[rng.randrange(len(labels))] = ODD_LABELS[odd]
        done.append(f"odd label {odd} ({type(ODD_LABELS[odd]).__name__})")
    if labels and rng.random() < 0.05:
        labels = [f"new {rng.randrange(9)}" for _ in labels]
        done.append("new")
    name, change = rng.choice(HOLDERS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return change(labels), f"{' '.join(done)} {name}"
    except BaseException as error:
        _pass_on(error)
        return labels, " ".join(done)


HOLDERS: list[tuple[str, Callable[[list[Any]], Any]]] = [
    *[("list", list)] * 12,
    ("tuple", tuple),
    ("array", np.array),
    ("objects", lambda labels: np.array(labels, dtype=object)),
    ("floats", lambda labels: np.array(labels, dtype=float)),
    ("table", lambda labels: np.array(labels).reshape(-1, 1)),
    ("0-d", lambda labels: np.array(labels[0])),
    ("tensor", torch.tensor),
    ("tensor with grad", lambda labels: torch.tensor(labels, dtype=torch.float32, requires_grad=True)),
    ("masked", lambda labels: np.ma.MaskedArray(labels, mask=[i % 2 for i in range(len(labels))])),
    ("series", pd.Series),
    ("series with NA", lambda labels: pd.Series([*labels[1:], None])),
    ("categorical", pd.Categorical),
    ("categorical series", lambda labels: pd.Series(labels).astype("category")),
    ("polars", pl.Series),
    ("pyarrow", pa.array),
    ("chunked", lambda labels: pa.chunked_array([labels])),
    ("dictionary", lambda labels: pa.array(labels).dictionary_encode()),
    ("deque", deque),
    ("generator", lambda labels: (label for label in labels)),
    ("iterator", iter),
    ("dict", lambda labels: dict(enumerate(labels))),
    ("values", lambda labels: dict(enumerate(labels)).values()),
    ("set", set),
    ("text", lambda labels: "".join(map(str, labels))),
    ("bytes", lambda labels: bytes(labels)),
    ("nothing", lambda labels: None),
    ("number", len),
    ("range", lambda labels: range(10**10)),
    ("raises", lambda labels: Raises()),
    ("lies", lambda labels: Lies()),
    ("foreign", _Series),
    ("frame", lambda labels: pd.DataFrame({"y": labels})),
]
