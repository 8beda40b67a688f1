"""Which arithmetic of 32-bit integers cannot leave their range: sums and products of a few short ones, as those of
quantised layers."""

from __future__ import annotations

from tilewright.ir import dtype as dt
from tilewright.ir.core import Value

_DEEPEST = 4
_LIMIT = 2**31 - 1


def is_within(value: Value) -> bool:
    """Whether a sum, a difference or a product is known to be an int32."""
    return _range(value, 0) is not None


def _range(value: Value, depth: int) -> tuple[int, int] | None:
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
    if op.name not in ("cast", "add", "sub", "mul"):
        return None
    parts = [
        _range(v, depth + 1) for v in op.operands if v.scalar.dtype.is_int or v.scalar.dtype.kind == "bool"
    ]
    found = [part for part in parts if part is not None]
    if len(found) != len(op.operands):
        return None
    if op.name == "cast":
        return found[0]
    (a, b), (c, d) = found
    ends = {"add": (a + c, b + d), "sub": (a - d, b - c), "mul": (a * c, a * d, b * c, b * d)}[op.name]
    return (min(ends), max(ends)) if min(ends) >= -_LIMIT and max(ends) <= _LIMIT else None
