"""Tensors of strings, which only the host has, and operators that only move elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import ZERO
from tilewright.ir.types import TensorType, product, tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.define.staged import HOST, host
from tilewright.ops.source import iota, sym_tensor
from tilewright.ops.view import reshape, shape_of

Values = Sequence[Value | None]
"""Operands or results; None for one that is left out, or not wanted."""


def is_text(value: Value | None) -> bool:
    """Is it a tensor of strings?"""
    return value is not None and isinstance(value.type, TensorType) and value.type.dtype is dt.string


def literal(array: np.ndarray, name: str) -> Value:
    """A constant; one of strings is made by the host."""
    if array.dtype != np.object_:
        return constant(array, name)
    parameters = {"values": tuple(map(str, array.flat)), "shape": array.shape}
    value = host("text_constant", [], [tensor(dt.string, array.shape)], parameters)[0]
    value.name = name
    return value


def taken(places: Value, *sources: Value) -> Value:
    """The strings at `places` of all sources, flattened, one after the other."""
    return host("take_text", [places, *sources], [TensorType(dt.string, shape_of(places))])[0]


def moved(operands: Sequence[Value | None], write: Callable[[list[Value | None]], Values]) -> Values:
    """What `write`, which only moves elements, makes of the operands. Where some of them hold strings it is written for
    the positions of their elements, and the strings at the positions that come out are taken at the end."""
    if not any(map(is_text, operands)):
        return write(list(operands))
    sources: list[Value] = []
    offsets: dict[tuple[Value, ...], int] = {}
    positions: list[Value | None] = []
    for operand in operands:
        if operand is None or not is_text(operand):
            positions.append(operand)
            continue
        places, origin = _origin(operand)
        if origin not in offsets:
            offsets[origin] = len(sources)
            sources += origin
        before = sum((v.tensor.size for v in sources[: offsets[origin]]), ZERO)
        positions.append(places if before == 0 else ew.add(places, sym_tensor(values=(before,), scalar=True)))
    return [None if v is None else taken(v, *sources) for v in write(positions)]


def moved_one(operand: Value, write: Callable[..., Value], *args: object) -> Value:
    """The same of one operand, which `write` takes before other arguments."""
    (result,) = moved([operand], lambda values: [write(v, *args) for v in values if v is not None])
    assert result is not None
    return result


def _origin(value: Value) -> tuple[Value, tuple[Value, ...]]:
    """Positions, and the values from which the strings at these are taken."""
    op = value.op
    if op is not None and op.name == HOST and op.attrs["function"] == "take_text":
        return op.operands[0], op.operands[1:]
    shape = shape_of(value)
    return reshape(iota(shape=(product(shape),), axis=0), shape=shape), (value,)


def as_text(x: Value) -> Value:
    """Numbers as strings."""
    return x if is_text(x) else host("numbers_to_text", [x], [TensorType(dt.string, shape_of(x))])[0]


def as_numbers(x: Value, dtype: DType) -> Value:
    """Strings as numbers of a dtype."""
    return host("text_to_numbers", [x], [TensorType(dtype, shape_of(x))], {"dtype": dtype.storage.name})[0]
