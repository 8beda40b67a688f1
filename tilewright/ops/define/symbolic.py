"""Evaluation of tensors while a graph is being built: numbers where they are known, expressions of dims else.

`Shape -> Gather -> Mul -> Concat -> Reshape` and its like become Syms: where dims are involved, the same primitives are
evaluated as in `interp`, on arrays whose elements are Syms (integers and bools) and floats of them; where none are,
`interp` itself evaluates, whatever the operator is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Op, Value
from tilewright.ir.diag import TilewrightError
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType, product
from tilewright.ops.define import OPERATORS, Compute, Operator
from tilewright.ops.define.binding import MAX_ELEMENTS, input_variables
from tilewright.ops.define.exact import Arithmetic, element_of
from tilewright.ops.define.floats import Computed, Element, UnknownValueError
from tilewright.ops.define.interp import evaluate_op, gather

MAX_POSITIONS = 1 << 14
"""Reductions of dims over more positions than this are not followed."""

MAX_NUMBERS = 1 << 22
"""Tensors of more elements than this are left to run time: they are no shapes, axes, scales, masks or limits."""

MAX_STEPS = 1 << 18
"""The same for operators whose loops are run one element at a time."""

_MOVES = frozenset({"scatter_nd", "scatter_elements"})
"""Irregular operators that only move elements (when they do not reduce), at positions that operand 1 gives."""


@dataclass(frozen=True, eq=False, slots=True)
class Known:
    """The elements of a tensor: numbers of its dtype, or in an object array Syms, Ratios and Computed floats.

    They are right where `conditions` over the dims hold.
    """

    elements: np.ndarray
    conditions: tuple[Sym, ...] = ()

    @property
    def is_number(self) -> bool:
        return self.elements.dtype != np.object_


class Values:
    """What is known about the values of a module, each evaluated once, when it is asked for.

    `given` are the elements of values that nothing defines.
    """

    def __init__(self, module: Module, given: Mapping[Value, Known] | None = None) -> None:
        self._module = module
        self._told: dict[Value, Known | None] = dict(given or {})
        self._known: dict[Value, Known | None] = dict(self._told)
        self._may_be_known: dict[Value, bool] = dict.fromkeys(self._told, True)

    def of(self, value: Value) -> Known | None:
        """The elements of a value; None where they depend on data, or are too many."""
        if not self._is_derivable(value):
            return None
        stack = [value]
        while stack:
            v = stack[-1]
            waiting = [o for o in _operands(v) if o not in self._known]
            if v in self._known or not waiting:
                stack.pop()
                if v not in self._known:
                    self._evaluate(v)
            else:
                stack.extend(waiting)
        return self._known[value]

    def tell(self, value: Value, elements: np.ndarray) -> None:
        """From here on, variables stand for the elements of a value; what was computed from it is looked at again."""
        self._told[value] = Known(elements)
        self._known = {v: known for v, known in self._known.items() if known is not None}
        self._known[value] = self._told[value]
        self._may_be_known = {v: may for v, may in self._may_be_known.items() if may}
        self._may_be_known[value] = True

    def forget(self, values: Iterable[Value]) -> None:
        """Take back what was told of values, and all that may have followed from it."""
        for value in values:
            self._told.pop(value, None)
        self._known, self._may_be_known = dict(self._told), dict.fromkeys(self._told, True)

    def _is_derivable(self, value: Value) -> bool:
        """Does all that the value is computed from follow from constants, dims and inputs that may set sizes?

        This keeps from evaluating much for nothing.
        """
        seen, stack = self._may_be_known, [value]
        while stack:
            v = stack[-1]
            if v in seen or not _is_candidate(v):
                seen.setdefault(v, False)
                stack.pop()
                continue
            operands = _operands(v)
            waiting = [o for o in operands if o not in seen]
            if not waiting or any(seen.get(o) is False for o in operands):
                seen[v] = all(seen.get(o) for o in operands)
                stack.pop()
            else:
                stack.append(waiting[0])
        return seen[value]

    def _evaluate(self, value: Value) -> None:
        op = value.op
        if op is None:
            symbols = input_variables(value)
            self._known[value] = None if symbols is None else Known(symbols)
            return
        results: Sequence[Known | None] = [None] * len(op.results)
        operands = [self._known[v] for v in _operands(value)]
        if _is_sum_of_equals(op):
            results = [_summed(op)]
        elif op.name == "constant":
            results = [Known(self._module.constants[op.attrs["name"]])]
        elif all(k is not None for k in operands):
            with suppress(UnknownValueError, TilewrightError):
                results = _results(op, [k for k in operands if k is not None])
        self._known.update(zip(op.results, results, strict=True))


def symbols(known: Known, value: Value) -> np.ndarray:
    """The elements of a value as an object array, also where all are numbers; UnknownValueError for infinities."""
    if not known.is_number:
        return known.elements
    result = np.empty(known.elements.shape, object)
    for position in np.ndindex(known.elements.shape):
        result[position] = element_of(known.elements[position], value.tensor.dtype)
    return result


def _operands(value: Value) -> Sequence[Value]:
    """What must be known for a value to be."""
    op = value.op
    return () if op is None or _is_sum_of_equals(op) else op.operands


def _is_sum_of_equals(op: Op) -> bool:
    """Whether it adds up equal integers, of which only the dims say how many there are: what counts a mask of ones."""
    if op.name != "reduce_sum" or op.operands[0].op is None or op.operands[0].op.name != "full":
        return False
    type = op.operands[0].tensor
    return type.dtype.is_int and not type.is_static


def _summed(op: Op) -> Known:
    """Their number, that many times."""
    (equal,), axes = op.operands, op.attrs["axes"]
    assert equal.op is not None
    count = product(d for k, d in enumerate(equal.tensor.shape) if k in {axis % equal.tensor.rank for axis in axes})
    elements = np.empty([d.value for d in op.result.tensor.shape], object)
    elements[...] = count * int(equal.op.attrs["value"])
    return Known(elements)


def _is_candidate(value: Value) -> bool:
    """May the value be known, judged by itself?"""
    op, type = value.op, value.type
    if not isinstance(type, TensorType) or not type.is_static or type.dtype.kind == "string":
        return False
    if op is None:
        return input_variables(value) is not None
    if op.name == "constant":
        return True
    operator = OPERATORS.get(op.name)
    limit = MAX_STEPS if operator is not None and operator.kind == "irregular" else MAX_NUMBERS
    sizes = (
        v.type.size.value
        for v in (value, *op.operands)
        if isinstance(v.type, TensorType) and v.type.is_static
    )
    return operator is not None and not op.blocks and max(sizes) <= limit


def _results(op: Op, operands: Sequence[Known]) -> Sequence[Known]:
    """What an op makes of known operands: numbers of numbers, else elements over dims."""
    conditions = _each_once(c for k in operands for c in k.conditions)
    has_dims = any(isinstance(x, Sym) and not x.is_const for x in _symbols_in(op.attrs.values()))
    if all(k.is_number for k in operands) and not has_dims:
        return [Known(array, conditions) for array in evaluate_op(op, [k.elements for k in operands], {})]
    operator = OPERATORS[op.name]
    for v in (*op.operands, *op.results):
        if v.tensor.size.value > MAX_ELEMENTS:
            raise UnknownValueError("the tensor is too large to be followed")
    if operator.kind == "composite":
        return _expanded(op, operator, operands)
    arrays = [symbols(k, v) for k, v in zip(operands, op.operands, strict=True)]
    if operator.kind == "irregular":
        return [Known(_moved(op, arrays), conditions)]
    types = [v.type for v in op.operands if isinstance(v.type, TensorType)]
    grid = _SymbolicGrid(operator.compute(types, op.attrs), arrays)
    elements = grid.evaluate()
    return [_simplified(elements, op.result, _each_once((*conditions, *grid.arithmetic.conditions)))]


def _each_once(conditions: Iterable[Sym]) -> tuple[Sym, ...]:
    return tuple(dict.fromkeys(conditions))


def _symbols_in(attributes: Iterable[Any]) -> Iterator[Any]:
    """The attributes, and what is in tuples of them."""
    for a in attributes:
        if isinstance(a, tuple | list):
            yield from _symbols_in(a)
        else:
            yield a


def _simplified(elements: np.ndarray, value: Value, conditions: tuple[Sym, ...]) -> Known:
    """Numbers, where no element depends on a dim."""
    if not all(x.is_const for x in elements.flat):
        return Known(elements, conditions)
    numbers = np.array([x.value for x in elements.flat]).astype(value.tensor.dtype.storage)
    return Known(numbers.reshape(elements.shape), conditions)


def _expanded(op: Op, operator: Operator, operands: Sequence[Known]) -> Sequence[Known]:
    """A composite by what it is composed of."""
    block, inner = Block([v.type for v in op.operands]), Module()
    with Builder(block, inner, op.loc):
        results = operator.expand(block.args, op.attrs)
    values = Values(inner, dict(zip(block.args, operands, strict=True)))
    found = [values.of(v) for v in results]
    if any(k is None or any(isinstance(x, Computed) for x in k.elements.flat) for k in found):
        raise UnknownValueError("another decomposition might round otherwise")
    return [k for k in found if k is not None]


def _moved(op: Op, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The result of an operator that moves elements: it is evaluated on their numbers."""
    if op.name not in _MOVES or op.attrs.get("reduction", "none") != "none":
        raise UnknownValueError(f"{op.name} of dims is not followed")
    x, positions, updates = arrays
    block = Block([TensorType(dt.i64, v.type.shape) for v in op.operands if isinstance(v.type, TensorType)])
    with Builder(block, Module()):
        numbered = OPERATORS[op.name](*block.args, **op.attrs)
    numbers = np.arange(x.size).reshape(x.shape), x.size + np.arange(updates.size).reshape(updates.shape)
    (chosen,) = evaluate_op(numbered.op, [numbers[0], _integers(positions), numbers[1]], {})
    return np.concatenate([x.reshape(-1), updates.reshape(-1)])[chosen]


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
        self.arithmetic = Arithmetic()

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
            total = self.arithmetic.apply(self.computation.combine, (total, x), acc, acc)
        if isinstance(total, Computed):
            raise UnknownValueError("another order of the sum might round otherwise")
        return self.arithmetic.cast(total, self.computation.dtype, acc)

    def _run(self, op: Op) -> None:
        match op.name:
            case "load":
                self.values[op.result] = self._load(op)
            case "const":
                dtype = op.result.scalar.dtype
                self.values[op.result] = _boxed(element_of(op.attrs["value"], dtype))
            case "index":
                self.values[op.result] = self._index(op)
            case "bind":
                self.env[op.attrs["var"].name] = _integers(self.values[op.operands[0]])
            case "check":
                if any(x.is_const and not x.value for x in self.values[op.operands[0]].flat):
                    raise UnknownValueError(op.attrs["message"])
            case "cast":
                dtype = op.result.scalar.dtype
                source = op.operands[0].scalar.dtype
                self._map(op, lambda x: self.arithmetic.cast(x, dtype, source))
            case "bitcast" | "level":
                raise UnknownValueError("bits of dims are not an expression of dims")
            case _:
                first, dtype = op.operands[-1].scalar.dtype, op.result.scalar.dtype
                self._map(op, lambda *xs: self.arithmetic.apply(op.name, xs, first, dtype))

    def _map(self, op: Op, fn: Any) -> None:
        operands = [self.values[v] for v in op.operands]
        self.values[op.result] = _boxed(np.frompyfunc(fn, len(operands), 1)(*operands))

    def _load(self, op: Op) -> np.ndarray:
        for e in (*op.attrs["idx"], *op.attrs.get("guard", ())):
            if any(v.name not in self.env for v in e.vars):
                raise UnknownValueError(f"position {e} depends on a dim")
        array = self.arrays[op.operands[0]]
        other = element_of(op.attrs["other"], op.result.scalar.dtype) if op.attrs.get("guard") else None
        return _boxed(gather(op, array, self.env, _boxed(other)))

    def _index(self, op: Op) -> np.ndarray:
        expr: Sym = op.attrs["expr"]
        known = [v for v in expr.vars if v.name in self.env]
        dtype = op.result.scalar.dtype

        def at(*position: int) -> Element:
            return self.arithmetic.cast(expr.subs(dict(zip(known, position, strict=True))), dtype, dt.i64)

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
