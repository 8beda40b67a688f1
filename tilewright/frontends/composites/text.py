"""Tensors of strings, which only the host has, and operators that only move elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.frontends.translation import Results, type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import ZERO
from tilewright.ir.types import TensorType, product
from tilewright.ops import elementwise as ew
from tilewright.ops.define.staged import HOST, host
from tilewright.ops.source import iota, sym_tensor
from tilewright.ops.view import reshape


def is_text(value: Value | None) -> bool:
    """Is it a tensor of strings?"""
    return value is not None and isinstance(value.type, TensorType) and value.type.dtype is dt.string


def known_text(value: Value) -> np.ndarray | None:
    """The strings of a constant; None where they are computed."""
    op = value.op
    if op is None or op.name != HOST or op.attrs["function"] != "text_constant":
        return None
    array = np.empty(len(op.attrs["values"]), object)
    array[:] = op.attrs["values"]
    return array.reshape(op.attrs["shape"])


def taken(places: Value, *sources: Value) -> Value:
    """The strings at `places` of all sources, flattened, one after the other."""
    return host("take_text", [places, *sources], [TensorType(dt.string, type_of(places).shape)])[0]


def moved(operands: Sequence[Value | None], write: Callable[[list[Value | None]], Results]) -> Results:
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
        before = sum((type_of(v).size for v in sources[: offsets[origin]]), ZERO)
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
    shape = type_of(value).shape
    return reshape(iota(shape=(product(shape),), axis=0), shape=shape), (value,)


def as_text(x: Value) -> Value:
    """Numbers as strings."""
    return x if is_text(x) else host("numbers_to_text", [x], [TensorType(dt.string, type_of(x).shape)])[0]


def as_numbers(x: Value, dtype: DType) -> Value:
    """Strings as numbers of a dtype."""
    return host("text_to_numbers", [x], [TensorType(dtype, type_of(x).shape)], {"dtype": dtype.storage.name})[0]
