"""Views: values that are part of another value's memory, so that no kernel makes them.

`reshape` is its operand under another shape; `slice` of consecutive elements is a part of its operand; the operands
of a `concat` are parts of its result, into which their kernels write. Only dense tensors are views of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tilewright.ir.core import Func, Op, Value
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product, row_major


@dataclass(frozen=True)
class Location:
    """`offset` bytes into the memory of `root`, a value with memory of its own."""

    root: Value
    offset: Sym = sym(0)


def is_view(op: Op) -> bool:
    """Whether an op of a program needs no kernel, as its results are part of other values' memory."""
    return op.name in VIEWS


def bytes_of(value: Value) -> Sym:
    return value.tensor.size * value.tensor.dtype.bytes


def locate(func: Func, planned: Mapping[Value, Location] = MappingProxyType({})) -> dict[Value, Location]:
    """Where each value of `func` lies; `planned` are values that shall lie in others besides."""
    parents = dict(planned)
    for op in filter(is_view, func.body.ops):
        for part, at in parts_of(op):
            is_joined = at.root is op.result  # with all that its memory is part of
            parents[root_of(part, parents).root if is_joined else part] = at
    values = [*func.args, *(v for op in func.body.ops for v in op.results)]
    return {v: root_of(v, parents) for v in values}


def root_of(value: Value, parents: Mapping[Value, Location]) -> Location:
    """The location of a value that lies in others, step by step."""
    offset = sym(0)
    while value in parents:
        offset = offset + parents[value].offset
        value = parents[value].root
    return Location(value, offset)


def slice_offset(op: Op) -> Sym:
    """Bytes from the start of a slice's operand to its first element."""
    source = op.operands[0].tensor
    steps = row_major(source.shape)
    first = sum((sym(i) * step for i, step in zip(op.attrs["starts"], steps, strict=True)), sym(0))
    return first * source.dtype.bytes


def part_offsets(op: Op) -> list[Sym]:
    """Bytes from the start of a concat's result to each of its operands."""
    offsets = [sym(0)]
    for part in op.operands[:-1]:
        offsets.append(offsets[-1] + bytes_of(part))
    return offsets


def joins_consecutive_parts(op: Op) -> bool:
    """Whether the operands of a concat follow each other in its result."""
    shape = op.result.tensor.shape
    return product(shape[: op.attrs["axis"] % len(shape)]) == 1


def parts_of(op: Op) -> list[tuple[Value, Location]]:
    """The values that are parts of others by a view, and where in these they lie."""
    return _PARTS[op.name](op)


_PARTS: Mapping[str, Callable[[Op], list[tuple[Value, Location]]]] = {
    "reshape": lambda op: [(op.result, Location(op.operands[0]))],
    "slice": lambda op: [(op.result, Location(op.operands[0], slice_offset(op)))],
    "concat": lambda op: [
        (part, Location(op.result, at)) for part, at in zip(op.operands, part_offsets(op), strict=True)
    ],
}
VIEWS = frozenset(_PARTS)
"""Ops of a program that need no kernel."""
