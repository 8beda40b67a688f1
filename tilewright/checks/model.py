"""`tilewright.check`: whether a model can be compiled, what of it is slow and what it costs, in the time of an import,
of the passes of the graph level and of schedules: no code is made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.accounts.anatomy import places_of, repeated_blocks, title_of
from tilewright.checks.access_bounds import access_bounds
from tilewright.checks.regions import FusedGraph, fused_graph, sum_of_cycles
from tilewright.checks.result import (
    AccessBounds,
    BlockUse,
    Costs,
    MemoryNeeds,
    ModelCheck,
    Note,
    OperatorUse,
    Parameters,
    Quantity,
    Time,
)
from tilewright.compilation import Compilation, Setting
from tilewright.compiler import compile_with_fallbacks
from tilewright.graph.assumptions import Assumption
from tilewright.graph.rewrites.dead import DropDead
from tilewright.ir.core import Func, Module, Op, Value
from tilewright.ir.diag import Loc, Problem, Remark, UnsupportedError
from tilewright.ir.optional_steps import OptionalSteps
from tilewright.ir.sym import Sym, eq
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.staged import BRANCH, HOST, LOOP, MEASURE
from tilewright.options import OnProgress, Options, Request
from tilewright.program.memory.budget import over_budget
from tilewright.program.memory.plan import typical
from tilewright.program.split import PLACE
from tilewright.requested import RequestedGraphs
from tilewright.runtime.artifact import TensorInfo
from tilewright.runtime.errors import OptionError
from tilewright.runtime.threads import available_cpus
from tilewright.schedule.steps.pace import STAGE as SLOW_STAGE
from tilewright.schedule.work.operators import OperatorCounts, bytes_of, total
from tilewright.schedule.work.regions import source_operator
from tilewright.session import Session
from tilewright.target.hardware import measured_hertz
from tilewright.target.host import host_target

USUAL_SIZE = 1
"""Of a dim whose size is not given, as for the random inputs of `tilewright bench`."""


def check(
    model: str | Path | bytes | Any,
    *,
    options: Options | None = None,
    constants: Mapping[str, Any] | str | Path | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    sizes: Mapping[str, int] | None = None,
    session: Session | None = None,
    progress: OnProgress | None = None,
    bounds: bool = False,
    **fields: Any,
) -> ModelCheck:
    """Say whether a model can be compiled, what of it would be slow, and what it costs: operations, memory and an
    estimate of the time, as formulas of the symbolic dims.

    The arguments are those of `tilewright.compile`; `sizes` are values of symbolic dims for which numbers are given (1
    for others). With `bounds` each load and store of the kernels is proved to stay within its buffer, or listed. All
    that is not supported is among the `problems` of the result. Raises ModelError for a damaged model,
    OptionError.
    """
    chosen = Options.of(options, **fields)
    request, session = Request.of(model, constants, shapes).with_states_of(chosen), Session.of(session)
    if not isinstance(sizes, Mapping | None):
        raise OptionError(f"sizes={sizes!r:.80} is not allowed: give a dict of names of dims to numbers")
    if not isinstance(bounds, bool):
        raise OptionError(f"bounds={bounds!r:.80} is not allowed: give True or False")
    name = request.model.name if isinstance(request.model, Path) else ""

    def checked(module: Module, optional: OptionalSteps, told: OnProgress | None) -> ModelCheck:
        RequestedGraphs.of(module, request, chosen.frequent, session)  # whether calls can have these sizes
        return _Check(name, chosen, session, optional, sizes or {}, bounds).run(module, told)

    try:
        return compile_with_fallbacks(request, session, chosen, progress, checked)
    except UnsupportedError as error:
        return ModelCheck(name, error.problems or (Problem("", error.where or "", error.what, error.hint or ""),))


@dataclass(frozen=True)
class _Check:
    name: str
    options: Options
    session: Session
    optional: OptionalSteps
    sizes: Mapping[str, int]
    bounds: bool

    def run(self, module: Module, progress: OnProgress | None) -> ModelCheck:
        main, counts = module.main, OperatorCounts()
        known = _sizes(main, self.sizes)
        notes = list(_notes_of_import(main))
        nodes = main.attrs.get("nodes", len(main.body.ops))
        both = {eq(a, b) for a, b in main.attrs.get("open_dims", ())}
        notes += _host_notes(main)
        machine, plugins = self.session.machine(self.options), self.session.loaded_plugins
        setting = Setting.of(self.options, machine, plugins, optional=self.optional, progress=progress)
        compilations = Compilation(module, setting).run("parts").pieces
        parts = [each.apply([DropDead()]).module for each in compilations]
        for each in compilations:
            notes += [_assumed(a, both, each.module.main.attrs.get(PLACE, "")) for a in each.assumed]
            notes += _own_loops(each.module)
        blocks = [
            (title_of(b), b.copies, b.variants, frozenset[Loc]().union(*map(places_of, b.copies)))
            for part in parts
            for b in repeated_blocks(part.main.body)
        ]
        uses = [_Use(op, counts) for part in parts for op in computed_operators(part)]
        parameters = _parameters(parts)
        remarks: list[Remark] = list(self.optional.remarks)
        slow: list[Remark] = []
        graphs = [self.fused(each, counts, known, remarks, slow) for each in compilations]
        notes += [Note("slow", "", r.subject, r.message) for r in slow]
        notes += [Note("remark", r.stage, r.subject, r.message) for r in remarks if r.kind in ("failed", "warning")]
        between = [v for part in parts for v in part.main.returns if part is not module]
        costs = self.costs(main, between, uses, parameters, graphs, known)
        regions = [r for g in graphs for r in g.regions]
        found = tuple(
            BlockUse(
                title, len(copies), variants,
                quantity(total(u.work.flops for u in uses if u.loc in places), known),
                sum_of_cycles(r for r in regions if r.place in places),
            )
            for title, copies, variants, places in blocks
        )  # fmt: skip
        costs = replace(costs, blocks=found)
        bounds = None
        if self.bounds:
            scheduled = (access_bounds(c.module, [a.holds for a in c.assumed]) for c in compilations)
            bounds = sum(scheduled, AccessBounds(0, 0, 0, 0))
        ins, outs = main.attrs.get("inputs", ()), main.attrs.get("outputs", ())
        return ModelCheck(
            self.name, (), tuple(dict.fromkeys(notes)), nodes,
            tuple(map(_info, ins, main.args)), tuple(map(_info, outs, main.returns)), costs, bounds,
        )  # fmt: skip

    def fused(
        self,
        compilation: Compilation,
        counts: OperatorCounts,
        known: Mapping[str, int],
        remarks: list[Remark],
        slow: list[Remark],
    ) -> FusedGraph:
        """What is found of a part after all passes of the graph level; `slow` is told of slow kernels."""
        part, target = compilation.run("fused").module, compilation.setting.target
        remarks += [r for r in compilation.remarks if r not in remarks]
        found = fused_graph(part, counts, target, self.threads, lambda s: _value(s, known))
        remarks += over_budget(part.main, found.arena, typical(found.weights))
        before = len(compilation.remarks)
        slow += [r for r in compilation.run("scheduled").remarks[before:] if r.stage == SLOW_STAGE]
        return found

    @property
    def threads(self) -> int:
        return self.options.threads or available_cpus()

    def costs(
        self,
        main: Func,
        between: Iterable[Value],
        uses: Sequence[_Use],
        parameters: tuple[Parameters, ...],
        graphs: Sequence[FusedGraph],
        known: Mapping[str, int],
    ) -> Costs:
        def amount(formula: Sym) -> Quantity:
            return quantity(formula, known)

        regions = [r for g in graphs for r in g.regions]
        inputs, outputs = total(map(bytes_of, main.args)), total(map(bytes_of, main.returns))
        weights = total(g.weights for g in graphs)
        arena = total((*(g.arena for g in graphs), *map(bytes_of, between)))
        peak = total((inputs, outputs, weights, arena))
        memory = MemoryNeeds(*map(amount, (inputs, outputs, weights, arena, peak)))
        by_operator: dict[str, float | None] = {}
        for name in dict.fromkeys(r.operator for r in regions):
            by_operator[name] = sum_of_cycles(r for r in regions if r.operator == name)
        return Costs(
            dict(known), len(regions), _operators(uses, by_operator, amount), parameters,
            amount(total(u.work.flops for u in uses)), amount(total(r.moved for r in regions)), memory,
            self.time(sum_of_cycles(regions)),
        )  # fmt: skip

    def time(self, cycles: float | None) -> Time:
        machine = self.session.machine(self.options)
        hertz = measured_hertz() if machine == host_target() else None
        seconds = None if cycles is None or hertz is None else cycles / hertz
        return Time(machine.name, self.threads, cycles, hertz, seconds)


def _sizes(main: Func, given: Mapping[str, int]) -> dict[str, int]:
    """The dims whose values are known: those of inputs, and what is given. OptionError for other names and values."""
    dims = [d for arg in main.args for d in _shape(arg) if d.kind == "var"]
    known = {d.name: USUAL_SIZE for d in dims}
    names = {v.name for op in main.body.walk() for r in op.results for d in _shape(r) for v in d.vars} | set(known)
    for name, size in given.items():
        if name not in names:
            listed = ", ".join(sorted(known)) or "none"
            raise OptionError(f"the model has no symbolic dim '{name}'", hint=f"those of its inputs: {listed}")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise OptionError(f"sizes={{{name!r}: {size!r:.80}}} is not allowed: a size is a whole number from 0 on")
        known[name] = size
    return known


def quantity(formula: Sym, known: Mapping[str, int]) -> Quantity:
    """A formula, with its value for these dims."""
    return Quantity(str(formula), _value(formula, known))


def _value(formula: Sym, known: Mapping[str, int]) -> int | None:
    """The number that a formula is for these dims; None where it has others."""
    return formula.evaluate(known) if all(v.name in known for v in formula.vars) else None


def _shape(value: Value) -> tuple[Sym, ...]:
    return value.type.shape if isinstance(value.type, TensorType) else ()


def _info(name: str, value: Value) -> TensorInfo:
    type = value.type
    if not isinstance(type, TensorType):
        return TensorInfo(name, str(type), ())
    return TensorInfo(name, type.dtype.storage.name, tuple(d.value if d.is_const else str(d) for d in type.shape))


def _notes_of_import(main: Func) -> Iterable[Note]:
    for subject, message in main.attrs.get("contradictions", ()):
        yield Note("contradiction", "", subject, message)
    for subject, message in main.attrs.get("warnings", ()):
        yield Note("remark", "import", subject, message)


def _assumed(made: Assumption, both: Collection[Sym], place: str) -> Note:
    """What calls must fulfil, those that come to a `place` that is not run in each; of dims that have `both` meanings,
    in the program that is the faster one."""
    only = f", where {place} is run" if place else ""
    if made.holds not in both:
        return Note("assumed", made.loc.op, made.loc.node, made.message + only)
    message = f"{made.holds}, or one of them is 1{only}: calls of that kind have a program of their own"
    return Note("broadcast", made.loc.op, made.loc.node, message)


_HOST = {
    HOST: "runs on the host, between parts of native code",
    MEASURE: "the host reads its values between parts of native code, as sizes depend on them",
    BRANCH: "the host takes the branch, each of which is parts of native code of its own",
    LOOP: "the host runs the loop, whose body is parts of native code of its own",
}


def _host_notes(main: Func) -> Iterable[Note]:
    """What splits the graph into parts."""
    for op in main.body.walk():
        if op.name in _HOST:
            loc = op.loc if op.loc.op or not op.operands or op.operands[0].op is None else op.operands[0].op.loc
            yield Note("host", loc.op, loc.node, _HOST[op.name])


def _own_loops(module: Module) -> Iterable[Note]:
    for op in module.main.body.ops:
        if op.name in OPERATORS and OPERATORS[op.name].kind == "irregular":
            message = f"'{op.name}' has loops of its own, which are no vectors where an iteration needs the one before"
            yield Note("own_loops", op.loc.op, op.loc.node, message)


def computed_operators(module: Module) -> list[Op]:
    """The operators that depend on inputs: others are computed when the model is compiled."""
    varying = set(module.main.args)
    found = []
    for op in module.main.body.ops:
        if op.name in OPERATORS and any(v in varying for v in op.operands):
            varying.update(op.results)
            found.append(op)
    return found


def _parameters(parts: Iterable[Module]) -> tuple[Parameters, ...]:
    arrays = {id(a): a for part in parts for a in part.constants.values()}.values()
    return tuple(
        Parameters(name, sum(a.size for a in arrays if a.dtype.name == name),
                   sum(a.nbytes for a in arrays if a.dtype.name == name))
        for name in sorted({a.dtype.name for a in arrays})
    )  # fmt: skip


class _Use:
    """What is kept of an op: passes change the graph."""

    def __init__(self, op: Op, counts: OperatorCounts) -> None:
        self.operator, self.loc, self.work = source_operator(op), op.loc, counts.of(op)
        self.dtypes = {t.dtype.name for v in op.results if isinstance(t := v.type, TensorType)}


def _operators(
    uses: Iterable[_Use], cycles: Mapping[str, float | None], amount: Callable[[Sym], Quantity]
) -> tuple[OperatorUse, ...]:
    """By the names of the model's operators, the one with most operations first."""
    groups: dict[str, list[_Use]] = {}
    for use in uses:
        groups.setdefault(use.operator, []).append(use)
    found = [
        OperatorUse(
            name,
            len({id(use.loc) for use in group}),
            tuple(sorted(set().union(*(use.dtypes for use in group)))),
            amount(total(use.work.flops for use in group)),
            amount(total(size for use in group for size in (*use.work.read, use.work.written))),
            cycles.get(name, 0.0),
        )
        for name, group in groups.items()
    ]
    return tuple(sorted(found, key=lambda use: -(use.flops.value or 0)))
