"""The pipeline: from a model to an artefact, read from top to bottom."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

from tilewright import link
from tilewright.codegen.cpu.assemble import ObjectMaker, Unit
from tilewright.codegen.cpu.kernel.emit import KernelText, kernel_ir
from tilewright.codegen.cpu.program.pool_platform import check_platform
from tilewright.codegen.cpu.program.program import program_ir
from tilewright.graph.assumptions import assumptions
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.fusion.strategy import Strategies
from tilewright.graph.pipeline import default_passes
from tilewright.ir.core import Func, Module
from tilewright.ir.diag import Remark
from tilewright.ir.passes import Pass, PassContext, run_passes
from tilewright.ir.verify import verify_func
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.spec import LOOPS_SPEC
from tilewright.memory.order import Order
from tilewright.memory.place_views import PlaceViews
from tilewright.memory.storage import assign_storage
from tilewright.ops.spec import graph_spec
from tilewright.options import OnProgress, Options, Progress, Request
from tilewright.plugins import NO_PLUGINS, Plugins
from tilewright.runtime import Artifact
from tilewright.schedule.sharing.concurrent_kernels import group_branches
from tilewright.schedule.sharing.kernels import schedule_regions
from tilewright.schedule.strategies import STRATEGIES
from tilewright.schedule.strategy import Strategy
from tilewright.session import Session
from tilewright.target.named import parse_target
from tilewright.target.target import Target


def compile_request(
    request: Request, options: Options, progress: OnProgress | None = None, *, session: Session
) -> Artifact:
    """From the model's file on, without the session's cache. Raises ModelError, UnsupportedError, OptionError."""
    target = parse_target(options.target)
    module = import_request(request, session, progress)
    artifact = compile_module(module, options, target, progress, session.loaded_plugins)
    if isinstance(request.model, Path):
        artifact.report["model"] = request.model.name
    return artifact


def import_request(request: Request, session: Session, progress: OnProgress | None = None) -> Module:
    """The graph as the model says it, with the values and shapes that the request gives."""
    _tell(progress, "import", 0, 1)
    front_end = session.front_end(request.model)
    return front_end.load(request.model, constants=request.constants, shapes=request.shapes)


def compile_module(
    module: Module,
    options: Options,
    target: Target,
    progress: OnProgress | None = None,
    plugins: Plugins = NO_PLUGINS,
) -> Artifact:
    """Every stage, in order. The module is changed: afterwards it holds the kernels and the calls of them."""
    check_platform(target.triple)
    link.check_profile(options, target)
    clock = _Clock()
    ctx = PassContext(target, options)
    strategies = strategies_with(plugins, ctx.remarks)
    nodes = module.main.attrs.get("nodes", len(module.main.body.ops))
    taken_for_granted = assumptions(module)
    for subject, message in module.main.attrs.get("contradictions", ()):
        ctx.remarks.append(Remark("import", subject, message, "analysis"))
    lower_graph(module, ctx, options, progress, strategies)
    clock.lap("graph")
    with ObjectMaker(target, options.compile_threads or target.cores) as maker:
        kernels: dict[str, KernelText] = {}

        def emit(kernel: Func) -> None:
            clock.lap("schedule")
            if options.verify:
                verify_func(kernel, LOOPS_SPEC)
            kernels[kernel.name] = kernel_ir(kernel, target)
            clock.lap("emit")
            maker.start(Unit(kernels[kernel.name].text))
            clock.lap("llvm")

        schedule_regions(
            module,
            target,
            strategies,
            ctx.remarks,
            emit,
            steps(progress, "kernels"),
            tolerant=not options.verify,
        )
        group_branches(module, target, ctx.remarks)
        clock.lap("schedule")
        inplace = {f.name: kernel_info(f).inplace for f in module.funcs.values() if f.level == "loops"}
        storage = assign_storage(module.main, inplace)
        constants = link.lay_out_constants(module)
        flush = options.numerics != "strict"
        program = link.make_program(module, storage, constants, kernels, taken_for_granted, flush)
        text = program_ir(program, target, profile=options.profile)
        clock.lap("emit")
        for unit in link.support_units(text, target):
            maker.start(unit)
        objects = maker.objects(steps(progress, "code"))
    clock.lap("llvm")
    _tell(progress, "link", 0, 1)
    report = link.make_report(module, storage, nodes, clock.laps, ctx.remarks, options.numerics)
    if options.profile:
        link.add_costs(report, module)
    return link.make_artifact(module, storage, constants, program, text, objects, target, report)


def strategies_with(plugins: Plugins, remarks: list[Remark]) -> Strategies[Strategy]:
    """Our strategies and those of plugins; `remarks` are told what is left out, and later which of them fail."""
    plugins = plugins.beside("strategies", [s.name for s in STRATEGIES.ours])
    remarks.extend(plugins.refused)
    outside: list[tuple[str, Strategy]] = []
    for candidate, plugin in plugins.used:
        strangers = [s.name for s in plugin.strategies if not isinstance(s, Strategy)]
        if strangers:
            wanted = f"{Strategy.__module__}.{Strategy.__name__}"
            remarks.append(candidate.refusal(f"its strategy '{strangers[0]}' is no {wanted}"))
        else:
            outside += [(plugin.name, s) for s in plugin.strategies if isinstance(s, Strategy)]
    return Strategies(STRATEGIES.ours, tuple(outside), remarks)


def lower_graph(
    module: Module,
    ctx: PassContext,
    options: Options,
    progress: OnProgress | None = None,
    strategies: Strategies[Strategy] = STRATEGIES,
) -> None:
    """All passes of the graph level: afterwards the main function holds regions, aliases and constants."""

    def verify(m: Module) -> None:
        verify_func(m.main, graph_spec(m))

    check = verify if options.verify else None
    first = default_passes(ctx.target, options)
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


class _Clock:
    """Seconds that each stage took; LLVM's are those for which the others waited."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._last
        self._last = now
