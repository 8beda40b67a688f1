"""Scalar operations: what one element of a tensor program computes. The same table serves every level.

`evaluate` is the meaning (NumPy, elementwise); integer arithmetic wraps, integer division truncates towards zero
as ONNX has it, and division by zero is reported by the caller before it happens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """A scalar operation: `arity`, a result dtype "same" (as operand 0), "bool", or "second" (operand 1; operand 0 is a
    condition then), and what is true of it, which no other place says again.

    commutative: f(a, b) is f(b, a).
    identity: the number n for which f(x, n) is x, of numbers; of a commutative operation, which is associative then,
        what reductions begin with.
    absorbing: the number n for which f(x, n) and f(n, x) are n, of finite numbers.
    linear: f is linear in all of its operands "together", in "each" or in the "first" while the others stay.
    whole: of whole floats (infinities and NaN among them) it "keeps" that they are whole, or "makes" any whole.
    size: what a float that it gives does not exceed in size, of the sizes of its operands.
    signs: a comparison of a and b holds where the sign of a - b is one of these.
    divides: of integers it has no value where operand 1 is 0.
    is_exact: of floats in a short type it gives what it gives of the same numbers in a longer type, rounded.
    steps: a small change of an operand may change the result much, where both results are finite.
    is_finite: of finite numbers it gives a finite one, unless that is too large for the type.
    is_costly: it is worth a store and a load rather than computing it twice.
    is_polynomial: vectors of it are one polynomial each, whose latency several registers hide.
    is_pure: its result follows from its operands.
    """

    name: str
    arity: int
    result: str
    evaluate: Callable[..., Any]
    commutative: bool = False
    identity: float | None = None
    absorbing: float | None = None
    linear: Literal["", "together", "each", "first"] = ""
    whole: Literal["", "keeps", "makes"] = ""
    size: Callable[..., float] | None = None
    signs: frozenset[int] = frozenset()
    divides: bool = False
    is_exact: bool = False
    steps: bool = False
    is_finite: bool = True
    is_costly: bool = False
    is_polynomial: bool = False
    is_pure: bool = True

    @property
    def conditions(self) -> int:
        """How many of its first operands are conditions; the others have one dtype."""
        return 1 if self.result == "second" else 0

    @property
    def reduces(self) -> bool:
        """Whether reductions may use it: it is commutative and associative, and has a neutral element."""
        return self.commutative and self.identity is not None

    @property
    def is_sum(self) -> bool:
        """Whether it is a sum or a difference of two numbers."""
        return self.arity == 2 and self.linear == "together"

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


def _comparison(name: str, evaluate: Callable[..., Any], *signs: int) -> ScalarOp:
    symmetric = {-s for s in signs} == set(signs)
    return ScalarOp(
        name, 2, "bool", evaluate, commutative=symmetric, signs=frozenset(signs), is_exact=True, steps=True
    )


def _rounding(name: str, evaluate: Callable[..., Any]) -> ScalarOp:
    return ScalarOp(name, 1, "same", evaluate, whole="makes", size=lambda a: a + 1, is_exact=True, steps=True)


def _function(
    name: str, evaluate: Callable[..., Any], most: float | None = None, *, is_finite: bool = True, vector: bool = False
) -> ScalarOp:
    """A function of one number, whose size is at most `most`."""
    size = None if most is None else lambda _: most
    return ScalarOp(
        name, 1, "same", evaluate, size=size, is_finite=is_finite, is_costly=True, is_polynomial=vector
    )


NO_OPERATION = ScalarOp("", 0, "same", lambda: None, steps=True, is_finite=False, is_pure=False)
"""What is known of what is no scalar operation."""

_TABLE = (
    ScalarOp(
        "add", 2, "same", np.add,
        commutative=True, identity=0, linear="together", whole="keeps", size=lambda a, b: a + b,
    ),
    ScalarOp("sub", 2, "same", np.subtract, identity=0, linear="together", whole="keeps", size=lambda a, b: a + b),
    ScalarOp(
        "mul", 2, "same", np.multiply,
        commutative=True, identity=1, absorbing=0, linear="each", whole="keeps", size=lambda a, b: a * b,
    ),
    ScalarOp(
        "div", 2, "same", _truncated_div, identity=1, linear="first", divides=True, is_finite=False, is_costly=True
    ),
    ScalarOp(
        "rem", 2, "same", np.fmod,
        whole="keeps", divides=True, is_exact=True, steps=True, is_finite=False, is_costly=True,
    ),  # sign of the dividend
    ScalarOp(
        "mod", 2, "same", np.remainder, whole="keeps", divides=True, steps=True, is_finite=False, is_costly=True
    ),  # sign of the divisor
    ScalarOp("pow", 2, "same", np.power, identity=1, is_finite=False, is_costly=True, is_polynomial=True),
    ScalarOp(
        "min", 2, "same", np.minimum,
        commutative=True, identity=math.inf, absorbing=-math.inf, whole="keeps", size=max, is_exact=True,
    ),  # NaN if either is
    ScalarOp(
        "max", 2, "same", np.maximum,
        commutative=True, identity=-math.inf, absorbing=math.inf, whole="keeps", size=max, is_exact=True,
    ),
    ScalarOp("atan2", 2, "same", np.arctan2, steps=True, is_costly=True),
    ScalarOp(
        "and", 2, "same", lambda a, b: np.bitwise_and(a, b),
        commutative=True, identity=-1, absorbing=0, steps=True,
    ),
    ScalarOp(
        "or", 2, "same", lambda a, b: np.bitwise_or(a, b),
        commutative=True, identity=0, absorbing=-1, steps=True,
    ),
    ScalarOp("xor", 2, "same", lambda a, b: np.bitwise_xor(a, b), commutative=True, identity=0, steps=True),
    ScalarOp("shl", 2, "same", np.left_shift, identity=0, steps=True),
    ScalarOp("shr", 2, "same", np.right_shift, identity=0, steps=True),
    _comparison("eq", np.equal, 0),
    _comparison("ne", np.not_equal, -1, 1),
    _comparison("lt", np.less, -1),
    _comparison("le", np.less_equal, -1, 0),
    _comparison("gt", np.greater, 1),
    _comparison("ge", np.greater_equal, 0, 1),
    ScalarOp("select", 3, "second", np.where, size=lambda _, a, b: max(a, b), is_exact=True),
    ScalarOp("quotient", 3, "same", lambda a, b, inverse: np.divide(a, b)),  # inverse: 1 / b, a normal number
    ScalarOp("neg", 1, "same", np.negative, linear="together", whole="keeps", size=lambda a: a, is_exact=True),
    ScalarOp("abs", 1, "same", np.abs, whole="keeps", size=lambda a: a, is_exact=True),
    ScalarOp("not", 1, "same", np.invert, steps=True),
    ScalarOp("sign", 1, "same", np.sign, whole="makes", size=lambda _: 1.0, is_exact=True, steps=True),
    _rounding("floor", np.floor),
    _rounding("ceil", np.ceil),
    _rounding("round", _round_even),
    _rounding("trunc", np.trunc),
    _function("sqrt", np.sqrt, is_finite=False),
    _function("rsqrt", lambda x: 1 / np.sqrt(x), is_finite=False),
    _function("exp", np.exp, vector=True),
    _function("expm1", np.expm1, vector=True),
    _function("log", np.log, is_finite=False, vector=True),
    _function("log1p", np.log1p, is_finite=False, vector=True),
    _function("tanh", np.tanh, 1.0, vector=True),
    _function("sigmoid", _sigmoid, 1.0, vector=True),
    _function("erf", _erf_any, 1.0, vector=True),
    _function("sin", np.sin, 1.0),
    _function("cos", np.cos, 1.0),
    _function("tan", np.tan, is_finite=False),
    _function("asin", np.arcsin, is_finite=False),
    _function("acos", np.arccos, is_finite=False),
    _function("atan", np.arctan, math.pi),
    _function("sinh", np.sinh),
    _function("cosh", np.cosh),
    _function("asinh", np.arcsinh),
    _function("acosh", np.arccosh, is_finite=False),
    _function("atanh", np.arctanh, is_finite=False),
    ScalarOp("is_nan", 1, "bool", np.isnan, is_exact=True, steps=True),
    ScalarOp("is_inf", 1, "bool", np.isinf, is_exact=True, steps=True),
    ScalarOp("ticks", 1, "same", _ticks, steps=True, is_pure=False),
)
SCALAR_OPS: Mapping[str, ScalarOp] = {s.name: s for s in _TABLE}
"""All scalar operations by name. `cast`, `bitcast`, `level`, `const`, `index` and `load` are ops of their own."""

CONVERSIONS = frozenset({"cast", "bitcast"})
"""Ops that give one element as one of another dtype, which operands do not tell."""

LEVELS = 16
"""Numbers that codes of 4 bits stand for."""

LOOK_UPS = frozenset({"level"})
"""Ops that give the number of their attribute `levels` that a code stands for."""

COMPUTING = CONVERSIONS.union(SCALAR_OPS, LOOK_UPS)
"""Ops that compute an element of others."""

COSTLY = frozenset(s.name for s in _TABLE if s.is_costly)
"""Scalar ops that are worth a store and a load rather than computing them twice."""


def counts_as_flop(op: Op) -> bool:
    """Whether an op computes a float, or something of floats, and is more than a conversion or a look-up."""
    if scalar_operation(op) is NO_OPERATION:
        return False
    types = (getattr(v.type, "dtype", None) for v in (*op.operands, *op.results))
    return any(dtype is not None and dtype.is_float for dtype in types)


def scalar_operation(op: Op | None) -> ScalarOp:
    """What is true of a scalar op; nothing of others."""
    return NO_OPERATION if op is None else SCALAR_OPS.get(op.name, NO_OPERATION)


def converted_from(value: Value) -> Value | None:
    """The scalar of another dtype that a value is the same number as, but for what the dtype cannot hold."""
    return value.op.operands[0] if value.op is not None and value.op.name == "cast" else None


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
