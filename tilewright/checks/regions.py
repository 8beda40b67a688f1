"""A fused graph: its regions, which become kernels, with what they move and how long they take about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.cost.core import Source, source_of
from tilewright.cost.roofline import kernel_cycles
from tilewright.ir.core import Module, Op
from tilewright.ir.diag import UNKNOWN, Loc
from tilewright.ir.sym import Sym
from tilewright.program.memory.order import reorder
from tilewright.program.memory.storage import assign_storage
from tilewright.schedule.work.operators import OperatorCounts, bytes_of, total
from tilewright.schedule.work.regions import CountedRegion, Evaluate
from tilewright.target.target import Target


@dataclass(frozen=True)
class RegionCost:
    """A kernel to be: the operator that is the heaviest part of it, the bytes that it reads and writes, its cycles on
    all threads (None where a dim is not known), and the node that names it."""

    operator: str
    moved: Sym
    cycles: float | None
    place: Loc = UNKNOWN


@dataclass(frozen=True)
class FusedGraph:
    """The regions of one graph, and bytes: its weights, and the arena of its intermediate results."""

    regions: tuple[RegionCost, ...]
    weights: Sym
    arena: Sym


def fused_graph(
    module: Module, counts: OperatorCounts, target: Target | None, threads: int, evaluate: Evaluate
) -> FusedGraph:
    """What is found of a graph that fusion has cut into regions; without a `target` no times."""
    main = module.main
    regions = region_costs(module, counts, target, threads, evaluate)
    reorder(main)
    return FusedGraph(regions, _weights(module), assign_storage(main, {}).arena.total)


def region_costs(
    module: Module, counts: OperatorCounts, target: Target | None, threads: int, evaluate: Evaluate
) -> tuple[RegionCost, ...]:
    """Of each region of a fused graph, in order; without a `target` no times."""
    weights_from: Source = "memory" if target is None else source_of(evaluate(_weights(module)) or 0, target)

    def region(op: Op) -> RegionCost:
        found = CountedRegion(op, counts)
        work = None if target is None else found.work(target, weights_from, evaluate)
        cycles = None if work is None or target is None else kernel_cycles(work, target, threads)
        return RegionCost(found.operator(evaluate), found.moved, cycles, op.loc.sources[0])

    return tuple(region(op) for op in module.main.body.ops if op.name == "fused")


def _weights(module: Module) -> Sym:
    constants = (op for op in module.main.body.ops if op.name == "constant" and op.result.users)
    return total(bytes_of(op.result) for op in constants)


def sum_of_cycles(regions: Iterable[RegionCost]) -> float | None:
    """Of all of them; None where one is not known."""
    cycles = [r.cycles for r in regions]
    return None if any(c is None for c in cycles) else sum(c for c in cycles if c is not None)

