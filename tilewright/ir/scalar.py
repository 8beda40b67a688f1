"""Scalar operations: what one element of a tensor program computes. The same table serves every level.

`evaluate` is the meaning (NumPy, elementwise); integer arithmetic wraps, integer division truncates towards zero
as ONNX has it, and division by zero is reported by the caller before it happens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """A scalar operation: `arity`, and a result dtype "same" (as operand 0), "bool", or "second" (operand 1)."""

    name: str
    arity: int
    result: str
    evaluate: Callable[..., Any]
    commutative: bool = False
    identity: float | None = None  # of a commutative, associative op that reductions may use

    def result_dtype(self, operands: tuple[DType, ...]) -> DType:
        if self.result == "bool":
            return dt.bool_
        return operands[1] if self.result == "second" else operands[0]


def _truncated_div(a: Any, b: Any) -> Any:
    if dt.from_numpy(np.result_type(a)).is_float:
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    inexact = np.remainder(a, b) != 0
    return quotient + np.where(inexact & ((np.asarray(a) < 0) != (np.asarray(b) < 0)), 1, 0).astype(quotient.dtype)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _erf_any(x: Any) -> Any:
    return _erf(x).astype(np.asarray(x).dtype)


def _sigmoid(x: Any) -> Any:
    return np.asarray(1 / (1 + np.exp(-np.asarray(x, np.float64)))).astype(np.asarray(x).dtype)


def _round_even(x: Any) -> Any:
    return np.rint(x)


def _ticks(x: Any) -> Any:
    """An integer plus the count of a clock, which goes on from call to call: the one operation that is no function."""
    dtype = np.asarray(x).dtype
    return np.asarray(x + np.asarray(time.perf_counter_ns()).astype(dtype)).astype(dtype)


_TABLE = (
    ScalarOp("add", 2, "same", np.add, True, 0),
    ScalarOp("sub", 2, "same", np.subtract),
    ScalarOp("mul", 2, "same", np.multiply, True, 1),
    ScalarOp("div", 2, "same", _truncated_div),
    ScalarOp("rem", 2, "same", np.fmod),  # sign of the dividend
    ScalarOp("mod", 2, "same", np.remainder),  # sign of the divisor
    ScalarOp("pow", 2, "same", np.power),
    ScalarOp("min", 2, "same", np.minimum, True, math.inf),  # NaN if either is
    ScalarOp("max", 2, "same", np.maximum, True, -math.inf),
    ScalarOp("atan2", 2, "same", np.arctan2),
    ScalarOp("and", 2, "same", lambda a, b: np.bitwise_and(a, b), True, -1),
    ScalarOp("or", 2, "same", lambda a, b: np.bitwise_or(a, b), True, 0),
    ScalarOp("xor", 2, "same", lambda a, b: np.bitwise_xor(a, b), True, 0),
    ScalarOp("shl", 2, "same", np.left_shift),
    ScalarOp("shr", 2, "same", np.right_shift),
    ScalarOp("eq", 2, "bool", np.equal, True),
    ScalarOp("ne", 2, "bool", np.not_equal, True),
    ScalarOp("lt", 2, "bool", np.less),
    ScalarOp("le", 2, "bool", np.less_equal),
    ScalarOp("gt", 2, "bool", np.greater),
    ScalarOp("ge", 2, "bool", np.greater_equal),
    ScalarOp("select", 3, "second", np.where),
    ScalarOp("quotient", 3, "same", lambda a, b, inverse: np.divide(a, b)),  # inverse: 1 / b
    ScalarOp("neg", 1, "same", np.negative),
    ScalarOp("abs", 1, "same", np.abs),
    ScalarOp("not", 1, "same", np.invert),
    ScalarOp("sign", 1, "same", np.sign),
    ScalarOp("floor", 1, "same", np.floor),
    ScalarOp("ceil", 1, "same", np.ceil),
    ScalarOp("round", 1, "same", _round_even),
    ScalarOp("trunc", 1, "same", np.trunc),
    ScalarOp("sqrt", 1, "same", np.sqrt),
    ScalarOp("rsqrt", 1, "same", lambda x: 1 / np.sqrt(x)),
    ScalarOp("exp", 1, "same", np.exp),
    ScalarOp("expm1", 1, "same", np.expm1),
    ScalarOp("log", 1, "same", np.log),
    ScalarOp("log1p", 1, "same", np.log1p),
    ScalarOp("tanh", 1, "same", np.tanh),
    ScalarOp("sigmoid", 1, "same", _sigmoid),
    ScalarOp("erf", 1, "same", _erf_any),
    ScalarOp("sin", 1, "same", np.sin),
    ScalarOp("cos", 1, "same", np.cos),
    ScalarOp("tan", 1, "same", np.tan),
    ScalarOp("asin", 1, "same", np.arcsin),
    ScalarOp("acos", 1, "same", np.arccos),
    ScalarOp("atan", 1, "same", np.arctan),
    ScalarOp("sinh", 1, "same", np.sinh),
    ScalarOp("cosh", 1, "same", np.cosh),
    ScalarOp("asinh", 1, "same", np.arcsinh),
    ScalarOp("acosh", 1, "same", np.arccosh),
    ScalarOp("atanh", 1, "same", np.arctanh),
    ScalarOp("is_nan", 1, "bool", np.isnan),
    ScalarOp("is_inf", 1, "bool", np.isinf),
    ScalarOp("ticks", 1, "same", _ticks),
)
SCALAR_OPS: Mapping[str, ScalarOp] = {s.name: s for s in _TABLE}
"""All scalar operations by name. `cast`, `bitcast`, `const`, `index` and `load` are ops of their own."""

CONVERSIONS = frozenset({"cast", "bitcast"})
"""Ops that give one element as one of another dtype, which operands do not tell."""


COSTLY = frozenset(
    [
        *("exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", "pow", "div", "rem", "mod", "sqrt", "rsqrt"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "atan2"),
    ]
)
"""Scalar ops that are worth a store and a load rather than computing them twice."""


def identity(combine: str, dtype: DType) -> float | int | bool:
    """The neutral element of a reduction in `dtype` (integers: the type's own extremes for min and max)."""
    neutral = SCALAR_OPS[combine].identity
    assert neutral is not None, f"{combine} is not a reduction"
    if dtype.kind == "bool":
        return combine in ("and", "min", "mul")
    if dtype.is_int:
        info = np.iinfo(dtype.storage)
        if combine in ("min", "max"):
            return int(info.max if combine == "min" else info.min)
        return int(neutral) if combine != "and" or dtype.kind == "int" else int(info.max)
    return float(neutral)
