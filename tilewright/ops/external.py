"""An operator whose kernel comes from outside of the compiler: it stays whole, and means what the operator means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tilewright.ir.core import Block, Builder, Module, Op, Value, substitute
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS, Compute, irregular
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder

Attributes = tuple[tuple[str, Any], ...]
"""The attributes of an operator by name, as one attribute."""


def _types(*types: TensorType, kernel: str, of: str, attributes: Attributes) -> tuple[TensorType, ...]:
    if of not in OPERATORS or of == "external_kernel":
        raise ValueError(f"there is no operator '{of}'")
    return OPERATORS[of].result_types(types, dict(attributes))


@irregular(_types)
def external_kernel(
    t: ScalarBuilder, inputs: list[Array], outputs: list[Array], *, kernel: str, of: str, attributes: Attributes
) -> None:
    """The operator `of` with these `attributes`, computed by the kernel of that name which a plugin brings. Its loops
    are those of the operator as it is defined, which say what the kernel has to compute."""
    for source, target in zip(_results(t, of, inputs, dict(attributes)), outputs, strict=True):
        with _loops(t, target.shape) as place:
            target.store(place, source[place])


def external_of(op: Op) -> tuple[str, str, Attributes] | None:
    """The kernel, the operator and its attributes of an op that is computed by a kernel from outside; None for
    others."""
    if op.name != external_kernel.name:
        return None
    return op.attrs["kernel"], op.attrs["of"], op.attrs["attributes"]


def why_not_whole(of: str, types: Sequence[TensorType], attributes: Attributes) -> str:
    """Why an operator cannot be one kernel from outside; "" where it can."""
    block, module = Block(types), Module()
    operator = OPERATORS[of]
    if operator.kind == "composite":
        with Builder(block, module):
            operator.expand(block.args, dict(attributes))
    return "its definition has constants of its own" if module.constants else ""


def _results(t: ScalarBuilder, name: str, read: Sequence[Array], attrs: dict[str, Any]) -> list[Array]:
    """Loops that compute an operator into memory of the kernel."""
    operator = OPERATORS[name]
    types = [TensorType(a.dtype, a.shape) for a in read]
    if operator.kind == "composite":
        block = Block(types)
        with Builder(block, Module()):
            results = operator.expand(block.args, attrs)
        arrays = dict(zip(block.args, read, strict=True))
        for op in block.ops:
            found = _results(t, op.name, [arrays[v] for v in op.operands], op.attrs)
            arrays |= dict(zip(op.results, found, strict=True))
        return [arrays[v] for v in results]
    made = [t.alloc(type.dtype, type.shape) for type in operator.result_types(types, attrs)]
    if operator.kind == "irregular":
        assert operator.lower is not None
        operator.lower(t, list(read), made, **attrs)
    else:
        _fill(t, operator.compute(types, attrs), read, made[0])
    return made


def _fill(t: ScalarBuilder, compute: Compute, read: Sequence[Array], made: Array) -> None:
    """The elements of a primitive one after the other."""
    assert not compute.tiles, "operators of models are not computed by tiles"
    with _loops(t, compute.shape) as place:
        at = {v: i for (v, _), i in zip(compute.axes, place, strict=True)}
        if not compute.combine:
            made.store(place, _element(t, compute, read, at))
            return
        total = t.alloc(compute.acc, (1,), "reg")
        total.store((0,), compute.neutral)
        with _loops(t, [extent for _, extent in compute.reduce]) as summed:
            at |= {v: i for (v, _), i in zip(compute.reduce, summed, strict=True)}
            total.store((0,), t.apply(compute.combine, total[0], _element(t, compute, read, at)))
        made.store(place, total[0].cast(compute.dtype))


def _element(t: ScalarBuilder, compute: Compute, read: Sequence[Array], at: dict[Sym, Sym]) -> Scalar:
    """What the body of a primitive gives at a position."""
    values: dict[Value, Value] = {a: array.value for a, array in zip(compute.body.args, read, strict=True)}
    for op in compute.body.ops:
        if op.name == "yield":
            break
        if op.name == "bind":
            old: Sym = op.attrs["var"]
            at[old] = t.fresh(old.name, *old.bounds)
        t.builder.block.append(_placed(op, values, at))
    return Scalar(t, values[compute.body.ops[-1].operands[0]])


def _placed(op: Op, values: dict[Value, Value], at: dict[Sym, Sym]) -> Op:
    return op.clone(values, lambda attr: substitute(attr, at))


@contextmanager
def _loops(t: ScalarBuilder, extents: Sequence[Sym]) -> Iterator[tuple[Sym, ...]]:
    """A nest of loops, and its position."""
    with ExitStack() as stack:
        yield tuple(stack.enter_context(t.loop(extent)) for extent in extents)
