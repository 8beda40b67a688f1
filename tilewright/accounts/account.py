"""The account of one compilation: notes on the way, and what they give for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from tilewright.accounts.anatomy import RepeatedBlock, places_of, repeated_blocks, title_of
from tilewright.accounts.kernels import kernel_records, products_of_kernels, products_of_program
from tilewright.accounts.layers import SourceLayer, layer_records, layers_of_regions, source_layers
from tilewright.accounts.loops import first_steps, loop_records
from tilewright.accounts.work import flops_of_region
from tilewright.codegen.program import KernelText
from tilewright.ir.core import Module, Op
from tilewright.ir.diag import Loc, Remark, UnsupportedError
from tilewright.ir.notes import EdgeNote, Outcome
from tilewright.ir.optional_steps import OptionalSteps
from tilewright.ir.sym import Sym
from tilewright.loops.kernel_info import kernel_info
from tilewright.runtime.report.records import (
    BlockRecord,
    EdgeRecord,
    KernelCycles,
    LoopRecord,
    ProductCount,
    ScheduleRecord,
    TypesOfKernel,
    TypesOfLayer,
)
from tilewright.simulator.totals import kernels_timed, remark_of_time
from tilewright.target.machine import Accelerator, Machine


@dataclass(frozen=True)
class TypesOfProgram:
    """The products of a call of a program, and the types of its kernels and of the layers of the model."""

    products: tuple[ProductCount, ...] = ()
    kernels: tuple[TypesOfKernel, ...] = ()
    layers: tuple[TypesOfLayer, ...] = ()


@dataclass(frozen=True)
class ProgramDecisions:
    """Which blocks repeat, why values go through memory or not, why loops are run as they are, and how long kernels
    take on a simulated machine, with what is said of that."""

    blocks: tuple[BlockRecord, ...] = ()
    edges: tuple[EdgeRecord, ...] = ()
    loops: tuple[LoopRecord, ...] = ()
    schedules: tuple[ScheduleRecord, ...] = ()
    simulated: tuple[KernelCycles, ...] = ()
    remarks: tuple[Remark, ...] = ()


class _Copies:
    """What is kept of a block that repeats: passes change the graph."""

    def __init__(self, block: RepeatedBlock) -> None:
        self._title, self._variants, self._operators = title_of(block), block.variants, len(block.copies[-1])
        self._places = [places_of(copy) for copy in block.copies]

    def record(self, module: Module) -> BlockRecord:
        """With the kernels of each copy: those whose main nodes are in it."""
        calls = enumerate(op.loc.sources[0] for op in module.main.body.ops if op.name == "call")
        found: list[list[int]] = [[] for _ in self._places]
        copies = {place: k for k, places in reversed([*enumerate(self._places)]) for place in places}
        for number, place in calls:
            if (copy := copies.get(place)) is not None:
                found[copy].append(number)
        kernels = tuple(map(tuple, found))
        return BlockRecord(self._title, len(self._places), self._variants, self._operators, kernels)


class Account:
    """How a program is computed. Made of the graph as the model says it, and told of the later stages; a compilation
    never fails because of it."""

    def __init__(self, module: Module, machine: Machine, optional: OptionalSteps, *, counted: bool = False) -> None:
        """With `counted` operations are counted, too."""
        self._machine = machine
        self._optional = optional
        nothing: list[_Copies] = []
        self._blocks = optional.attempt(
            _NAME, lambda: [*map(_Copies, repeated_blocks(module.main.body))], lambda: nothing
        )
        self._layers: dict[Loc, SourceLayer] = optional.attempt(_NAME, lambda: source_layers(module), dict)
        self._regions: list[tuple[Loc, ...]] = []
        self._kernels: list[str] = []
        self._counted = counted
        self._edges: Sequence[EdgeNote] = ()
        self._numbers: dict[Op, int] = {}
        self._kernels_of: list[tuple[str, ...]] = []
        self._flops_of_regions: list[Sym | None] = []
        self.flops: dict[Op, Sym] = {}
        """Operations on floats of calls, where what they compute says it."""

    def note_regions(self, module: Module, edges: Sequence[EdgeNote] = ()) -> None:
        """Of which layers each region is, and what fusion said of `edges`; to be called before regions become
        kernels."""
        self._edges = edges
        self._numbers = {op: n for n, op in enumerate(op for op in module.main.body.ops if op.name == "fused")}
        self._regions = self._optional.attempt(_NAME, lambda: layers_of_regions(module, self._layers.keys()), list)
        if self._counted:
            fused = [op for op in module.main.body.ops if op.name == "fused"]
            self._flops_of_regions = self._optional.attempt(_NAME, lambda: [*map(flops_of_region, fused)], list)

    def note_kernels(self, module: Module, calls: Sequence[int]) -> None:
        """Which kernels each region became, in as many `calls`; to be called before these are put into another
        order."""
        self._regions = [layers for layers, n in zip(self._regions, calls, strict=False) for _ in range(n)]
        made = [op for op in module.main.body.ops if op.name == "call"]
        self._kernels = [op.attrs["kernel"] for op in made]
        names = iter(self._kernels)
        self._kernels_of = [tuple(islice(names, n)) for n in calls]
        flops = (f if n == 1 else None for f, n in zip(self._flops_of_regions, calls, strict=False) for _ in range(n))
        self.flops = {call: f for call, f in zip(made, flops, strict=False) if f is not None}

    def types(self, module: Module, texts: Mapping[str, KernelText], outcomes: Sequence[Outcome]) -> TypesOfProgram:
        """In which types all of it is computed; `outcomes` are what rules decided."""
        return self._optional.attempt(_NAME, lambda: self._types(module, texts, outcomes), TypesOfProgram)

    def _types(
        self, module: Module, texts: Mapping[str, KernelText], outcomes: Sequence[Outcome]
    ) -> TypesOfProgram:
        products = products_of_kernels(module, texts, self._machine)
        infos = {name: kernel_info(f) for name, f in module.funcs.items() if f.level == "loops"}
        plugins = {name: info.external[0] for name, info in infos.items() if info.external}
        return TypesOfProgram(
            products_of_program(module, products),
            kernel_records(module, products),
            layer_records(self._layers, self._regions, self._kernels, products, outcomes, plugins),
        )

    def decisions(self, module: Module) -> ProgramDecisions:
        """What was decided of edges, and with counting of the loops of each kernel; for an accelerator the cycles."""
        kernels = [f for f in module.funcs.values() if f.level == "loops"] if self._counted else []
        found = self._optional.attempt(
            _NAME,
            lambda: ProgramDecisions(
                tuple(block.record(module) for block in self._blocks),
                tuple(map(self._edge, self._edges)),
                tuple(record for f in kernels for record in loop_records(f, self._machine)),
                tuple(ScheduleRecord(f.name, first_steps(f)) for f in kernels),
            ),
            ProgramDecisions,
        )
        if not isinstance(machine := self._machine, Accelerator):
            return found
        times, told = self._optional.attempt(_SIMULATOR, lambda: _times(module, machine), _no_times)
        return replace(found, simulated=times, remarks=told)

    def _edge(self, note: EdgeNote) -> EdgeRecord:
        source, target = (self._kernels_of[self._numbers[op]] if op in self._numbers else () for op in note.ends)
        return EdgeRecord(
            note.producer, note.consumer, note.value, note.type, note.is_fused, note.reason, note.suggestion,
            note.blockers, note.cycles, source[-1] if source else "", target[0] if target else "",
        )  # fmt: skip


_Times = tuple[tuple[KernelCycles, ...], tuple[Remark, ...]]


def _no_times() -> _Times:
    return (), ()


def _times(module: Module, machine: Accelerator) -> _Times:
    try:
        times = kernels_timed(module, machine)
    except UnsupportedError as error:
        return (), (Remark(_SIMULATOR, machine.name, f"its time is not known: {error}", "analysis"),)
    return times, (remark_of_time(times, machine),)


_SIMULATOR = "simulator"
_NAME = "account"
