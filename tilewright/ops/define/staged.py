"""Ops of staged programs: what the host does between parts of native code.

A size that depends on data, a loop whose end is computed, and values that are no numbers split a graph into parts. The
ops here stand in the graph that a front end makes; `staging` takes them out, before anything is optimised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.core import Block, Op, Value, current_builder
from tilewright.ir.sym import Sym, var
from tilewright.ir.types import TensorType, Type
from tilewright.ops.define.binding import MAX_ELEMENTS

MEASURE, ASSUME, HOST, BRANCH, LOOP = "measure", "assume", "host", "branch", "loop"
STAGED = frozenset({MEASURE, ASSUME, HOST, BRANCH, LOOP})


FLOW = "flow"
"""The attribute of a main function that says what branches and loops of the model have become: `FlowNote`s."""

FlowNote = tuple[str, str, str, str, str, tuple[tuple[str, tuple[str, ...]], ...]]
"""The name of a node (where it has none, of a value that it gives), its operator, what has become of it ("branch" and
"loop": it stays one; "select", "decided", "unrolled"), why, what would change that (""), and of each of its ways, by
name, the nodes."""


def can_be_measured(value: Value) -> bool:
    """May sizes depend on the elements of a value? It must be a small tensor of integers or bools, of a fixed shape."""
    type = value.type
    if not isinstance(type, TensorType) or not type.is_static:
        return False
    return type.dtype.kind in ("int", "uint", "bool") and type.size.value <= MAX_ELEMENTS


_MOVES = frozenset({"concat", "reshape", "cast", "slice", "gather", "expand"})
"""Operators through which what is known of some elements is kept, when only the others are measured."""


def measurable_parts(value: Value, is_known: Callable[[Value], bool]) -> list[Value]:
    """The values that must be measured for the elements of `value` to be known; none where that is not possible."""
    op = value.op
    if is_known(value):
        return []
    if op is not None and op.name in _MOVES:
        parts = [measurable_parts(v, is_known) for v in op.operands]
        wanted = list(dict.fromkeys(v for p in parts for v in p))
        if wanted and all(p or is_known(v) for p, v in zip(parts, op.operands, strict=True)):
            return wanted
    return [value] if can_be_measured(value) else []


def measure(value: Value, name: str) -> np.ndarray:
    """Variables `val_<name>_<i>` for the elements of `value`, in its shape: they are read when it has been computed."""
    assert isinstance(value.type, TensorType)
    symbols = np.empty(value.type.size.value, object)
    symbols[:] = [var(f"val_{name}_{i}", None) for i in range(symbols.size)]
    current_builder().emit(MEASURE, [value], attrs={"variables": tuple(symbols)})
    return symbols.reshape([d.value for d in value.type.shape])


def measure_size(value: Value, size: Sym) -> Sym:
    """The variable `size`, whose value is read from the one element of `value` when that has been computed."""
    current_builder().emit(MEASURE, [value], attrs={"variables": (size,)})
    return size


def assume(condition: Sym, message: str, node: str, operator: str) -> None:
    """Take for granted that a condition holds wherever the block is run that is being written."""
    attrs = {"condition": condition, "message": message, "node": node, "operator": operator}
    current_builder().emit(ASSUME, attrs=attrs)


def host(
    function: str,
    operands: Sequence[Value],
    types: Sequence[Type],
    parameters: Mapping[str, Any] | None = None,
) -> tuple[Value, ...]:
    """The results of a function of `runtime.staged.functions`, which the host calls with arrays, lists of them and
    strings. Dims of results that are variables get their values from what it gives."""
    attrs = {"function": function, **(parameters or {})}
    return current_builder().emit(HOST, operands, types, attrs).results


def branch(condition: Value, then: Block, other: Block, types: Sequence[Type]) -> tuple[Value, ...]:
    """What one of two blocks yields; dims of results that are variables get their values from it."""
    return current_builder().emit(BRANCH, [condition], types, {}, [then, other]).results


def loop(
    operands: Sequence[Value], body: Block, types: Sequence[Type], states: int, row_shapes: Sequence[tuple[Sym, ...]]
) -> tuple[Value, ...]:
    """While the condition holds and there are trips left: (trip, condition, *states) -> (condition, *states, *rows).

    `operands` are the number of trips, the condition and the initial states; the results are the last states, and
    the rows of all trips along a new first axis. `row_shapes`, of numbers and variables, are those of the rows of a
    loop that makes no trip.
    """
    attrs = {"states": states, "row_shapes": tuple(row_shapes)}
    return current_builder().emit(LOOP, operands, types, attrs, [body]).results


def staged_rule(op: Op) -> str | None:
    """What is wrong with an op of a staged program."""
    if op.name == MEASURE:
        variables = op.attrs.get("variables")
        if len(op.operands) != 1 or op.results or not can_be_measured(op.operands[0]):
            return "takes a small tensor of integers of a fixed shape, and gives nothing"
        type = op.operands[0].type
        assert isinstance(type, TensorType)
        if isinstance(variables, tuple) and len(variables) == type.size.value and all(map(_is_variable, variables)):
            return None
        return "has a variable for each element"
    if op.name == ASSUME:
        return None if isinstance(op.attrs.get("condition"), Sym) else "has the attribute 'condition', an expression"
    if op.name == HOST:
        return None if isinstance(op.attrs.get("function"), str) else "has the attribute 'function', a text"
    ends = all(b.ops and b.ops[-1].name == "yield" for b in op.blocks)
    if len(op.blocks) != (2 if op.name == BRANCH else 1) or not ends:
        return "has a block for each way, which ends in a yield"
    return None


def inner_variables(block: Block, given: Sequence[Value] = ()) -> set[Sym]:
    """Variables that get their values inside of a block, so that nothing outside may refer to them; those in shapes of
    values outside that it reads, or is `given`, are none."""
    found: set[Sym] = set()
    outer = {d for v in given for d in _variables(v)}
    for op in block.walk():
        outer.update(d for v in op.operands if not _is_inside(v, block) for d in _variables(v))
        if op.name == MEASURE and _is_inside(op.operands[0], block):
            found.update(op.attrs["variables"])
        if op.name in STAGED:
            found.update(d for v in op.results for d in _dims(v))
        found.update(d for b in op.blocks for v in b.args for d in _dims(v))
    return found.union(d for v in block.args for d in _dims(v)) - outer


def _dims(value: Value) -> list[Sym]:
    return [d for d in value.type.shape if d.kind == "var"] if isinstance(value.type, TensorType) else []


def _variables(value: Value) -> list[Sym]:
    return [d for size in value.type.shape for d in size.vars] if isinstance(value.type, TensorType) else []


def _is_inside(value: Value, block: Block) -> bool:
    owner: object = value.owner
    while owner is not None and owner is not block:
        owner = owner.parent if isinstance(owner, Block | Op) else None
    return owner is block


def _is_variable(x: object) -> bool:
    return isinstance(x, Sym) and x.kind == "var"
