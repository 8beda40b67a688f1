"""Ops that are run before it is known whether their results are needed: what can fail must not be, and it costs time.

All of it follows from the definitions of the operators: the checks that their bodies make, and the loops that they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from tilewright.ir.core import Block, Builder, Module, Op, Value
from tilewright.ir.diag import ExecutionError
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType, buffer
from tilewright.ops.define.interp import evaluate_compute
from tilewright.ops.define.operator import OPERATORS, Compute, Operator
from tilewright.ops.define.scalar_builder import ScalarBuilder

ConstantOf = Callable[[Value], np.ndarray | None]
"""The array of a value that does not depend on inputs; None for any other."""

_GIVES_WHAT_IS_THERE = frozenset({"constant", "yield"})


Why = Literal["work", "fails", "sizes", "host"]
"""It takes too much work, it can fail, it relies on dims that only a call tells, or on the host."""


@dataclass(frozen=True, slots=True)
class NotSpeculated:
    """The first op that is not run before it is known whether its results are needed, and why."""

    op: Op
    why: Why


def speculative_steps(ops: Sequence[Op], constant_of: ConstantOf, limit: int) -> int | NotSpeculated:
    """How many scalar operations ops of the graph level take; the op with which that may be more than `limit`, that can
    fail, or that relies on dims that only a call tells."""
    total = 0
    for op in ops:
        steps = 0 if op.name in _GIVES_WHAT_IS_THERE else _steps(op, constant_of, limit - total)
        if not isinstance(steps, int):
            return NotSpeculated(op, steps)
        if total + steps > limit:
            return NotSpeculated(op, "work")
        total += steps
    return total


def _steps(op: Op, constant_of: ConstantOf, limit: int) -> int | Why:
    operator = OPERATORS.get(op.name)
    types = [v.type for v in op.operands if isinstance(v.type, TensorType)]
    results = [v.type for v in op.results if isinstance(v.type, TensorType)]
    if operator is None or len(types) != len(op.operands):
        return "host"
    if not all(t.is_static for t in (*types, *results)):
        return "sizes"
    if op.operands and any(_has_variables(a) for a in op.attrs.values()):
        return "sizes"
    if operator.kind == "composite":
        return _steps_of_composite(operator, op, types, constant_of, limit)
    if operator.kind == "irregular":
        return _steps_of_loops(_loops(operator, types, op.attrs))
    computation = operator.compute(types, op.attrs)
    positions = prod(extent.value for _, extent in (*computation.domain, *computation.reduce))
    steps = positions * len(computation.body.ops)
    if steps > limit:
        return "work"
    return steps if _checks_hold(computation, op, types, constant_of) else "fails"


def _has_variables(attribute: object) -> bool:
    if isinstance(attribute, tuple):
        return any(map(_has_variables, attribute))
    return isinstance(attribute, Sym) and not attribute.is_const


def _steps_of_composite(
    operator: Operator, op: Op, types: Sequence[TensorType], constant_of: ConstantOf, limit: int
) -> int | Why:
    block, module = Block(types), Module()
    with Builder(block, module):
        operator.expand(block.args, op.attrs)
    outer = dict(zip(block.args, op.operands, strict=True))

    def inner_constant(value: Value) -> np.ndarray | None:
        if value in outer:
            return constant_of(outer[value])
        is_constant = value.op is not None and value.op.name == "constant"
        return module.constants[value.op.attrs["name"]] if is_constant and value.op is not None else None

    steps = speculative_steps(block.ops, inner_constant, limit)
    return steps.why if isinstance(steps, NotSpeculated) else steps


def _loops(operator: Operator, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Block:
    """The loops of an operator that brings its own."""
    results = operator.result_types(types, dict(attrs))
    block = Block([buffer(t.dtype, t.shape) for t in (*types, *results)])
    trace = ScalarBuilder(Builder(block))
    handles = [trace.array(a) for a in block.args]
    assert operator.lower is not None
    operator.lower(trace, handles[: len(types)], handles[len(types) :], **attrs)
    return block


def _steps_of_loops(block: Block) -> int | Why:
    """Why there is no number where something is checked, or where the trips of a loop have no bound."""
    total = 0
    for op in block.ops:
        if op.name == "check":
            return "fails"
        total += 1
        trips = op.attrs["extent"].bounds[1] if op.name == "for" else 1
        for inner in op.blocks:
            steps = _steps_of_loops(inner)
            if not isinstance(steps, int):
                return steps
            if trips is None:
                return "sizes"
            total += max(trips, 0) * steps
    return total


def _checks_hold(computation: Compute, op: Op, types: Sequence[TensorType], constant_of: ConstantOf) -> bool:
    """Whether nothing that a body checks can fail: what it checks is known, and holds."""
    checks = [o for o in computation.body.ops if o.name == "check"]
    if not checks:
        return True
    arrays = [constant_of(v) for v in op.operands]
    args = dict(zip(computation.body.args, arrays, strict=True))
    if any(args[arg] is None for check in checks for arg in _read_for(check, computation.body)):
        return False
    known = [np.zeros([d.value for d in t.shape], t.dtype.storage) if a is None else a
             for a, t in zip(arrays, types, strict=True)]  # fmt: skip
    try:
        evaluate_compute(computation, known, {})
    except ExecutionError:
        return False
    return True


def _read_for(check: Op, body: Block) -> Iterator[Value]:
    """The operands whose elements decide on a check."""
    bound = {op.attrs["var"]: op.operands[0] for op in body.ops if op.name == "bind"}
    seen, waiting = set(check.operands), list(check.operands)
    while waiting:
        value = waiting.pop()
        if value.op is None:
            yield value
            continue
        symbols = [*value.op.attrs.get("idx", ()), *value.op.attrs.get("guard", ()), value.op.attrs.get("expr")]
        read = [bound[v] for e in symbols if isinstance(e, Sym) for v in e.vars if v in bound]
        for v in (*value.op.operands, *read):
            if v not in seen:
                seen.add(v)
                waiting.append(v)
