"""Products of small integers in groups, by the instructions that the target has for them."""

from __future__ import annotations

from tilewright.codegen.cpu.kernel.lanes import Reg
from tilewright.codegen.cpu.kernel.scalars import part
from tilewright.codegen.cpu.kernel.text import Text
from tilewright.ir.dtype import DType
from tilewright.target.dots import Dot
from tilewright.target.target import Target


def instruction_for(target: Target, left: DType, right: DType, group: int, lanes: int) -> Dot | None:
    """What multiplies groups of these dtypes for `lanes` sums, whole registers of them."""
    for dot in target.dots:
        if (dot.left, dot.right, dot.group) == (left, right, group) and lanes % dot.calls[-1][0] == 0:
            return dot
    return None


def multiply_in_groups(text: Text, dot: Dot, sums: Reg, left: Reg, right: Reg) -> Reg:
    """`sums` (i32) plus the products of each lane's groups in `left` and `right`, register by register."""
    found: list[Reg] = []
    first = 0
    while first < sums.lanes:
        lanes, name = next((n, name) for n, name in dot.calls if n <= sums.lanes - first)
        factors = [part(text, x, first * dot.group, lanes * dot.group) for x in (left, right)]
        before = part(text, sums, first, lanes)
        if dot.accumulates:
            found.append(text.call(sums.dtype, lanes, name, before, *factors))
        else:
            products = text.call(sums.dtype, lanes, name, *factors)
            found.append(text.reg(sums.dtype, lanes, f"add {before.typed}, {products.name}"))
        first += lanes
    return _joined(text, found)


def _joined(text: Text, parts: list[Reg]) -> Reg:
    """Registers one after the other, all of the same lanes, a power of two of them."""
    while len(parts) > 1:
        count = 2 * parts[0].lanes
        order = ", ".join(f"i32 {k}" for k in range(count))
        parts = [
            text.reg(a.dtype, count, f"shufflevector {a.typed}, {b.typed}, <{count} x i32> <{order}>")
            for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
    return parts[0]
