"""Tensors that come from attributes, dims and counters."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.axes import require
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.shapes import checked_shape
from tilewright.ops.composites.text import literal
from tilewright.ops.define import constant
from tilewright.ops.define.exact import Arithmetic
from tilewright.ops.define.floats import Ratio, UnknownValueError, variables
from tilewright.ops.source import full, iota, sym_tensor
from tilewright.ops.view import reshape

_NUMBERS = {
    "value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64,
}  # fmt: skip


@adapter("Constant")
def constant_(node: Node) -> Value:
    for name, dtype in _NUMBERS.items():
        if node.has(name):
            return constant(np.array(node.attr(name), dtype), "c")
    for name in ("value", "sparse_value"):
        if node.has(name):
            return literal(node.array(name), "c")
    for name in ("value_string", "value_strings"):
        if node.has(name):
            return literal(np.array(node.attr(name), object), "c")
    raise ModelError("Constant has no value", hint="export the model again")


@adapter("ConstantOfShape")
def constant_of_shape(node: Node) -> Value:
    array = node.array("value") if node.has("value") else np.zeros(1, np.float32)
    if array.size != 1:
        raise ModelError(f"the value of ConstantOfShape must have one element, it has {array.size}")
    shape = checked_shape(node.symbols(0), "ConstantOfShape")
    return full(value=array.reshape(()).item(), dtype=dt.from_numpy(array.dtype), shape=shape)


@adapter("Identity", takes="all")
def identity(node: Node) -> Value:
    return node.input(0)


@adapter("Shape", takes="all")
def shape(node: Node) -> Value:
    rank = node.rank(0)
    start, end = (
        min(max(v + rank if v < 0 else v, 0), rank) for v in (node.attr("start", 0), node.attr("end", rank))
    )
    return sym_tensor(values=node.shape(0)[start:end])


@adapter("Size")
def size(node: Node) -> Value:
    return sym_tensor(values=(product(node.shape(0)),), scalar=True)


@adapter("Range", since=11)
def range_(node: Node) -> Value:
    """start, start + delta, ... up to limit; the count must follow from dims, constants or small inputs."""
    dtype = node.dtype(0)
    scalars = [node.scalar(k) for k in range(3)]
    if dtype.is_float:
        count = _float_count(node, dtype)
    else:
        low, high, step = (node.one_symbol(k) for k in range(3))
        require(node.translation, s.ne(step, 0), "Range has a step of 0")
        if any(v.bounds == (None, None) for x in (low, high, step) for v in x.vars):
            _require_no_overflow(node, low, high, step)
        distance = s.select(s.lt(step, 0), low - high, high - low)
        count = s.maximum(s.ceildiv(distance, s.maximum(step, -step)), 0)
    checked_shape((count,), "Range")
    positions = iota(shape=(count,), axis=0, dtype=dtype)
    for k, neutral, operator in ((2, 1, ew.mul), (0, 0, ew.add)):
        known = node.constant_or_none(k)
        if known is None or known.reshape(()).item() != neutral:
            positions = operator(positions, scalars[k])
    return positions


def _require_no_overflow(node: Node, low: Sym, high: Sym, step: Sym) -> None:
    """Refuse calls whose distance, or step without its sign, is no integer of 64 bits. Fourths of them always are."""
    start, end, by = (s.floordiv(x, 4) for x in (low, high, step))
    for condition in (s.le(end - start, 1 << 60), s.le(-(1 << 60), end - start), s.le(-(1 << 60), by)):
        require(node.translation, condition, "Range has more elements than can be counted")


_NOT_COUNTED = "the number of elements of Range is not a finite number"


def _float_count(node: Node, dtype: DType) -> Sym:
    """How many floats there are: the distance is one of `dtype`, its quotient with the step one of f64."""
    known = [x for k in range(3) if (x := node.constant_or_none(k)) is not None]
    if len(known) == 3:
        return sym(_count_of(*(x.reshape(()) for x in known)))
    if any(node.translation.symbols_of(node.input(k)) is None for k in range(3)):
        return _measured_count(node)
    start, limit, delta = (node.elements(k)[0] for k in range(3))
    if isinstance(delta, Ratio) and delta.over == 0:
        raise ModelError("Range has a step of 0")
    arithmetic = Arithmetic()
    try:
        distance = arithmetic.apply("sub", (limit, start), dtype, dtype)
        wide = [arithmetic.cast(x, dt.f64, dtype) for x in (distance, delta)]
        quotient = arithmetic.apply("ceil", (arithmetic.apply("div", wide, dt.f64, dt.f64),), dt.f64, dt.f64)
        count = arithmetic.cast(quotient, dt.i64, dt.f64)
    except UnknownValueError as e:
        dims = [v for x in (start, limit, delta) for v in variables(x)]
        raise UnsupportedError(
            f"the number of elements of Range is computed from floats and not followed: {e}",
            hint=node.translation.fixing(*dims),
        ) from e
    node.rely_on(arithmetic)
    assert isinstance(count, Sym)
    return s.maximum(count, 0)


def _count_of(start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> int:
    """The number of known floats."""
    if delta == 0:
        raise ModelError("Range has a step of 0")
    with np.errstate(all="ignore"):
        count = np.ceil(np.float64(limit - start) / np.float64(delta))
    if not np.isfinite(count):
        raise ModelError(_NOT_COUNTED)
    return max(int(count), 0)


def _measured_count(node: Node) -> Sym:
    """The same, computed when the model runs."""
    start, limit, delta = (reshape(node.input(k), shape=(1,)) for k in range(3))
    distance, step = (ew.cast(x, dtype=dt.f64) for x in (ew.sub(limit, start), delta))
    count = ew.ceil(ew.div(distance, step))
    is_counted = ew.and_(ew.lt(count, float(1 << 62)), ew.gt(count, float("-inf")))  # NaN is neither
    counted = ew.select(is_counted, ew.max_(count, -1.0), -2.0)
    found = node.translation.measure(ew.cast(counted, dtype=dt.i64))
    assert found is not None
    node.translation.require(s.le(-1, found[0]), _NOT_COUNTED)
    return s.maximum(found[0], 0)


@adapter("EyeLike")
def eye_like(node: Node) -> Value:
    if node.rank(0) != 2:
        raise ModelError(f"EyeLike takes a matrix, not {node.type(0)}")
    dtype = node.dtype_attr("dtype", node.dtype(0))
    rows, columns = node.shape(0)
    row, column = iota(shape=(rows, 1), axis=0), iota(shape=(1, columns), axis=1)
    return ew.cast(ew.eq(ew.add(row, node.attr("k")), column), dtype=dtype)


_WINDOWS = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}


@adapter(*_WINDOWS)
def window(node: Node) -> Value:
    """Windows of a known length are computed here, others when the model runs; both in f64."""
    length = node.whole_number(0)
    dtype, (a, b, c) = node.dtype_attr("output_datatype"), _WINDOWS[node.op]
    period = length if node.attr("periodic") else length - 1
    if not length.is_const:
        checked_shape((length,), node.op)
        step = ew.cast(sym_tensor(values=(s.maximum(period, 1),), scalar=True), dtype=dt.f64)
        angle = ew.div(ew.mul(iota(shape=(length,), axis=0, dtype=dt.f64), 2 * np.pi), step)
        once, twice = (ew.mul(ew.cos(ew.mul(angle, float(k))), f) for k, f in ((1, b), (2, c)))
        return ew.cast(ew.add(ew.sub(a, once), twice), dtype=dtype)
    if not 0 <= length.value <= 2**24:
        raise ModelError(f"a window of {length} elements is not possible")
    angles = 2 * np.pi * np.arange(length.value) / max(period.value, 1)
    return constant((a - b * np.cos(angles) + c * np.cos(2 * angles)).astype(dtype.storage), "window")
