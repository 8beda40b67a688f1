"""Evaluation of graph-level programs with NumPy: slow, obvious, the oracle for passes and lowering.

A primitive is evaluated on all positions at once: its axis variables become open index grids that broadcast
against each other, loads become fancy indexing, reductions `ufunc.reduce`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product as cartesian
from math import prod
from string import ascii_letters
from typing import Any

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Op, Value
from tilewright.ir.diag import InternalError
from tilewright.ir.scalar import SCALAR_OPS
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType, buffer, tensor
from tilewright.ops.define import OPERATORS, Compute, Operator, Replacement
from tilewright.ops.define.binding import bound_dims
from tilewright.ops.define.bodies import (
    Env,
    dims_of,
    evaluate_element,
    evaluate_sym,
    filled,
    guards_hold,
    require_checked,
)
from tilewright.ops.define.denormals import computes, without_denormals
from tilewright.ops.define.loop_programs import Run
from tilewright.ops.define.scalar_builder import ScalarBuilder

MAX_POSITIONS = 1 << 23
"""Grids are evaluated in pieces of at most about this many positions, so that memory stays bounded."""

Pace = Callable[[], object]
"""Called between pieces of an evaluation that takes long; it may raise to end it."""


def no_pace() -> None:
    """Let an evaluation take as long as it does."""


Box = tuple[tuple[int, int], ...]  # the range of each axis: outer axes, then reduction axes


def evaluate_compute(
    computation: Compute, arrays: Sequence[np.ndarray], env: Env, pace: Pace = no_pace
) -> np.ndarray:
    """The result of a primitive for operands `arrays`; `env` gives the dims by name.

    ExecutionError where a `check` fails, InternalError for a load out of bounds.
    """
    grid = _Grid(computation, arrays, env, pace)
    tiles = computation.tiles or (1,) * len(grid.shape)
    result = np.empty(
        [n for pair in zip(grid.shape, tiles, strict=True) for n in pair], computation.dtype.storage
    )
    if result.size:
        for box in grid.outer_boxes():
            place = tuple(part for lo, hi in box for part in (slice(lo, hi), slice(None)))
            result[place] = grid.evaluate(box).reshape(result[place].shape)
    whole = result.reshape([n * tile for n, tile in zip(grid.shape, tiles, strict=True)])
    found = whole[tuple(map(slice, dims_of(computation.shape, env)))]
    return found if computation.replacement is None else _replaced(found, computation.replacement, arrays, env, pace)


def _replaced(
    found: np.ndarray, by: Replacement, arrays: Sequence[np.ndarray], env: Env, pace: Pace
) -> np.ndarray:
    """The result, with other elements in the tiles that are replaced."""
    where = evaluate_compute(by.where, arrays, env, pace)
    if not where.any():
        return found
    for axis, (length, extent) in enumerate(zip(by.sums.tiles, found.shape, strict=True)):
        where = where.repeat(length, axis).take(range(extent), axis) if where.shape[axis] > 1 else where
    return np.where(where, evaluate_compute(by.sums, arrays, env, pace), found)


class _Grid:
    """The iteration space of a primitive, evaluated box by box."""

    def __init__(self, computation: Compute, arrays: Sequence[np.ndarray], env: Env, pace: Pace) -> None:
        self.computation = computation
        self.arrays = dict(zip(computation.body.args, arrays, strict=True))
        self.env = env
        self.pace = pace
        self.shape = dims_of((extent for _, extent in computation.domain), env)
        self.reduced = dims_of((extent for _, extent in computation.reduce), env)
        self.names = [v.name for v, _ in (*computation.axes, *computation.reduce)]
        self.factors = _factors(computation)
        self.widest = self._widest_value() * (len(computation.body.ops) if computation.tiles else 1)

    def _widest_value(self) -> int:
        """Positions of the largest value of the body that gets computed, over the whole space; 1 where that is small
        whatever gets computed."""
        if prod((*self.shape, *self.reduced, len(self.computation.body.ops))) <= MAX_POSITIONS:
            return 1
        extents = dict(zip(self.names, (*self.shape, *self.reduced), strict=True))
        skipped = self.computation.body.ops[-1].operands[0] if self.factors else None
        axes: dict[Any, frozenset[str]] = {}
        widest = 1
        for op in self.computation.body.ops:
            symbols = [*op.attrs.get("idx", ()), *op.attrs.get("guard", ())]
            symbols += [op.attrs["expr"]] if op.name == "index" else []
            used = {v.name for e in symbols for v in e.vars}
            used |= {name for v in op.operands for name in axes.get(v, ())}
            reached = frozenset(n for name in used for n in (axes.get(name, ()) or (name,)) if n in extents)
            for result in op.results:
                axes[result] = reached
                if result is not skipped:
                    widest = max(widest, prod(extents[n] for n in reached))
            if op.name == "bind":
                axes[op.attrs["var"].name] = reached
        return widest

    def outer_boxes(self) -> Iterator[Box]:
        """A partition of the result in boxes that are small enough, if need be down to single positions."""
        pieces = -(-self.widest // MAX_POSITIONS)
        ranges: list[list[tuple[int, int]]] = []
        for extent in self.shape:
            parts = min(extent, pieces)
            step = -(-extent // parts)
            ranges.append([(lo, min(lo + step, extent)) for lo in range(0, extent, step)])
            pieces = -(-pieces // parts)
        yield from cartesian(*ranges)

    def evaluate(self, outer: Box) -> np.ndarray:
        """The elements of the result in a box of the domain, with the axes of a tile after each of its own."""
        if self.computation.tiles:
            return self._tiles(outer, tuple((0, n) for n in self.reduced))
        if not self.computation.combine:
            return np.broadcast_to(self._body(outer, ()), [hi - lo for lo, hi in outer])
        acc = self.computation.acc
        if 0 in self.reduced:
            neutral = filled(self.computation.neutral, acc).astype(self.computation.dtype.storage)
            return np.broadcast_to(neutral, [hi - lo for lo, hi in outer])
        inner = tuple((0, n) for n in self.reduced)
        if self.factors is not None:
            total = self._sum_of_products(outer, inner, self.factors)
        else:
            total = self._reduction(outer, inner)
        with np.errstate(all="ignore"):
            return np.asarray(total).astype(acc.storage).astype(self.computation.dtype.storage)

    def _tiles(self, outer: Box, inner: Box) -> np.ndarray:
        elements = self.computation.body.ops[-1].operands
        lengths = [hi - lo for lo, hi in outer]
        values = self._values(outer, inner, until=elements)
        every = [np.broadcast_to(values[v], [*lengths, *(hi - lo for lo, hi in inner)]) for v in elements]
        if inner:
            axes = tuple(range(len(lengths), len(lengths) + len(inner)))
            with np.errstate(all="ignore"):
                every = [element.sum(axis=axes, dtype=np.float64) for element in every]
        stacked = np.stack([element.astype(self.computation.acc.storage) for element in every], axis=-1)
        apart = stacked.reshape([*lengths, *self.computation.tiles])
        return apart.transpose([k + n for k in range(len(lengths)) for n in (0, len(lengths))])

    def _reduction(self, outer: Box, inner: Box) -> np.ndarray:
        """Combine the body over `inner`, halving it while it is too large; float sums are kept in f64."""
        combine = SCALAR_OPS[self.computation.combine].evaluate
        lengths = [hi - lo for lo, hi in (*outer, *inner)]
        if prod(lengths) > MAX_POSITIONS and max(lengths[len(outer) :]) > 1:
            axis = max(range(len(inner)), key=lambda k: inner[k][1] - inner[k][0])
            lo, hi = inner[axis]
            halves = [
                (*inner[:axis], half, *inner[axis + 1 :])
                for half in ((lo, (lo + hi) // 2), ((lo + hi) // 2, hi))
            ]
            return combine(*[self._reduction(outer, half) for half in halves])
        values = np.broadcast_to(self._body(outer, inner), lengths)
        values = values.astype(np.float64) if self.computation.acc.is_float else values
        ufunc: Any = {"and": np.bitwise_and, "or": np.bitwise_or}.get(self.computation.combine, combine)
        axes = tuple(range(len(outer), len(lengths)))
        with np.errstate(all="ignore"):
            if self.computation.combine in ("add", "mul"):
                return ufunc.reduce(values, axis=axes, dtype=values.dtype)
            return ufunc.reduce(values, axis=axes)

    def _sum_of_products(self, outer: Box, inner: Box, factors: tuple[Value, Value]) -> np.ndarray:
        """sum(a * b) without the grid of all products; floats in f64, integers in 64 bits."""
        lengths = [hi - lo for lo, hi in (*outer, *inner)]
        letters = ascii_letters[: len(lengths)]
        values = self._values(outer, inner, until=factors)
        terms: list[Any] = []
        for v in factors:
            value = np.broadcast_to(values[v], np.broadcast_shapes(np.shape(values[v]), (1,) * len(lengths)))
            wide = value.astype(np.float64 if self.computation.acc.is_float else np.int64)
            own = [k for k in range(len(lengths)) if value.shape[k] > 1]
            terms += [wide.reshape([value.shape[k] for k in own]), "".join(letters[k] for k in own)]
        present = set(terms[1]) | set(terms[3])
        repeats = prod(
            n for n, c in zip(lengths[len(outer) :], letters[len(outer) :], strict=True) if c not in present
        )
        kept = "".join(c for c in letters[: len(outer)] if c in present)
        with np.errstate(all="ignore"):
            total = np.einsum(f"{terms[1]},{terms[3]}->{kept}", terms[0], terms[2], optimize=True) * repeats
        shape = [n if c in present else 1 for n, c in zip(lengths[: len(outer)], letters, strict=False)]
        return np.broadcast_to(total.reshape(shape), lengths[: len(outer)])

    def _body(self, outer: Box, inner: Box) -> Any:
        result = self.computation.body.ops[-1].operands[0]
        return self._values(outer, inner, until=(result,))[result]

    @np.errstate(all="ignore")
    def _values(self, outer: Box, inner: Box, until: Sequence[Value]) -> dict[Value, Any]:
        """The values of the body's ops on the grid of a box, up to those of `until`."""
        self.pace()
        ranges = (*outer, *inner)
        env = dict(self.env)
        places = range(-len(ranges), 0)
        axes = {name: (k, lo, hi) for name, k, (lo, hi) in zip(self.names, places, ranges, strict=True)}
        for name, (k, lo, hi) in axes.items():
            env[name] = np.arange(lo, hi).reshape([-1 if n == k else 1 for n in places])
        values: dict[Value, Any] = {}
        for op in self.computation.body.ops:
            match op.name:
                case "load":
                    array = self.arrays[op.operands[0]]
                    window = None if op.attrs.get("guard") else _window(op.attrs["idx"], array, env, axes)
                    values[op.result] = gather(op, array, env) if window is None else window
                case "bind":
                    env[op.attrs["var"].name] = np.asarray(values[op.operands[0]]).astype(np.int64)
                case "check":
                    require_checked(op, values[op.operands[0]])
                case "yield":
                    pass
                case _ if (op.results and op.result in until) or not _is_skipped(op, until):
                    values[op.result] = evaluate_element(op, values, env)
        return values


def _is_skipped(op: Op, until: Sequence[Value]) -> bool:
    """Whether a body's op is the product that a sum of products does not need."""
    return len(until) == 2 and op.name == "mul" and tuple(op.operands) == tuple(until)


def _factors(computation: Compute) -> tuple[Value, Value] | None:
    """a and b where the primitive is sum(a * b) over something."""
    last = computation.body.ops[-1].operands[0].op
    if computation.combine != "add" or last is None or last.name != "mul" or len(last.result.users) != 1:
        return None
    if computation.tiles:
        return None
    if len(computation.axes) + len(computation.reduce) > len(ascii_letters) or computation.acc.kind == "bool":
        return None
    return last.operands[0], last.operands[1]


def gather(op: Op, array: np.ndarray, env: Env, other: Any = None) -> np.ndarray:
    """What a `load` gives on a grid; `other` replaces the op's own filler for arrays of objects.

    InternalError where it reaches out of `array` without a guard.
    """
    index = [evaluate_sym(i, env) for i in op.attrs["idx"]]
    guard = op.attrs.get("guard", ())
    if not guard:
        _require_inside(op, index, array)
        part = _sliced(array, index)
        return array[tuple(index)] if part is None else part
    holds = guards_hold(guard, env)
    if other is None:
        other = filled(op.attrs["other"], op.result.scalar.dtype)
    if array.size == 0:
        if np.any(holds):
            raise InternalError(f"a guarded load reads from a tensor of shape {array.shape}")
        return np.broadcast_to(other, np.broadcast_shapes(np.shape(holds), *map(np.shape, index)))
    safe = [np.where(holds, i, 0) for i in index]
    _require_inside(op, safe, array)
    return np.where(holds, array[tuple(safe)], other)


def _window(
    index: Sequence[Sym], array: np.ndarray, env: Env, axes: Mapping[str, tuple[int, int, int]]
) -> np.ndarray | None:
    """What the index picks, as a view, where each part of it is a number, or an axis of the grid and a number: nearly
    all parts are. `axes` gives place, counted from the end, and range of each axis. None elsewhere, and beyond the
    array."""
    parts: list[int | slice] = []
    places: list[int] = []
    for expression, extent in zip(index, array.shape, strict=True):
        start, length = 0, None
        for factor, times in expression.terms:
            known = axes.get(factor.name) if factor.kind == "var" else None
            number = env.get(factor.name) if factor.kind == "var" else 1 if factor.kind == "const" else None
            if known is not None and times == 1 and length is None and known[0] not in places:
                place, low, high = known
                places.append(place)
                start, length = start + low, high - low
            elif type(number) is int:
                start += number * times
            else:
                return None
        if start < 0 or start + (1 if length is None else length) > extent:
            return None
        parts.append(start if length is None else slice(start, start + length))
    return _on_grid(array[tuple(parts)], places, len(axes))


def _on_grid(view: np.ndarray, places: Sequence[int], rank: int) -> np.ndarray:
    """A view whose axes are those of a grid at these places, counted from its end, with these in order and all others
    of length 1."""
    extents = dict(zip(places, np.shape(view), strict=True))
    order = sorted(range(len(places)), key=places.__getitem__)
    return np.asarray(view).transpose(order).reshape([extents.get(k, 1) for k in range(-rank, 0)])


def _sliced(array: np.ndarray, index: Sequence[Any]) -> np.ndarray | None:
    """What the index picks, as a view, where each part of it is one number, or counts up along an axis of the grid that
    is no other's; None elsewhere."""
    rank = max(map(np.ndim, index), default=0)
    parts: list[int | slice] = []
    axes: list[int] = []  # of the grid, counted from its end
    for i in index:
        numbers, varying = np.ravel(i), [k - np.ndim(i) for k, n in enumerate(np.shape(i)) if n != 1]
        if not varying:
            parts.append(int(numbers[0]))
        elif len(varying) == 1 and varying[0] not in axes and _counts_up(numbers):
            parts.append(slice(int(numbers[0]), int(numbers[-1]) + 1))
            axes += varying
        else:
            return None
    return _on_grid(array[tuple(parts)], axes, rank)


def _counts_up(numbers: np.ndarray) -> bool:
    return numbers.size > 0 and bool((np.diff(numbers) == 1).all())


def _require_inside(op: Op, index: Sequence[Any], array: np.ndarray) -> None:
    for axis, (i, n) in enumerate(zip(index, array.shape, strict=True)):
        if np.size(i) and (np.min(i) < 0 or np.max(i) >= n):
            position = int(np.min(i)) if np.min(i) < 0 else int(np.max(i))
            raise InternalError(
                f"a load of element {position} along axis {axis} of a tensor of shape {array.shape}: "
                f"the index map ({', '.join(map(str, op.attrs['idx']))}) is wrong"
            )


# Ops and functions


def evaluate(operator: Operator, *arrays: Any, **attrs: Any) -> Any:
    """Apply an operator to arrays: the array of its result, or a tuple of several."""
    inputs = [np.asarray(a) for a in arrays]
    module = Module()
    block = Block([tensor(dt.from_numpy(a.dtype), a.shape) for a in inputs])
    with Builder(block, module):
        results = operator(*block.args, **attrs)
    outputs = results if isinstance(results, tuple) else (results,)
    values = dict(zip(block.args, inputs, strict=True))
    evaluate_block(block.ops, values, {}, module)
    found = tuple(values[v] for v in outputs)
    return found if isinstance(results, tuple) else found[0]


def evaluate_op(
    op: Op, arrays: Sequence[np.ndarray], env: Env, module: Module | None = None, *, flush: bool = False,
    pace: Pace = no_pace,
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """The results of one op of the graph level for operands `arrays`; with `flush` denormal numbers count as zero
    (see `denormals`)."""
    if op.name == "constant":
        assert module is not None
        return (module.constants[op.attrs["name"]],)
    if op.name == "fused":
        body = op.blocks[0]
        values = dict(zip(body.args, arrays, strict=True))
        evaluate_block(body.ops, values, env, module, flush=flush, pace=pace)
        return tuple(values[v] for v in body.ops[-1].operands)
    operator = OPERATORS.get(op.name)
    if operator is None:
        raise InternalError(f"there is no operator '{op.name}'", where=str(op.loc))
    types = [v.tensor for v in op.operands]
    if operator.kind == "primitive":
        computation = operator.compute(types, op.attrs)
        if not flush or not computes(computation):
            return (evaluate_compute(computation, arrays, env, pace),)
        taken = list(map(without_denormals, arrays))
        return (without_denormals(evaluate_compute(computation, taken, env, pace)),)
    if operator.kind == "irregular":
        taken = list(map(without_denormals, arrays)) if flush else list(arrays)
        return _evaluate_irregular(operator, types, op.attrs, taken, env, pace)
    body, inner = Block(types), Module()
    with Builder(body, inner, op.loc):
        results = operator.expand(body.args, op.attrs)
    values = dict(zip(body.args, arrays, strict=True))
    evaluate_block(body.ops, values, env, inner, flush=flush, pace=pace)
    return tuple(values[v] for v in results)


class _PacedRun(Run):
    """Runs loops statement by statement, with `pace` before each."""

    def __init__(self, env: dict[str, Any], pace: Pace) -> None:
        super().__init__(env)
        self.pace = pace

    def op(self, op: Op) -> None:
        self.pace()
        super().op(op)


def _evaluate_irregular(
    operator: Operator,
    types: Sequence[TensorType],
    attrs: Mapping[str, Any],
    arrays: Sequence[np.ndarray],
    env: Env,
    pace: Pace,
) -> tuple[np.ndarray, ...]:
    results = operator.result_types(types, dict(attrs))
    block = Block([buffer(t.dtype, t.shape) for t in (*types, *results)])
    trace = ScalarBuilder(Builder(block))
    handles = [trace.array(a) for a in block.args]
    assert operator.lower is not None
    operator.lower(trace, handles[: len(types)], handles[len(types) :], **attrs)
    outputs = [np.zeros(dims_of(t.shape, env), t.dtype.storage) for t in results]
    run = Run(dict(env)) if pace is no_pace else _PacedRun(dict(env), pace)
    for value, array in zip(block.args, [*arrays, *outputs], strict=True):
        run.bind_array(value, np.ascontiguousarray(array))
    with np.errstate(all="ignore"):
        run.block(block)
    return tuple(outputs)


def evaluate_block(
    ops: Sequence[Op],
    values: dict[Value, np.ndarray],
    env: Env,
    module: Module | None,
    *,
    flush: bool = False,
    pace: Pace = no_pace,
) -> None:
    """Evaluate ops in order, as `evaluate_op`; `values` has the block's arguments and gains all results."""
    for op in ops:
        if op.name in ("return", "yield"):
            continue
        results = evaluate_op(op, [values[v] for v in op.operands], env, module, flush=flush, pace=pace)
        for value, array in zip(op.results, results, strict=True):
            _require_type(op, value, array, env)
            values[value] = array


def _require_type(op: Op, value: Value, array: np.ndarray, env: Env) -> None:
    """InternalError when an array is not what the type of its value promises."""
    type = value.tensor
    if array.dtype != type.dtype.storage or array.shape != dims_of(type.shape, env):
        raise InternalError(
            f"'{op.name}' gave {array.dtype}{list(array.shape)} where its type says {type}", where=str(op.loc)
        )


def evaluate_func(func: Func, module: Module, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a function of the graph level; symbolic dims are bound from the shapes of `arrays`.

    InputError where an array does not fit its argument.
    """
    values: dict[Value, np.ndarray] = dict(zip(func.args, arrays, strict=True))
    env = bound_dims(func.args, arrays)
    evaluate_block(func.body.ops, values, env, module)
    return [values[v] for v in func.returns]
