"""Parts of tensors that a concat joins: convolutions of consecutive channels are the groups of one, and what is done
with the results of products and convolutions is done on each of these, so that it ends their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.graph.match import is_constant, shape_of, type_of
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir.core import Block, Builder, Module, Op, Value, insert_before
from tilewright.ir.rewrite import NoMatch, Replacement, RewriteContext, defining, has_one_use, rewrite, rule
from tilewright.ir.sym import Sym, sym
from tilewright.ops.contract import conv
from tilewright.ops.define import OPERATORS
from tilewright.ops.elementwise import add
from tilewright.ops.traits.derive import traits_of
from tilewright.ops.traits.pairing import is_elementwise
from tilewright.ops.view import concat, slice_
from tilewright.passes import PassContext


@rule("concat")
def groups_of_one_convolution(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """Convolutions of the same kind, of consecutive channels that are all those of one tensor, are groups of one
    convolution, as are those that exporters of formats without groups write."""
    rank = type_of(op.result).rank
    if op.attrs["axis"] % rank != 1 or len(op.operands) < 2:
        return None
    biases = [_bias(v) for v in op.operands]
    sums = [v if bias is None else _summand(v) for v, bias in zip(op.operands, biases, strict=True)]
    convs = [c for v in sums if (c := defining(v, "conv")) is not None and has_one_use(v)]
    known = [bias for bias in biases if bias is not None]
    if len(convs) != len(op.operands) or len(known) not in (0, len(convs)):
        return None
    x = _all_channels([c.operands[0] for c in convs])
    if x is None or len(set(map(_group, convs))) > 1:
        return None
    if not all(is_constant(c.operands[1]) for c in convs):
        return None
    groups = sum(c.attrs["groups"] for c in convs)
    made = conv(x, concat(*(c.operands[1] for c in convs), axis=0), **{**convs[0].attrs, "groups": groups})
    return add(made, concat(*known, axis=1 - rank)) if known else made


def _bias(value: Value) -> Value | None:
    """The constant with one element for each channel that is added at last, of all axes from the channels on."""
    found = defining(value, "add")
    if found is None or not has_one_use(value) or found.operands[0].type != value.type:
        return None
    shape = shape_of(value)
    of_channels = (*shape[1:2], *[sym(1)] * (len(shape) - 2))
    bias = found.operands[1]
    return bias if is_constant(bias) and shape_of(bias) == of_channels else None


def _summand(value: Value) -> Value:
    assert value.op is not None
    return value.op.operands[0]


def _group(op: Op) -> tuple[object, ...]:
    """What a group of a convolution is: its filters, and the attributes that are the same for all groups, spelled out
    as they may be lists or tuples."""
    filters, *rest = shape_of(op.operands[1])
    windows = ((k, [*v] if isinstance(v, (list, tuple)) else v) for k, v in op.attrs.items() if k != "groups")
    return (filters // op.attrs["groups"], *rest, *map(str, windows))


def _all_channels(parts: Sequence[Value]) -> Value | None:
    """The tensor whose channels the parts are, one after the other."""
    cuts = [defining(v, "slice") for v in parts]
    source = None if cuts[0] is None else cuts[0].operands[0]
    begin = sym(0)
    for cut in cuts:
        if cut is None or cut.operands[0] is not source or not _cuts_channels(cut, begin):
            return None
        begin = begin + shape_of(cut.result)[1]
    return source if source is not None and begin == shape_of(source)[1] else None


def _cuts_channels(cut: Op, begin: Sym) -> bool:
    """Whether a slice takes channels from `begin` on, and all of every other axis."""
    whole, part = shape_of(cut.operands[0]), shape_of(cut.result)
    starts, steps = (tuple(map(sym, cut.attrs[name])) for name in ("starts", "steps"))
    return (
        starts[1] == begin
        and all(s == 0 for s in (starts[0], *starts[2:]))
        and all(s == 1 for s in steps)
        and (whole[0], *whole[2:]) == (part[0], *part[2:])
    )


@dataclass(frozen=True)
class SinkIntoParts:
    """f(concat(a, b), c) -> concat(f(a, c0), f(b, c1)) for elementwise work, with constants, on products that nothing
    else reads, and for reductions of such parts: they end their kernels in place of taking a pass over the joined data,
    and factors fold into weights."""

    name: ClassVar[str] = "sink-into-parts"

    def run(self, module: Module, ctx: PassContext) -> None:
        for op in list(module.main.body.ops):
            joins = len(op.results) == 1 and defining(op.result, "concat") is op
            work = _work_on(op) if joins and all(map(_is_product, op.operands)) else []
            if work:
                _sink(op, work, module)
                ctx.remark(self.name, f"concat {op.loc}", f"{work[-1].name} is done on its parts", applied=True)
        rewrite(module.main, [reduction_of_each_part], module, ctx.remarks, stage=self.name, within=ctx)
        drop_dead(module)


@rule("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")
def reduction_of_each_part(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A reduction of joined results of products along other axes is joined of reductions of each, which their kernels
    may begin."""
    join = defining(op.operands[0], "concat")
    rank = type_of(op.operands[0]).rank
    if join is None or not all(map(_is_computed, join.operands)):
        return None
    axis, axes = join.attrs["axis"] % rank, {a % rank for a in op.attrs["axes"]}
    if axis in axes:
        return NoMatch("it reduces the axis along which the parts are joined")
    before = 0 if op.attrs["keepdims"] else sum(a < axis for a in axes)
    return concat(*(OPERATORS[op.name](v, **op.attrs) for v in join.operands), axis=axis - before)


def _is_computed(value: Value) -> bool:
    """Whether a value that one op reads is a sum of products, or ends with elementwise work on one."""
    if value.op is None or not has_one_use(value):
        return False
    ends, seen = [value.op], {value.op}
    while ends:
        op = ends.pop()
        if traits_of(op).sums_products:
            return True
        more = [v.op for v in op.operands if v.op is not None] if is_elementwise(op) else []
        ends += [o for o in more if o not in seen]
        seen.update(more)
    return False


def _is_product(value: Value) -> bool:
    """Whether a value is a sum of products, as convolutions are, which one op reads."""
    return value.op is not None and has_one_use(value) and traits_of(value.op).sums_products


def _work_on(join: Op) -> list[Op]:
    """The elementwise ops on a concat and constants, in order: as many as there are before more than one of their
    results is read by others."""
    axis = join.attrs["axis"] % type_of(join.result).rank
    made, work, waiting = {join.result}, [], [join.result]
    while waiting:
        value = waiting.pop(0)
        for op in value.users:
            if op not in work and _is_sliceable(op, made, axis):
                work.append(op)
                made.add(op.result)
                waiting.append(op.result)
    assert join.parent is not None
    order = {op: k for k, op in enumerate(join.parent.ops)}
    work.sort(key=lambda op: order[op])
    while work and not _ends(join, work):
        work.pop()
    return work


def _ends(join: Op, work: Sequence[Op]) -> bool:
    """Whether others read the result of the last op alone."""
    values = [join.result, *(op.result for op in work)]
    return all(u in work for v in values[:-1] for u in v.users)


def _is_sliceable(op: Op, made: set[Value], axis: int) -> bool:
    """Whether an op can be done on each part: elementwise, of values that are made of the concat, and constants."""
    (shape, *others) = {shape_of(v) for v in made}
    if others or len(op.results) != 1 or not is_elementwise(op) or shape_of(op.result) != shape:
        return False
    return all(v in made or _part_axis(v, shape, axis) is not None for v in op.operands)


def _part_axis(value: Value, shape: Sequence[Sym], axis: int) -> int | None:
    """The axis along which a constant is cut, -1 where it is the same for all parts; None for what is no constant."""
    own = axis - (len(shape) - type_of(value).rank)
    if not is_constant(value):
        return None
    return own if own >= 0 and shape_of(value)[own] == shape[axis] != 1 else -1


def _sink(join: Op, work: Sequence[Op], module: Module) -> None:
    """Put the work on each part, and the concat of the results, in the place of the last op."""
    shape = shape_of(join.result)
    axis = join.attrs["axis"] % len(shape)
    emitted, parts = Block(), []
    begin = sym(0)
    for part in join.operands:
        count = shape_of(part)[axis]
        values = {join.result: part}
        for op in work:
            with Builder(emitted, module, op.loc):
                operands = [values.get(v) or _cut(v, shape, axis, begin, count) for v in op.operands]
                values[op.result] = OPERATORS[op.name](*operands, **op.attrs)
        parts.append(values[work[-1].result])
        begin = begin + count
    with Builder(emitted, module, join.loc):
        joined = concat(*parts, axis=axis)
    last = work[-1].result
    joined.name = last.name
    insert_before(work[-1], emitted.ops)
    last.replace_by(joined)


def _cut(value: Value, shape: Sequence[Sym], axis: int, begin: Sym, count: Sym) -> Value:
    own = _part_axis(value, shape, axis)
    if own is None or own < 0:
        return value
    sizes = [count if k == own else d for k, d in enumerate(shape_of(value))]
    return slice_(value, starts=[begin if k == own else sym(0) for k in range(len(sizes))], sizes=sizes)
