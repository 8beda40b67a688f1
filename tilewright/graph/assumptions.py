"""What a graph takes for granted about its symbolic dims, so that a program can check it when it is called.

Type rules take two dims for equal when nothing says that they differ (`x: f32[a] + y: f32[b]`), and sizes for such that
no position lies outside of an operand. Kernels rely on it: they would read beyond the end of a buffer otherwise. So
what rules require, and what the bounds of all accesses need (`bounds`), is checked unless it is known to hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tilewright.graph.bounds import DimFacts, unproved
from tilewright.ir.core import Block, Builder, Func, Module, Op
from tilewright.ir.diag import Loc, UnsupportedError
from tilewright.ir.sym import ONE, Sym, eq, ge, le, sym, unbounded
from tilewright.ir.types import TensorType, product
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.binding import input_variables, is_input_value
from tilewright.ops.define.broadcasting import open_dims
from tilewright.ops.define.demands import Demand, undecided
from tilewright.ops.traits.derive import traits_of
from tilewright.ops.traits.pairing import is_elementwise


@dataclass(frozen=True, slots=True)
class Assumption:
    """A condition over the dims of a graph, what it says in words, and the op that relies on it."""

    holds: Sym
    message: str
    loc: Loc


def assumptions(module: Module) -> tuple[Assumption, ...]:
    """All that the ops of `module.main` assume and that is not known to hold, each once; () for static shapes.

    The bounds of dims and what the import of the model has assumed come first. What follows from others is left out.
    """
    imported = (*_bounds(module.main), *module.main.attrs.get("assumed", ()))
    found = {holds: Assumption(holds, message, Loc(node, op)) for holds, message, node, op in imported}
    facts, alike = DimFacts(), set[Any]()
    for condition in found:
        facts.learn(condition)
    for op in module.main.body.ops:
        for holds, message in _of_op(op, module, alike, facts):
            if holds.is_const and not holds.value:
                raise UnsupportedError(message, where=str(op.loc), hint="fix the sizes of the inputs with shapes=")
            if not facts.hold(holds):
                found.setdefault(holds, Assumption(holds, message, op.loc))
                facts.learn(holds)
    listed = list(found)
    for k, holds in enumerate(listed[len(imported) :], start=len(imported) + 1):
        if any(_follows(holds, later) for later in listed[k:]):
            del found[holds]
    return tuple(found.values())


def same_dims(main: Func, granted: Iterable[Assumption]) -> tuple[tuple[Sym, Sym], ...]:
    """Dims of the inputs that another one, or a number, can stand for wherever all that is taken for granted holds,
    each with what stands for it; none where it contradicts itself, as then no call runs the program."""
    dims = {d for arg in main.args if isinstance(arg.type, TensorType) for d in arg.type.shape if d.kind == "var"}
    facts = DimFacts()
    granted = list(granted)
    for assumption in granted:
        facts.learn(assumption.holds)
    if any(facts.applied(assumption.holds) == 0 for assumption in granted):
        return ()
    found = ((dim, sym(value)) for dim, value in facts.values.items() if dim in dims)
    return tuple((dim, value) for dim, value in found if value.is_const or value in dims)


def _bounds(main: Func) -> Iterator[tuple[Sym, str, str, str]]:
    """That the sizes of inputs are within the bounds of their dims."""
    elements = [symbols.flat for arg in main.args if (symbols := input_variables(arg)) is not None]
    dims = [d for arg in main.args if isinstance(arg.type, TensorType) for d in arg.type.shape if d.kind == "var"]
    for d in dict.fromkeys((*dims, *chain.from_iterable(elements))):
        low, high = d.bounds
        words = f"from {low} {'on' if high is None else f'to {high}'}" if low else f"up to {high}"
        message = f"the program was exported for {d} {words}; export it again for others"
        size = unbounded(d)
        if low:
            yield ge(size, low), message, "", ""
        if high is not None:
            yield le(size, high), message, "", ""


def _follows(condition: Sym, later: Sym) -> bool:
    """Whether a condition says no more than one that was found after it."""
    return condition.vars <= later.vars and DimFacts().where([later]).hold(condition)


def worded(condition: Sym) -> str:
    """A condition as comparisons, also where parts of it are expressions that are 0 or 1, or 0 or more."""
    if condition.kind in ("min", "max"):
        parts = [worded(part) for part in condition.args if part is not ONE]
        return (" and " if condition.kind == "min" else " or ").join(
            f"({part})" if " or " in part or " and " in part else part for part in parts
        )
    opposite = 1 - condition
    if condition.kind in ("ge0", "eq0") or opposite.kind in ("ge0", "eq0"):
        return str(condition)
    return f"{opposite} == 0" if condition.is_bool else f"{condition} >= 1"


def _of_op(op: Op, module: Module, alike: set[Any], facts: DimFacts) -> Iterator[tuple[Sym, str]]:
    """Conditions that `op` relies on, and what they say; nothing for one that assumes the same as one before."""
    operator = OPERATORS.get(op.name)
    types = [v.type for v in op.operands if isinstance(v.type, TensorType)]
    key = (op.name, *((t.dtype, t.shape) for t in types), *sorted(op.attrs.items(), key=lambda item: item[0]))
    if operator is None or key in alike:
        return
    if operator.needs is not None:
        holds, message = operator.needs(*types, **op.attrs)
        if not holds.is_const:
            yield holds, message
    results = [v.type for v in op.results if isinstance(v.type, TensorType)]
    if all(t.is_static for t in (*types, *results)):
        return
    alike.add(key)
    if operator.kind == "composite":
        block = Block(types)
        with Builder(block, module), undecided() as demands:
            operator.expand(block.args, op.attrs)
        yield from _of_rule(op, types, demands)
        for inner in block.ops:
            yield from _of_op(inner, module, alike, facts)
        return
    if operator.is_alias:  # then all positions are within
        yield _same_size(op, types[0])
    else:
        yield from _of_rule(op, types, operator.demands(types, op.attrs))
        if operator.kind == "primitive":
            yield from _of_broadcast(op, types)
    for d in dict.fromkeys(d for t in results for d in t.shape):
        yield ge(d, 0), f"{op.name} of {_listed(types)}: a dim of the result would be {d}, which is below 0"
    if not operator.is_alias:
        yield from _of_accesses(op, types, facts)


def _listed(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types))


def _same_size(op: Op, type: TensorType) -> tuple[Sym, str]:
    result = op.result.tensor
    holds = eq(product(type.shape), product(result.shape))
    is_given = any(is_input_value(v) for d in result.shape for v in d.vars)
    target, needed = ("what is given", "both have as many elements") if is_given else (result, holds)
    return holds, f"{type} cannot be reshaped to {target}: it must be that {needed}"


def _of_rule(op: Op, types: Sequence[TensorType], demands: Sequence[Demand]) -> Iterator[tuple[Sym, str]]:
    """From what the type rule demands of dims."""
    for holds, wrong in demands:
        yield holds, f"{op.name} of {_listed(types)}: {wrong}: it must be that {worded(holds)}"


def _of_broadcast(op: Op, types: Sequence[TensorType]) -> Iterator[tuple[Sym, str]]:
    """From the reads along axes of the result, each of which is read from its start to its end."""
    with open_dims() as found:
        computation = OPERATORS[op.name].compute(types, op.attrs)
    for pair in found:  # an operand of one element at most is not read along an axis
        holds = eq(pair.a, pair.b)
        yield holds, f"{op.name} of {_listed(types)}: it must be that {worded(holds)}"
    product = traits_of(op).product
    if not is_elementwise(op) and (product is None or not product.of_matrices):
        return  # it may read a part of an axis along one of its own
    extents = dict((*computation.axes, *computation.reduce))
    operands = dict(zip(computation.body.args, types, strict=True))
    for load in (o for o in computation.body.ops if o.name == "load"):
        for index, dim in zip(load.attrs["idx"], operands[load.operands[0]].shape, strict=True):
            if index in extents:
                holds = eq(extents[index], dim)
                needed = f"{extents[index]} = {dim}" if holds.is_const else str(holds)
                yield holds, f"{op.name} of {_listed(types)}: it must be that {needed}"


def _of_accesses(op: Op, types: Sequence[TensorType], facts: DimFacts) -> Iterator[tuple[Sym, str]]:
    """From the positions that are read and written."""
    for bound in unproved(op, types, facts):
        if bound.holds is not None:
            where = f"axis {bound.access.axis} of a buffer of shape ({', '.join(map(str, bound.access.shape))})"
            needed = f"it must be that {bound.holds}"
            yield bound.holds, f"{op.name} of {_listed(types)} would use elements beyond {where}: {needed}"
