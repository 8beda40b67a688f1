"""What scalar bodies mean, on NumPy: the part of the oracle that primitives and loops share.

Scalars may be single elements (of one iteration), lanes (of all iterations of a loop) or whole grids (a primitive runs
on all positions at once).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ExecutionError, InternalError
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_OPS
from tilewright.ir.sym import Sym

Env = Mapping[str, Any]


def evaluate_sym(e: Sym, env: Env) -> Any:
    """The value of an integer expression: an int where all its variables are, else an int64 array."""
    if e.kind == "const":
        return e.value
    try:
        if e.kind == "var":  # nearly all indices are
            value = env[e.name]
            return value if type(value) is int else e.evaluate_numpy({e.name: value})
        used = {v.name: env[v.name] for v in e.vars}
    except KeyError as missing:
        raise InternalError(f"'{e}' is needed before {missing} has a value") from missing
    if all(isinstance(x, int) for x in used.values()):
        return e.evaluate(used)
    return e.evaluate_numpy(used)


def dims_of(shape: Iterable[Sym], env: Env) -> tuple[int, ...]:
    """A shape in numbers."""
    return tuple(int(evaluate_sym(d, env)) for d in shape)


def filled(value: float, dtype: DType) -> np.ndarray:
    """`value` as an element of `dtype`; integers wrap."""
    if dtype.is_int and dtype.bits >= 8 and isinstance(value, int | np.integer):
        return np.asarray(int(value) % (1 << dtype.bits), np.uint64).astype(dtype.storage)
    return np.asarray(value).astype(dtype.storage)


def apply_scalar(name: str, operands: Sequence[Any], dtype: DType) -> Any:
    """Scalar operation `name` on elements or grids of them; dtypes that NumPy lacks are computed wider."""
    with np.errstate(all="ignore"):
        return _applied(name, operands, dtype)


def _applied(name: str, operands: Sequence[Any], dtype: DType) -> Any:
    evaluate = SCALAR_OPS[name].evaluate
    try:
        result = evaluate(*operands)
    except TypeError:
        wide = np.float32 if any(np.asarray(x).dtype.kind not in "biu" for x in operands) else np.int64
        result = evaluate(*[x if np.asarray(x).dtype == np.bool_ else np.asarray(x).astype(wide) for x in operands])
    return np.asarray(result).astype(dtype.storage, copy=False)


def evaluate_element(op: Op, values: Mapping[Value, Any], env: Env) -> Any:
    """The result of a `const`, `index`, `cast` or scalar op. NumPy's warnings are the caller's to turn off."""
    dtype = op.result.scalar.dtype
    match op.name:
        case "const":
            return filled(op.attrs["value"], dtype)
        case "index":
            return np.asarray(evaluate_sym(op.attrs["expr"], env)).astype(dtype.storage)
        case "cast":
            return _converted(np.asarray(values[op.operands[0]]), op.operands[0].scalar.dtype, dtype)
        case "bitcast":
            return np.asarray(values[op.operands[0]]).view(dtype.storage)
        case "level":
            return np.asarray(op.attrs["levels"]).astype(dtype.storage)[np.asarray(values[op.operands[0]], np.intp)]
    return _applied(op.name, [values[v] for v in op.operands], dtype)


def _converted(x: np.ndarray, source: DType, dtype: DType) -> np.ndarray:
    if source.is_float and dtype.is_int and dtype.bits >= 8:
        return _saturated(x.astype(np.float64), dtype)
    try:
        return x.astype(dtype.storage)
    except TypeError:  # ml_dtypes does not convert between all of its dtypes
        return x.astype(np.int32 if source.is_int else np.float32).astype(dtype.storage)


def _saturated(x: np.ndarray, dtype: DType) -> np.ndarray:
    """float64 as integers: the part before the point, the nearest integer where there is none, and 0 for nan."""
    limits = np.iinfo(dtype.storage)
    low, high = float(limits.min), float(limits.max + 1)
    inside = (x >= low) & (x < high)
    found = np.where(inside, x, 0).astype(dtype.storage)
    return np.where(x < low, limits.min, np.where(x >= high, limits.max, found)).astype(dtype.storage)


def require_checked(op: Op, ok: Any) -> None:
    """Raise the error that a `check` op reports unless all elements are true."""
    if not np.all(ok):
        raise ExecutionError(op.attrs["message"], where=str(op.loc) if op.loc.node else None)


def guards_hold(guard: Sequence[Sym], env: Env) -> Any:
    """Whether all conditions hold: a bool, or a grid of them."""
    result: Any = True
    for condition in guard:
        result = np.logical_and(result, np.not_equal(evaluate_sym(condition, env), 0))
    return result
