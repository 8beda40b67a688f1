"""The values of a program in float64 throughout: no result is rounded to a shorter type on the way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Module, Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.types import TensorType
from tilewright.ops.define.interp import evaluate_op
from tilewright.validation.cases import Case
from tilewright.validation.passes import EVALUATION
from tilewright.validation.values import Arrays, ReplayedValues, TooLong


class ExactValues(ReplayedValues):
    """What the values of a main function are in one call where each float is of 64 bits: inputs and constants are those
    of the program, and casts to shorter floats change nothing. `rounded` names the operators that have no such form
    (what takes the bits of floats apart), which are computed in their own types."""

    def __init__(self, module: Module, case: Case, deadline: float) -> None:
        super().__init__(module, case, deadline)
        self.known = {value: widened(array) for value, array in self.known.items()}
        self.rounded: dict[str, None] = {}

    def of(self, op: Op, arrays: Sequence[np.ndarray]) -> Arrays:
        """What an op gives for these operands, whose floats are of 64 bits."""
        if time.monotonic() > self.deadline:
            raise TooLong
        if op.name == "fused":
            return self._region(op, arrays)
        if op.name == "constant":
            return (widened(self.module.constants[op.attrs["name"]]),)
        try:
            return tuple(map(widened, evaluate_op(_widened_op(op), arrays, self.case.env, self.module)))
        except (*EVALUATION, KeyError, AssertionError):
            own = [_as(v, a) for v, a in zip(op.operands, arrays, strict=True)]
            found = tuple(map(widened, evaluate_op(op, own, self.case.env, self.module)))
        self.rounded[op.name] = None
        return found


def widened(array: np.ndarray) -> np.ndarray:
    """The array with floats of 64 bits; others as they are."""
    return array.astype(np.float64) if "float" in array.dtype.name and array.dtype != np.float64 else array


def _as(value: Value, array: np.ndarray) -> np.ndarray:
    """The array in the type that a value has."""
    is_float = isinstance(value.type, TensorType) and value.type.dtype.is_float
    return array.astype(value.tensor.dtype.storage) if is_float else array


def _widened_op(op: Op) -> Op:
    """The operator, of operands of 64 bits where they are floats."""
    attrs: dict[str, Any] = dict(op.attrs)
    dtype, number = attrs.get("dtype"), attrs.get("value")
    if isinstance(dtype, DType) and dtype.is_float and isinstance(number, int | float):
        attrs["value"] = float(dtype.storage.type(number))  # one of the type
    block = Block([_wide_type(v.type) for v in op.operands])
    return Op(op.name, block.args, [v.type for v in op.results], {k: _wide(v) for k, v in attrs.items()}, loc=op.loc)


def _wide_type(type: Any) -> Any:
    return TensorType(_wide(type.dtype), type.shape) if isinstance(type, TensorType) else type


def _wide(attr: Any) -> Any:
    return dt.f64 if isinstance(attr, DType) and attr.is_float else attr
