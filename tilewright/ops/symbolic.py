"""Symbolic evaluation of small tensors: the arithmetic on dims that models do on tensors.

`Shape -> Gather -> Mul -> Concat -> Reshape` and its like become Syms: the same primitives are evaluated as
in `interp`, on arrays whose elements are Syms (integers and bools) and Ratios (floats).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.core import Module, Op, Value
from tilewright.ir.diag import TilewrightError
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.binding import MAX_ELEMENTS, input_variables
from tilewright.ops.bodies import scalar_dtype
from tilewright.ops.define import OPERATORS, Compute
from tilewright.ops.exact import Element, UnknownValueError, apply_exact, cast_exact, element_of
from tilewright.ops.interp import gather

MAX_POSITIONS = 1 << 14
"""Reductions over more positions than this are not followed."""

MAX_DEPTH = 400
"""Longer chains of operators are not followed."""

Known = dict[Value, np.ndarray | None]


def symbolic_value(value: Value, module: Module, known: Known | None = None) -> np.ndarray | None:
    """The elements of a small tensor as an object array of Syms, of Ratios for a float tensor.

    None where they are not known. `known` keeps the results of earlier calls for the same module.
    """
    return _Follower(module, {} if known is None else known).follow(value, MAX_DEPTH)


class _Follower:
    """Follows values to what defines them."""

    def __init__(self, module: Module, known: Known) -> None:
        self.module = module
        self.known = known

    def follow(self, value: Value, depth: int) -> np.ndarray | None:
        if value in self.known:
            return self.known[value]
        if not depth or not _is_small(value):
            return None
        try:
            self.known[value] = self._computed(value, depth)
        except (UnknownValueError, TilewrightError):
            self.known[value] = None
        return self.known[value]

    def _computed(self, value: Value, depth: int) -> np.ndarray | None:
        op = value.op
        if op is None:
            return input_variables(value)
        if op.name == "constant":
            return _elements(self.module.constants[op.attrs["name"]], value)
        operator = OPERATORS.get(op.name)
        if operator is None or operator.kind != "primitive":
            return None
        arrays = []
        for v in op.operands:
            array = self.follow(v, depth - 1)
            if array is None:
                return None
            arrays.append(array)
        types = [v.type for v in op.operands if isinstance(v.type, TensorType)]
        return _SymbolicGrid(operator.compute(types, op.attrs), arrays).evaluate()


def _is_small(value: Value) -> bool:
    type = value.type
    if not isinstance(type, TensorType) or not type.is_static or type.dtype.kind == "string":
        return False
    return type.size.value <= MAX_ELEMENTS


def _elements(array: np.ndarray, value: Value) -> np.ndarray:
    assert isinstance(value.type, TensorType)
    result = np.empty(array.shape, object)
    for position in np.ndindex(array.shape):
        result[position] = element_of(array[position], value.type.dtype)
    return result


def _boxed(x: Any) -> np.ndarray:
    """A symbolic element as an array of rank 0; an array as it is."""
    if isinstance(x, np.ndarray):
        return x
    box = np.empty((), object)
    box[()] = x
    return box


class _SymbolicGrid:
    """A primitive evaluated on object arrays of elements, on all its positions at once."""

    def __init__(self, computation: Compute, arrays: Sequence[np.ndarray]) -> None:
        self.computation = computation
        self.arrays = dict(zip(computation.body.args, arrays, strict=True))
        if computation.tiles:
            raise UnknownValueError("whole tiles are not followed")
        axes = (*computation.axes, *computation.reduce)
        self.lengths = [_fixed(extent) for _, extent in axes]
        if np.prod(self.lengths, dtype=object) > MAX_POSITIONS:
            raise UnknownValueError("the tensor is too large to be followed")
        self.env: dict[str, Any] = {}
        for k, (v, _) in enumerate(axes):
            self.env[v.name] = np.arange(self.lengths[k]).reshape(
                [-1 if n == k else 1 for n in range(len(axes))]
            )
        self.values: dict[Value, np.ndarray] = {}

    def evaluate(self) -> np.ndarray:
        outer = self.lengths[: len(self.computation.axes)]
        for op in self.computation.body.ops[:-1]:
            self._run(op)
        last = self.computation.body.ops[-1].operands[0]
        grid = np.broadcast_to(self.values[last], self.lengths)
        if not self.computation.combine:
            return grid.copy()
        result = np.empty(outer, object)
        for position in np.ndindex(*outer):
            result[position] = self._combined(list(grid[position].flat))
        return result

    def _combined(self, elements: list[Element]) -> Element:
        acc = self.computation.acc
        if not elements:
            raise UnknownValueError("nothing to combine")
        total = elements[0]
        for x in elements[1:]:
            total = apply_exact(self.computation.combine, (total, x), acc, acc)
        return cast_exact(total, self.computation.dtype)

    def _run(self, op: Op) -> None:
        match op.name:
            case "load":
                self.values[op.result] = self._load(op)
            case "const":
                dtype = scalar_dtype(op.result)
                self.values[op.result] = _boxed(element_of(op.attrs["value"], dtype))
            case "index":
                self.values[op.result] = self._index(op)
            case "bind":
                self.env[op.attrs["var"].name] = _integers(self.values[op.operands[0]])
            case "check":
                if any(x.is_const and not x.value for x in self.values[op.operands[0]].flat):
                    raise UnknownValueError(op.attrs["message"])
            case "cast":
                dtype = scalar_dtype(op.result)
                self._map(op, lambda x: cast_exact(x, dtype))
            case _:
                first, dtype = scalar_dtype(op.operands[-1]), scalar_dtype(op.result)
                self._map(op, lambda *xs: apply_exact(op.name, xs, first, dtype))

    def _map(self, op: Op, fn: Any) -> None:
        operands = [self.values[v] for v in op.operands]
        self.values[op.result] = _boxed(np.frompyfunc(fn, len(operands), 1)(*operands))

    def _load(self, op: Op) -> np.ndarray:
        for e in (*op.attrs["idx"], *op.attrs.get("guard", ())):
            if any(v.name not in self.env for v in e.vars):
                raise UnknownValueError(f"position {e} depends on a dim")
        array = self.arrays[op.operands[0]]
        other = element_of(op.attrs["other"], scalar_dtype(op.result)) if op.attrs.get("guard") else None
        return _boxed(gather(op, array, self.env, _boxed(other)))

    def _index(self, op: Op) -> np.ndarray:
        expr: Sym = op.attrs["expr"]
        known = [v for v in expr.vars if v.name in self.env]
        dtype = scalar_dtype(op.result)

        def at(*position: int) -> Element:
            return cast_exact(expr.subs(dict(zip(known, position, strict=True))), dtype)

        if not known:
            return _boxed(at())
        return _boxed(np.frompyfunc(at, len(known), 1)(*[self.env[v.name] for v in known]))


def _fixed(extent: Sym) -> int:
    if not extent.is_const:
        raise UnknownValueError(f"the extent {extent} is not fixed")
    return extent.value


def _integers(array: np.ndarray) -> np.ndarray:
    """Elements that are constants as an integer array."""
    if not all(x.is_const for x in array.flat):
        raise UnknownValueError("a position depends on a dim")
    return np.array([x.value for x in array.flat], np.int64).reshape(array.shape)
