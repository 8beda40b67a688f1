"""What the operators of a kernel compute, counted before anything is scheduled: however a kernel pads, recomputes or
splits its work, this is what it is for."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Op, Value
from tilewright.ir.scalar import counts_as_flop
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.ops.define import OPERATORS


def flops_of_region(region: Op) -> Sym | None:
    """Scalar operations on floats of a `fused` op, over the dims of the program: each element of each operator once,
    and for each term of a sum (or maximum, ...) one more, so that a matrix product has two for each term, of whatever
    types its factors are: conversions are none. None where some operator has loops of its own, which say more."""
    total = sym(0)
    for op in region.blocks[0].ops[:-1]:
        found = _flops_of(op)
        if found is None:
            return None
        total = total + found
    return total


def _flops_of(op: Op) -> Sym | None:
    operator = OPERATORS[op.name]
    if operator.kind == "irregular":
        return None
    compute = operator.compute([v.tensor for v in op.operands], op.attrs)
    terms = product(extent for _, extent in compute.reduce)
    each = sum(map(counts_as_flop, compute.body.walk())) + (1 if compute.combine and _is_float(op.results) else 0)
    return product(compute.shape) * terms * each


def _is_float(values: Sequence[Value]) -> bool:
    types = (getattr(v.type, "dtype", None) for v in values)
    return any(dtype is not None and dtype.is_float for dtype in types)
