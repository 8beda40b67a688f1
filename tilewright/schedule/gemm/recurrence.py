"""Steps over time whose state is multiplied with constant weights: register tiles of the products, computed where
they are read.

    for e { for g { for j { for k { sums[e, g, j] += r[g, j, k] * h[e, k] } } } }
    for e { for j { new[e, j] = f(sums[e, 0, j], ..., sums[e, G, j]) } }

becomes a loop over tiles of units `j`. All sums of a tile (entries x gates x vectors of units) stay in registers while
`k` runs; the weights lie in the order in which they are read, those of all gates of a tile's units together.

Threads share the groups of batch entries or, where a step is long enough, the tiles of each step. Steps read weights
that no cache of a core holds forwards and backwards, in turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.cost.parallel import uneven
from tilewright.cost.recurrence import (
    StepProduct,
    StepTile,
    reads_in_turns,
    step_tile,
    why_entries_are_shared,
)
from tilewright.graph.fusion.strategy import Match
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.loops.analysis.deps import accumulation_of
from tilewright.loops.edit import (
    block_of,
    body_of,
    buffer_type,
    enclosing_loops,
    extent_of,
    is_loop,
    kind_of,
    loops_in,
)
from tilewright.loops.kernel_info import constants_of
from tilewright.loops.stages import Lowered
from tilewright.loops.storage.packing import Packing
from tilewright.schedule.gemm.dot_products import dot_for
from tilewright.schedule.gemm.register_tile import Nest, mark
from tilewright.schedule.maps.opaque import Opaque
from tilewright.schedule.steps.access import bytes_of, loads_in, perfect_nest
from tilewright.schedule.steps.vectorize import innermost_loops, vectorize_inner
from tilewright.schedule.strategy import FusedRegion, Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.dots import Dot
from tilewright.target.target import Target


@dataclass(frozen=True, eq=False)
class _Product:
    """The sums [entries, gates, units], the loops that add to them (over these axes and the terms) and those that
    read them (entries, units), and the weights [gates, units, terms], an argument."""

    sums: Value
    update: list[Op]
    readers: list[Op]
    weights: Value

    @property
    def shape(self) -> StepProduct:
        return StepProduct(*(extent_of(o).value for o in self.update))

    def dot(self, target: Target) -> Dot | None:
        """The instruction that adds groups of products, where the terms are whole groups."""
        own = (self.sums, self.weights)
        others = [o.operands[0] for o in loads_in(self.update[-1]) if o.operands[0] not in own]
        if len(others) != 1:
            return None
        state, weight, total = (buffer_type(v).dtype for v in (others[0], self.weights, self.sums))
        found = dot_for(state, weight, total, target)
        return None if found is None or extent_of(self.update[-1]) % found.group != 0 else found


class Recurrence(Strategy):
    """Another way to schedule operators with loops of their own: those of recurrent networks."""

    name = "recurrence"

    def match(self, region: FusedRegion) -> Match | NoMatch:
        is_opaque = isinstance(region.strategy, Opaque)
        return Match() if is_opaque else NoMatch("it is no operator with loops of its own")

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        schedule_recurrence(s, lowered, target)


def schedule_recurrence(s: Schedule, lowered: Lowered, target: Target) -> None:
    """Tile all products of states with constant weights. ScheduleError when the kernel has none."""
    products = list(_products(s))
    if not products:
        raise ScheduleError(
            "it has no product with constant weights whose sums are read by a nest over their units"
        )
    reason = _why_groups(s, products, target)
    tiles: list[Op] = []
    widths: dict[Value, int] = {}  # units of a tile: one number for all products that read the same weights
    packings: dict[Value, Packing] = {}
    for p in products:
        entries, gates, units = (extent_of(o).value for o in p.update[:3])
        dot = p.dot(target)
        tile = step_tile(entries, gates, units, target, dot)
        width = widths.setdefault(p.weights, tile.units)
        tiles.append(_tile(s, p, StepTile(tile.entries, width), dot))
        packings[p.weights] = _packing(width, dot)
    for weights, packing in packings.items():
        s.pack_argument(weights, packing)
    if not reason:
        _share_steps(s, tiles, target)
    else:
        s.missed.append(f"steps not shared by more threads: {reason}")
    s.simplify()
    _alternate(s, tiles, sum(bytes_of(weights) for weights in widths), target)
    for loop in innermost_loops(s):
        vectorize_inner(s, loop, target)
    s.simplify()


def _why_groups(s: Schedule, products: list[_Product], target: Target) -> str:
    """Why threads share groups of entries rather than the tiles of each step; empty when they share steps."""
    shared = [o for o in _outer_loops(s) if kind_of(o) == "parallel"]
    groups = tuple(extent_of(o).value for o in shared if extent_of(o).is_const)
    return why_entries_are_shared(tuple(p.shape for p in products), groups, target)


def _outer_loops(s: Schedule) -> list[Op]:
    """The loops that no other one is around, those of all versions."""
    return [o for o in loops_in(s.func.body) if not enclosing_loops(o)]


def _share_steps(s: Schedule, tiles: list[Op], target: Target) -> None:
    """Let threads share tiles of units, one step after the other."""
    for loop in _outer_loops(s):
        s.serial(loop)
    for loop in tiles:
        s.parallel(loop)
        reason = uneven(extent_of(loop).value, target, "tiles of units")
        if reason:
            s.missed.append(reason)


def _alternate(s: Schedule, tiles: list[Op], weights: int, target: Target) -> None:
    """Read the weights of a step in the order opposite to that of the step before, where that leaves some of them in
    L2."""
    if not reads_in_turns(weights, target):
        return
    for loop in tiles:
        steps = (
            [o for o in enclosing_loops(loop) if kind_of(o) == "serial"] if loop.parent is not None else []
        )
        with s.noting("weights read in one order"):
            if steps:
                s.boustrophedon(loop, steps[-1])


def _products(s: Schedule) -> Iterator[_Product]:
    """The products with constants: three nests of one block clear, add to and read the sums."""
    constants = constants_of(s.func)
    for op in [o for o in s.func.body.walk() if o.name == "alloc" and buffer_type(o.result).rank == 3]:
        users = set(op.result.users)
        nests = [o for o in block_of(op).ops if is_loop(o) and not users.isdisjoint(o.walk())]
        if len(nests) != 3:
            continue
        update, readers = perfect_nest(nests[1]), perfect_nest(nests[2])
        weights = _weights(update[-1], constants)
        if len(update) == 4 and len(readers) == 2 and weights is not None:
            yield _Product(op.result, update, readers, weights)


def _weights(loop: Op, constants: list[Value]) -> Value | None:
    """The only constant that an accumulating loop reads, when it has three axes."""
    ops = body_of(loop).ops
    if not any(op.name == "store" and accumulation_of(op) is not None for op in ops):
        return None
    read = [op.operands[0] for op in ops if op.name == "load" and op.operands[0] in constants]
    return read[0] if len(read) == 1 and buffer_type(read[0]).rank == 3 else None


def _packing(units: int, dot: Dot | None) -> Packing:
    """Weights [gates, units, terms] in the order in which tiles of units read them."""
    if dot is None:
        return Packing(((), (units,), ()), (1, 3, 0, 2))
    return Packing(((), (units,), (dot.group,)), (1, 3, 0, 2, 4))


def _tile(s: Schedule, p: _Product, tile: StepTile, dot: Dot | None) -> Op:
    """Compute the sums of a tile of units, of all entries, where they are read: whole tiles of entries and one of those
    that they leave. Gives the loop over tiles of units."""
    entry, unit = p.readers
    units = s.split(unit, tile.units)
    s.reorder(units.outer, entry, units.inner)
    fused = s.compute_at(p.sums, units.outer, space="scratch", guard="loads")
    entries = s.fuse(fused.nests[0], fused.nests[1])
    whole = s.split(entries, tile.entries, tail="peel")
    for loop in (whole.inner, whole.tail):
        if loop is not None:
            _in_registers(s, fused.buffer, loop, dot)
    s.vectorize(units.inner)
    return units.outer


def _in_registers(s: Schedule, sums: Value, entries: Op, dot: Dot | None) -> None:
    """Clear the sums of all `entries`, then add to them in registers, with the loop over terms around."""
    parts = s.fission(body_of(entries).ops[0], depth=1)
    clear, (entry, gate, unit, term) = (perfect_nest(part[0]) for part in parts)
    drain = s.cache(sums, clear[0], entry).drain
    group: list[Op] = []
    if dot is not None:
        terms = s.split(term, dot.group)
        term, group = terms.outer, [terms.inner]
    s.reorder(term, gate, entry, unit, *group)
    for nest in (Nest([], clear), Nest([], [gate, entry, unit], group), Nest([], drain)):
        mark(s, nest)
