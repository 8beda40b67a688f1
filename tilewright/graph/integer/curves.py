"""Functions of one byte: their 256 values, computed when compiling by the operators' definitions in floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.graph.integer.fixed import KNOWN_DIGITS, Fixed, as_scale
from tilewright.graph.integer.obstacles import Obstacle
from tilewright.graph.match import dtype_of
from tilewright.graph.quantised.byte_tables import VALUES, as_limits
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import TilewrightError
from tilewright.ops import elementwise as ew
from tilewright.ops.define import OPERATORS, constant
from tilewright.ops.define.interp import evaluate
from tilewright.ops.index import gather, table_lookup
from tilewright.ops.source import full


@dataclass(frozen=True, eq=False)
class Curve:
    """Elements that are a function of the bytes `root`: what it gives for each, in the order of bytes without a
    sign."""

    root: Value
    elements: np.ndarray


def every_byte(root: Value) -> np.ndarray:
    """The bytes in the order of curves."""
    return np.arange(VALUES).astype(np.uint8).view(dtype_of(root).storage)


def applied(op: Op, operands: Sequence[np.ndarray]) -> np.ndarray | None:
    """What an operator gives for 256 elements of those operands that vary; None where it fails."""
    attrs: dict[str, Any] = dict(op.attrs)
    try:
        found = evaluate(OPERATORS[op.name], *operands, **attrs)
    except TilewrightError:
        return None
    return np.ascontiguousarray(np.broadcast_to(found, (VALUES,)))


def bytes_of(curve: Curve) -> Value:
    """The elements of a curve of bytes (or truth values)."""
    elements, root = curve.elements, curve.root
    if elements.dtype == np.bool_:
        return ew.cast(table_lookup(root, constant(elements.astype(np.uint8), "table")), dtype=dt.bool_)
    if np.all(elements == elements[0]):
        return full(value=int(elements[0]), dtype=dt.from_numpy(elements.dtype), shape=root.tensor.shape)
    limited = as_limits(root, elements)
    return table_lookup(root, constant(elements, "table")) if limited is None else limited


def numbers_of(curve: Curve) -> Fixed:
    """The elements of a curve of floats in fixed point, looked up as such."""
    numbers = curve.elements.astype(np.float64)
    if not np.all(np.isfinite(numbers)):
        raise Obstacle("it is not finite for some bytes")
    scale = (float(np.abs(numbers).max()) or 1.0) / ((1 << KNOWN_DIGITS) - 1)
    found = np.rint(numbers / scale).astype(np.int32)
    root = curve.root
    positions = ew.bitcast(root, dtype=dt.u8) if dtype_of(root) is dt.i8 else root
    value = gather(constant(found, "numbers"), positions)
    return Fixed(value, as_scale(scale), int(found.min()), int(found.max()))
