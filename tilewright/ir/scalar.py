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
    """A scalar operation: `arity`, a result dtype "same" (as operand 0), "bool", or "second" (operand 1), and what is
    true of it, which no other place says again.

    commutative: f(a, b) is f(b, a).
    identity: the number n for which f(x, n) is x, of numbers; of a commutative operation, which is associative then,
        what reductions begin with.
    is_exact: of floats in a short type it gives what it gives of the same numbers in a longer type, rounded.
    steps: a small change of an operand may change the result much, where both results are finite.
    is_finite: of finite numbers it gives a finite one, unless that is too large for the type.
    is_costly: it is worth a store and a load rather than computing it twice.
    is_pure: its result follows from its operands.
    """

    name: str
    arity: int
    result: str
    evaluate: Callable[..., Any]
    commutative: bool = False
    identity: float | None = None
    is_exact: bool = False
    steps: bool = False
    is_finite: bool = True
    is_costly: bool = False
    is_pure: bool = True

    @property
    def reduces(self) -> bool:
        """Whether reductions may use it: it is commutative and associative, and has a neutral element."""
        return self.commutative and self.identity is not None

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
    ScalarOp("add", 2, "same", np.add, commutative=True, identity=0),
    ScalarOp("sub", 2, "same", np.subtract, identity=0),
    ScalarOp("mul", 2, "same", np.multiply, commutative=True, identity=1),
    ScalarOp("div", 2, "same", _truncated_div, identity=1, is_finite=False, is_costly=True),
    ScalarOp(
        "rem", 2, "same", np.fmod,
        is_exact=True, steps=True, is_finite=False, is_costly=True,
    ),  # sign of the dividend
    ScalarOp(
        "mod", 2, "same", np.remainder,
        steps=True, is_finite=False, is_costly=True,
    ),  # sign of the divisor
    ScalarOp("pow", 2, "same", np.power, identity=1, is_finite=False, is_costly=True),
    ScalarOp(
        "min", 2, "same", np.minimum,
        commutative=True, identity=math.inf, is_exact=True,
    ),  # NaN if either is
    ScalarOp(
        "max", 2, "same", np.maximum,
        commutative=True, identity=-math.inf, is_exact=True,
    ),
    ScalarOp("atan2", 2, "same", np.arctan2, steps=True, is_costly=True),
    ScalarOp(
        "and", 2, "same", lambda a, b: np.bitwise_and(a, b),
        commutative=True, identity=-1, steps=True,
    ),
    ScalarOp(
        "or", 2, "same", lambda a, b: np.bitwise_or(a, b),
        commutative=True, identity=0, steps=True,
    ),
    ScalarOp(
        "xor", 2, "same", lambda a, b: np.bitwise_xor(a, b),
        commutative=True, identity=0, steps=True,
    ),
    ScalarOp("shl", 2, "same", np.left_shift, identity=0, steps=True),
    ScalarOp("shr", 2, "same", np.right_shift, identity=0, steps=True),
    ScalarOp("eq", 2, "bool", np.equal, commutative=True, is_exact=True, steps=True),
    ScalarOp("ne", 2, "bool", np.not_equal, commutative=True, is_exact=True, steps=True),
    ScalarOp("lt", 2, "bool", np.less, is_exact=True, steps=True),
    ScalarOp("le", 2, "bool", np.less_equal, is_exact=True, steps=True),
    ScalarOp("gt", 2, "bool", np.greater, is_exact=True, steps=True),
    ScalarOp("ge", 2, "bool", np.greater_equal, is_exact=True, steps=True),
    ScalarOp("select", 3, "second", np.where, is_exact=True),
    ScalarOp("quotient", 3, "same", lambda a, b, inverse: np.divide(a, b)),  # inverse: 1 / b, a normal number
    ScalarOp("neg", 1, "same", np.negative, is_exact=True),
    ScalarOp("abs", 1, "same", np.abs, is_exact=True),
    ScalarOp("not", 1, "same", np.invert, steps=True),
    ScalarOp("sign", 1, "same", np.sign, is_exact=True, steps=True),
    ScalarOp("floor", 1, "same", np.floor, is_exact=True, steps=True),
    ScalarOp("ceil", 1, "same", np.ceil, is_exact=True, steps=True),
    ScalarOp("round", 1, "same", _round_even, is_exact=True, steps=True),
    ScalarOp("trunc", 1, "same", np.trunc, is_exact=True, steps=True),
    ScalarOp("sqrt", 1, "same", np.sqrt, is_finite=False, is_costly=True),
    ScalarOp("rsqrt", 1, "same", lambda x: 1 / np.sqrt(x), is_finite=False, is_costly=True),
    ScalarOp("exp", 1, "same", np.exp, is_costly=True),
    ScalarOp("expm1", 1, "same", np.expm1, is_costly=True),
    ScalarOp("log", 1, "same", np.log, is_finite=False, is_costly=True),
    ScalarOp("log1p", 1, "same", np.log1p, is_finite=False, is_costly=True),
    ScalarOp("tanh", 1, "same", np.tanh, is_costly=True),
    ScalarOp("sigmoid", 1, "same", _sigmoid, is_costly=True),
    ScalarOp("erf", 1, "same", _erf_any, is_costly=True),
    ScalarOp("sin", 1, "same", np.sin, is_costly=True),
    ScalarOp("cos", 1, "same", np.cos, is_costly=True),
    ScalarOp("tan", 1, "same", np.tan, is_finite=False, is_costly=True),
    ScalarOp("asin", 1, "same", np.arcsin, is_finite=False, is_costly=True),
    ScalarOp("acos", 1, "same", np.arccos, is_finite=False, is_costly=True),
    ScalarOp("atan", 1, "same", np.arctan, is_costly=True),
    ScalarOp("sinh", 1, "same", np.sinh, is_costly=True),
    ScalarOp("cosh", 1, "same", np.cosh, is_costly=True),
    ScalarOp("asinh", 1, "same", np.arcsinh, is_costly=True),
    ScalarOp("acosh", 1, "same", np.arccosh, is_finite=False, is_costly=True),
    ScalarOp("atanh", 1, "same", np.arctanh, is_finite=False, is_costly=True),
    ScalarOp("is_nan", 1, "bool", np.isnan, is_exact=True, steps=True),
    ScalarOp("is_inf", 1, "bool", np.isinf, is_exact=True, steps=True),
    ScalarOp("ticks", 1, "same", _ticks, steps=True, is_pure=False),
)
SCALAR_OPS: Mapping[str, ScalarOp] = {s.name: s for s in _TABLE}
"""All scalar operations by name. `cast`, `bitcast`, `const`, `index` and `load` are ops of their own."""

CONVERSIONS = frozenset({"cast", "bitcast"})
"""Ops that give one element as one of another dtype, which operands do not tell."""


COSTLY = frozenset(s.name for s in _TABLE if s.is_costly)
"""Scalar ops that are worth a store and a load rather than computing them twice."""


def identity(combine: str, dtype: DType) -> float | int | bool:
    """The neutral element of a reduction in `dtype` (integers: the type's own extremes for min and max)."""
    neutral = SCALAR_OPS[combine].identity
    assert neutral is not None and SCALAR_OPS[combine].reduces, f"{combine} is not a reduction"
    if dtype.kind == "bool":
        return combine in ("and", "min", "mul")
    if dtype.is_int:
        info = np.iinfo(dtype.storage)
        if combine in ("min", "max"):
            return int(info.max if combine == "min" else info.min)
        return int(neutral) if combine != "and" or dtype.kind == "int" else int(info.max)
    return float(neutral)
