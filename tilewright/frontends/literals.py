"""Constants of a program: of numbers, and of strings."""

from __future__ import annotations

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.types import tensor
from tilewright.ops.define import constant
from tilewright.ops.define.staged import host


def literal(array: np.ndarray, name: str) -> Value:
    """A constant; one of strings is made by the host."""
    if array.dtype != np.object_:
        return constant(array, name)
    parameters = {"values": tuple(map(str, array.flat)), "shape": array.shape}
    value = host("text_constant", [], [tensor(dt.string, array.shape)], parameters)[0]
    value.name = name
    return value
