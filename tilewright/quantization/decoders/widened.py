"""A program in float64: what rounding to float32 does to it is seen beside it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Op, Value
from tilewright.ir.types import TensorType


def widened(module: Module) -> Module:
    """A copy that computes in float64 wherever the module does in float32, its inputs and constants included."""
    made = module.copy()
    for func in made.funcs.values():
        for value in func.args:
            _widen(value)
        for op in func.body.walk():
            _widen_op(op)
    for name in list(made.constants):
        if (array := made.constants[name]).dtype == np.float32:
            made.constants[name] = array.astype(np.float64)
    return made


def _widen_op(op: Op) -> None:
    for value in (*op.results, *(arg for block in op.blocks for arg in block.args)):
        _widen(value)
    op.attrs = {name: _wide(attr) for name, attr in op.attrs.items()}


def _wide(attr: Any) -> Any:
    if attr is dt.f32:
        return dt.f64
    return tuple(map(_wide, attr)) if isinstance(attr, tuple) else attr


def _widen(value: Value) -> None:
    type = value.type
    if isinstance(type, TensorType) and type.dtype is dt.f32:
        value.type = TensorType(dt.f64, type.shape)
