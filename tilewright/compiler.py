"""The pipeline: from a model to an artefact, read from top to bottom."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import TypeVar

from tilewright import link
from tilewright.accounts.account import Account
from tilewright.back_end import BackEnd, Code, CpuCode, back_end_for, faults_of_plugins
from tilewright.codegen.program import KernelText
from tilewright.frontends.built_in import FRONT_ENDS
from tilewright.frontends.frequent import shapes_with
from tilewright.graph.assumptions import assumptions
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.fusion.strategy import Strategies
from tilewright.graph.pipeline import default_passes
from tilewright.ir.core import Func, Module
from tilewright.ir.diag import (
    InternalError,
    ModelError,
    Remark,
    RemarkKind,
    TilewrightError,
    UnsupportedError,
    VerifyError,
)
from tilewright.ir.optional_steps import CHECKED, OptionalSteps, retry_without_failed_steps
from tilewright.ir.passes import Pass, PassContext, run_passes
from tilewright.ir.process_settings import rare_collections, short_turns
from tilewright.ir.types import TensorType
from tilewright.ir.verify import verify_func
from tilewright.loops.kernel_info import kernel_info
from tilewright.memory.budget import over_budget
from tilewright.memory.order import Order
from tilewright.memory.place_views import PlaceViews
from tilewright.memory.plan import plan_in_order
from tilewright.memory.storage import Storage, assign_storage
from tilewright.ops.define.broadcasting import both_meanings
from tilewright.ops.define.spec import graph_spec
from tilewright.options import FrequentSizes, OnProgress, Options, Progress, Request, check_progress
from tilewright.plugins import NO_PLUGINS, Plugins
from tilewright.runtime import Artifact
from tilewright.runtime.artifact import sizes_text
from tilewright.runtime.errors import ExecutionError
from tilewright.schedule.edited import EditedSchedules
from tilewright.schedule.sharing.kernels import schedule_regions
from tilewright.schedule.steps.pace import STAGE as SLOW_STAGE
from tilewright.schedule.strategies import STRATEGIES
from tilewright.schedule.strategy import Strategy
from tilewright.session import Session
from tilewright.staging.split import split
from tilewright.target.host import usable_cores
from tilewright.target.machine import Machine
from tilewright.target.target import Target

T = TypeVar("T")
FrequentModule = tuple[FrequentSizes, Callable[[], Module]]
"""Sizes of dims, and what imports the graph with them."""


def compile_request(
    request: Request, options: Options, progress: OnProgress | None = None, *, session: Session
) -> Artifact:
    """From the model's file on, without the session's cache. Raises ModelError, UnsupportedError, OptionError."""
    machine, plugins = session.machine(options), session.loaded_plugins

    def compiled(module: Module, optional: OptionalSteps, report_step: OnProgress | None) -> Artifact:
        frequent = frequent_modules(module, request, options, session, report_step)
        broadcasting = broadcasting_module(module, request, session, report_step)
        return compile_module(module, options, machine, report_step, plugins, optional, frequent, broadcasting)

    artifact = compile_with_fallbacks(request, session, options, progress, compiled)
    if isinstance(request.model, Path):
        artifact.report["model"] = request.model.name
    return artifact


def compile_with_fallbacks(
    request: Request,
    session: Session,
    options: Options,
    progress: OnProgress | None,
    compiled: Callable[[Module, OptionalSteps, OnProgress | None], T],
) -> T:
    """What `compiled` makes of the request's module, again without what failed where that is optional."""
    check_progress(progress)
    watched = None if progress is None else _Watched(progress)

    def may_be_a_defect(error: Exception) -> bool:
        return watched is None or error is not watched.raised

    with rare_collections(), short_turns(), faults_of_plugins(session.loaded_plugins.back_ends, may_be_a_defect):
        return retry_without_failed_steps(
            lambda: import_request(request, session, watched),
            lambda module, optional: _in_memory(module, lambda: compiled(module, optional, watched)),
            OptionalSteps(checked=is_checked(options), strict=options.strict),
            may_be_a_defect,
        )


def _in_memory(module: Module, compiled: Callable[[], T]) -> T:
    """What is compiled; ExecutionError where there is no memory for it, with the node that has most."""
    try:
        return compiled()
    except MemoryError as error:
        most = max(
            ((type.size.value * type.dtype.storage.itemsize, str(op.loc))
             for op in module.main.body.ops for v in op.results
             if isinstance(type := v.type, TensorType) and type.is_static),
            default=(0, ""),
        )  # fmt: skip
        raise ExecutionError(
            f"there is not enough memory to compile the model{f': {error}' if str(error) else ''}",
            where=f"the largest tensor, of {most[0]:,} bytes, is that of {most[1]}" if most[1] else None,
            hint="are the sizes right? others go in as shapes=",
        ) from error


def is_checked(options: Options) -> bool:
    """Whether programs are verified, and failures of optional steps are errors."""
    return options.verify


def import_request(request: Request, session: Session, progress: OnProgress | None = None) -> Module:
    """The graph as the model says it, with the values and shapes that the request gives."""
    _tell(progress, "import", 0, 1)
    front_end = session.front_end(request.model)
    try:
        module = front_end.load(request.model, constants=request.constants, shapes=request.shapes)
        if front_end not in FRONT_ENDS:
            if not isinstance(module, Module):
                raise TypeError(f"its 'load' gave a {type(module).__name__}, and no Module")
            verify_func(module.main, graph_spec(module))
        return module
    except VerifyError as e:
        what = f"the front end '{front_end.name}' made an illegal program: {e.what}"
        raise VerifyError(what, where=e.where, hint="report it to the authors of the plugin") from e
    except TilewrightError:
        raise
    except NotImplementedError as e:
        if front_end in FRONT_ENDS:
            raise
        what = f"the front end '{front_end.name}' of a plugin does not support the model: {e or 'it does not say why'}"
        raise UnsupportedError(what, hint="ask the authors of the plugin for it") from e
    except Exception as e:
        if front_end not in FRONT_ENDS:  # no defect of ours
            what = f"the front end '{front_end.name}' of a plugin failed: {type(e).__name__}: {e}"
            raise ModelError(what, hint="report it to the authors of the plugin") from e
        what = f"the front end '{front_end.name}' failed: {type(e).__name__}: {e}"
        raise InternalError(what, hint="please report this with the model") from e


def frequent_modules(
    module: Module, request: Request, options: Options, session: Session, progress: OnProgress | None = None
) -> list[FrequentModule]:
    """The frequent sizes, which are checked now, and what imports the graph with each of them. `module` is the graph
    for all sizes."""

    def of(sizes: FrequentSizes) -> FrequentModule:
        with at_sizes(sizes):
            shapes = {**request.shapes, **shapes_with(module, sizes)}
        return sizes, lambda: import_request(replace(request, shapes=shapes), session, progress)

    return [of(sizes) for sizes in options.frequent]


def broadcasting_module(
    module: Module, request: Request, session: Session, progress: OnProgress | None = None
) -> Callable[[], Module] | None:
    """What imports the graph with both meanings of dims that `module` takes for equal, and of which one may be 1; None
    where there are none."""
    if not module.main.attrs.get("open_dims"):
        return None

    def load() -> Module:
        with both_meanings():
            return import_request(request, session, progress)

    return load


@contextmanager
def at_sizes(sizes: FrequentSizes) -> Iterator[None]:
    """Errors name the sizes as their place."""
    try:
        yield
    except TilewrightError as e:
        e.where = f"{e.where + ', ' if e.where else ''}with the frequent sizes {sizes_text(sizes)}"
        raise


def compile_module(
    module: Module,
    options: Options,
    machine: Machine,
    progress: OnProgress | None = None,
    plugins: Plugins = NO_PLUGINS,
    optional: OptionalSteps = CHECKED,
    frequent: Sequence[FrequentModule] = (),
    broadcasting: Callable[[], Module] | None = None,
) -> Artifact:
    """Every stage, in order. The module is changed: afterwards it holds the kernels and the calls of them, or where
    sizes depend on data, what the host does between its parts. The `frequent` modules become variants, and the one that
    is `broadcasting` the program for dims that are 1."""
    back_end = back_end_for(machine, plugins)
    back_end.check(machine, options)
    edited = edited_schedules(options)
    with back_end.code(machine, options) as code:
        lends = options.share_weights and machine.kind == Target.kind
        lent = link.Lent(module.constants.values() if lends else ())
        weights = link.Weights(lent, options.compile_threads or usable_cores(), optional)
        build = _Build(options, machine, back_end, plugins, optional, progress, edited, code, weights)
        artifact = _compile_staged(module, build)
        variants, ends = [], [(code.begun, build.weights.total)]
        for sizes, load in frequent:
            with at_sizes(sizes):
                variants.append(link.make_variant(artifact, sizes, _compile_staged(load(), build)))
            ends.append((code.begun, build.weights.total))
        if broadcasting is not None:
            artifact = optional.attempt(
                "broadcasting", lambda: _with_broadcasting(artifact, module, broadcasting, build), lambda: artifact
            )
            ends.append((code.begun, build.weights.total))
        artifact = replace(artifact, variants=tuple(variants))
        if edited is not None:
            edited.check_all_used()
        clock = _Clock()
        blocks = build.weights.blocks()  # while threads make objects
        clock.lap("weights")
        try:
            objects = code.objects(steps(progress, "code"))
        except Exception as error:
            optional.blame(code.failed, error)
        clock.lap("llvm")
    _tell(progress, "link", 0, 1)
    for stage, seconds in clock.laps.items():
        link.add_time(artifact.report, stage, seconds)
    for program, (before, after) in zip(artifact.programs[1:], pairwise(ends), strict=False):
        link.add_bytes(program.report, objects[before[0] : after[0]], after[1] - before[1])
    return artifact.sharing(tuple(objects), *blocks)


def _with_broadcasting(artifact: Artifact, module: Module, load: Callable[[], Module], build: _Build) -> Artifact:
    """The artefact of a module with a program that has both meanings of dims; as it is where there is none."""
    try:
        general = load()
        assert "open_dims" not in general.main.attrs, f"{general.main.attrs['open_dims']} are taken for equal after all"
        return link.with_broadcasting(artifact, _compile_staged(general, build), module.main.attrs["open_dims"])
    except UnsupportedError as error:
        reason = f"dims that are taken for equal cannot be broadcast: {error.what}"
        artifact.report["remarks"].append(Remark("import", error.where or "the model", reason, "missed").record())
        return artifact


@dataclass(frozen=True)
class _Build:
    """What all programs of an artefact are compiled with, and what they share."""

    options: Options
    machine: Machine
    back_end: BackEnd
    plugins: Plugins
    optional: OptionalSteps
    progress: OnProgress | None
    edited: EditedSchedules | None
    code: Code
    weights: link.Weights
    programs: Iterator[int] = field(default_factory=count)
    kernels: Iterator[int] = field(default_factory=count)
    symbols: dict[bytes, str] = field(default_factory=dict)

    def begun(self, text: KernelText) -> KernelText:
        """Begin to make code of a kernel; gives it under the name of an earlier one that has the same code."""
        digest = hashlib.blake2b(text.text.replace(text.symbol, "").encode()).digest()
        if digest not in self.symbols:
            self.code.begin(text)
            self.symbols[digest] = text.symbol
        return replace(text, symbol=self.symbols[digest])


def _compile_staged(module: Module, build: _Build) -> Artifact:
    """A graph in one piece or, where sizes depend on data, in parts that the host calls one after the other."""
    staged = build.optional.attempt("staging", lambda: split(module), lambda: None)
    if staged is None:
        return _compile_program(module, build)[0]
    if build.options.integer_only:
        raise UnsupportedError(
            "the model cannot be computed by integers only: sizes of its tensors depend on data",
            hint="give the inputs that they depend on as constants",
        )
    for part in staged.parts:
        if build.optional.checked:
            verify_func(part.main, graph_spec(part))
    compiled = [_compile_program(part, build) for part in staged.parts]
    parts = [part for part, _ in compiled]
    if isinstance(build.code, CpuCode) and staged.program.slots:
        forms = [link.part_form(part, storage.overwrites) for part, storage in compiled]
        build.code.begin_steps(staged.program, link.value_forms(staged), forms)
    target = build.back_end.target(build.machine)
    artifact = link.make_staged(module, staged, parts, target, build.options.numerics)
    artifact.report["remarks"] += [remark.record() for remark in _remarks_of_import(module)]
    return artifact


def _remarks_of_import(module: Module) -> list[Remark]:
    kinds: dict[str, RemarkKind] = {"contradictions": "analysis", "warnings": "warning"}
    attrs = module.main.attrs
    return [
        Remark("import", subject, message, kind)
        for name, kind in kinds.items()
        for subject, message in attrs.get(name, ())
    ]


def _compile_program(module: Module, build: _Build) -> tuple[Artifact, Storage]:
    """One program of native code, and where its values lie. The artefact has no code and no weights yet."""
    options, machine, back_end, optional = build.options, build.machine, build.back_end, build.optional
    clock = _Clock()
    ctx = pass_context(machine, options, optional)
    strategies = strategies_with(build.plugins, ctx.remarks, machine, back_end, optional)
    nodes = module.main.attrs.get("nodes", len(module.main.body.ops))
    taken_for_granted = assumptions(module)
    account = Account(module, machine, optional)
    ctx.remarks += _remarks_of_import(module)
    lower_graph(module, ctx, options, build.progress, strategies, back_end.passes(machine, options))
    account.note_regions(module)
    clock.lap("graph")
    kernels: dict[str, KernelText] = {}
    spec = back_end.spec(machine)

    def emit(kernel: Func) -> None:
        clock.lap("schedule")
        if machine.kind != Target.kind:  # nobody else knows what its strategies may do
            verify_func(kernel, spec)
        text = build.code.kernel(kernel)
        clock.lap("emit")
        kernels[kernel.name] = build.begun(text)
        clock.lap("llvm")

    report_step = steps(build.progress, "kernels")
    calls = schedule_regions(
        module, machine, strategies, ctx.remarks, emit, report_step,
        optional=optional, edited=build.edited, numbers=build.kernels,
    )  # fmt: skip
    account.note_kernels(module, calls)
    optional.run("concurrent-kernels", lambda: back_end.arrange(module, machine, ctx.remarks))
    clock.lap("schedule")
    inplace = {f.name: kernel_info(f).inplace for f in module.funcs.values() if f.level == "loops"}
    storage = optional.attempt(
        "share-memory",
        lambda: assign_storage(module.main, inplace),
        lambda: assign_storage(module.main, plan=plan_in_order),
    )
    constants = link.lay_out_constants(module, build.weights)
    ctx.remarks += optional.attempt(
        "memory-budget", lambda: over_budget(module.main, storage.arena.total, build.weights.total), list
    )
    ctx.remarks += build.weights.remarks
    build.weights.remarks.clear()
    number = next(build.programs)
    program = link.make_program(
        module, storage, constants, kernels, taken_for_granted,
        flush_denormals=options.numerics != "strict" and not options.integer_only,
        suffix=f".{number}" if number else "",
    )  # fmt: skip
    text = build.code.program(program)
    clock.lap("emit")
    build.code.begin(text)
    clock.lap("llvm")
    report = link.make_report(module, storage, nodes, clock.laps, ctx.remarks, options.numerics)
    account.add_to(report, module, kernels, ctx.remarks)
    link.add_integers(report, module)
    if options.profile:
        link.add_costs(report, module)
    target = back_end.target(machine)
    return link.make_artifact(module, storage, constants, program, text, target, report), storage


def slow_kernels(
    module: Module, machine: Machine, strategies: Strategies[Strategy], optional: OptionalSteps = CHECKED
) -> list[Remark]:
    """What is to be said of kernels of a fused graph that would do little of what the machine could. They are
    scheduled, which changes the module, and no code is made."""
    remarks: list[Remark] = []
    schedule_regions(module, machine, strategies, remarks, optional=optional)
    return [r for r in remarks if r.stage == SLOW_STAGE]


def pass_context(machine: Machine, options: Options, optional: OptionalSteps = CHECKED) -> PassContext:
    """What passes of the graph level share: the facts that they ask for are those of CPUs."""
    return PassContext(machine if isinstance(machine, Target) else None, options, [*optional.remarks], optional)


def strategies_with(
    plugins: Plugins,
    remarks: list[Remark],
    machine: Machine,
    back_end: BackEnd,
    optional: OptionalSteps = CHECKED,
) -> Strategies[Strategy]:
    """The strategies of a back end, and those of plugins for its kind of machine; `remarks` are told what is left out,
    and later which of them fail."""
    ours = tuple(back_end.strategies(machine))
    plugins = plugins.beside("strategies", [s.name for s in ours])
    remarks.extend(plugins.refused)
    outside: list[tuple[str, Strategy]] = []
    for candidate, plugin in plugins.used:
        strangers = [s.name for s in plugin.strategies if not isinstance(s, Strategy)]
        if strangers:
            wanted = f"{Strategy.__module__}.{Strategy.__name__}"
            remarks.append(candidate.refusal(f"its strategy '{strangers[0]}' is no {wanted}"))
        else:
            found = [s for s in plugin.strategies if isinstance(s, Strategy)]
            outside += [(plugin.name, s) for s in found if s.kind == machine.kind]
    return Strategies(ours, tuple(outside), remarks, optional.raises)


def edited_schedules(options: Options) -> EditedSchedules | None:
    """The schedules that the options give; TextError where they cannot be read."""
    given = options.schedule
    return None if given is None else EditedSchedules(given.text, given.name)


def lower_graph(
    module: Module,
    ctx: PassContext,
    options: Options,
    progress: OnProgress | None = None,
    strategies: Strategies[Strategy] = STRATEGIES,
    passes: list[Pass] | None = None,
) -> None:
    """All passes of the graph level, `passes` (by default those for CPUs) before fusion: afterwards the main function
    holds regions, aliases and constants."""

    def verify(m: Module) -> None:
        verify_func(m.main, graph_spec(m))

    check = verify if ctx.optional.checked else None
    first = default_passes(ctx.target, options) if passes is None else passes
    last: list[Pass] = [Fuse(strategies), PlaceViews(), Order()]
    done = count(1)

    def passed(*_: object) -> None:
        _tell(progress, "graph", next(done), len(first) + len(last))

    run_passes(module, first, ctx, verify=check, after=passed)
    link.copy_aliased_outputs(module)
    run_passes(module, last, ctx, verify=check, after=passed)


def steps(progress: OnProgress | None, stage: str) -> Callable[[int, int], None] | None:
    """What tells `progress` of the steps of a stage."""
    return None if progress is None else partial(_tell, progress, stage)


def _tell(progress: OnProgress | None, stage: str, done: int, total: int) -> None:
    if progress is not None:
        progress(Progress(stage, done, total))


class _Watched:
    """Tells progress, and remembers the error with which that ended the compilation."""

    def __init__(self, progress: OnProgress) -> None:
        self.progress = progress
        self.raised: Exception | None = None

    def __call__(self, progress: Progress) -> None:
        try:
            self.progress(progress)
        except Exception as error:
            self.raised = error
            raise


class _Clock:
    """Seconds that each stage took; LLVM's are those for which the others waited."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._last
        self._last = now
