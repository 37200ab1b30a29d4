"""Input checks: examples and labels are converted to arrays and lists and checked, before a learner changes."""

from __future__ import annotations

import decimal
import math
import numbers
import sys
from collections.abc import Hashable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from prequential.errors import BadInput, PrequentialError, one_line, short
from prequential.labels import Labels
from prequential.memory_limits import check_fits

MOST_DIMENSIONS = 4  # of examples: (n, height, width, channels)
PLAIN = frozenset((float, int, bool))
SHORT = 256  # numbers of a row that Python adds up faster than NumPy
KEPT = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.uint8))  # the dtypes that learners and journals keep


def as_examples(
    xs: Any, first: int, *, missing: bool, one: bool = False, names: Sequence[str] | None = None
) -> np.ndarray:
    """Examples as an array of float32, float64 or uint8 in C order, (n, *shape); NaN only where `missing`.

    Takes arrays, tensors, data frames, and lists of numbers or of these. Whatever else was given, it raises BadInput.

    Parameters
    ----------
    xs
        The examples, along the first axis, or a single one.
    first
        The number of the first of them, for messages.
    missing
        Whether features may be NaN. Masked values of masked arrays are NaN, and so is None.
    one
        Whether xs is a single example.
    names
        Of the features, for messages.

    Examples
    --------
    >>> as_examples([1, 2], 0, missing=False, one=True)
    array([[1., 2.]])
    >>> as_examples([[1, 2], [3]], 10, missing=False)
    Traceback (most recent call last):
    prequential.errors.BadInput: example 11: x has shape (1,), but the one before has (2,)
    """
    row = xs if one else (xs[0] if type(xs) is list and len(xs) == 1 else None)
    if (plain := _plain_row(row)) is not None:
        return plain
    try:
        x = xs if type(xs) is np.ndarray else _as_array(xs, first)
        if x.dtype.kind == "O" and x.ndim == 1 and not one and all(_is_row(row) for row in x):
            x = _from_rows(list(x), first)  # an array of arrays, as a column of a data frame is
        x = _as_numbers(x[None] if one else x, first)
    except PrequentialError:
        raise
    except Exception as error:  # whatever an object of the user's raises while it is looked at
        why = one_line(error, 80)
        raise BadInput(f"example {first}: x ({_kind(xs)}) cannot be read as numbers: {_kind(error)}: {why}") from None
    if x.ndim == 0:
        raise BadInput(
            f"example {first}: x is {short(xs)} ({_kind(xs)}), expected several examples, along the first axis"
        )
    if x.ndim < 2:
        raise BadInput(f"example {first}: x has {x.ndim - 1} dimensions, expected a vector (1) or an image (2 or 3)")
    if len(x) and (x.ndim > MOST_DIMENSIONS or 0 in x.shape):
        raise BadInput(f"example {first}: x has shape {x.shape[1:]}, expected a vector or an image")
    if x.dtype.kind == "f":
        good = ~np.isinf(x) if missing else np.isfinite(x)
        if not good.all():
            where = tuple(int(i) for i in np.argwhere(~good)[0])
            known = names is not None and len(where) == 2 and where[1] < len(names)
            name = f" ({short(names[where[1]])})" if names is not None and known else ""
            remedy = "; missing=True takes NaN as a missing value" if np.isnan(x[where]) else ""
            raise BadInput(f"{_place(where, first)}{name} is {x[where]}, expected a finite number{remedy}")
    return x


def _plain_row(xs: Any) -> np.ndarray | None:
    """A list of finite numbers of Python's own, or a short array of such, as an array (1, n); None: something else.

    The usual case: all that follows gives the same, and takes five times as long.
    """
    if type(xs) is np.ndarray:
        if xs.ndim != 1 or xs.dtype not in KEPT[:2] or not 0 < xs.size <= SHORT or not xs.flags.c_contiguous:
            return None
        return xs[None] if math.isfinite(sum(xs.tolist())) else None
    if type(xs) is not list or not xs or not PLAIN.issuperset(map(type, xs)):
        return None
    try:
        if not math.isfinite(sum(xs)):  # one is not finite, or all together are not
            return None
        return np.array([xs], np.float64)
    except OverflowError:  # an int beyond float64
        return None


def as_labels(ys: Any, count: int, first: int) -> list[Hashable]:
    """Labels of so many examples as a list. Takes lists, tuples, arrays, tensors and columns of data frames.

    >>> as_labels(np.array([3, 4]), 2, 0)
    [3, 4]
    >>> as_labels("no", 2, 0)
    Traceback (most recent call last):
    prequential.errors.BadInput: example 0: the labels are 'no' (str), expected a list of 2
    """
    try:
        y = _listed(ys, count + 1)
    except Exception as error:
        raise BadInput(f"example {first}: the labels ({_kind(ys)}) cannot be read: {one_line(error, 80)}") from None
    if y is None:
        raise BadInput(f"example {first}: the labels are {short(ys)} ({_kind(ys)}), expected a list of {count}")
    if count == 0 or len(y) != count:
        raise BadInput(f"example {first}: got {count} inputs and {len(y)} labels")
    if isinstance(ys, np.ma.MaskedArray) and np.ma.getmaskarray(ys).any():
        i = int(np.argmax(np.ma.getmaskarray(ys).ravel()))
        raise BadInput(f"example {first + i}: the label is masked, expected a label")
    return y


def check_labels(labels: Labels, ys: Sequence[Hashable], first: int, *, allow_none: bool = False) -> None:
    """Refuses labels that cannot all be taken, also those whose own methods raise, and None: it means "no label".

    Parameters
    ----------
    labels
        Those seen so far.
    ys
        The labels to check.
    first
        The number of the first example, for messages.
    allow_none
        Whether None is a label, as it was in version 0.1. One who has seen it as a label also takes it again.
    """
    none = next((i for i, label in enumerate(ys) if label is None), None)
    if none is not None and not allow_none and None not in labels:
        raise BadInput(f"example {first + none}: the label is None, expected a label such as 'spam' or 3")
    try:
        labels.check(ys, first)
    except PrequentialError:
        raise
    except Exception as error:  # a label whose own methods raise
        i = next((i for i, label in enumerate(ys) if not _behaves(label)), 0)
        raise BadInput(
            f"example {first + i}: label {short(ys[i])} cannot be used: {_kind(error)}: {one_line(error, 80)}"
        ) from None


def check_shape(x: np.ndarray, shape: tuple[int, ...] | None, first: int) -> None:
    """Refuses examples of another shape than the first one had."""
    if shape is not None and x.shape[1:] != shape:
        raise BadInput(f"example {first}: x has shape {x.shape[1:]}, but the first example had shape {shape}")


def check_float32(x: np.ndarray, first: int) -> None:
    """Refuses values that float32 does not hold, where features are used as they are."""
    if x.dtype == np.float64:
        large = np.argwhere(np.abs(x) > np.finfo(np.float32).max)
        if len(large):
            where = tuple(int(i) for i in large[0])
            raise BadInput(
                f"example {first + where[0]}: feature {where[1:]} is {x[where]}, expected at most "
                f"{np.finfo(np.float32).max:.3g} in size where features are not standardized"
            )


def check_image_dtype(x: np.ndarray, image_bytes: bool | None, first: int) -> None:
    """Refuses images that float32 does not hold, or bytes where the first image had floats and the other way around.

    Parameters
    ----------
    x
        Examples; vectors pass.
    image_bytes
        Whether the first image was uint8; None where there was none yet.
    first
        The number of the first example, for messages.
    """
    if x.ndim <= 2:
        return
    check_float32(x, first)
    if image_bytes is not None and (x.dtype == np.uint8) != image_bytes:
        expected = "uint8" if image_bytes else "floats"
        raise BadInput(f"example {first}: the image is {x.dtype}, but the first one was {expected}")


def _as_array(xs: Any, first: int) -> np.ndarray:
    """An array of any dtype that holds what was given."""
    if isinstance(xs, np.ma.MaskedArray):
        return _unmasked(xs)
    if _is_tensor(xs):
        return _from_tensor(xs, first)
    if isinstance(xs, (list, tuple)):
        return _from_rows(xs, first)
    if isinstance(xs, (Iterator, dict, set, frozenset, str, bytes, type(None))):
        raise BadInput(f"example {first}: x is {short(xs)} ({_kind(xs)}), expected an array or a list of numbers")
    if hasattr(xs, "toarray") or hasattr(xs, "todense"):
        raise BadInput(f"example {first}: x is sparse ({_kind(xs)}), expected a dense array; x.toarray() makes one")
    array = np.asarray(xs)
    if array.ndim == 0 and array.dtype.kind == "O":
        raise BadInput(f"example {first}: x is {short(xs)} ({_kind(xs)}), expected an array or a list of numbers")
    return array


def _from_rows(rows: Sequence[Any], first: int) -> np.ndarray:
    """An array from nested lists, in which there may be tensors, masked arrays and columns of data frames."""
    shape = _shape(rows)
    if len(shape) > MOST_DIMENSIONS:
        raise BadInput(f"example {first}: x is nested more than {MOST_DIMENSIONS} deep, expected vectors or images")
    rows = _dense(rows, first, MOST_DIMENSIONS)
    try:
        return np.asarray(rows)
    except ValueError:
        shapes = [_shape(row) for row in rows]
        i = next((i for i, other in enumerate(shapes) if other != shapes[0]), None)
        if i is None:
            raise
        raise BadInput(f"example {first + i}: x has shape {shapes[i]}, but the one before has {shapes[0]}") from None


def _is_row(value: Any) -> bool:
    return isinstance(value, (list, tuple, np.ndarray)) or _is_tensor(value)


def _dense(rows: Any, first: int, depth: int) -> Any:
    """The same nested lists with plain arrays in the places of tensors, masked arrays and the like."""
    if type(rows) in (float, int, np.ndarray, bool, str) or depth == 0:
        return rows
    if isinstance(rows, (list, tuple)):
        if all(type(row) is float for row in rows):
            return rows
        return [_dense(row, first, depth - 1) for row in rows]
    if rows is np.ma.masked:
        return np.nan
    if isinstance(rows, (np.generic, numbers.Number, type(None))):
        return rows
    return _as_array(rows, first)


def _shape(value: Any, most: int = MOST_DIMENSIONS + 1) -> tuple[int, ...]:
    """The shape of nested lists, as far as the first element of each tells."""
    shape: tuple[int, ...] = ()
    while len(shape) < most:
        if isinstance(value, (list, tuple)):
            shape = (*shape, len(value))
            if not value:
                break
            value = value[0]
        else:
            inner = getattr(value, "shape", ())
            return (*shape, *inner) if isinstance(inner, tuple) else shape
    return shape


def _unmasked(xs: np.ma.MaskedArray[Any, Any]) -> np.ndarray:
    """A masked array with NaN where it is masked."""
    mask = np.ma.getmaskarray(xs)
    data = np.asarray(xs.data)
    if not mask.any():
        return data
    if data.dtype.kind in "iub":
        data = data.astype(np.float64)
    return np.where(mask, np.asarray(np.nan, data.dtype if data.dtype.kind == "f" else None), data)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _from_tensor(tensor: Any, first: int) -> np.ndarray:
    import torch

    if tensor.layout is not torch.strided:
        raise BadInput(f"example {first}: x is a sparse tensor, expected a dense one; x.to_dense() makes one")
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.dtype.is_complex:
        raise BadInput(f"example {first}: x has dtype {tensor.dtype}, expected numbers")
    if tensor.dtype.is_floating_point and tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.float()  # NumPy has no bfloat16; float32 holds all its values
    array: np.ndarray = tensor.cpu().resolve_conj().resolve_neg().numpy()
    return array


def _as_numbers(x: np.ndarray, first: int) -> np.ndarray:
    """The array as float32, float64 or uint8, where that loses nothing; otherwise it is refused."""
    if x.dtype in KEPT and x.flags.c_contiguous and x.dtype.isnative:
        return x
    check_fits(8.0 * x.size, f"example {first}: x of shape {x.shape[1:]}", BadInput)
    if x.dtype.kind == "O":
        return _from_objects(x, first)
    if x.dtype.kind not in "fiub":
        raise BadInput(f"example {first}: x has dtype {one_line(x.dtype, 60)}, expected numbers")
    if x.dtype == np.float16:
        return np.ascontiguousarray(x, np.float32)
    native = x.dtype.newbyteorder("=")
    if native in KEPT:
        return np.ascontiguousarray(x, native)
    with np.errstate(over="ignore"):  # a longdouble beyond float64 is infinite there, which is refused
        return np.ascontiguousarray(x, np.float64)


def _from_objects(x: np.ndarray, first: int) -> np.ndarray:
    """Python's own numbers as float64; None and NA are missing."""
    numbers_only = np.empty(x.shape, np.float64)
    for where in np.ndindex(x.shape):
        value = x[where]
        if value is None or value is np.ma.masked or type(value).__name__ == "NAType":
            numbers_only[where] = np.nan
            continue
        if not isinstance(value, (numbers.Real, decimal.Decimal, np.bool_)):
            raise BadInput(
                f"{_place(where, first)} is {short(value)} ({_kind(value)}, dtype object), expected a number"
            )
        try:
            numbers_only[where] = float(value)
        except OverflowError:
            raise BadInput(f"{_place(where, first)} is beyond {np.finfo(np.float64).max:.3g}") from None
    return numbers_only


def _place(where: tuple[int, ...], first: int) -> str:
    """Which example and which feature an index into examples means."""
    if len(where) < 2:
        return f"example {first + (where[0] if where else 0)}: x"
    return f"example {first + where[0]}: feature {where[1] if len(where) == 2 else where[1:]}"


def _listed(ys: Any, most: int) -> list[Hashable] | None:
    """Labels as a list, at most so many of a sequence that is not known; None where they are not a sequence."""
    if isinstance(ys, list):
        return list(ys)
    if isinstance(ys, (str, bytes, bytearray, dict, set, frozenset, Iterator, type(None))):
        return None
    if _is_tensor(ys):
        ys = ys.detach()
    if getattr(ys, "ndim", 1) == 0:
        return None
    for name in ("to_pylist", "to_list", "tolist"):  # pyarrow's, polars' and pandas', NumPy's and torch's
        if hasattr(ys, name):
            listed = getattr(ys, name)()
            return listed if isinstance(listed, list) else None
    return list(ys if isinstance(ys, tuple) else islice(ys, most)) if isinstance(ys, Sequence) else None


def _behaves(label: Any) -> bool:
    """Whether a label can be hashed, compared and kept."""
    try:
        Labels(1).check([label])
    except PrequentialError:
        return True
    except Exception:
        return False
    return True


def _kind(value: Any) -> str:
    return one_line(type(value).__name__, 40)


def checked_lags(asked_at: Any, count: int, position: int) -> np.ndarray | None:
    """How many labels arrived between the prediction of each of n examples and its own; None: none did.

    >>> checked_lags([0, 3], 2, position=4)
    array([4, 2])
    """
    numbers = np.asarray(asked_at)
    if numbers.shape != (count,) or numbers.dtype.kind not in "iu":
        raise BadInput(
            f"example {position}: asked_at has shape {numbers.shape} and type {numbers.dtype}, expected {count} whole numbers"
        )
    own = position + np.arange(count)
    wrong = (numbers < 0) | (numbers > own)
    if wrong.any():
        i = int(wrong.argmax())
        raise BadInput(f"example {own[i]}: asked_at is {numbers[i]}, expected a number from 0 to {own[i]}")
    lags = own - numbers.astype(np.int64)
    return lags if lags.any() else None
