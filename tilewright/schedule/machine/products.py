"""Products of matrices on a unit of the machine, with elementwise work on the result on a vector unit.

    for tile {                                     rows and columns of all batches
      panels of both operands come into the middle memory, while the last tile is worked on
      sums = 0
      for step { parts of the panels come to the unit, while it multiplies the last ones; sums += left * right }
      sums go out by a memory of a vector unit, while the next tile is worked on
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tilewright.cost.machine.product_tiles import ProductShape, ProductTile, best_tile
from tilewright.cost.machine.ways import MatrixUnit, way
from tilewright.graph.fusion.classify import OpClass, OpInfo
from tilewright.graph.fusion.strategy import Join, Match
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.scalar import converted_from
from tilewright.loops.analysis.deps import accumulation_of
from tilewright.loops.edit import body_of, buffer_type, extent_of, loop_var
from tilewright.loops.machine.overlap import Overlapped
from tilewright.loops.machine.vector_unit import why_not_in_lanes
from tilewright.loops.order.split import Split
from tilewright.loops.stages import Lowered, Stage
from tilewright.schedule.machine.facts import matrix_units
from tilewright.schedule.strategy import Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.machine import GLOBAL, Accelerator, Route


@dataclass(frozen=True)
class MachineProducts(Strategy):
    """One product of matrices with elementwise work on the result. With `double=False` nothing overlaps, for
    comparison."""

    name = "matrix_unit"
    kind = Accelerator.kind
    label = "product"
    double: bool = True

    def claims(self, op: Op, info: OpInfo) -> bool:
        return info.kind is OpClass.CONTRACTION and info.is_matrix_product

    def join(self, join: Join) -> Match | NoMatch | None:
        if not isinstance(join.producer.strategy, MachineProducts) or join.info.kind is not OpClass.ELEMENTWISE:
            return None
        if not join.info.is_pointwise:
            return NoMatch("it moves elements")
        if isinstance(join.consumer.strategy, MachineProducts):
            return NoMatch("it has a product already")
        return Match(join.consumer.domain) if join.is_only_reader() else NoMatch("the product is needed elsewhere too")

    def schedule(self, s: Schedule, lowered: Lowered, target: Any) -> None:
        product, *rest = lowered.stages
        if len(rest) > 1:
            raise ScheduleError("its result is computed in several steps")
        roles = _Roles.of(product, target)
        shape = _shape(roles, s.func.args[-1], rest)
        tile = best_tile(shape, roles.unit, target, double=self.double)
        if tile is None:
            raise ScheduleError(f"no tile of {shape} fits into the memories of machine '{target.name}'")
        _Nest(s, target, roles, tile).run(product, rest)


@dataclass(frozen=True, eq=False)
class _Roles:
    """The unit that does a product, its operands, and the axes of the sums: batches, rows and columns."""

    unit: MatrixUnit
    left: Value
    right: Value
    batch: tuple[int, ...]
    rows: int
    columns: int
    extents: tuple[int, ...]
    depth: int
    along: tuple[int, int]
    """The axes of the operands along which it sums."""

    @classmethod
    def of(cls, product: Stage, machine: Accelerator) -> _Roles:
        if product.kind != "reduce" or product.init is None or len(product.reduce) != 1:
            raise ScheduleError("it is no sum of products over one axis")
        if not all(extent_of(o).is_const for o in (*product.axes, *product.reduce)):
            raise ScheduleError("its sizes are not known")
        loads = _factors(product)
        dtypes = (*(buffer_type(o.operands[0]).dtype for o in loads), buffer_type(product.buffer).dtype)
        unit = next((u for u in matrix_units(machine) if u.dtypes == dtypes), None)
        if unit is None:
            told = "{} by {} into {}".format(*dtypes)
            raise ScheduleError(f"no unit of machine '{machine.name}' multiplies {told}")
        long = [k for k, o in enumerate(product.axes) if extent_of(o) != 1]
        moved = [{k for k in long if loop_var(product.axes[k]) in _vars(load)} for load in loads]
        last = len(product.axes) - 1
        if last in moved[0]:
            loads, moved = loads[::-1], moved[::-1]
        rows, columns = (sorted(a - b) for a, b in (moved, moved[::-1]))
        rows = rows or [k for k in range(last) if k not in long][-1:]
        columns = columns or [k for k in (last,) if k not in long]
        if not rows or last not in columns or loads[0].operands[0] is loads[1].operands[0]:
            raise ScheduleError("it is not the rows of one operand with the columns of another")
        others = tuple(k for k in range(len(product.axes)) if k not in (rows[-1], last))
        extents = tuple(extent_of(o).value for o in product.axes)
        left, right = (o.operands[0] for o in loads)
        depth = loop_var(product.reduce[0])
        along = [[k for k, i in enumerate(o.attrs["idx"]) if depth in i.vars] for o in loads]
        if [len(axes) for axes in along] != [1, 1]:
            raise ScheduleError("it sums along no axis of both operands")
        (first,), (second,) = along
        return cls(
            unit, left, right, others, rows[-1], last, extents, extent_of(product.reduce[0]).value, (first, second)
        )


def _factors(product: Stage) -> list[Op]:
    """The loads of the two factors of a sum's only product."""
    stores = [op for op in product.reduce[-1].walk() if op.name == "store"]
    found = accumulation_of(stores[0]) if len(stores) == 1 else None
    products = [] if found is None else list(found.products())
    if len(products) != 1:
        raise ScheduleError("it does not add up single products")
    loads = []
    for value in products[0].operands:
        source = converted_from(value)
        op = (value if source is None else source).op
        if op is None or op.name != "load" or op.attrs.get("guard"):
            raise ScheduleError("a factor is computed, or under a condition")
        loads.append(op)
    return loads


def _vars(load: Op) -> frozenset[Any]:
    return frozenset[Any]().union(*(i.vars for i in load.attrs["idx"]))


def _shape(roles: _Roles, result: Value, rest: Sequence[Stage]) -> ProductShape:
    e = roles.extents
    beside = 4 * max(0, len(_read(rest[0].axes[0])) - 1) if rest else 0
    batch = prod(e[k] for k in roles.batch)
    return ProductShape(batch, e[roles.rows], e[roles.columns], roles.depth, buffer_type(result).dtype.bytes, beside)


def _read(nest: Op) -> list[Value]:
    return list(dict.fromkeys(op.operands[0] for op in nest.walk() if op.name == "load"))


@dataclass(eq=False)
class _Nest:
    """The schedule of one product."""

    s: Schedule
    machine: Accelerator
    roles: _Roles
    tile: ProductTile

    def run(self, product: Stage, rest: Sequence[Stage]) -> None:
        s, roles, tile = self.s, self.roles, self.tile
        if rest:
            axes, sums = rest[0].axes, product.buffer
        else:
            made = s.cache_write(product.buffer, space=roles.unit.memories[2])
            axes, sums = made.drain, made.buffer
        if len(axes) != len(roles.extents) or [extent_of(o).value for o in axes] != [*roles.extents]:
            raise ScheduleError("its result has another shape than its sums")
        rows = self.split(axes[roles.rows], tile.rows)
        columns = self.split(axes[roles.columns], tile.columns)
        outer = [*(axes[k] for k in roles.batch), rows.outer, columns.outer]
        s.reorder(*outer, rows.inner, columns.inner)
        while len(outer) > 1:
            inner = outer.pop()
            outer[-1] = s.collapse(outer[-1], inner)
        (tiles,) = outer
        fused = s.compute_at(sums, tiles, space=roles.unit.memories[2])
        self.multiply(fused.nests[0])
        drain = self.finish(rows.inner, fused.buffer, bool(rest))
        if tile.double and tile.panel == roles.depth and extent_of(tiles).value > 1:
            with s.noting("tiles follow each other"):
                self.begin_early(s.overlap(tiles, drain))

    def begin_early(self, overlapped: Overlapped) -> None:
        """Let the first tile begin when the first step of its panels has come; the others come in parts, each twice as
        long as the one before."""
        s, step = self.s, self.tile.step
        *copies, waiting = overlapped.first
        steps = [o for op in overlapped.work for o in _loops(op) if any(r.name == "run" for r in body_of(o).ops)]
        if len(copies) != 2 or not steps or extent_of(steps[-1]).value != self.tile.panel // step - 1:
            return
        waits = [waiting, waiting]
        rest, begun, at = steps[-1], 0, 1
        while at < self.tile.panel // step:
            copies = [s.split_run(run, _loops(run)[axis], (at - begun) * step)
                      for run, axis in zip(copies, self.roles.along, strict=True)]  # fmt: skip
            if at > 1:  # an iteration copies what the next one multiplies
                _, rest = s.split_range(rest, at - max(1, begun))
            waits = [s.wait_later(waiting, run, _reader(rest, run)) for waiting, run in zip(waits, copies, strict=True)]
            begun, at = at, 2 * at + 1

    def multiply(self, nest: Op) -> None:
        """The sums of a tile: set to zero, and all products added, step by step."""
        s, unit, tile = self.s, self.roles.unit, self.tile
        loops = _loops(nest)
        columns = loops[len(self.roles.extents) - 1]
        store = next(op for op in body_of(columns).ops if op.name == "store")
        parts = s.fission(store, len(self.roles.extents))
        s.tensorize(parts.before[-2], unit.clear)
        sums = parts.after
        panel = s.split(_loops(sums[-1])[1], tile.panel)
        step = s.split(panel.inner, tile.step)
        s.reorder(panel.outer, step.outer, sums[-2], step.inner, sums[-1])
        panels = panel.outer
        for batch in reversed(sums[:-2]):  # of one element each: panels come in the tile's own body
            panels = s.collapse(batch, panels)
        around = panels if tile.panel == self.roles.depth else step.outer
        unit_at = panels if tile.step == self.roles.depth else sums[-2]
        copies = []
        for operand, memory in zip((self.roles.left, self.roles.right), unit.memories, strict=False):
            buffer = operand
            path = self.way(GLOBAL.name, memory)
            for route in path:
                cached = s.cache(buffer, unit_at if route is path[-1] else around, space=route.target)
                run = s.async_copy(cached.fill[0], route)
                if route is not path[-1]:
                    s.wait(run, around)
                else:
                    copies.append(run)
                buffer = cached.buffer
        multiply = s.tensorize(sums[-2], unit.multiply)
        for run in copies:
            s.wait(run, multiply)
        s.wait(multiply, multiply, "after")
        if tile.double:
            if extent_of(step.outer).value > 1:
                s.pipeline(step.outer)
            if extent_of(panels).value > 1 and len(path) > 1:
                s.pipeline(panels)

    def finish(self, nest: Op, sums: Value, computes: bool) -> Op:
        """The way out of a tile's sums, and work on them where there is some; returns the first run."""
        s, machine = self.s, self.machine
        path = self.way(self.roles.unit.memories[2], GLOBAL.name)
        if len(path) != 2:
            raise ScheduleError(f"there is no memory between '{self.roles.unit.memories[2]}' and '{GLOBAL.name}'")
        between = path[0].target
        cached = s.cache(sums, nest, space=between)
        first = s.async_copy(cached.fill[0], path[0])
        if not computes:
            out = s.async_copy(nest, path[1])
            s.wait(first, out)
            s.wait(out, out, "after")
            return first
        ready = [first]
        for value in _read(nest):
            if value.op is None:
                (route,) = self.way(GLOBAL.name, between)[:1]
                ready.append(s.async_copy(s.cache(value, nest, space=between).fill[0], route))
        result = s.cache(s.func.args[-1], nest, space=between)
        out = s.async_copy(result.drain[0], path[1])
        unit = next((u for u in machine.units if between in u.memories), None)
        reason = "there is none" if unit is None else why_not_in_lanes(unit, [nest])
        if unit is None or reason is not None:
            s.missed.append(f"the vector unit does not do what follows the product: {reason}")
            for run in ready:
                s.wait(run, nest)
        else:
            work = s.tensorize(nest, unit)
            for run in ready:
                s.wait(run, work)
            s.wait(work, out)
        s.wait(out, out, "after")
        return first

    def split(self, loop: Op, length: int) -> Split:
        """Cut a loop into tiles. Where these do not fill it, the last one begins earlier, and computes some elements
        again."""
        return self.s.split(loop, length, tail="overlap" if extent_of(loop).value % length else "guard")

    def way(self, source: str, target: str) -> tuple[Route, ...]:
        path = way(self.machine, source, target)
        if not path:
            raise ScheduleError(f"machine '{self.machine.name}' has no way from memory '{source}' to memory '{target}'")
        return path


def _reader(loop: Op, run: Op) -> Op:
    """The copy in a loop's body that reads what another one brings."""
    for op in body_of(loop).ops:
        if op.name == "run" and any(o.name == "load" and o.operands[0] is _target(run) for o in op.walk()):
            return op
    raise ScheduleError("its panels are read by no copy")


def _target(run: Op) -> Value:
    return next(o.operands[-1] for o in run.walk() if o.name == "store")


def _loops(nest: Op) -> list[Op]:
    return [op for op in nest.walk() if op.name == "for"]
