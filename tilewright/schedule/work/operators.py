"""What an operator computes and moves, counted from its definition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.cost.elementwise import weighted_operations
from tilewright.graph.fusion.classify import OpClass, classify
from tilewright.ir.core import Block, Builder, Module, Op
from tilewright.ir.scalar import SCALAR_OPS
from tilewright.ir.sym import Sym, minimum, sym
from tilewright.ir.types import ScalarType, TensorType, product
from tilewright.loops.counts import cost
from tilewright.loops.lower import lower_region
from tilewright.loops.nodes import RegionPlan
from tilewright.ops.define import OPERATORS, Compute


@dataclass(frozen=True)
class Work:
    """Floating-point operations (a multiply-add is two), multiply-adds of sums of products by the bytes of what is
    multiplied, all other operations with their weights, and the bytes read of each operand and written."""

    flops: Sym = sym(0)
    products: Mapping[int, Sym] = field(default_factory=dict)
    operations: Sym = sym(0)
    read: tuple[Sym, ...] = ()
    written: Sym = sym(0)


class OperatorCounts:
    """Counts operators; equal ones once."""

    def __init__(self) -> None:
        self._known: dict[Any, Work] = {}

    def of(self, op: Op) -> Work:
        """The work of an op of the graph level; that of one which is no operator is nothing."""
        if op.name not in OPERATORS:
            return Work(read=(sym(0),) * len(op.operands))
        key = (op.name, tuple(v.type for v in op.operands), tuple(op.attrs.items()))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._count(op)
        return found

    def _count(self, op: Op) -> Work:
        kind = OPERATORS[op.name].kind
        if kind == "primitive":
            return _of_primitive(op)
        return _of_own_loops(op) if kind == "irregular" else self._of_composite(op)

    def _of_composite(self, op: Op) -> Work:
        block = Block([v.type for v in op.operands])
        with Builder(block, Module()):
            OPERATORS[op.name].expand(block.args, op.attrs)
        inner = [self.of(o) for o in block.ops]
        products: dict[int, Sym] = {}
        for work in inner:
            for size, count in work.products.items():
                products[size] = products.get(size, sym(0)) + count
        flops, operations = total(w.flops for w in inner), total(w.operations for w in inner)
        return Work(flops, products, operations, tuple(map(bytes_of, op.operands)), total(map(bytes_of, op.results)))


def total(amounts: Iterable[Sym]) -> Sym:
    """Their sum; equal formulas, of which a model has many, are added at once."""
    times = Counter(amounts)
    found = sym(sum(a.value * n for a, n in times.items() if a.is_const))
    for amount, n in times.items():
        if not amount.is_const:
            found = found + amount * n
    return found


def bytes_of(value: Any) -> Sym:
    """Of a tensor."""
    type = value.type
    return type.size * type.dtype.bytes if isinstance(type, TensorType) else sym(0)


def _of_primitive(op: Op) -> Work:
    types = [v.type for v in op.operands if isinstance(v.type, TensorType)]
    compute = OPERATORS[op.name].compute(types, op.attrs)
    times = product(extent for _, extent in (*compute.domain, *compute.reduce))
    names = [o.name for o in compute.body.ops if o.name in SCALAR_OPS or o.name == "cast"]
    floats = sum(o.name in SCALAR_OPS and _is_float(o) for o in compute.body.ops)
    if compute.combine:
        names.append(compute.combine)
        floats += compute.acc.is_float
    products: dict[int, Sym] = {}
    if classify(op).kind is OpClass.CONTRACTION:
        names = [n for n in names if n != "cast"]  # of operands that instructions for products widen
        names.remove("mul")
        names.remove("add")
        narrow = all(t.dtype.is_int for t in types)
        products[max(t.dtype.bytes for t in types) if narrow else compute.acc.bytes] = times
    read = tuple(_read(type, arg, compute, times) for type, arg in zip(types, compute.body.args, strict=True))
    return Work(times * floats, products, times * weighted_operations(names), read, bytes_of(op.result))


def _is_float(op: Op) -> bool:
    type = op.results[0].type
    return isinstance(type, ScalarType) and type.dtype.is_float


def _read(type: TensorType, arg: Any, compute: Compute, times: Sym) -> Sym:
    """Bytes of an operand that are read: of tables and slices a part only."""
    loads = sum(o.name == "load" and o.operands[0] is arg for o in compute.body.ops)
    fewer = minimum(type.size, times * loads)
    by_position = any(o.name == "bind" for o in compute.body.ops)
    return (fewer if fewer.kind != "min" or by_position else type.size) * type.dtype.bytes


def _of_own_loops(op: Op) -> Work:
    region = _region(op)
    found = cost(lower_region(region, "counted", RegionPlan()).func)
    read = tuple(map(bytes_of, op.operands))
    return Work(found.flops, {}, found.operations, read, total(map(bytes_of, op.results)))


def _region(op: Op) -> Op:
    """A region of this op alone."""
    types: Sequence[Any] = [v.type for v in op.operands]
    block = Block(types)
    values = dict(zip(op.operands, block.args, strict=True))
    copy = Op(op.name, [values[v] for v in op.operands], [v.type for v in op.results], op.attrs, loc=op.loc)
    block.append(copy)
    block.append(Op("yield", copy.results))
    return Op("fused", [], [v.type for v in op.results], {"strategy": "opaque", "name": op.name}, [block], op.loc)
