"""Products with powers of two by the target's instruction, for any number of lanes."""

from __future__ import annotations

from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.target.scale import Scale


def multiply_by_power(scale: Scale, x: Reg, n: Reg, keep: Reg) -> Reg:
    """`keep ? x * 2^n : 0` for f32 numbers x, whole f32 numbers n and flags `keep`.

    Vectors of more lanes than a call takes, or of a number that none has, go in parts; few lanes with zeros beside
    them.
    """
    lanes = x.lanes
    widths = [width for width, *_ in scale.calls]
    if lanes in widths:
        return _call(scale, x, n, keep)
    if lanes < widths[-1]:
        wide = [_widened(value, widths[-1]) for value in (x, n, keep)]
        return _call(scale, *wide).part(0, lanes)
    half = 1 << (lanes - 1).bit_length() - 1
    low = [value.part(0, half) for value in (x, n, keep)]
    high = [value.part(half, lanes - half) for value in (x, n, keep)]
    products = multiply_by_power(scale, *low), multiply_by_power(scale, *high)
    return products[0].shuffled(_widened(products[1], half), range(lanes))


def _call(scale: Scale, x: Reg, n: Reg, keep: Reg) -> Reg:
    _, name, bits, control = next(call for call in scale.calls if call[0] == x.lanes)
    flags = _widened(keep, bits)
    mask = x.text.emit(f"bitcast {flags.typed} to i{bits}")
    operands = f"{x.typed}, {n.typed}, {x.type} zeroinitializer, i{bits} {mask}{control}"
    return x.text.reg(x.dtype, x.lanes, f"call {x.type} @{name}({operands})")


def _widened(value: Reg, count: int) -> Reg:
    """The lanes of a value, and zeros after them."""
    if count == value.lanes:
        return value
    zeros = value.text.named("zeroinitializer", value.dtype, count if value.lanes == 1 else value.lanes)
    if value.lanes == 1:
        return value.text.reg(value.dtype, count, f"insertelement {zeros.typed}, {value.typed}, i32 0")
    return value.shuffled(zeros, [min(k, value.lanes) for k in range(count)])
