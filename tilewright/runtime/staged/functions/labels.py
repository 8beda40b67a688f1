"""Functions of categories: labels, n-grams and maps, which are dicts of Python's numbers and strings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.staged.functions.registry import HostFunction, host_function, prepared
from tilewright.runtime.staged.functions.text import text_array
from tilewright.runtime.values.dtypes import numpy_dtype


def typed_array(values: Sequence[Any], dtype: str, shape: Sequence[int]) -> np.ndarray:
    """Numbers or strings as an array of a dtype and shape."""
    if dtype == "string":
        return text_array(values, shape)
    return np.array(values, numpy_dtype(dtype)).reshape(shape)


@prepared
def look_up(*, keys: Sequence[Any], values: Sequence[Any], default: Any, dtype: str) -> HostFunction:
    """For each element the value (of a dtype) of the key that it equals, the last of several, or a default; without one
    a key must be found. NaN equals NaN."""
    table = dict(zip(keys, values, strict=True))
    nan = next((v for k, v in reversed(table.items()) if k != k), default)

    def value_of(element: Any) -> Any:
        found = table.get(element, default if element == element else nan)
        if found is None:
            raise ValueError(f"{element!r:.80} is none of the {len(table)} categories of the model")
        return found

    return lambda x: (typed_array([value_of(e) for e in x.reshape(-1).tolist()], dtype, x.shape),)


@prepared
def count_ngrams(
    *,
    ngrams: Sequence[Sequence[Any]],
    columns: Sequence[int],
    width: int,
    lengths: Sequence[int],
    skips: int,
    weights: Sequence[float] | None,
    is_counted: bool,
) -> HostFunction:
    """How often (or, not `is_counted`, whether) each n-gram is in a vector or in the rows of a matrix, at its column of
    `width`, times its weight. N-grams with `lengths` from the first to the last count, also with the same
    number of other items, up to `skips`, between each two. ONNX operator `TfIdfVectorizer`."""
    table = {tuple(items): column for items, column in zip(ngrams, columns, strict=True)}
    scale = np.ones(width, np.float32)
    if weights is not None:
        scale[list(columns)] = weights
    shortest, longest = lengths
    steps = [(n, step) for step in range(1, skips + 2) for n in range(shortest, longest + 1) if n > 1 or step == 1]

    def count(x: np.ndarray) -> tuple[np.ndarray]:
        rows = np.atleast_2d(x)
        found = np.zeros((len(rows), width), np.float32)
        for row, items in enumerate(rows.tolist()):
            for n, step in steps:
                for start in range(len(items) - (n - 1) * step):
                    column = table.get(tuple(items[start : start + (n - 1) * step + 1 : step]))
                    if column is not None:
                        found[row, column] += 1
        if not is_counted:
            found = (found > 0).astype(np.float32)
        return ((found * scale).reshape((*x.shape[:-1], width)),)

    return count


@host_function
def rows_to_maps(x: np.ndarray, *, keys: Sequence[Any]) -> tuple[list[dict[Any, float]]]:
    """A map for each row, or for a vector: from the keys to the elements. ONNX operator `ZipMap`."""
    rows = np.atleast_2d(x)
    if rows.shape[1] != len(keys):
        raise ValueError(f"{rows.shape[1]} columns for {len(keys)} keys")
    return ([dict(zip(keys, row, strict=True)) for row in rows.tolist()],)


@host_function
def map_to_row(given: dict[Any, Any], *, keys: Sequence[Any], dtype: str) -> tuple[np.ndarray]:
    """The values of the keys as a matrix of one row; 0, or an empty string, for a key that is not there. ONNX operator
    `DictVectorizer`."""
    other = "" if dtype == "string" else 0
    return (typed_array([given.get(key, other) for key in keys], dtype, (1, len(keys))),)


@host_function
def cast_map(given: dict[int, Any], *, size: int | None, dtype: str) -> tuple[np.ndarray]:
    """The values as a matrix of one row: in the order of their keys or, with a `size`, each at the position of its key
    in a row that is so long. ONNX operator `CastMap`."""
    if any(key < 0 or (size is not None and key >= size) for key in given):
        raise ValueError(f"the keys of a map must be 0 to {'' if size is None else size - 1}")
    keys: Iterable[int] = sorted(given) if size is None else range(size)
    absent = "0" if given and isinstance(next(iter(given.values())), str) else 0
    values = [_cast(given.get(key, absent), dtype) for key in keys]
    return (typed_array(values, dtype, (1, len(values))),)


def _cast(value: Any, dtype: str) -> Any:
    if dtype == "string":
        return value if isinstance(value, str) else np.format_float_positional(np.float32(value), trim="-")
    return int(float(value)) if dtype == "int64" else float(value)
