"""What a kernel does, counted from its loops: operations, and bytes moved for each buffer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import reduce

from tilewright.ir.core import Block, Func, Op, Value
from tilewright.ir.scalar import COMPUTING, counts_as_flop
from tilewright.ir.sym import Sym, logical_and, minimum, sym, upper
from tilewright.ir.types import product
from tilewright.loops.analysis.bounds import Ranges, box
from tilewright.loops.analysis.deps import Access, accesses
from tilewright.loops.edit import (
    body_of,
    buffer_type,
    enclosing,
    extent_of,
    is_loop,
    loop_range,
    loop_var,
    ranges_of,
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a kernel reads from and writes to one buffer: executed loads and stores, and how much
    memory of it these touch at most (`distinct`)."""

    loaded: Sym
    stored: Sym
    distinct: Sym


@dataclass(frozen=True, slots=True)
class Cost:
    """Executed scalar operations (`operations`; of those on floats all but conversions are `flops`), and the traffic
    of each buffer.

    Work under a condition on dims counts where it holds, so that one of several versions for different sizes counts;
    under one on data as if it always held, so all numbers are upper bounds; under one that holds rarely, as if it never
    did.
    Expressions are over the kernel's dims.
    """

    operations: Sym
    flops: Sym
    traffic: dict[Value, Traffic]

    @property
    def argument_bytes(self) -> Sym:
        """Memory of the kernel's arguments that is touched: the least that must move."""
        shared = (t.distinct for v, t in self.traffic.items() if buffer_type(v).space == "global")
        return sum(shared, sym(0))


def cost(func: Func) -> Cost:
    """Count a kernel. Runs over the program once and executes nothing."""
    dims = set(func.dims)
    times = {op: n * _of_these_sizes(op, dims) for op, n in executions(func).items()}
    operations = flops = sym(0)
    for op, n in times.items():
        if op.name in COMPUTING:
            operations = operations + n
            flops = flops + (n if counts_as_flop(op) else 0)
    by_buffer: dict[Value, list[Access]] = {}
    for a in accesses(func.body):
        by_buffer.setdefault(a.buffer, []).append(a)
    return Cost(operations, flops, {v: _traffic(v, found, times) for v, found in by_buffer.items()})


def _of_these_sizes(op: Op, dims: set[Sym]) -> Sym:
    """1 where all conditions around an op that are on dims alone hold, else 0."""
    around = (condition for o in enclosing(op) if o.name == "if" for condition in o.attrs["guard"])
    return logical_and(*(condition for condition in around if dims.issuperset(condition.vars)))


def iterations(func: Func, without: Collection[Op] = ()) -> Sym:
    """How often ops are executed, all together, but for some loops: what the interpreter's time is proportional to."""
    left_out = {op for loop in without for op in (loop, *body_of(loop).walk())}
    return sum((n for op, n in executions(func).items() if op not in left_out), sym(0))


def executions(func: Func) -> dict[Op, Sym]:
    """How often each op is executed."""
    counts: dict[Op, Sym] = {}
    data = {op.attrs["var"] for op in func.body.walk() if op.name == "bind" and not _known_range(op.attrs["var"])}
    _count(func.body, sym(1), {}, data, counts)
    return counts


def _count(block: Block, times: Sym, around: Ranges, data: set[Sym], counts: dict[Op, Sym]) -> None:
    for op in block.ops:
        counts[op] = times
        if op.name == "bind":
            around = around | _known_range(op.attrs["var"])
        elif is_loop(op):
            extent = _without_data(extent_of(op), data)
            iterations = upper(extent, around)
            inside = around | {loop_var(op): loop_range(op)}
            _count(body_of(op), times * (extent if iterations is None else iterations), inside, data, counts)
        elif op.name in ("if", "run"):
            _count(body_of(op), sym(0) if op.attrs.get("rarely") else times, around, data, counts)


def _without_data(extent: Sym, data: set[Sym]) -> Sym:
    """An extent that does not name values that are computed: the others of a minimum bound it; else it counts as 1."""
    if not data.intersection(extent.vars):
        return extent
    others = [a for a in extent.args if not data.intersection(a.vars)] if extent.kind == "min" else []
    return reduce(minimum, others) if others else sym(1)


def _known_range(v: Sym) -> Ranges:
    """The range of a variable that is data, where it is known."""
    low, high = v.bounds
    return {} if low is None or high is None else {v: (sym(low), sym(high))}


def _traffic(buffer: Value, found: list[Access], times: dict[Op, Sym]) -> Traffic:
    type = buffer_type(buffer)
    size = type.dtype.bytes
    loaded = sum((times[a.op] for a in found if not a.write), sym(0))
    stored = sum((times[a.op] for a in found if a.write), sym(0))
    region = (
        None
        if any(a.unknown for a in found)
        else box([a.idx for a in found], [ranges_of(a.loops) for a in found])
    )
    touched = product(type.shape if region is None else map(minimum, region.sizes, type.shape))
    if loaded.is_const and stored.is_const:  # rows that are looked up in a table are not the whole table
        touched = minimum(touched, loaded + stored)
    return Traffic(loaded * size, stored * size, touched * size)
