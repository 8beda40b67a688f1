"""Lowering: a fused region of the graph becomes one kernel of plain loops.

Every op of a region is a primitive, so its meaning is a `Compute`. Ops that are cheap and not reductions are written
into the bodies of their readers; each other op becomes a stage: a loop nest that fills a buffer. Nothing is decided
about speed here; the stages are handed to `schedule/`, which only reorders and annotates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product as product_of
from math import prod
from typing import Any

from tilewright.cost.recompute import may_be_repeated
from tilewright.ir.core import Block, Builder, Func, Op, Value, substitute
from tilewright.ir.scalar import COSTLY, converted_from
from tilewright.ir.sym import Sym, logical_and, sym, var
from tilewright.ir.types import BufferType, ScalarType, TensorType, Type, buffer, product
from tilewright.loops.kernel_info import KernelInfo, new_kernel
from tilewright.loops.nodes import RegionNode, at_positions, inline_for_one_element, is_view
from tilewright.loops.stages import Lowered, Stage
from tilewright.ops.define import OPERATORS, Axis, Compute, Replacement
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder


def lower_region(
    region: Op, name: str, constants: Sequence[int] = (), *, keeps_layout: bool = False
) -> Lowered:
    """The kernel of a `fused` op: arguments are its operands, then its results, as dense buffers. Operands number
    `constants` have known elements. With `keeps_layout` sums have their own layout, and not that of the views that
    read them.

    Precondition: the region passed the graph verifier.
    """
    (body,) = region.blocks
    is_irregular = len(body.ops) == 2 and OPERATORS[body.ops[0].name].kind == "irregular"
    if is_irregular:
        return _lower_irregular(region, name, constants)
    return _Lowering(region, name, constants).run(keeps_layout)


class _Lowering:
    """State of one lowering: which values have buffers, and the builder that writes the kernel."""

    def __init__(self, region: Op, name: str, constants: Sequence[int]) -> None:
        self.region = region
        (self.body,) = region.blocks
        self.constants = {self.body.args[k] for k in constants}
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
        self.nodes: dict[Value, RegionNode] = {}
        self.rewired: set[Value] = set()  # reductions that are computed over the axes of their reader
        self.tiled: dict[Value, tuple[int, ...]] = {}  # tile lengths of values whose buffers hold whole tiles
        self.ends_sums: dict[Op, bool] = {}
        self.after_sums: set[Op] = set()  # what is computed from reductions of this kernel, be it of other shapes
        self.stages: list[Stage] = []
        self.output_args = block.args[len(ins) :]
        self._vars = 0

    def run(self, keeps_layout: bool) -> Lowered:
        for op in self.body.ops[:-1]:
            node = self.nodes[op.result] = RegionNode(op, _compute_of(op), inline=False)
            producers = [self.nodes[v] for v in op.operands if v in self.nodes]
            if any(p.compute.combine or p.op in self.after_sums for p in producers):
                self.after_sums.add(op)
        for node in self.nodes.values():
            node.inline = self._may_inline(node)
        inline_for_one_element(self.nodes.values(), self._ends_a_sum)
        if not keeps_layout:
            self._absorb_views()
        for value, node in self.nodes.items():
            if not node.inline:
                self._stage(value, node)
        for copy, value in self._repeated_outputs():
            self._copy_stage(value, copy)
        self.builder.emit("return")
        self.func.dims = free_dims(self.func)
        return Lowered(self.func, self.stages)

    # What is written into its readers

    def _may_inline(self, node: RegionNode) -> bool:
        value = node.op.result
        if node.compute.combine or node.compute.tiles or value in self.yielded:
            return False
        if self._is_narrow_factor(node) or self._is_weight(node):
            return False
        if node.op in self.after_sums and not is_view(node.compute) and self._is_read_in_windows(value):
            return False
        readers = {id(u) for u in value.users}
        if len(readers) == 1 and len(value.users) == 1:
            return self._reads_once(value)
        if any(self.nodes[u.result].compute.combine for u in value.users) and self._ends_a_sum(node):
            return False
        ops = node.compute.body.ops
        shared = not self._ends_a_sum(node) and all(self._stores_alike(u, node) for u in value.users)
        return may_be_repeated(len(ops), any(o.name in COSTLY for o in ops), shared)

    def _stores_alike(self, reader: Op, node: RegionNode) -> bool:
        """Whether a reader is elementwise work on elements of the same shape, and leaves the region."""
        c, leaves = self.nodes[reader.result].compute, reader.result in self.yielded
        return leaves and c.shape == node.compute.shape and not (c.combine or c.tiles or is_view(c))

    def _is_narrow_factor(self, node: RegionNode) -> bool:
        """Whether it rounds an operand of a sum of products to fewer bits than the sum has, or fills it up with zeros:
        these are multiplied in groups, that lie together in memory."""
        value, ops = node.op.result, node.compute.body.ops
        bits = value.tensor.dtype.bits
        if (source := converted_from(ops[-1].operands[0])) is not None:
            wider = source.scalar.dtype.bits
        elif any(o.attrs.get("guard") for o in ops if o.name == "load"):
            wider = max((u.result.tensor.dtype.bits for u in value.users if u.name != "yield"), default=0)
        else:
            return False
        readers = (u for u in value.users if u.name != "yield" and len(u.operands) == 2)
        return bits < wider and any(bool(self.nodes[u.result].compute.combine) for u in readers)

    def _is_weight(self, node: RegionNode) -> bool:
        """Whether it computes an operand of a sum of products from constants: a stage, so that a schedule may say where
        that is done."""
        (reader,) = node.op.result.users if len(node.op.result.users) == 1 else (None,)
        while reader is not None and reader.name != "yield" and is_view(self.nodes[reader.result].compute):
            (reader,) = reader.result.users if len(reader.result.users) == 1 else (None,)
        if reader is None or reader.name == "yield" or is_view(node.compute) or not node.op.operands:
            return False
        multiplies = len(reader.operands) == 2 and bool(self.nodes[reader.result].compute.combine)
        return multiplies and self._is_known(node)

    def _is_known(self, node: RegionNode) -> bool:
        """Whether all of its elements follow from constants."""
        producers = (self.nodes.get(v) for v in node.op.operands if v not in self.constants)
        return all(p is not None and self._is_known(p) for p in producers)

    def _is_read_in_windows(self, value: Value) -> bool:
        """Whether a reduction reads its elements several times, be it through other index maps."""
        size = product(extent for _, extent in self.nodes[value].compute.axes)
        for reader in (self.nodes[u.result] for u in value.users if u.name != "yield"):
            if reader.compute.combine:
                iterations = product(e for _, e in (*reader.compute.axes, *reader.compute.reduce))
                if iterations != size:
                    return True
            elif is_view(reader.compute) and self._is_read_in_windows(reader.op.result):
                return True
        return False

    def _ends_a_sum(self, node: RegionNode) -> bool:
        """Whether it is elementwise work on a sum of its own shape, best done once while the sum is in registers."""
        found = self.ends_sums.get(node.op)  # paths through shared values are many
        if found is None:
            found = self.ends_sums[node.op] = self._follows_a_sum(node)
        return found

    def _follows_a_sum(self, node: RegionNode) -> bool:
        producers = (self.nodes.get(v) for v in node.op.operands)
        alike = [p for p in producers if p is not None and p.compute.shape == node.compute.shape]
        return any(bool(p.compute.combine) or (p.inline and self._ends_a_sum(p)) for p in alike)

    def _reads_once(self, value: Value) -> bool:
        """False when the only reader would compute a costly element many times (broadcast or reduction window)."""
        node = self.nodes[value]
        if not self._chain_is_costly(node):
            return True
        reader = self.nodes[value.users[0].result]
        extents = product(e for _, e in (*reader.compute.axes, *reader.compute.reduce))
        return extents == product(e for _, e in node.compute.axes)

    def _chain_is_costly(self, node: RegionNode) -> bool:
        """Whether it, or what is written into it, has a costly operation."""
        pending, seen = [node], {node.op}
        while pending:
            current = pending.pop()
            if any(o.name in COSTLY for o in current.compute.body.ops):
                return True
            inlined = [self.nodes[v] for v in current.op.operands if v in self.nodes and self.nodes[v].inline]
            pending += [n for n in inlined if n.op not in seen]
            seen.update(n.op for n in inlined)
        return False

    def _absorb_views(self) -> None:
        """A reduction takes over the axes of the stage that reads it through index maps, so the maps cost nothing. A
        product with rows that the kernel computes from sums keeps its own: these rows come in blocks."""
        for value, node in self.nodes.items():
            if not node.compute.combine or value in self.yielded or self._multiplies_sums(node):
                continue
            found = self._read_position(value, node)
            if found is None:
                continue
            reader, position = found
            mapped = at_positions(node.compute, reader, position)
            if mapped is not None:
                node.compute = mapped
                self.rewired.add(value)

    def _multiplies_sums(self, node: RegionNode) -> bool:
        return node.op in self.after_sums and len(node.op.operands) == 2

    def _read_position(self, value: Value, node: RegionNode) -> tuple[Compute, tuple[Sym, ...]] | None:
        """The stage that alone reads `value`, and the position it reads, in terms of that stage's axes."""
        position = tuple(v for v, _ in node.compute.axes)
        while True:
            if len(value.users) != 1 or value in self.yielded:
                return None
            reader = self.nodes[value.users[0].result]
            loads = reader.loads_of(value)
            if (
                reader.compute.combine
                or reader.compute.tiles
                or len(loads) != 1
                or loads[0].attrs.get("guard")
            ):
                return None
            at = dict(zip((v for v, _ in node.compute.axes), loads[0].attrs["idx"], strict=True))
            position = tuple(i.subs(at) for i in position)
            if not reader.inline:
                return reader.compute, position
            value, node = reader.op.result, reader

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
        if operand in self.lowering.rewired:
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
    info = KernelInfo(outputs=len(outs), origin=_origins(region), constants=tuple(constants))
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


def _compute_of(op: Op) -> Compute:
    types = [v.type for v in op.operands]
    assert all(isinstance(t, TensorType) for t in types)
    return OPERATORS[op.name].compute(types, op.attrs)  # type: ignore[arg-type]


def _argument(value: Value) -> BufferType:
    type = value.tensor
    return buffer(type.dtype, type.shape)


def _origins(region: Op) -> tuple[str, ...]:
    """Names of the source nodes, in order, each once."""
    locs = (loc for o in region.blocks[0].ops for loc in o.loc.sources)
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
