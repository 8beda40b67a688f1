"""Where a program that calls parts reads sizes: axes of values, and elements of integers that were computed before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.core import Block, Func, Op, Value
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.define.staged import LOOP, MEASURE


@dataclass(frozen=True)
class SizeOf:
    """The length of an axis of a value, or (`element`) its element at a flat position."""

    value: Value
    position: int
    element: bool = False


Extent = SizeOf | int
Sizes = dict[Op, tuple[Extent, ...]]
"""Of the ops that read sizes: those that a call hands over, and those of the rows of a loop, all in one row, where it
makes no trip."""

_Known = dict[Sym, SizeOf]


def sizes_of(main: Func) -> Sizes:
    """What the ops of a program read as sizes. Where several values have one, the first of them is asked."""
    found: Sizes = {}
    _walk(main.body, {}, found)
    return found


def _walk(block: Block, outer: _Known, found: Sizes) -> None:
    known = dict(outer)
    _measured(block.args, known)
    for op in block.ops:
        if op.name == MEASURE:
            (value,) = op.operands
            for k, v in enumerate(op.attrs["variables"]):
                known.setdefault(v, SizeOf(value, k, element=True))
        elif wanted := _wanted(op):
            found[op] = tuple(d.value if d.is_const else known[d] for d in wanted)
        for inner in op.blocks:
            _walk(inner, known, found)
        _measured(op.results, known)


def _wanted(op: Op) -> tuple[Sym, ...]:
    if op.name == LOOP:
        return tuple(d for shape in op.attrs["row_shapes"] for d in shape)
    return tuple(op.attrs.get("sizes", ()))


def _measured(values: Sequence[Value], known: _Known) -> None:
    """The variables that are dims of values have their sizes from these, where they have none yet."""
    for value in values:
        for axis, d in enumerate(value.type.shape if isinstance(value.type, TensorType) else ()):
            if d.kind == "var":
                known.setdefault(d, SizeOf(value, axis))
