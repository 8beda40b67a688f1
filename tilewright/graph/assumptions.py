"""What a graph takes for granted about its symbolic dims, so that a program can check it when it is called.

Type rules take two dims for equal when nothing says that they differ (`x: f32[a] + y: f32[b]`). Kernels rely on it:
they would read beyond the end of a buffer otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.ir.core import Block, Builder, Module, Op
from tilewright.ir.diag import Loc, UnsupportedError
from tilewright.ir.scalar import CONVERSIONS, SCALAR_OPS
from tilewright.ir.sym import Sym, eq, le, prove
from tilewright.ir.types import TensorType, product
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.binding import is_input_value
from tilewright.ops.define.broadcasting import open_dims
from tilewright.ops.shape import taken_for_equal

_READS_WHOLE_AXES = frozenset(SCALAR_OPS) | CONVERSIONS | {
    "expand",
    "concat",
    "matmul",
    "conv",
    "conv_transpose",
}
"""Operators that read an axis along one of their own from its start to its end; others may read a part of it."""


_SIGN = {eq: "=", le: "<="}


@dataclass(frozen=True, slots=True)
class Assumption:
    """A condition over the dims of a graph, what it says in words, and the op that relies on it."""

    holds: Sym
    message: str
    loc: Loc


def assumptions(module: Module) -> tuple[Assumption, ...]:
    """All that the ops of `module.main` assume and that is not known to hold, each once; () for static shapes.

    What the import of the model has assumed comes first.
    """
    imported = module.main.attrs.get("assumed", ())
    found = {holds: Assumption(holds, message, Loc(node, op)) for holds, message, node, op in imported}
    alike: set[Any] = set()
    for op in module.main.body.ops:
        for made in _of_op(op, op.loc, module, alike):
            found.setdefault(made.holds, made)
    return tuple(found.values())


def _of_op(op: Op, loc: Loc, module: Module, alike: set[Any]) -> Iterator[Assumption]:
    """What `op` assumes; nothing for one that assumes the same as one before."""
    operator = OPERATORS.get(op.name)
    types = [v.type for v in op.operands if isinstance(v.type, TensorType)]
    key = (op.name, *((t.dtype, t.shape) for t in types), *sorted(op.attrs.items(), key=lambda item: item[0]))
    if operator is None or key in alike:
        return
    if operator.needs is not None:
        holds, message = operator.needs(*types, **op.attrs)
        if not holds.is_const:
            yield Assumption(holds, message, loc)
    results = [v.type for v in op.results if isinstance(v.type, TensorType)]
    if all(t.is_static for t in (*types, *results)):
        return
    alike.add(key)
    if op.name == "reshape":
        yield from _same_size(op, types[0], loc)
    elif operator.kind == "primitive":
        yield from _of_primitive(op, types, loc)
    elif operator.kind == "irregular":
        yield from _of_rule(op, types, loc)
    elif operator.kind == "composite":
        block = Block(types)
        with Builder(block, module):
            operator.expand(block.args, op.attrs)
        for inner in block.ops:
            yield from _of_op(inner, loc, module, alike)


def _same_size(op: Op, type: TensorType, loc: Loc) -> Iterator[Assumption]:
    result = op.result.tensor
    holds = eq(product(type.shape), product(result.shape))
    is_given = any(is_input_value(v) for d in result.shape for v in d.vars)
    target, needed = ("what is given", "both have as many elements") if is_given else (result, holds)
    yield from _taken(holds, f"{type} cannot be reshaped to {target}: it must be that {needed}", loc)


def _taken(holds: Sym, message: str, loc: Loc) -> Iterator[Assumption]:
    """The assumption, unless it is known to hold; UnsupportedError when it never does."""
    if not holds.is_const:
        yield Assumption(holds, message, loc)
    elif not holds.value:
        raise UnsupportedError(message, where=str(loc), hint="fix the sizes of the inputs with shapes=")


def _of_rule(op: Op, types: Sequence[TensorType], loc: Loc) -> Iterator[Assumption]:
    """From the dims that the type rule takes for equal: loops of an operator's own rely on all of them."""
    rule = OPERATORS[op.name].types
    assert rule is not None
    with taken_for_equal() as pairs:
        rule(*types, **op.attrs)
    for a, b, what in pairs:
        holds = eq(a, b)
        listed = ", ".join(map(str, types))
        yield from _taken(holds, f"{op.name} of {listed}: {what} differ: it must be that {holds}", loc)


def _of_primitive(op: Op, types: Sequence[TensorType], loc: Loc) -> Iterator[Assumption]:
    """From the reads along axes: those under guards, and at computed positions, see to their limits themselves."""
    with open_dims() as found:
        computation = OPERATORS[op.name].compute(types, op.attrs)
    listed = ", ".join(map(str, types))
    for pair in found:  # an operand of one element at most is not read along an axis
        holds = eq(pair.a, pair.b)
        yield from _taken(holds, f"{op.name} of {listed}: it must be that {holds}", loc)
    extents = dict((*computation.axes, *computation.reduce))
    operands = dict(zip(computation.body.args, types, strict=True))
    relation = eq if op.name in _READS_WHOLE_AXES else le
    for load in (o for o in computation.body.ops if o.name == "load"):
        type, guards = operands[load.operands[0]], load.attrs.get("guard", ())
        if 0 in guards:
            continue  # it reads nothing
        guarded = {v for g in guards for v in g.vars}
        for index, dim in zip(load.attrs["idx"], type.shape, strict=True):
            if index not in extents or index in guarded:
                continue
            holds = relation(extents[index], dim)
            if relation is le and prove(holds):
                continue
            needed = f"{extents[index]} {_SIGN[relation]} {dim}" if holds.is_const else str(holds)
            yield from _taken(holds, f"{op.name} of {listed}: it must be that {needed}", loc)
