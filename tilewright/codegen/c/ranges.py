"""Which arithmetic of 32-bit integers cannot leave their range: sums and products of a few short ones, as those of
quantised layers."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir import dtype as dt
from tilewright.ir.core import Value

Range = tuple[int, int]

_DEEPEST = 4
_LIMIT = 2**31 - 1


def is_within(value: Value) -> bool:
    """Whether a sum, a difference or a product is known to be an int32."""
    return _range(value, 0) is not None


def _range(value: Value, depth: int) -> Range | None:
    op = value.op
    dtype = value.scalar.dtype
    if dtype.kind == "bool":
        return 0, 1
    if dtype.is_int and dtype.bits <= 16:
        return (
            (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1)
            if dtype.kind == "int"
            else (0, (1 << dtype.bits) - 1)
        )
    if op is None or depth == _DEEPEST or dtype is not dt.i32:
        return None
    if op.name == "const":
        return int(op.attrs["value"]), int(op.attrs["value"])
    rule = _RULES.get(op.name)
    if rule is None:
        return None
    known = [_range(v, depth + 1) for v in op.operands if not v.scalar.dtype.is_float]
    found = [part for part in known if part is not None]
    if len(found) != len(op.operands):
        return None
    low, high = rule(*found)
    return (low, high) if low >= -_LIMIT and high <= _LIMIT else None


def _product(a: Range, b: Range) -> Range:
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


_RULES: dict[str, Callable[..., Range]] = {
    "cast": lambda a: a,
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
}
