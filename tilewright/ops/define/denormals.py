"""Denormal numbers that count as zero, for what is evaluated when compiling: as the machine takes them at run time.

With the default numerics an operation that computes takes denormal operands as zero of the same sign, and gives zero
for a result that would be denormal. One that moves numbers, chooses among them or changes their signs keeps their bits.
float16 has no part in this: it is computed in float32, where its denormals are ordinary numbers.
"""

from __future__ import annotations

import numpy as np

from tilewright.ir.core import Op
from tilewright.ops.define import Compute

_SMALLEST = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float64": 2.0**-1022}
"""The smallest normal number of dtypes whose denormals the machine can take as zero."""

_MOVES = frozenset({"load", "const", "index", "bind", "check", "yield", "select", "neg", "abs", "bitcast"})
_SAME_RANGE = frozenset({"f32", "bf16"})


def without_denormals(array: np.ndarray) -> np.ndarray:
    """The array with zeros of the same sign for denormal numbers; itself where it has none."""
    smallest = _SMALLEST.get(array.dtype.name)
    if smallest is None:
        return array
    with np.errstate(all="ignore"):
        denormal = (np.abs(array) < np.asarray(smallest, array.dtype)) & (array != 0)
    if not denormal.any():
        return array
    return np.where(denormal, np.copysign(np.zeros((), array.dtype), array), array).astype(array.dtype)


def computes(computation: Compute) -> bool:
    """Whether a primitive does more to numbers than to move them, to choose among them and to change their signs."""
    return bool(computation.combine) or any(not _is_move(op) for op in computation.body.ops)


def _is_move(op: Op) -> bool:
    if op.name == "cast":  # bfloat16 is the upper half of float32
        return {op.operands[0].scalar.dtype.name, op.result.scalar.dtype.name} <= _SAME_RANGE
    return op.name in _MOVES
