"""Denormal numbers that count as zero, for what is evaluated when compiling: as the machine takes them at run time.

With the default numerics an operation that computes takes denormal operands as zero of the same sign, and gives zero
for a result that would be denormal. One that moves numbers, chooses among them or changes their signs keeps their bits.
float16 has no part in this: it is computed in float32, where its denormals are ordinary numbers.
"""

from __future__ import annotations

import numpy as np

from tilewright.ir.core import Op
from tilewright.ops.define import Compute

_FRACTIONS = {"float32": 23, "bfloat16": 7, "float64": 52}
"""Bits of the fraction in dtypes whose denormals the machine can take as zero: in these all bits but they and the sign
are 0."""

PIECE = 1 << 15
"""Elements that are looked at together: what is computed of them stays in the cache."""

_MOVES = frozenset({"load", "const", "index", "bind", "check", "yield", "select", "neg", "abs", "bitcast"})
_SAME_RANGE = frozenset({"f32", "bf16"})


def without_denormals(array: np.ndarray) -> np.ndarray:
    """The array with zeros of the same sign for denormal numbers; itself where it has none."""
    fraction = _FRACTIONS.get(array.dtype.name)
    if fraction is None:
        return array
    bits = array.view(f"u{array.dtype.itemsize}")
    pieces = np.split(bits.reshape(-1), range(PIECE, bits.size, PIECE)) if bits.flags.c_contiguous else [bits]
    if not any(_are_denormal(piece, fraction).any() for piece in pieces):
        return array
    denormal = _are_denormal(bits, fraction)
    return np.where(denormal, np.copysign(np.zeros((), array.dtype), array), array).astype(array.dtype)


def _are_denormal(bits: np.ndarray, fraction: int) -> np.ndarray:
    """Which floats are denormal numbers, by their bits as unsigned integers."""
    number = bits.dtype.type
    magnitude = bits & number((1 << 8 * bits.dtype.itemsize - 1) - 1)
    with np.errstate(over="ignore"):  # 0 is no denormal
        return np.asarray(magnitude - number(1) < number((1 << fraction) - 1))


def computes(computation: Compute) -> bool:
    """Whether a primitive does more to numbers than to move them, to choose among them and to change their signs."""
    return bool(computation.combine) or any(not _is_move(op) for op in computation.body.ops)


def _is_move(op: Op) -> bool:
    if op.name == "cast":  # bfloat16 is the upper half of float32
        return {op.operands[0].scalar.dtype.name, op.result.scalar.dtype.name} <= _SAME_RANGE
    return op.name in _MOVES
