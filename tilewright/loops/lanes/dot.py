"""Adding the products of a short loop by one instruction."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Op, Value
from tilewright.ir.scalar import converted_from
from tilewright.ir.types import ScalarType
from tilewright.loops.analysis.deps import accumulation_of
from tilewright.loops.edit import body_of, extent_of, kind_of, loop_var, refuse, set_kind
from tilewright.loops.primitive import primitive

STEP = "dot"

SUMS = (ScalarType(dt.i32), ScalarType(dt.f32))


@dataclass(frozen=True, slots=True, eq=False)
class Products:
    """What a loop sums: `sums[..] += cast(left[..]) * cast(right[..])`, by its loads and its store. The right one is
    that of the second operand of the product."""

    left: Op
    right: Op
    sums: Op
    store: Op


@primitive
def dot(func: Func, loop: Op) -> Op:
    """Add the products of all iterations to a sum in i32 or f32 at once.

        for g in 0..4 { s[j] = s[j] + cast(a[4*k + g]) * cast(b[k, j, g]) }

    becomes the same loop of kind `dot`. It may stand in a vector loop. Sums in f32 may be rounded in another order
    then. ScheduleError when the extent is not a
    constant, or the loop does anything else.
    """
    if not extent_of(loop).is_const:
        refuse(STEP, loop, "its extent is not a constant; split it first")
    if kind_of(loop) != "serial":
        refuse(STEP, loop, f"it is a {kind_of(loop)} loop already")
    found = products_of(loop)
    if isinstance(found, str):
        refuse(STEP, loop, found)
    set_kind(loop, "dot")
    return loop


def products_of(loop: Op) -> Products | str:
    """The products that a loop sums, or why it is no such loop."""
    ops = body_of(loop).ops
    store = ops[-1] if ops else None
    if store is None or store.name != "store":
        return "its body does not end in a sum"
    found = accumulation_of(store)
    if found is None or not found.is_sum or loop_var(loop) in _variables(store):
        return "it does not add to one sum"
    product = found.value.op
    if product not in found.products() or product is None or product.result.type not in SUMS:
        return "it does not add products in i32 or f32"
    left, right = map(_widened_load, product.operands)
    if left is None or right is None:
        return "the factors are not narrow numbers that are loaded"
    inside = {left, right, found.load, found.combine, product, store, *(v.op for v in product.operands)}
    if set(ops) != inside:
        return "it does more than to add products"
    return Products(left, right, found.load, store)


def _widened_load(value: Value) -> Op | None:
    """The load of a narrow number that a cast widens to one of the same kind."""
    source = converted_from(value)
    if source is None or source.op is None or source.op.name != "load":
        return None
    narrow, wide = source.scalar.dtype, value.scalar.dtype
    return source.op if narrow.bits < wide.bits and narrow.is_float == wide.is_float else None


def _variables(access: Op) -> frozenset[object]:
    return frozenset[object]().union(*(i.vars for i in access.attrs["idx"]))
