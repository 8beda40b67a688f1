"""Sizes of a program with unknown dims: what its expressions come to for the shapes and data of a call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.values.dtypes import numpy_dtype

_OPERATIONS: Mapping[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "min": min,
    "max": max,
    "floordiv": lambda a, b: a // b if b else a,
    "mod": lambda a, b: a % b if b else 0,
    "ge0": lambda a: int(a >= 0),
    "eq0": lambda a: int(a == 0),
}
_LEAST, _MOST = -(2**63), 2**63 - 1


def value_of(e: Any, dims: Sequence[int]) -> int:
    """An expression (`codegen/devices/sizes.py`) with these values of the variables."""
    if isinstance(e, int):
        return e
    kind, *operands = e
    if kind == "dim":
        return dims[operands[0]]
    if kind == "select":
        condition, one, other = operands
        return value_of(one if value_of(condition, dims) else other, dims)
    return _OPERATIONS[kind](*(value_of(o, dims) for o in operands))


class SizePlan:
    """The sizes of a program: `plan` is called as the function of native code of that name is (`artifact.py`)."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._dims: list[list[Any]] = found["dims"]
        self._conditions: list[list[Any]] = found["conditions"]
        self._outputs: list[Any] = found["outputs"]
        self._arena: Any = found["arena"]

    def __call__(
        self, in_shapes: Sequence[int], in_data: Sequence[int | None], dims: Any, out_shapes: Any, sizes: Any
    ) -> int:
        """Fill `dims`, `out_shapes` and `sizes`; 0, or the number of an error."""
        known: list[int] = []
        for kind, *source in self._dims:
            if kind == "axis":
                known.append(in_shapes[source[0]])
            elif kind == "element":
                known.append(_element(in_data[source[0]], *source[1:]))
            else:
                known.append(value_of(source[0], known))
        for holds, error in self._conditions:
            if not value_of(holds, known):
                return int(error)
        dims[: len(known)] = known
        out_shapes[:] = [_saturated(value_of(e, known)) for e in self._outputs]
        sizes[:] = [_saturated(value_of(self._arena, known)), 0]
        return 0


def _element(address: int | None, element: int, dtype: str) -> int:
    size = numpy_dtype(dtype).itemsize
    assert address is not None
    return int(np.frombuffer(ctypes.string_at(address + element * size, size), numpy_dtype(dtype))[0])


def _saturated(n: int) -> int:
    return max(_LEAST, min(_MOST, n))
