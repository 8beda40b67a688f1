"""A program that shows a fault becomes smaller while it still shows it: fewer ops, and smaller dims."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.ir.core import Block, Builder, Func, Module, Op, Value
from tilewright.ir.diag import TilewrightError
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS
from tilewright.validation.cases import Case
from tilewright.validation.extract import cut_out, input_names, program_of
from tilewright.validation.passes import EVALUATION
from tilewright.validation.values import ReplayedValues

Program = tuple[Module, Mapping[str, np.ndarray]]
Shows = Callable[[Module, Mapping[str, np.ndarray]], bool]

SMALLER = (1, 2, 3, 4, 8, 16, 32)
"""Sizes that are tried in the place of a dim, and its half."""


def smallest(program: Program, shows: Shows, deadline: float) -> Program:
    """The smallest program found until a deadline (of `time.monotonic`) that still `shows` the fault."""
    program = _with_fewer_ops(program, shows, deadline)
    return _with_smaller_dims(program, shows, deadline)


def _with_fewer_ops(program: Program, shows: Shows, deadline: float) -> Program:
    module, inputs = program
    main = module.main
    arrays = tuple(inputs[name] for name in main.attrs["inputs"])
    known = ReplayedValues(module, Case("saved", arrays, {}), deadline)
    constants = {op for op in main.body.ops if op.name == "constant"}
    try:
        for op in main.body.ops[:-1]:
            known.compute(op)
    except EVALUATION:
        return program
    count = len(main.body.ops) - 1 - len(constants)
    sizes = [n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if n < count]
    for most in sizes:
        for at in [op for op in reversed(main.body.ops[:-1]) if op not in constants]:
            if time.monotonic() > deadline:
                return program
            ops, reads = cut_out(at.results, module, (), most=most)
            needed = dict.fromkeys(v.op for v in reads if v.op in constants and v.op is not None)
            outside = [v for v in reads if v.op not in constants]
            if any(v not in known.known for v in outside):
                continue
            names = input_names(outside)
            made = program_of([*needed, *ops], outside, at.results, module, names)
            given = {names[v]: known.known[v] for v in outside}
            if shows(made, given):
                return made, given
    return program


def _with_smaller_dims(program: Program, shows: Shows, deadline: float) -> Program:
    changed = True
    while changed:
        changed = False
        dims = {d.value for a in program[0].main.args for d in a.tensor.shape if d.is_const and d.value > 1}
        for dim in sorted(dims, reverse=True):
            for size in (n for n in dict.fromkeys((*SMALLER, dim // 2)) if n < dim):
                if time.monotonic() > deadline:
                    return program
                smaller = _at_size(program, dim, size)
                if smaller is not None and shows(*smaller):
                    program, changed = smaller, True
                    break
    return program


def _at_size(program: Program, dim: int, size: int) -> Program | None:
    """The same program where each dim of one size has another; None where its operators do not allow that."""
    module, inputs = program
    names = module.main.attrs["inputs"]
    try:
        given = {name: _cut(inputs[name], dim, size) for name in names}
        made = Module()
        pairs = zip(module.main.args, names, strict=True)
        types = [TensorType(a.tensor.dtype, tuple(map(sym, given[n].shape))) for a, n in pairs]
        block = Block(types, names)
        values: dict[Value, Value] = dict(zip(module.main.args, block.args, strict=True))
        with Builder(block, made):
            for op in module.main.body.ops[:-1]:
                _again(op, module, made, block, values, dim, size)
            block.append(Op("return", [values[v] for v in module.main.returns]))
        made.add(Func("main", block, attrs={"inputs": names, "outputs": module.main.attrs["outputs"]}))
        return made, given
    except (TilewrightError, *EVALUATION, KeyError, AssertionError, AttributeError):
        return None


def _again(
    op: Op, module: Module, made: Module, block: Block, values: dict[Value, Value], dim: int, size: int
) -> None:
    if op.name == "constant":
        array = np.ascontiguousarray(_cut(module.constants[op.attrs["name"]], dim, size))
        made.constants[op.attrs["name"]] = array
        type = TensorType(op.result.tensor.dtype, tuple(map(sym, array.shape)))
        results: Any = block.append(Op("constant", [], [type], op.attrs, loc=op.loc)).results
    else:
        attrs = {k: _attr(v, dim, size) if k in ("shape", "sizes") else v for k, v in op.attrs.items()}
        results = OPERATORS[op.name](*[values[v] for v in op.operands], **attrs)
    found = results if isinstance(results, tuple) else (results,)
    values.update(zip(op.results, found, strict=True))


def _attr(value: Any, dim: int, size: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_attr(v, dim, size) for v in value)
    if isinstance(value, Sym):
        return sym(size) if value.is_const and value.value == dim else value
    return size if value == dim and not isinstance(value, bool) else value


def _cut(array: np.ndarray, dim: int, size: int) -> np.ndarray:
    return np.ascontiguousarray(array[tuple(slice(0, size) if n == dim else slice(None) for n in array.shape)])
