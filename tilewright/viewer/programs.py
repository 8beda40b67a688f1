"""The kernels of one program, for a page: calls with what they read and cost, and where their results lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.checks.regions import region_costs
from tilewright.compilation import Compilation
from tilewright.ir.core import Func, Module, Op, Value, substitute
from tilewright.ir.diag import Loc
from tilewright.loops.counts import Cost, cost
from tilewright.program.memory.picture import alive_bytes, at_sizes, drawn_tensors
from tilewright.program.memory.places import UNSHARED, arena_of
from tilewright.runtime.errors import InputError
from tilewright.schedule.work.operators import OperatorCounts
from tilewright.schedule.work.regions import Evaluate
from tilewright.viewer.hierarchy import group_of_kernel
from tilewright.viewer.nodes import SourceNodes
from tilewright.viewer.records import CallView, GroupView, MemoryView, TensorView


@dataclass(frozen=True)
class ViewedRegion:
    """What is known of a region before it becomes calls of kernels: where its ops came from, which strategy took it,
    and its estimated cycles."""

    places: tuple[Loc, ...]
    strategy: str
    cycles: float | None


@dataclass(frozen=True)
class SourceGraph:
    """The model that programs are made of: its nodes, and their groups."""

    nodes: SourceNodes
    groups: Sequence[GroupView]
    placed: Sequence[int]


class ViewedProgram:
    """One program of a compilation, or one of its parts, on its way from the fused graph to the plan of memory."""

    def __init__(self, piece: Compilation, graph: SourceGraph, threads: int, evaluate: Evaluate) -> None:
        self.piece, self.graph, self.evaluate = piece, graph, evaluate
        piece.run("fused")
        fused = [op for op in piece.module.main.body.ops if op.name == "fused"]
        costs = region_costs(piece.module, OperatorCounts(), piece.setting.target, threads, evaluate)
        self.regions = [
            ViewedRegion(_places(op), str(op.attrs.get("strategy", "")), found.cycles)
            for op, found in zip(fused, costs, strict=True)
        ]

    def run(self) -> None:
        """Up to the plan of memory. Which calls are of which regions is known before they get another order."""
        self.piece.run("scheduled")
        calls = [op for op in self.main.body.ops if op.name == "call"]
        owners = [k for k, n in enumerate(self.piece.calls_of_regions) for _ in range(n)]
        self.region_of = dict(zip(calls, owners, strict=True))
        self.piece.run("planned")

    @property
    def module(self) -> Module:
        return self.piece.module

    @property
    def main(self) -> Func:
        return self.module.main

    def strategies(self) -> dict[str, str]:
        """Of each kernel the strategy that took its region."""
        return {op.attrs["kernel"]: self.regions[at].strategy for op, at in self.region_of.items()}

    def calls(self, first: int, codes: Mapping[str, int], *, whole: bool) -> list[CallView]:
        """The calls, of which the first has this number; `codes` are the numbers of kernels. In a program that is
        `whole` the main function's inputs and outputs are those of the model."""
        nodes = self.graph.nodes
        inputs = dict(zip(self.main.args, nodes.inputs, strict=False)) if whole else {}
        outputs: dict[Value, list[int]] = {}
        for value, node in zip(self.main.returns, nodes.outputs, strict=False) if whole else ():
            outputs.setdefault(value, []).append(node)
        made: dict[Value, tuple[int, ...]] = {}
        ends: dict[Value, tuple[int, ...]] = {value: (node,) for value, node in inputs.items()}
        costs: dict[str, Cost] = {}
        found: list[CallView] = []
        results: dict[int, set[int]] = {}
        for op in self.main.body.ops:
            reads, read_ends = _joined(made, op.operands), _joined(ends, op.operands)
            if op.name == "call":
                number = first + len(found)
                found.append(self._call(op, codes, reads, read_ends, costs))
                made |= dict.fromkeys(op.results, (number,))
            else:  # a view, or a state
                made |= dict.fromkeys(op.results, reads)
                ends |= dict.fromkeys(op.results, read_ends)
        for value, given in outputs.items():
            for number in made.get(value, ()):
                results.setdefault(number, set()).update(given)
        return [_with_ends(call, sorted(results.get(first + k, ()))) for k, call in enumerate(found)]

    def _call(
        self, op: Op, codes: Mapping[str, int], reads: tuple[int, ...], ends: tuple[int, ...], costs: dict[str, Cost]
    ) -> CallView:
        kernel = self.module.funcs[op.attrs["kernel"]]
        at = self.region_of.get(op)
        region = None if at is None else self.regions[at]
        nodes = self.graph.nodes.numbers_of((op.loc, *(() if region is None else region.places)))
        counted = costs.get(kernel.name)
        if counted is None:
            counted = costs[kernel.name] = cost(kernel)
        dims = dict(zip(kernel.dims, op.attrs["dims"], strict=True))
        flops, size = (self.evaluate(substitute(a, dims)) for a in (counted.flops, counted.argument_bytes))
        cycles = None if region is None else region.cycles
        share = 1 if at is None else self.piece.calls_of_regions[at]
        group = group_of_kernel(nodes, self.graph.placed, self.graph.groups)
        types = tuple(str(v.type) for v in op.results)
        name = op.loc.node or op.loc.value or kernel.name
        return CallView(
            codes[kernel.name], name, group, reads, ends, nodes, types, flops, size,
            None if cycles is None else cycles / share,
        )  # fmt: skip

    def memory(self, first: int, sizes: Mapping[str, int]) -> MemoryView | None:
        """Where results lie; None where there are no tensors of these sizes."""
        try:
            tensors = drawn_tensors(self.main, sizes)
            total = at_sizes(arena_of(self.main), sizes)
            unshared = at_sizes(self.main.attrs[UNSHARED], sizes)
        except InputError:
            return None
        steps = 1 + max((t.last for t in tensors), default=-1)
        views = tuple(TensorView(t.name, t.offset, t.size, t.first, t.last) for t in tensors)
        return MemoryView(first, total, unshared, views, tuple(alive_bytes(tensors, steps)))


def _places(region: Op) -> tuple[Loc, ...]:
    """Where the ops of a region came from. Numbers that are written out are those of any node that has them."""
    return (region.loc, *(op.loc for op in region.blocks[0].ops if op.operands))


def _joined(found: Mapping[Value, tuple[int, ...]], values: Iterable[Value]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(k for v in values for k in found.get(v, ())))


def _with_ends(call: CallView, outputs: Sequence[int]) -> CallView:
    return replace(call, ends=(*call.ends, *outputs)) if outputs else call
