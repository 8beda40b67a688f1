"""A fused graph: its regions, which become kernels, with what they move and how long they take about."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tilewright.checks.work import OperatorCounts, bytes_of, total
from tilewright.cost.core import Source, source_of
from tilewright.cost.roofline import KernelWork, kernel_cycles
from tilewright.ir.core import Module, Op, Value
from tilewright.ir.sym import Sym, minimum
from tilewright.ir.types import TensorType
from tilewright.program.memory.storage import assign_storage
from tilewright.target.target import Target

Evaluate = Callable[[Sym], int | None]
"""The value of a formula for the dims of a check; None where one is not known."""


@dataclass(frozen=True)
class RegionCost:
    """A kernel to be: the operator that is the heaviest part of it, the bytes that it reads and writes, and its cycles
    on all threads (None where a dim is not known)."""

    operator: str
    moved: Sym
    cycles: float | None


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
    weights = total(bytes_of(op.result) for op in main.body.ops if op.name == "constant" and op.result.users)
    weights_from: Source = "memory" if target is None else source_of(evaluate(weights) or 0, target)

    def region(op: Op) -> RegionCost:
        found = _Counted(op, counts)
        work = None if target is None else found.work(target, weights_from, evaluate)
        cycles = None if work is None or target is None else kernel_cycles(work, target, threads)
        return RegionCost(found.operator(evaluate), found.moved, cycles)

    regions = tuple(region(op) for op in main.body.ops if op.name == "fused")
    return FusedGraph(regions, weights, assign_storage(main, {}).arena.total)


class _Counted:
    """One region, its operators counted."""

    def __init__(self, op: Op, counts: OperatorCounts) -> None:
        self.op = op
        (body,) = op.blocks
        self.works = [(inner, counts.of(inner)) for inner in body.ops[:-1]]
        read: dict[Value, list[Sym]] = {}
        for inner, work in self.works:
            for value, size in zip(inner.operands, work.read, strict=True):
                read.setdefault(value, []).append(size)
        self.read = [
            minimum(total(read.get(arg, ())), bytes_of(arg)) if read.get(arg) != [bytes_of(arg)] else bytes_of(arg)
            for arg in body.args
        ]

    @property
    def moved(self) -> Sym:
        return total((*self.read, *map(bytes_of, self.op.results)))

    def operator(self, evaluate: Evaluate) -> str:
        """The operator of the model with the most work in it."""
        known = [(evaluate(total((*w.products.values(), w.operations))) or 0, o) for o, w in self.works]
        return source_operator(max(known, key=lambda entry: entry[0])[1])

    def work(self, target: Target, weights_from: Source, evaluate: Evaluate) -> KernelWork | None:
        """Numbers for the cost model; None where a dim is not known."""
        products: dict[int, float] = {}
        operations = 0
        for _, counted in self.works:
            for element, count in counted.products.items():
                products[element] = products.get(element, 0) + (evaluate(count) or 0)
            operations += evaluate(counted.operations) or 0
        moved: list[tuple[float, Source]] = []
        tensors = (*self.op.operands, *self.op.results)
        for value, size in zip(tensors, (*self.read, *map(bytes_of, self.op.results)), strict=True):
            known, whole = evaluate(size), evaluate(bytes_of(value))
            if known is None or whole is None:
                return None
            is_weight = value.op is not None and value.op.name == "constant"
            moved.append((known, weights_from if is_weight else source_of(whole, target)))
        known_products = {element: n for element, n in products.items() if n}
        return KernelWork(known_products, operations, _element(self.op.results), tuple(moved))


def source_operator(op: Op) -> str:
    """The name of the model's operator that an op comes from."""
    return op.loc.op or op.name


def _element(results: Iterable[Value]) -> int:
    """Bytes of the largest element among the results."""
    return max((v.type.dtype.bytes for v in results if isinstance(v.type, TensorType)), default=1)


def sum_of_cycles(regions: Iterable[RegionCost]) -> float | None:
    """Of all of them; None where one is not known."""
    cycles = [r.cycles for r in regions]
    return None if any(c is None for c in cycles) else sum(c for c in cycles if c is not None)

