"""Lowering: a fused region of the graph becomes one kernel of plain loops.

Every op of a region is a primitive, so its meaning is a `Compute`. A plan says which ops are written into the bodies of
their readers; each other op becomes a stage: a loop nest that fills a buffer. Nothing is decided here: the plan comes
from `schedule/inlining.py`, and the stages are handed to `schedule/`, which only reorders and annotates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product as product_of
from math import prod
from typing import Any

from tilewright.ir.core import Block, Builder, Func, Op, Value, substitute
from tilewright.ir.sym import Sym, logical_and, sym, var
from tilewright.ir.types import BufferType, ScalarType, Type, buffer
from tilewright.loops.kernel_info import KernelInfo, new_kernel
from tilewright.loops.nodes import RegionNode, RegionPlan, is_irregular, is_view
from tilewright.loops.stages import Lowered, Stage
from tilewright.ops.define import OPERATORS, Axis, Compute, Replacement
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder
from tilewright.ops.external import external_of


def lower_region(region: Op, name: str, plan: RegionPlan, constants: Sequence[int] = ()) -> Lowered:
    """The kernel of a `fused` op: arguments are its operands, then its results, as dense buffers. `plan` says which ops
    are stages. Operands number `constants` have known elements.

    Precondition: the region passed the graph verifier.
    """
    if is_irregular(region):
        return _lower_irregular(region, name, constants)
    return _Lowering(region, name, plan, constants).run()


class _Lowering:
    """State of one lowering: which values have buffers, and the builder that writes the kernel."""

    def __init__(self, region: Op, name: str, plan: RegionPlan, constants: Sequence[int]) -> None:
        (self.body,) = region.blocks
        self.yielded = list(self.body.ops[-1].operands)
        ins = [_argument(a) for a in self.body.args]
        outs = [_argument(v) for v in self.yielded]
        names = [a.name or f"x{k}" for k, a in enumerate(self.body.args)]
        names += ["y" if len(outs) == 1 else f"y{k}" for k in range(len(outs))]
        block = Block(ins + outs, names)
        info = KernelInfo(outputs=len(outs), origin=_origins(region), constants=tuple(constants))
        self.func = new_kernel(name, block, (), info)
        self.builder = Builder(block)
        self.buffers: dict[Value, Value] = dict(zip(self.body.args, block.args, strict=False))
        self.nodes = plan.nodes
        self.over_readers = plan.over_readers
        self.tiled: dict[Value, tuple[int, ...]] = {}  # tile lengths of values whose buffers hold whole tiles
        self.stages: list[Stage] = []
        self.output_args = block.args[len(ins) :]
        self._vars = 0

    def run(self) -> Lowered:
        for value, node in self.nodes.items():
            if not node.inline:
                self._stage(value, node)
        for copy, value in self._repeated_outputs():
            self._copy_stage(value, copy)
        self.builder.emit("return")
        self.func.dims = free_dims(self.func)
        return Lowered(self.func, self.stages)

    # Stages

    def _stage(self, value: Value, node: RegionNode) -> None:
        compute = node.compute
        target = self._tile_buffer(value, compute) if compute.tiles else self._target_buffer(value, compute)
        name = value.name or node.op.name
        stage = Stage(
            name, "reduce" if compute.combine else "map", compute.combine, target, tiles=compute.tiles
        )
        axes, mapping = self._fresh_axes(compute.domain, "i")
        trace = ScalarBuilder(self.builder)
        outer = self.builder.block
        self._open_loops(axes, stage.axes)
        position = tuple(v for v, _ in axes)
        if compute.combine:
            self._reduction(stage, node, mapping, position, trace)
        elif compute.tiles:
            elements = _BodyWriter(self).write_tile(node, dict(mapping))
            self._store_tile(value, target, position, elements, compute.tiles)
            if compute.replacement is not None:
                self.builder.block = outer
                self._replace_tiles(stage, value, node, compute.replacement)
        else:
            element = self._body(node, mapping)
            self._store(trace, target, position, element)
        self.builder.block = outer
        self.stages.append(stage)
        self.buffers[value] = target

    def _reduction(
        self, stage: Stage, node: RegionNode, mapping: dict[Sym, Sym], position: tuple[Sym, ...], trace: ScalarBuilder
    ) -> None:
        """acc = neutral; for r: acc = acc (combine) element; then, when the dtypes differ, a finishing stage."""
        compute = node.compute
        into = stage.buffer
        start = trace.const(compute.neutral, compute.acc)
        Array(trace, into).store(position, start)
        stage.init = self.builder.block.ops[-1]
        reduce, inner = self._fresh_axes(compute.reduce, "r")
        self._open_loops(reduce, stage.reduce)
        element = self._body(node, {**mapping, **inner})
        before = Array(trace, into)[position]
        after = self.builder.emit(compute.combine, [before.value, element], [before.value.type]).result
        self._store(trace, into, position, after)

    def _target_buffer(self, value: Value, compute: Compute) -> Value:
        """The output argument if this value leaves the kernel (and needs no narrower dtype), else scratch.

        A reduction that is read on inside accumulates in scratch, where a schedule can turn it into registers.
        ."""
        read_inside = any(u.name != "yield" for u in value.users)
        if value in self.yielded and compute.acc == compute.dtype and not (compute.combine and read_inside):
            return self.output_args[self.yielded.index(value)]
        op = self.builder.emit("alloc", [], [buffer(compute.acc, compute.shape, "scratch")])
        op.result.name = value.name
        return op.result

    def _tile_buffer(self, value: Value, compute: Compute) -> Value:
        """The buffer of a value that is computed by tiles. It holds whole tiles, each axis that they cut apart as two:
        then no tile needs conditions. Where each such axis is one tile for certain, this is the value's own shape.
        """
        cut = [
            n > 1 and extent is not sym(n) for (_, extent), n in zip(compute.axes, compute.tiles, strict=True)
        ]
        if not any(cut):
            return self._target_buffer(value, compute)
        self.tiled[value] = tuple(n if apart else 1 for n, apart in zip(compute.tiles, cut, strict=True))
        shape = [
            d
            for (_, count), (_, extent), n, apart in zip(
                compute.domain, compute.axes, compute.tiles, cut, strict=True
            )
            for d in ((count, sym(n)) if apart else (extent,))
        ]
        op = self.builder.emit("alloc", [], [buffer(compute.acc, shape, "scratch")])
        op.result.name = value.name
        return op.result

    def _store_tile(
        self,
        value: Value,
        target: Value,
        position: tuple[Sym, ...],
        elements: Sequence[Value],
        tiles: tuple[int, ...],
        adds: bool = False,
    ) -> None:
        """One store for each element of a tile, to what is there already where it `adds`."""
        apart = self.tiled.get(value, (1,) * len(tiles))
        for element, within in zip(elements, product_of(*map(range, tiles)), strict=True):
            idx: list[Sym] = []
            for i, k, n, cut in zip(position, within, tiles, apart, strict=True):
                idx += [i, sym(k)] if cut > 1 else [sym(k) if n > 1 else i]
            if adds:
                before = Array(ScalarBuilder(self.builder), target)[tuple(idx)].value
                element = self.builder.emit("add", [before, element], [before.type]).result
            self.builder.emit("store", [element, target], [], {"idx": tuple(idx)})

    def _replace_tiles(self, stage: Stage, value: Value, node: RegionNode, by: Replacement) -> None:
        """for tiles: if where { for lane: tile = 0; for r: for lane: tile += elements }; `lane` is the last axis."""
        domain = by.sums.domain
        axes, _ = self._fresh_axes(domain[:-1], "i")
        self._open_loops(axes, [])
        tile = tuple(v for v, _ in axes)
        fixed = {
            v: sym(0) if extent == 1 else at for (v, extent), at in zip(by.where.axes, (*tile, sym(0)), strict=True)
        }
        (holds,) = _BodyWriter(self).write_tile(RegionNode(node.op, by.where, inline=False), fixed)
        block = Block()
        self.builder.emit("if", [holds], [], {"guard": (), "rarely": True}, [block])
        self.builder.block = block
        (lane,), _ = self._fresh_axes(domain[-1:], "i")
        self._open_loops([lane], stage.replaced)
        zero = ScalarBuilder(self.builder).const(by.sums.neutral, by.sums.acc).value
        self._store_tile(value, stage.buffer, (*tile, lane[0]), [zero] * prod(by.sums.tiles), by.sums.tiles)
        self.builder.block = block
        reduce, inner = self._fresh_axes(by.sums.reduce, "r")
        self._open_loops(reduce, [])
        (lane,), _ = self._fresh_axes(domain[-1:], "i")
        self._open_loops([lane], stage.replaced)
        position = (*tile, lane[0])
        at = {**dict(zip((v for v, _ in domain), position, strict=True)), **inner}
        terms = _BodyWriter(self).write_tile(RegionNode(node.op, by.sums, inline=False), at)
        self._store_tile(value, stage.buffer, position, terms, by.sums.tiles, adds=True)

    def in_buffer(self, value: Value, idx: tuple[Sym, ...]) -> tuple[Sym, ...]:
        """Where element `idx` of a value lies in its buffer."""
        tiles = self.tiled.get(value)
        if tiles is None:
            return idx
        return tuple(e for i, n in zip(idx, tiles, strict=True) for e in ((i // n, i % n) if n > 1 else (i,)))

    def _repeated_outputs(self) -> list[tuple[Value, Value]]:
        """Outputs whose value lives elsewhere: (output argument, value)."""
        pairs = zip(self.output_args, self.yielded, strict=True)
        return [(arg, v) for arg, v in pairs if self.buffers[v] is not arg]

    def _copy_stage(self, value: Value, target: Value) -> None:
        type = target.buffer
        stage = Stage(target.name, "map", "", target)
        axes, _ = self._fresh_axes(tuple((var(f"d{k}"), d) for k, d in enumerate(type.shape)), "i")
        trace = ScalarBuilder(self.builder)
        outer = self.builder.block
        self._open_loops(axes, stage.axes)
        position = tuple(v for v, _ in axes)
        element = Array(trace, self.buffers[value])[self.in_buffer(value, position)].cast(type.dtype)
        Array(trace, target).store(position, element)
        self.builder.block = outer
        self.stages.append(stage)

    def _store(self, trace: ScalarBuilder, target: Value, position: tuple[Sym, ...], element: Value) -> None:
        self.builder.emit("store", [element, target], [], {"idx": position})

    def _fresh_axes(self, axes: Sequence[Axis], prefix: str) -> tuple[list[Axis], dict[Sym, Sym]]:
        fresh: list[Axis] = []
        mapping: dict[Sym, Sym] = {}
        for v, extent in axes:
            new = var(
                f"{prefix}{self._vars}", 0, extent.value - 1 if extent.is_const and extent.value > 0 else None
            )
            self._vars += 1
            mapping[v] = new
            fresh.append((new, extent))
        return fresh, mapping

    def _open_loops(self, axes: Sequence[Axis], into: list[Op]) -> None:
        for v, extent in axes:
            block = Block()
            loop = self.builder.emit(
                "for", attrs={"var": v, "extent": extent, "kind": "serial"}, blocks=[block]
            )
            into.append(loop)
            self.builder.block = block

    # Bodies

    def _body(self, node: RegionNode, mapping: Mapping[Sym, Sym]) -> Value:
        return _BodyWriter(self).write_stage(node, dict(mapping))


class _BodyWriter:
    """Writes one element's computation, with the bodies of inlined producers in place of their loads."""

    def __init__(self, lowering: _Lowering) -> None:
        self.lowering = lowering
        self.builder = lowering.builder
        self.written: dict[tuple[Value, tuple[Sym, ...], tuple[Sym, ...], Any], Value] = {}
        self.position: tuple[Sym, ...] = ()  # of the stage's own element

    def write_stage(self, node: RegionNode, mapping: dict[Sym, Sym]) -> Value:
        self.position = tuple(mapping[v] for v, _ in node.compute.axes)
        return self._write(node, mapping, ())[0]

    def write_tile(self, node: RegionNode, mapping: dict[Sym, Sym]) -> list[Value]:
        """All elements of the tile at the position that `mapping` gives."""
        return self._write(node, mapping, ())

    def _write(
        self, node: RegionNode, mapping: dict[Sym, Sym], guard: tuple[Sym, ...], other: Any = 0
    ) -> list[Value]:
        """The elements that the body gives; where `guard` does not hold, what it loads is `other`."""
        values: dict[Value, Value] = {}
        body = node.compute.body
        operand_of = dict(zip(body.args, node.op.operands, strict=True))
        for op in body.ops:
            if op.name == "yield":
                return [values[v] for v in op.operands]
            if op.name == "load":
                values[op.result] = self._load(op, operand_of[op.operands[0]], mapping, guard, other)
            elif op.name == "bind":
                self._bind(op, values, mapping)
            elif op.name == "check" and guard:
                self._guarded_check(op, values, guard)
            else:
                copied = op.clone(values, lambda a: substitute(a, mapping))
                copied.loc = node.op.loc
                self.builder.block.append(copied)
        raise AssertionError("a body ends in yield")

    def _bind(self, op: Op, values: dict[Value, Value], mapping: dict[Sym, Sym]) -> None:
        """Every written copy of a data-dependent index gets a variable of its own."""
        old: Sym = op.attrs["var"]
        self.lowering._vars += 1
        fresh = var(f"{old.name}_{self.lowering._vars}", *old.bounds)
        mapping[old] = fresh
        self.builder.emit("bind", [values[op.operands[0]]], [], {"var": fresh})

    def _guarded_check(self, op: Op, values: dict[Value, Value], guard: tuple[Sym, ...]) -> None:
        block = Block()
        self.builder.emit("if", [], [], {"guard": guard}, [block])
        with self.builder.inside(block):
            self.builder.emit("check", [values[op.operands[0]]], [], op.attrs)

    def _load(
        self, op: Op, operand: Value, mapping: dict[Sym, Sym], outer: tuple[Sym, ...], spare: Any
    ) -> Value:
        idx = substitute(op.attrs["idx"], mapping)
        own = tuple(g for g in substitute(op.attrs.get("guard", ()), mapping) if g != 1)
        guard = tuple(dict.fromkeys((*outer, *own)))
        other = op.attrs["other"] if own else spare
        producer = self.lowering.nodes.get(operand)
        if operand in self.lowering.over_readers:
            idx = self.position
        if producer is None or not producer.inline:
            idx = self.lowering.in_buffer(operand, idx)
            element = self._load_buffer(self.lowering.buffers[operand], idx, guard, other)
            return self._narrowed(element, op.result.type)
        inside = other if is_view(producer.compute) else 0
        key = (operand, idx, guard, inside)
        if key not in self.written:
            axes = {v: i for (v, _), i in zip(producer.compute.axes, idx, strict=True)}
            self.written[key] = self._write(producer, axes, guard, inside)[0]
        element = self.written[key]
        return element if not own or _gives(element, guard, other) else self._select(own, element, other)

    def _load_buffer(self, source: Value, idx: tuple[Sym, ...], guard: tuple[Sym, ...], other: Any) -> Value:
        type = source.buffer
        attrs: dict[str, Any] = {"idx": idx}
        if guard:
            attrs |= {"guard": guard, "other": other}
        return self.builder.emit("load", [source], [ScalarType(type.dtype)], attrs).result

    def _narrowed(self, element: Value, wanted: Type) -> Value:
        """Sums are kept wider than their tensor's dtype: readers see the tensor's."""
        return element if element.type == wanted else self.builder.emit("cast", [element], [wanted]).result

    def _select(self, guard: tuple[Sym, ...], element: Value, other: Any) -> Value:
        type = element.scalar
        trace = ScalarBuilder(self.builder)
        holds = trace.index(logical_and(*guard)).ne(0)
        padding = trace.const(other, type.dtype)
        return self.builder.emit("select", [holds.value, element, padding.value], [type]).result


def _gives(element: Value, guard: tuple[Sym, ...], other: Any) -> bool:
    """Whether it is a load that gives `other` just where `guard` does not hold."""
    load = element.op
    return (
        load is not None
        and load.name == "load"
        and load.attrs.get("guard") == guard
        and load.attrs["other"] == other
    )


# Irregular operators


def _lower_irregular(region: Op, name: str, constants: Sequence[int]) -> Lowered:
    (body,) = region.blocks
    op = body.ops[0]
    operator = OPERATORS[op.name]
    assert operator.lower is not None
    ins = [_argument(v) for v in body.args]
    outs = [_argument(v) for v in op.results]
    block = Block(ins + outs, [f"x{k}" for k in range(len(ins))] + [f"y{k}" for k in range(len(outs))])
    outside = external_of(op) or ()
    info = KernelInfo(
        outputs=len(outs), origin=_origins(region), constants=tuple(constants), external=outside
    )
    func = new_kernel(name, block, (), info)
    builder = Builder(block, loc=op.loc)
    trace = ScalarBuilder(builder)
    by_value = dict(zip(body.args, block.args, strict=False))
    arrays = [trace.array(by_value[v]) for v in op.operands]
    operator.lower(trace, arrays, [trace.array(a) for a in block.args[len(ins) :]], **op.attrs)
    builder.emit("return")
    func.dims = free_dims(func)
    return Lowered(func, [])


# Helpers


def _argument(value: Value) -> BufferType:
    type = value.tensor
    return buffer(type.dtype, type.shape)


def _origins(region: Op) -> tuple[str, ...]:
    """Names of the source nodes, in order, each once. What has no operands is copied from any node that has it, and
    names its node where the region is nothing else."""
    ops = region.blocks[0].ops
    locs = (loc for o in [o for o in ops if o.operands] or ops for loc in o.loc.sources)
    return tuple(dict.fromkeys(loc.node or loc.op for loc in locs if loc.node or loc.op))


def free_dims(func: Func) -> tuple[Sym, ...]:
    """Variables of a kernel that no loop or `bind` defines, in order of first appearance."""
    bound = {op.attrs["var"] for op in func.body.walk() if op.name in ("for", "bind")}
    seen: dict[Sym, None] = {}

    def visit(attr: Any) -> None:
        if isinstance(attr, Sym):
            seen.update(dict.fromkeys(sorted(attr.vars - bound, key=str)))
        elif isinstance(attr, tuple):
            for a in attr:
                visit(a)

    for value in func.args:
        visit(value.buffer.shape)
        visit(value.buffer.strides)
    for op in func.body.walk():
        for attr in op.attrs.values():
            visit(attr)
        for value in op.results:
            if isinstance(value.type, BufferType):
                visit(value.type.shape)
    return tuple(seen)
