"""A program that shows a fault becomes smaller while it still shows it: fewer ops, and smaller dims."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from tilewright.ir.core import Block, Builder, Func, Module, Op, Value
from tilewright.ir.diag import Loc, TilewrightError
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.binding import bound_dims
from tilewright.validation.cases import Case
from tilewright.validation.extract import cut_out, input_names, program_of
from tilewright.validation.values import EVALUATION, ReplayedValues, TooLong

Program = tuple[Module, Mapping[str, np.ndarray]]
Shows = Callable[[Module, Mapping[str, np.ndarray]], bool]

SMALLER = (1, 2, 3, 4, 8, 16, 32)
"""Sizes that are tried in the place of a dim, and its half."""

Axis = tuple[str, int]
"""An axis of a constant, or behind `INPUT` of an input, by name."""

INPUT = "input:"

MOST_AXES = 8
"""Axes of one size up to which single ones and pairs are tried."""

SAYS_SIZES = ("shape", "sizes", "groups")
"""Attributes that repeat dims of operands."""


def with_fewer_ops(
    program: Program, shows: Shows, deadline: float, near: Set[Loc] = frozenset()
) -> Program | None:
    """The first of its cuts, from small to large ones, that shows the fault: some ops that give the results of one op,
    which is one of those `near` where these are given. None where there is none."""
    module, inputs = program
    ops = module.main.body.ops[:-1]
    constants = {op for op in ops if op.name == "constant"}
    ends = [op for op in reversed(ops) if op not in constants and (not near or not near.isdisjoint(op.loc.sources))]
    if not ends:
        return None
    given = tuple(inputs[n] for n in module.main.attrs["inputs"])
    left = deadline - time.monotonic()
    known = ReplayedValues(module, Case("saved", given, {}), time.thread_time() + left)
    try:
        known.case = replace(known.case, env=bound_dims(module.main.args, known.case.arrays))
        for op in ops:
            known.compute(op)
    except (TooLong, *EVALUATION):
        return None
    count = len(ops) - len(constants)
    for most in [n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if n < count or near]:
        for at in ends:
            if time.monotonic() > deadline:
                return None
            found = _cut_at(at, most, module, constants, known)
            if found is not None and shows(*found):
                return found
    return None


def _cut_at(at: Op, most: int, module: Module, constants: set[Op], known: ReplayedValues) -> Program | None:
    """At most so many ops that give the results of one, as a program."""
    ops, reads = cut_out(at.results, module, (), most=most)
    needed = dict.fromkeys(v.op for v in reads if v.op is not None and v.op in constants)
    outside = [v for v in reads if v.op not in constants]
    if any(v not in known.known for v in outside):
        return None
    names = input_names(outside)
    made = program_of([*needed, *ops], outside, at.results, module, names)
    return made, {names[v]: known.known[v] for v in outside}


def with_smaller_dims(program: Program, shows: Shows, deadline: float) -> Program:
    """The program with dims as small as still show the fault: all of one size at once, and then those of single inputs
    and constants, which are of one size by chance (channels, and the rows of a filter)."""
    changed = True
    while changed:
        changed = False
        sizes = _axes_by_size(program)
        for dim in sorted(sizes, reverse=True):
            for axes in _choices(sizes[dim]):
                for size in (n for n in dict.fromkeys((*SMALLER, dim // 2)) if n < dim):
                    if time.monotonic() > deadline:
                        return program
                    smaller = _at_size(program, dim, size, axes, is_all=axes == sizes[dim])
                    if smaller is not None and shows(*smaller):
                        program, changed = smaller, True
                        break
                if changed:
                    break
            if changed:
                break
    return program


def _axes_by_size(program: Program) -> dict[int, tuple[Axis, ...]]:
    """The axes of inputs and constants that have more than one element, by how many."""
    module, inputs = program
    found: dict[int, tuple[Axis, ...]] = {}
    arrays = {**{INPUT + name: array for name, array in inputs.items()}, **module.constants}
    for name, array in arrays.items():
        for axis, size in enumerate(array.shape):
            if size > 1:
                found[size] = (*found.get(size, ()), (name, axis))
    return found


def _choices(axes: tuple[Axis, ...]) -> Iterator[tuple[Axis, ...]]:
    """All axes of one size, pairs of them, and each."""
    yield axes
    if 1 < len(axes) <= MOST_AXES:
        yield from (pair for pair in combinations(axes, 2) if len(axes) > 2)
        yield from ((axis,) for axis in axes)


def _at_size(program: Program, dim: int, size: int, axes: tuple[Axis, ...], is_all: bool) -> Program | None:
    """The same program where some axes of one size have another, and with all of them what attributes say of it; None
    where its operators do not allow that."""
    module, inputs = program
    names = module.main.attrs["inputs"]
    try:
        given = {name: _cut(inputs[name], INPUT + name, axes, size) for name in names}
        made = Module()
        pairs = zip(module.main.args, names, strict=True)
        types = [_type(a.tensor, a.tensor.shape, given[n].shape) for a, n in pairs]
        block = Block(types, names)
        values: dict[Value, Value] = dict(zip(module.main.args, block.args, strict=True))
        builder = Builder(block, made)
        with builder:
            for op in module.main.body.ops[:-1]:
                builder.loc = op.loc
                if op.name == "constant":
                    array = _cut(module.constants[op.attrs["name"]], op.attrs["name"], axes, size)
                    values[op.result] = _constant(op, array, made, block)
                else:
                    values.update(zip(op.results, _again(op, values, dim, size, is_all), strict=True))
            block.append(Op("return", [values[v] for v in module.main.returns]))
        made.add(Func("main", block, attrs={"inputs": names, "outputs": module.main.attrs["outputs"]}))
        return made, given
    except (TilewrightError, *EVALUATION, KeyError, AssertionError, AttributeError):
        return None


def _type(type: TensorType, was: Sequence[Sym], sizes: Sequence[int]) -> TensorType:
    """The type of an input of these sizes, in which dims that a call chooses stay so."""
    return TensorType(type.dtype, tuple(sym(n) if d.is_const else d for d, n in zip(was, sizes, strict=True)))


def _constant(op: Op, array: np.ndarray, made: Module, block: Block) -> Value:
    made.constants[op.attrs["name"]] = array
    type = TensorType(op.result.tensor.dtype, tuple(map(sym, array.shape)))
    return block.append(Op("constant", [], [type], op.attrs, loc=op.loc)).result


def _again(op: Op, values: dict[Value, Value], dim: int, size: int, is_all: bool) -> tuple[Value, ...]:
    """The results of the same operator for operands of other sizes."""
    attrs = {k: _attr(v, dim, size) if is_all and k in SAYS_SIZES else v for k, v in op.attrs.items()}
    results: Any = OPERATORS[op.name](*[values[v] for v in op.operands], **attrs)
    return results if isinstance(results, tuple) else (results,)


def _attr(value: Any, dim: int, size: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_attr(v, dim, size) for v in value)
    if isinstance(value, Sym):
        return sym(size) if value.is_const and value.value == dim else value
    return size if value == dim and not isinstance(value, bool) else value


def _cut(array: np.ndarray, name: str, axes: tuple[Axis, ...], size: int) -> np.ndarray:
    cuts = tuple(slice(0, size) if (name, axis) in axes else slice(None) for axis in range(array.ndim))
    return np.ascontiguousarray(array[cuts])
