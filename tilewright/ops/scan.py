"""Running totals along an axis."""

from __future__ import annotations

from tilewright.ir.types import TensorType, product
from tilewright.ops.define import irregular
from tilewright.ops.shape import checked_axis
from tilewright.ops.sort import unflattened, with_axis
from tilewright.ops.trace import Array, Trace


def _scan_types(
    x: TensorType, *, axis: int, exclusive: bool = False, reverse: bool = False
) -> tuple[TensorType, ...]:
    checked_axis(axis, x.rank)
    if x.dtype.kind == "bool":
        raise ValueError("running totals are of numbers, not of bool")
    return (x,)


def _scan(t: Trace, x: Array, out: Array, combine: str, axis: int, exclusive: bool, reverse: bool) -> None:
    """out[i] = combine of x[0..i]; `exclusive` leaves out x[i], `reverse` starts at the other end."""
    a = checked_axis(axis, x.rank)
    others = [d for n, d in enumerate(x.shape) if n != a]
    dtype = x.dtype.accumulator if x.dtype.is_float else x.dtype
    with t.loop(product(others), "row", "parallel") as row:
        outer = unflattened(row, others)
        total = t.alloc(dtype, (1,))
        total.store((0,), t.const(0 if combine == "add" else 1, dtype))
        with t.loop(x.shape[a], "j") as j:
            place = with_axis(outer, a, x.shape[a] - 1 - j if reverse else j)
            before = total[0]
            after = t.apply(combine, before, x[place].cast(dtype))
            total.store((0,), after)
            out.store(place, (before if exclusive else after).cast(x.dtype))


@irregular(_scan_types)
def cumsum(
    t: Trace,
    inputs: list[Array],
    outputs: list[Array],
    *,
    axis: int,
    exclusive: bool = False,
    reverse: bool = False,
) -> None:
    """The sum of all elements up to each position along `axis`; 16-bit floats are added in f32."""
    _scan(t, inputs[0], outputs[0], "add", axis, exclusive, reverse)


@irregular(_scan_types)
def cumprod(
    t: Trace,
    inputs: list[Array],
    outputs: list[Array],
    *,
    axis: int,
    exclusive: bool = False,
    reverse: bool = False,
) -> None:
    """The product of all elements up to each position along `axis`."""
    _scan(t, inputs[0], outputs[0], "mul", axis, exclusive, reverse)
