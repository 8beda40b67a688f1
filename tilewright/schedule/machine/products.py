"""Products of matrices on a unit of the machine, with elementwise work on the result on a vector unit; where no unit
multiplies matrices of these dtypes, the vector unit does, row by row.

    for tile {                                     rows and columns of all batches
      panels of both operands come into the middle memory, while the last tile is worked on
      sums = 0
      for step { parts of the panels come to the unit, while it multiplies the last ones; sums += left * right }
      sums go out by a memory of a vector unit, while the next tile is worked on
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tilewright.cost.machine.product_tiles import ProductShape, ProductTile, best_tile
from tilewright.cost.machine.ways import ROLES, MatrixUnit, lane_unit, way
from tilewright.graph.fusion.classify import OpClass, OpInfo
from tilewright.graph.fusion.strategy import Join, Match
from tilewright.ir.core import Func, Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.scalar import converted_from
from tilewright.loops.analysis.deps import accumulation_of
from tilewright.loops.edit import body_of, buffer_type, extent_of, loop_var
from tilewright.loops.kernel_info import constants_of
from tilewright.loops.machine.overlap import Overlapped
from tilewright.loops.machine.vector_unit import why_not_in_lanes
from tilewright.loops.order.split import Split
from tilewright.loops.stages import Lowered, Stage
from tilewright.loops.storage.packing import Packing
from tilewright.schedule.machine.cores import run_on_instances, shared
from tilewright.schedule.machine.facts import matrix_units
from tilewright.schedule.strategy import Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.machine import COPY, GLOBAL, Accelerator, Route


@dataclass(frozen=True)
class MachineProducts(Strategy):
    """One product of matrices with elementwise work on the result, where a vector unit meets the sums on their way
    (`fuses`). With `double=False` nothing overlaps, for comparison."""

    name = "matrix_unit"
    kind = Accelerator.kind
    label = "product"
    double: bool = True
    fuses: bool = True

    def claims(self, op: Op, info: OpInfo) -> bool:
        return info.kind is OpClass.CONTRACTION and info.is_matrix_product

    def join(self, join: Join) -> Match | NoMatch | None:
        if not isinstance(join.producer.strategy, MachineProducts) or join.info.kind is not OpClass.ELEMENTWISE:
            return None
        if not join.info.is_pointwise:
            return NoMatch("it moves elements")
        if join.producer.domain != join.consumer.domain:
            return NoMatch("it has another shape")
        if not self.fuses:
            return NoMatch("no vector unit works where the sums are")
        if isinstance(join.consumer.strategy, MachineProducts):
            return NoMatch("it has a product already")
        return Match(join.consumer.domain) if join.is_only_reader() else NoMatch("the product is needed elsewhere too")

    def schedule(self, s: Schedule, lowered: Lowered, target: Any) -> None:
        product, *rest = lowered.stages
        if len(rest) > 1:
            raise ScheduleError("its result is computed in several steps")
        roles = _Roles.of(product, target)
        shapes = [_shape(roles, unit, s.func, rest) for unit in roles.units]
        found = [
            (unit, best_tile(shape, unit, target, double=self.double))
            for unit, shape in zip(roles.units, shapes, strict=True)
        ]
        unit, tile = min(found, key=lambda each: each[1].cycles if each[1] is not None else float("inf"))
        if tile is None:
            raise ScheduleError(f"no tile of {shapes[0]} fits into the memories and runs of machine '{target.name}'")
        _Nest(s, target, roles.packed(s, unit), unit, tile).run(product, rest)


@dataclass(frozen=True, eq=False)
class _Roles:
    """The units that do a product, its operands, and the axes of the sums: batches, rows and columns."""

    units: tuple[MatrixUnit, ...]
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
        a, b = (buffer_type(o.operands[0]).dtype for o in loads)
        dtypes = a, b, buffer_type(product.buffer).dtype
        lanes = (lane_unit(unit, dtypes) for unit in machine.units)
        units = tuple(u for u in (*matrix_units(machine), *lanes) if u is not None and u.dtypes == dtypes)
        if not units:
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
            units, left, right, others, rows[-1], last, extents, extent_of(product.reduce[0]).value, (first, second)
        )


    def fast(self, operand: int) -> str:
        """The loop of the product along which elements of an operand follow each other, as a letter of `ROLES`."""
        value = (self.left, self.right)[operand]
        return "k" if self.along[operand] == buffer_type(value).rank - 1 else "mn"[operand]

    def is_packed(self, operand: int, unit: MatrixUnit, func: Func) -> bool:
        """Whether a constant operand is laid out anew for a unit that asks for another order."""
        is_known = (self.left, self.right)[operand] in constants_of(func)
        return is_known and unit.fast[operand] not in ("", self.fast(operand))

    def packed(self, s: Schedule, unit: MatrixUnit) -> _Roles:
        """The same with constant operands in the order that a unit asks for."""
        along = list(self.along)
        for k, operand in enumerate((self.left, self.right)):
            if self.is_packed(k, unit, s.func):
                rank = buffer_type(operand).rank
                last = along[k] if unit.fast[k] == "k" else max(a for a in range(rank) if a != along[k])
                order = (*(a for a in range(rank) if a != last), last)
                s.pack_argument(operand, Packing(((),) * rank, order))
                along[k] = order.index(along[k])
        return replace(self, along=(along[0], along[1]))


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


def _shape(roles: _Roles, unit: MatrixUnit, func: Func, rest: Sequence[Stage]) -> ProductShape:
    e = roles.extents
    beside = 4 * max(0, len(_read(rest[0].axes[0])) - 1) if rest else 0
    batch = prod(e[k] for k in roles.batch)
    first, second = (unit.fast[k] if roles.is_packed(k, unit, func) else roles.fast(k) for k in (0, 1))
    bytes = buffer_type(func.args[-1]).dtype.bytes
    return ProductShape(batch, e[roles.rows], e[roles.columns], roles.depth, bytes, beside, (first, second))


def _read(nest: Op) -> list[Value]:
    return list(dict.fromkeys(op.operands[0] for op in nest.walk() if op.name == "load"))


@dataclass(eq=False)
class _Nest:
    """The schedule of one product."""

    s: Schedule
    machine: Accelerator
    roles: _Roles
    unit: MatrixUnit
    tile: ProductTile

    def run(self, product: Stage, rest: Sequence[Stage]) -> None:
        s, roles, tile = self.s, self.roles, self.tile
        if rest:
            axes, sums = rest[0].axes, product.buffer
        else:
            made = s.cache_write(product.buffer, space=self.unit.memories[2])
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
        cores = None
        if not (roles.extents[roles.rows] % tile.rows or roles.extents[roles.columns] % tile.columns):
            cores, tiles = shared(s, tiles, self.machine, self.unit.memories[2])
        fused = s.compute_at(sums, tiles, space=self.unit.memories[2])
        self.multiply(fused.nests[0])
        drain = self.finish(rows.inner, fused.buffer, bool(rest))
        if drain is not None and tile.double and tile.panel == roles.depth and extent_of(tiles).value > 1:
            with s.noting("tiles follow each other"):
                self.begin_early(s.overlap(tiles, drain))
        run_on_instances(s, cores, self.machine, self.unit.memories[2])

    def begin_early(self, overlapped: Overlapped) -> None:
        """Let the first tile begin when the first step of its panels has come; the others come in parts, each twice as
        long as the one before."""
        s, step = self.s, self.tile.step
        *copies, waiting = overlapped.first
        steps = [o for op in overlapped.work for o in _loops(op) if any(map(_is_copy, body_of(o).ops))]
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
        s, unit, tile = self.s, self.unit, self.tile
        loops = _loops(nest)
        columns = loops[len(self.roles.extents) - 1]
        store = next(op for op in body_of(columns).ops if op.name == "store")
        parts = s.fission(store, len(self.roles.extents))
        self.clear(parts.before[-2], parts.before[-1], nest)
        sums = parts.after
        panel = s.split(_loops(sums[-1])[1], tile.panel)
        step = s.split(panel.inner, tile.step)
        runs, inner = self.runs({"m": sums[-2], "n": sums[-1], "k": step.inner})
        s.reorder(panel.outer, step.outer, *runs, *inner)
        panels = panel.outer
        for batch in reversed(sums[:-2]):  # of one element each: panels come in the tile's own body
            panels = s.collapse(batch, panels)
        around = panels if tile.panel == self.roles.depth else step.outer
        first = (*runs, *inner)[0]
        unit_at = panels if tile.step == self.roles.depth else first
        copies = []
        for k, (operand, memory) in enumerate(zip((self.roles.left, self.roles.right), unit.memories, strict=False)):
            buffer = operand
            path = self.way(GLOBAL.name, memory)
            for route in path:
                cached = s.cache(buffer, unit_at if route is path[-1] else around, space=route.target)
                if route is path[-1]:
                    self.lay_out(cached.buffer, inner, unit.fast[k])
                run = s.async_copy(cached.fill[0], route)
                if route is not path[-1]:
                    s.wait(run, around)
                else:
                    copies.append(run)
                buffer = cached.buffer
        self.begin(inner[0], runs, copies)
        if tile.double:
            if extent_of(step.outer).value > 1:
                s.pipeline(step.outer)
            if extent_of(panels).value > 1 and len(path) > 1:
                s.pipeline(panels)

    def clear(self, rows: Op, columns: Op, nest: Op) -> None:
        """Sums set to zero: by an intrinsic, by a vector unit, or by the thread itself."""
        s, unit, memory = self.s, self.unit, self.unit.memories[2]
        sizes = unit.clearing(extent_of(rows).value, extent_of(columns).value)
        if sizes is not None and unit.clear is not None:
            outer, inner = _cut(s, (rows, columns), sizes)
            if outer:
                s.reorder(*outer, *inner)
            s.tensorize(inner[0], unit.clear)
            return
        vector = next((u for u in self.machine.units if memory in u.memories), None)
        reason = "no vector unit works there" if vector is None else why_not_in_lanes(vector, [rows])
        if vector is None or reason is not None:
            s.missed.append(f"sums in memory '{memory}' are set to zero by the thread: {reason}")
            return
        run = s.tensorize(rows, vector)
        s.wait(run, run, "after")

    def runs(self, loops: dict[str, Op]) -> tuple[list[Op], list[Op]]:
        """The loops of a step: those around each run of the unit, where it takes several, and those that it does."""
        found = self.unit.run(*(extent_of(loops[role]).value for role in ROLES))
        assert found is not None, "the tile has runs"
        taken = dict(zip(ROLES, found, strict=True))
        around, inside = [loops[role] for role in ROLES if role not in self.unit.order], []
        for role in self.unit.order:
            outer, inner = _cut(self.s, (loops[role],), (taken[role],))
            around += outer
            inside += inner
        return around, inside

    def lay_out(self, buffer: Value, inner: Sequence[Op], fast: str) -> None:
        """Let elements follow each other along the loop that the unit asks for."""
        if not fast:
            return
        v = loop_var(inner[self.unit.order.index(fast)])
        loads = [op for o in inner[-1:] for op in o.walk() if op.name == "load" and op.operands[0] is buffer]
        axes = [k for op in loads for k, i in enumerate(op.attrs["idx"]) if v in i.vars]
        if axes and axes[0] != buffer_type(buffer).rank - 1:
            self.s.swap_axes(buffer, axes[0], buffer_type(buffer).rank - 1)

    def begin(self, nest: Op, around: Sequence[Op], copies: Sequence[Op]) -> None:
        """Let the unit multiply once its operands are there; the thread waits for the last run of a step."""
        s = self.s
        multiply = s.tensorize(nest, self.unit.multiply)
        for run in copies:
            s.wait(run, multiply)
        if around:
            loops = [*around]
            while len(loops) > 1:
                inner = loops.pop()
                loops[-1] = s.collapse(loops[-1], inner)
            (every,) = loops
            if extent_of(every).value > 1:
                _, last = s.split_range(every, extent_of(every).value - 1)
                multiply = next(op for op in last.walk() if op.name == "run")
        s.wait(multiply, multiply, "after")

    def finish(self, nest: Op, sums: Value, computes: bool) -> Op | None:
        """The way out of a tile's sums, and work on them where there is some; the first run, from which on it may go on
        beside the next tile."""
        s, machine, memory = self.s, self.machine, self.unit.memories[2]
        path = self.way(memory, GLOBAL.name)
        if len(path) > 2:
            raise ScheduleError(f"there are several memories between '{memory}' and '{GLOBAL.name}'")
        between = path[0].target if len(path) == 2 else memory
        ready = []
        if len(path) == 2:
            ready.append(s.async_copy(s.cache(sums, nest, space=between).fill[0], path[0]))
        if not computes:
            out = s.async_copy(nest, path[-1])
            for run in ready:
                s.wait(run, out)
            s.wait(out, out, "after")
            return ready[0] if ready else out
        for value in _read(nest):
            if value.op is None:
                (route,) = self.way(GLOBAL.name, between)[:1]
                ready.append(s.async_copy(s.cache(value, nest, space=between).fill[0], route))
        result = s.cache(s.func.args[-1], nest, space=between)
        out = s.async_copy(result.drain[0], path[-1])
        unit = next((u for u in machine.units if between in u.memories), None)
        reason = "there is none" if unit is None else why_not_in_lanes(unit, [nest])
        if unit is None or reason is not None:
            s.missed.append(f"the vector unit does not do what follows the product: {reason}")
            for run in ready:
                s.wait(run, nest)
            first = ready[0] if len(path) == 2 else None
        else:
            work = s.tensorize(nest, unit)
            for run in ready:
                s.wait(run, work)
            s.wait(work, out)
            first = ready[0] if len(path) == 2 else work
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


def _is_copy(op: Op) -> bool:
    return op.name == "run" and op.attrs["intrinsic"] == COPY


def _cut(s: Schedule, loops: Sequence[Op], sizes: Sequence[int]) -> tuple[list[Op], list[Op]]:
    """Loops cut into pieces of these sizes: the loops over pieces, but for those of one, and the loops in them."""
    outer, inner = [], []
    for loop, size in zip(loops, sizes, strict=True):
        if extent_of(loop).value == size:
            inner.append(loop)
            continue
        parts = s.split(loop, size)
        outer.append(parts.outer)
        inner.append(parts.inner)
    return outer, inner


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
