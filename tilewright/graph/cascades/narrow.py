"""Results of kernels are stored as the narrow values that they are computed of, and become wide where they are read.

A quantised network rounds to bytes, and computes residual additions and means of what the bytes stand for: the kernel
that rounds also converts, and stores four bytes for each. Here the conversion moves into the kernels that read the
result. These compute the same numbers, once for each reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ml_dtypes import finfo

from tilewright.graph.cascades.links import FUSED
from tilewright.ir.core import Block, Builder, Module, Op, Value, replace_in_block
from tilewright.ir.types import TensorType
from tilewright.ops import elementwise
from tilewright.ops.define import OPERATORS
from tilewright.ops.source import full
from tilewright.ops.traits.derive import is_alias, product_of
from tilewright.ops.traits.pairing import is_elementwise
from tilewright.passes import PassContext


@dataclass(frozen=True)
class NarrowStores:
    """Move elementwise work on one narrower value from the ends of kernels into those that read their results."""

    name: ClassVar[str] = "narrow-stores"

    def run(self, module: Module, ctx: PassContext) -> None:
        body = module.main.body
        for n in range(len(body.ops)):
            region = body.ops[n]
            if region.name != FUSED or len(region.results) != 1:
                continue
            tail = _tail(region)
            shown = [region.result, *_views(region, tail)]
            readers = list(dict.fromkeys(u for v in shown for u in v.users if not _is_view_of(u, shown)))
            if tail and all(_may_compute(reader, shown) for reader in readers):
                _move(body, region, tail, shown, readers)
                told = "it stores a narrower value, which its readers convert"
                ctx.remark(self.name, f"{region.attrs['name']} {region.loc}", told, applied=True)


def _views(region: Op, tail: Sequence[Op]) -> list[Value]:
    """Results of a region by other shapes, where the work of a tail is the same for all elements."""
    if not tail:
        return []
    inside = {_source(tail, region), *(v for op in tail for v in op.results)}
    if any(v.tensor.size != 1 for op in tail for v in op.operands if v not in inside):
        return []
    return [user.result for user in region.result.users if is_alias(user)]


def _is_view_of(op: Op, shown: Sequence[Value]) -> bool:
    return any(v in shown for v in op.results)


def _move(body: Block, region: Op, tail: Sequence[Op], shown: Sequence[Value], readers: Sequence[Op]) -> None:
    made = {region: _shorter(region, tail)}
    narrow = {region.result: made[region].result}
    for view in shown[1:]:
        assert view.op is not None
        source = made[region].result
        type = TensorType(source.tensor.dtype, view.tensor.shape)
        made[view.op] = Op(view.op.name, [source], [type], view.op.attrs, loc=view.op.loc)
        narrow[view] = made[view.op].result
    for reader in readers:
        made[reader] = _longer(reader, region, tail, narrow)
        for before, after in zip(reader.results, made[reader].results, strict=True):
            after.name = before.name
            before.replace_by(after)
    old = [op for op in body.ops if op in made]
    replace_in_block(body, [made.get(op, op) for op in body.ops])
    for op in reversed(old):
        op.drop()


def _tail(region: Op) -> list[Op]:
    """The last ops of a region, in order, that compute its result of one narrower value, the narrowest; [] where there
    is none."""
    body = region.blocks[0]
    varying = _varying(region)
    value, found = body.ops[-1].operands[0], list[Op]()
    best, narrowest = list[Op](), value.tensor.dtype.bytes
    while (
        value.op is not None
        and value.op.parent is body
        and is_elementwise(value.op)
        and value.op.result.type == value.type
    ):
        sources = [v for v in value.op.operands if v in varying]
        outside = [u for u in value.users if u not in found and u is not body.ops[-1]]
        if len(sources) != 1 or outside or sources[0].tensor.shape != value.tensor.shape:
            break
        found.insert(0, value.op)
        value = sources[0]
        if value.tensor.dtype.bytes < narrowest and value.op is not None:
            best, narrowest = list(found), value.tensor.dtype.bytes
    return best


def _varying(region: Op) -> set[Value]:
    """The values of a region that depend on more than constants."""
    body = region.blocks[0]
    known = zip(body.args, region.operands, strict=True)
    found = {a for a, v in known if v.op is None or v.op.name != "constant"}
    for op in body.ops:
        if found.intersection(op.operands):
            found.update(op.results)
    return found


def _may_compute(reader: Op, values: Sequence[Value]) -> bool:
    """Whether a region can begin with elementwise work on values: no product reads them."""
    if reader.name != FUSED:
        return False
    inner = [a for a, v in zip(reader.blocks[0].args, reader.operands, strict=True) if v in values]
    return all(product_of(user) is None for a in inner for user in a.users)


def _source(tail: Sequence[Op], region: Op) -> Value:
    """The value that a tail is computed of."""
    varying = _varying(region)
    return next(v for v in tail[0].operands if v in varying)


def _shorter(region: Op, tail: Sequence[Op]) -> Op:
    """The region without its tail."""
    body, source = region.blocks[0], _source(tail, region)
    kept = [op for op in body.ops[:-1] if op not in tail]
    needed = {v for op in kept for v in op.operands} | {source}
    kept = [op for op in kept if op.operands or needed.intersection(op.results)]
    reads = [(a, v) for a, v in zip(body.args, region.operands, strict=True) if a in needed]
    block = Block([a.type for a, _ in reads], [a.name for a, _ in reads])
    values = dict(zip((a for a, _ in reads), block.args, strict=True))
    for op in kept:
        block.append(op.clone(values))
    block.append(Op("yield", [values[source]]))
    made = Op(FUSED, [v for _, v in reads], [source.type], region.attrs, [block], region.loc)
    made.result.name = region.result.name
    return made


def _longer(reader: Op, region: Op, tail: Sequence[Op], narrow: Mapping[Value, Value]) -> Op:
    """A region that reads the result of a shorter one, and computes the tail itself."""
    body, source = reader.blocks[0], _source(tail, region)
    actual = dict(zip(region.blocks[0].args, region.operands, strict=True))
    extra = list(dict.fromkeys(v for op in tail for v in op.operands if v in actual))
    operands = [*(narrow.get(v, v) for v in reader.operands), *(actual[a] for a in extra)]
    block = Block([v.type for v in operands], [a.name for a in (*body.args, *extra)])
    values = dict(zip((*body.args, *extra), block.args, strict=True))
    with Builder(block, loc=region.loc):
        for arg, v in zip(body.args, reader.operands, strict=True):
            if v in narrow:
                inside = {**{a: values[a] for a in extra}, source: values[arg]}
                for op in _with_sources(tail, source, inside):
                    made = OPERATORS[op.name](*(inside[v] for v in op.operands), **op.attrs)
                    inside[op.result] = made
                values[arg] = _rounded(inside[tail[-1].result])
    for op in body.ops:
        block.append(op.clone(values))
    return Op(FUSED, operands, [v.type for v in reader.results], reader.attrs, [block], reader.loc)


def _rounded(value: Value) -> Value:
    """A product that code rounds, as it did where it was stored: a sum that reads it would become one with it (a fused
    multiply-add). No code generator looks through the limit, which a product of a narrow integer does not reach."""
    dtype = value.tensor.dtype
    if value.op is None or OPERATORS[value.op.name] is not elementwise.mul or not dtype.is_float:
        return value
    limits = finfo(dtype.storage)  # type: ignore[no-untyped-call]
    lowest = full(value=float(limits.min), dtype=dtype, shape=())
    return elementwise.max_(value, lowest)


def _with_sources(tail: Sequence[Op], source: Value, given: dict[Value, Value]) -> list[Op]:
    """The ops of a tail with those that it reads and that read nothing, before them."""
    found: dict[Op, None] = {}
    for op in tail:
        for v in op.operands:
            if v is not source and v not in given and v.op is not None and v.op not in tail:
                found[v.op] = None
        found[op] = None
    return list(found)
