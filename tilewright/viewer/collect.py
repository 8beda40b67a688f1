"""A model on its way through the compiler, for a page: its nodes, kernels, memory, times and reasons."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.compilation import Compilation, Setting
from tilewright.compiler import compile_with_fallbacks, edited_schedules
from tilewright.ir.core import Func, Module
from tilewright.ir.diag import Remark
from tilewright.ir.optional_steps import OptionalSteps
from tilewright.ir.sym import Sym
from tilewright.options import OnProgress, Options, Progress, Request
from tilewright.profiling.records import ModelProfile
from tilewright.requested import RequestedGraphs
from tilewright.runtime.threads import available_cpus
from tilewright.schedule.edited import EditedSchedules
from tilewright.session import Session
from tilewright.target.hardware import measured_hertz
from tilewright.target.host import host_target
from tilewright.viewer.codes import code_view
from tilewright.viewer.hierarchy import hierarchy
from tilewright.viewer.nodes import SourceNodes
from tilewright.viewer.programs import SourceGraph, ViewedProgram
from tilewright.viewer.records import (
    CallView,
    CodeView,
    MemoryView,
    ModelView,
    RemarkView,
    RooflineView,
    StageTime,
)
from tilewright.viewer.roofline import known_roofline, measured_roofline
from tilewright.viewer.times import facts_of, timed

STAGES = {"parts": "graph", "fused": "graph", "graph": "graph", "scheduled": "schedule", "planned": "memory"}
"""Stages of a compilation, and under which name their time is shown."""


@dataclass(frozen=True)
class ViewRequest:
    """What is looked at, beside the model: sizes of symbolic dims (1 for others), the profile of the compiled model,
    relative errors of nodes by name, and what is to be said of these."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    profile: ModelProfile | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def model_view(
    request: Request, options: Options, session: Session, asked: ViewRequest, progress: OnProgress | None = None
) -> ModelView:
    """All that is shown of a model. Raises as `compile` does."""
    begin = time.perf_counter()

    def viewed(module: Module, optional: OptionalSteps, told: OnProgress | None) -> ModelView:
        imported = StageTime("import", "import", time.perf_counter() - begin)
        return _Collector(request, options, session, asked, optional, told).view(module, imported)

    return compile_with_fallbacks(request, session, options, progress, viewed)


class _Times:
    """How long each pass took, as an observer of a compilation."""

    def __init__(self) -> None:
        self.found: list[StageTime] = []
        self._last = time.perf_counter()

    def begin(self) -> None:
        """What came before is nobody's."""
        self._last = time.perf_counter()

    def passed(self, step: str, module: Module) -> None:
        now = time.perf_counter()
        stage = STAGES.get(step, "graph")
        self.found.append(StageTime(stage, step, now - self._last))
        self._last = now


class _Collector:
    """What is found out of one compilation."""

    def __init__(
        self,
        request: Request,
        options: Options,
        session: Session,
        asked: ViewRequest,
        optional: OptionalSteps,
        progress: OnProgress | None,
    ) -> None:
        self.request, self.options, self.session, self.asked = request, options, session, asked
        self.progress = progress
        self.times = _Times()
        self.edited = edited_schedules(options) or EditedSchedules()
        self.setting = Setting.of(
            options, session.machine(options), session.loaded_plugins, optional=optional, progress=progress,
            edited=self.edited, observe=self.times.passed,
        )  # fmt: skip
        self.threads = options.threads or available_cpus()

    def view(self, module: Module, imported: StageTime) -> ModelView:
        notes = [*self.asked.notes, *self._notes(module)]
        nodes = SourceNodes(module)
        groups, placed = hierarchy(nodes.placed())
        graph = SourceGraph(nodes, groups, placed)
        self.times.begin()
        whole = Compilation(module, self.setting).run("parts")
        if whole.parts is not None:
            notes.append(
                f"the program has {len(whole.pieces)} parts, between which the host works: what kernels of one part "
                "read of another is not shown"
            )
        programs = [self._program(piece, graph) for piece in whole.pieces]
        calls, codes, memory, failed = self._calls(programs, whole.parts is None)
        timed_calls, said = timed(calls, codes, self.asked.profile)
        kernels: dict[int, list[int]] = {}
        for number, call in enumerate(calls):
            for node in call.nodes:
                kernels.setdefault(node, []).append(number)
        remarks = [*whole.remarks, *(r for p in programs for r in p.piece.remarks), *failed]
        model = self.request.model
        hertz = measured_hertz() if self.setting.machine == host_target() else None
        return ModelView(
            model.name if isinstance(model, Path) else type(model).__name__,
            "model",
            (*self._facts(), *facts_of(self.asked.profile)),
            (*notes, *said),
            groups,
            nodes.views(placed, kernels, self.asked.errors),
            timed_calls,
            tuple(codes),
            remark_views(remarks),
            tuple(memory),
            self._roofline(hertz),
            hertz,
            (imported, *_summed(self.times.found), *_of_llvm(codes)),
        )

    def _notes(self, module: Module) -> Iterable[str]:
        graphs = RequestedGraphs.of(module, self.request, self.options.frequent, self.session)
        if graphs.frequent or graphs.broadcasting is not None:
            yield "programs for frequent sizes, or dims that may be 1, are not shown: this is the one for all sizes"

    def _facts(self) -> tuple[tuple[str, str], ...]:
        sizes = ", ".join(f"{name} = {size}" for name, size in self.asked.sizes.items())
        found = {"machine": self.setting.machine.name, "threads": str(self.threads), "numerics": self.options.numerics}
        return (*found.items(), *([("sizes", sizes)] if sizes else []))

    def _roofline(self, hertz: float | None) -> RooflineView | None:
        profile, target = self.asked.profile, self.setting.target
        if profile is not None and profile.machine is not None:
            return measured_roofline(profile.machine, profile.threads)
        return None if hertz is None or target is None else known_roofline(target, self.threads, hertz)

    def _value(self, formula: Sym) -> int | None:
        """The number that a formula is for the sizes that were asked for; None where there is none, or it is below 0,
        as for sizes that are less than what the model takes."""
        try:
            found = formula.evaluate({v.name: self.asked.sizes.get(v.name, 1) for v in formula.vars})
        except (ArithmeticError, ValueError):
            return None
        return found if found >= 0 else None

    def _program(self, piece: Compilation, graph: SourceGraph) -> ViewedProgram:
        piece.run("graph")
        program = ViewedProgram(piece, graph, self.threads, self._value)
        program.run()
        return program

    def _calls(
        self, programs: Sequence[ViewedProgram], whole: bool
    ) -> tuple[list[CallView], list[CodeView], list[MemoryView], list[Remark]]:
        """The calls of all programs, their kernels and memory, and what failed."""
        kernels: dict[str, Func] = {f.name: f for p in programs for f in p.module.funcs.values() if f.level == "loops"}
        numbers = {name: number for number, name in enumerate(kernels)}
        strategies = {name: strategy for p in programs for name, strategy in p.strategies().items()}
        calls: list[CallView] = []
        memory: list[MemoryView] = []
        for program in programs:
            found = program.memory(len(calls), self.asked.sizes)
            memory += [] if found is None else [found]
            calls += program.calls(len(calls), numbers, whole=whole)
        times = Counter(call.code for call in calls)
        codes: list[CodeView] = []
        failed: list[Remark] = []
        for name, kernel in kernels.items():
            if self.progress is not None:
                self.progress(Progress("code", len(codes), len(kernels)))
            code, said = code_view(
                kernel, self.setting, self.edited.digests.get(name, ""), times[numbers[name]], strategies.get(name, "")
            )
            codes.append(code)
            failed += said
        return calls, codes, memory, failed


def remark_views(remarks: Iterable[Remark]) -> tuple[RemarkView, ...]:
    """Each once, in their order."""
    return tuple(dict.fromkeys(RemarkView(r.stage, r.kind, r.subject, r.message) for r in remarks))


def _summed(times: Iterable[StageTime]) -> list[StageTime]:
    """One for each pass of a stage, of all parts."""
    found: dict[tuple[str, str], float] = {}
    for entry in times:
        key = entry.stage, entry.step
        found[key] = found.get(key, 0.0) + entry.seconds
    return [StageTime(stage, step, seconds) for (stage, step), seconds in found.items()]


def _of_llvm(codes: Iterable[CodeView]) -> list[StageTime]:
    return [StageTime("LLVM", code.name, code.seconds) for code in codes if code.seconds is not None]
