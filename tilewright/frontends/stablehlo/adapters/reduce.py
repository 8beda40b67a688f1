"""Reductions: what their bodies compute is recognised, others are computed pair by pair."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from jaxlib.mlir import ir

from tilewright.frontends.stablehlo.adapters.elementwise import BINARY, converted, direction_of
from tilewright.frontends.stablehlo.node import ProgramOp, adapter
from tilewright.frontends.stablehlo.values import ComplexPair, Held, as_value
from tilewright.frontends.translation import type_of
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ir.types import product
from tilewright.ops import reduce
from tilewright.ops.view import concat, expand, reshape, section, shape_of, slice_, transpose

REDUCTIONS: Mapping[str, Callable[..., Value]] = MappingProxyType(
    {
        "stablehlo.add": reduce.reduce_sum, "stablehlo.multiply": reduce.reduce_prod,
        "stablehlo.maximum": reduce.reduce_max, "stablehlo.minimum": reduce.reduce_min,
        "stablehlo.and": reduce.reduce_and, "stablehlo.or": reduce.reduce_or,
    }
)  # fmt: skip


def combiner(block: ir.Block, k: int, count: int) -> str | None:
    """The op by which result `k` of a body is made of arguments k and count + k; None where it is not one op."""
    *_, end = block.operations
    made = end.operation.operands[k]
    if not isinstance(made.owner, ir.Block):
        op = made.owner.operation
        pair = (block.arguments[k], block.arguments[count + k])
        if op.name in REDUCTIONS and tuple(op.operands) in (pair, pair[::-1]):
            return str(op.name)
    return None


def neutral(op: str, dtype: DType) -> float | int | bool:
    """The number that `op` changes nothing with."""
    is_bool = dtype.kind == "bool"
    if op in ("stablehlo.add", "stablehlo.or"):
        return False if is_bool else 0
    if op in ("stablehlo.multiply",):
        return True if is_bool else 1
    if op == "stablehlo.and":
        return True if is_bool else -1 if dtype.kind == "int" else (1 << dtype.bits) - 1
    greatest = op == "stablehlo.minimum"
    if is_bool:
        return greatest
    if dtype.is_float:
        return float("inf") if greatest else float("-inf")
    limits = np.iinfo(dtype.storage)
    return int(limits.max if greatest else limits.min)


def is_neutral(node: ProgramOp, init: Value, op: str) -> bool:
    known = node.translation.constant_of(init)
    if known is None:
        return False
    found, wanted = known.reshape(()).item(), neutral(op, type_of(init).dtype)
    return bool(found == wanted)


@adapter("reduce")
def _reduce(node: ProgramOp) -> Sequence[Held]:
    axes = node.integers("dimensions")
    count = len(node.operands) // 2
    block = node.region(0)
    if len(block.arguments) != 2 * count or not count:
        raise ModelError("the body of a reduction does not fit its operands")
    if any(isinstance(o, ComplexPair) for o in node.operands):
        return _of_pairs(node, axes, block)
    values = node.values
    xs, inits = values[:count], values[count:]
    names = [combiner(block, k, count) for k in range(count)]
    if all(names):
        return [
            _with_init(node, name, REDUCTIONS[name](x, axes=axes, keepdims=False) if axes else x, init)
            for name, x, init in zip(names, xs, inits, strict=True)
            if name is not None
        ]
    if count == 2 and len(axes) == 1 and (found := _extreme(node, block, axes[0], xs)) is not None:
        return found
    return folded(node, block, xs, inits, axes)


def _of_pairs(node: ProgramOp, axes: tuple[int, ...], block: ir.Block) -> Sequence[Held]:
    x = node.held(0)
    if len(node.operands) != 2 or combiner(block, 0, 1) != "stablehlo.add" or not isinstance(x, ComplexPair):
        raise UnsupportedError("it is not supported for complex numbers")
    return [ComplexPair(*(reduce.reduce_sum(v, axes=axes, keepdims=False) for v in (x.real, x.imaginary)))]


def _with_init(node: ProgramOp, name: str, found: Value, init: Value) -> Value:
    if is_neutral(node, init, name):
        return found
    return BINARY[name.removeprefix("stablehlo.")](found, init)


# The greatest and its position

_COMPARING = frozenset({"compare", "select", "and", "or", "not", "maximum", "minimum", "return", "xor"})
_VALUES = (float("-inf"), -1.0, 0.0, 2.0, float("inf"), float("nan"))
_PLACES = (0, 1, 2)


def _extreme(node: ProgramOp, block: ir.Block, axis: int, xs: Sequence[Value]) -> Sequence[Held] | None:
    """The greatest (or least) elements and where the first ones are, where that is what the body gives: it only
    compares its arguments with each other, so that it is known by all orders that these can have."""
    if not _is_counter(node, axis) or not type_of(xs[1]).dtype.is_int:
        return None
    is_float = type_of(xs[0]).dtype.is_float
    for largest in (True, False):
        if all(
            _agrees(block, a, b, i, j, largest)
            for a, b in itertools.product(_VALUES if is_float else _VALUES[1:4], repeat=2)
            for i, j in itertools.permutations(_PLACES, 2)
        ):
            greatest, position = (
                (reduce.reduce_max, reduce.argmax) if largest else (reduce.reduce_min, reduce.argmin)
            )
            return [
                greatest(xs[0], axes=(axis,), keepdims=False),
                converted(position(xs[0], axis=axis, keepdims=False), type_of(xs[1]).dtype),
            ]
    return None


def _is_counter(node: ProgramOp, axis: int) -> bool:
    """Whether the second operand counts along the axis: that follows from what it is computed from."""
    value = node.x(1)
    rank = len(shape_of(value))
    while value.op is not None and value.op.name in ("cast", "expand") and len(shape_of(value.op.operands[0])) == rank:
        (value,) = value.op.operands
    shape = shape_of(value)
    if value.op is not None and value.op.name == "reshape":  # a vector, spread along one axis
        (value,) = value.op.operands
        while value.op is not None and value.op.name == "cast":
            (value,) = value.op.operands
        is_along = all(k == axis or d == 1 for k, d in enumerate(shape))
        return is_along and len(shape_of(value)) == 1 and value.op is not None and value.op.name == "iota"
    return value.op is not None and value.op.name == "iota" and bool(value.op.attrs["axis"] == axis)


def _agrees(block: ir.Block, a: float, b: float, i: int, j: int, largest: bool) -> bool:
    found = _evaluated(block, (a, i, b, j))
    if found is None:
        return False
    value, place = found
    if a == b:
        return bool(value == a) and place == min(i, j)
    if np.isnan(a) or np.isnan(b):
        if np.isnan(a) and np.isnan(b):  # in order, the first; programs do not look at places then
            return bool(np.isnan(value)) and (place == i or i > j)
        return bool(np.isnan(value)) and place == (i if np.isnan(a) else j)
    first = a > b if largest else a < b
    return (value, place) == ((a, i) if first else (b, j))


_NUMPY: Mapping[str, Callable[..., object]] = MappingProxyType(
    {
        "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not,
        "maximum": np.maximum, "minimum": np.minimum, "select": lambda c, a, b: a if c else b,
    }
)  # fmt: skip
_DIRECTIONS: Mapping[str, Callable[..., object]] = MappingProxyType(
    {
        "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater,
        "GE": np.greater_equal,
    }
)  # fmt: skip


def _evaluated(block: ir.Block, arguments: Sequence[float]) -> tuple[float, float] | None:
    """What a body of comparisons and choices gives for numbers; None where it has anything else."""
    known: dict[ir.Value, object] = dict(zip(block.arguments, arguments, strict=True))
    for view in block.operations:
        op = view.operation
        name = op.name.removeprefix("stablehlo.")
        if name not in _COMPARING or any(v not in known for v in op.operands):
            return None
        given = [known[v] for v in op.operands]
        if name == "return":
            return float(given[0]), float(given[1])  # type: ignore[arg-type]
        if name == "compare":
            if "compare_type" in op.attributes and "TOTALORDER" in str(op.attributes["compare_type"]):
                return None
            known[op.results[0]] = _DIRECTIONS[direction_of(op.attributes["comparison_direction"])](*given)
        else:
            known[op.results[0]] = _NUMPY[name](*given)
    return None


# Any body


def folded(
    node: ProgramOp, block: ir.Block, xs: Sequence[Value], inits: Sequence[Value], axes: Sequence[int]
) -> list[Held]:
    """Pairs of neighbours are combined until one element is left: bodies are associative."""
    rank = len(shape_of(xs[0]))
    kept = [k for k in range(rank) if k not in axes]
    outer = tuple(shape_of(xs[0])[k] for k in kept)
    size = product(shape_of(xs[0])[k] for k in axes)
    if not size.is_const:
        raise UnsupportedError(
            "a reduction whose body is not one of add, multiply, minimum, maximum, and, or needs a known size",
            hint=node.translation.fixing(size),
        )
    order = (*kept, *axes)
    moved = [x if order == tuple(range(rank)) else transpose(x, perm=order) for x in xs]
    rows = [reshape(x, shape=(*outer, size)) for x in moved]
    count = size.value
    while count > 1:
        left = [_every_second(x, 0, count // 2) for x in rows]
        right = [_every_second(x, 1, count // 2) for x in rows]
        last = [_last(x) for x in rows] if count % 2 else []
        rows = [as_value(v) for v in node.written(block, [*left, *right])]
        if last:
            rows = [concat(a, b, axis=len(outer)) for a, b in zip(rows, last, strict=True)]
        count = count // 2 + count % 2
    starts = [_spread(init, outer) for init in inits]
    if count == 0:
        return list(starts)
    found = [reshape(x, shape=outer) for x in rows]
    return node.written(block, [*starts, *found])


def _spread(init: Value, shape: Sequence[object]) -> Value:
    return expand(init, shape=tuple(shape)) if shape else init


def _every_second(x: Value, start: int, count: int) -> Value:
    return section(x, -1, start, count, 2)


def _last(x: Value) -> Value:
    *outer, size = shape_of(x)
    return slice_(x, starts=(*(0,) * len(outer), size - 1), sizes=(*outer, 1))

