"""Adding zeros to a sum where it has no terms."""

from __future__ import annotations

from tilewright.ir.core import Func, Op, Value
from tilewright.ir.scalar import converted_from, scalar_operation
from tilewright.loops.analysis.deps import accumulation_of
from tilewright.loops.edit import body_of, put_ops, refuse, take_ops
from tilewright.loops.primitive import primitive

STEP = "pad_reduction"


@primitive
def pad_reduction(func: Func, loop: Op) -> Op:
    """Add products of zeros where a condition leaves out terms, so that parts of a sum are whole ones.

        if c { acc[i] += x[k] * w[k] }    ->    acc[i] += (x[k] if c else 0) * (w[k] if c else 0)

    Both factors are 0 then, whatever stands in memory. The accumulation is all that is in the condition, and that all
    that is in the loop. ScheduleError where it is no sum of products of two tensors.
    """
    ops = body_of(loop).ops
    if len(ops) != 1 or ops[0].name != "if":
        refuse(STEP, loop, "its body is no condition")
    guard, inner = ops[0].attrs["guard"], list(ops[0].blocks[0].ops)
    stores = [op for op in inner if op.name == "store"]
    found = accumulation_of(stores[0]) if len(stores) == 1 else None
    if found is None or not found.is_sum or any(op.blocks or op.name in ("check", "bind") for op in inner):
        refuse(STEP, loop, "what the condition leaves out is no single sum")
    product = found.value.op
    if product is None or scalar_operation(product).absorbing != 0 or len(product.operands) != 2:
        refuse(STEP, loop, "its terms are no products")
    factors = [_loaded(value) for value in product.operands]
    loads = [op for op in factors if op is not None and op.attrs.get("other", 0) == 0]
    if len(loads) != 2 or found.load in loads:
        refuse(STEP, loop, "its factors are no elements of two tensors")
    for load in loads:
        load.attrs["guard"] = (*guard, *load.attrs.get("guard", ()))
        load.attrs["other"] = 0
    put_ops(body_of(loop), take_ops(ops[0].blocks[0]))
    return loop


def _loaded(value: Value) -> Op | None:
    """The load of which a value is a conversion, or which it is: of zero these are zero."""
    while (source := converted_from(value)) is not None:
        value = source
    return value.op if value.op is not None and value.op.name == "load" else None
