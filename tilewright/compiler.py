"""From a model to an artefact: its import, the programs that it needs, each through the stages of a `Compilation`, and
their code and weights in one artefact. Read it from top to bottom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from tilewright import link
from tilewright.back_end import faults_of_plugins
from tilewright.compilation import Clock, Compilation, Output, Setting
from tilewright.ir.core import Module
from tilewright.ir.diag import Remark, UnsupportedError
from tilewright.ir.optional_steps import CHECKED, OptionalSteps, retry_without_failed_steps
from tilewright.ir.process_settings import rarely_collected, short_turns
from tilewright.ir.types import TensorType
from tilewright.options import OnProgress, Options, Progress, Request, check_progress
from tilewright.plugins import NO_PLUGINS, Plugins
from tilewright.requested import RequestedGraphs, at_sizes, import_request
from tilewright.runtime import Artifact
from tilewright.runtime.errors import ExecutionError
from tilewright.schedule.edited import EditedSchedules
from tilewright.session import Session
from tilewright.target.host import usable_cores
from tilewright.target.machine import Machine
from tilewright.target.target import Target

T = TypeVar("T")


def compile_request(
    request: Request, options: Options, progress: OnProgress | None = None, *, session: Session
) -> Artifact:
    """From the model's file on, without the session's cache. Raises ModelError, UnsupportedError, OptionError."""
    machine, plugins = session.machine(options), session.loaded_plugins
    request = request.with_states_of(options)

    def compiled(module: Module, optional: OptionalSteps, report_step: OnProgress | None) -> Artifact:
        graphs = RequestedGraphs.of(module, request, options.frequent, session, report_step)
        return compile_graphs(graphs, options, machine, report_step, plugins, optional)

    artifact = compile_with_fallbacks(request, session, options, progress, compiled)
    if isinstance(request.model, Path):
        artifact = replace(artifact, model=request.model.name)
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

    with rarely_collected(), short_turns(), faults_of_plugins(session.loaded_plugins.back_ends, may_be_a_defect):
        return retry_without_failed_steps(
            lambda: import_request(request, session, watched),
            lambda module, optional: _in_memory(module, lambda: compiled(module, optional, watched)),
            OptionalSteps(verified=is_verified(options), raises=failures_are_errors(options)),
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


def is_verified(options: Options) -> bool:
    """Whether programs are verified after each step."""
    return options.verify


def failures_are_errors(options: Options) -> bool:
    """Whether failures of optional steps are errors. Where programs are verified, too: nothing else would tell of
    what is found."""
    return options.verify or options.strict


def compile_module(module: Module, options: Options, machine: Machine) -> Artifact:
    """The artefact of one graph. It is changed: afterwards it holds the kernels and the calls of them, or where sizes
    depend on data, what the host does between its parts."""
    return compile_graphs(RequestedGraphs(module), options, machine)


def compile_graphs(
    graphs: RequestedGraphs,
    options: Options,
    machine: Machine,
    progress: OnProgress | None = None,
    plugins: Plugins = NO_PLUGINS,
    optional: OptionalSteps = CHECKED,
) -> Artifact:
    """All programs of an artefact, and their code: those for frequent sizes are variants of the general one."""
    module, broadcasting = graphs.general, graphs.broadcasting
    edited = edited_schedules(options)
    setting = Setting.of(options, machine, plugins, optional=optional, progress=progress, edited=edited)
    with setting.back_end.code(machine, options) as code:
        lends = options.share_weights and machine.kind == Target.kind
        lent = link.Lent(module.constants.values() if lends else ())
        weights = link.Weights(lent, options.compile_threads or usable_cores(), optional)
        output = Output(code, weights)
        artifact = _compile_program(module, setting, output)
        variants, ends = [], [(code.submitted, weights.total)]
        for sizes, load in graphs.frequent:
            with at_sizes(sizes):
                variants.append(link.make_variant(artifact, sizes, _compile_program(load(), setting, output)))
            ends.append((code.submitted, weights.total))
        if broadcasting is not None:
            artifact = optional.attempt(
                "broadcasting",
                lambda: _with_broadcasting(artifact, module, broadcasting, setting, output),
                lambda: artifact,
            )
            ends.append((code.submitted, weights.total))
        artifact = replace(artifact, variants=tuple(variants))
        if edited is not None:
            edited.check_all_used()
        clock = Clock()
        blocks = weights.blocks()  # while threads make objects
        clock.lap("weights")
        try:
            objects = code.objects(setting.step("code"))
        except Exception as error:
            optional.blame(code.failed, error)
        clock.lap("llvm")
    setting.tell("link", 0, 1)
    added = [
        (sum(map(len, objects[before[0] : after[0]])), after[1] - before[1]) for before, after in pairwise(ends)
    ]
    return link.with_costs(artifact, clock.laps, added).sharing(tuple(objects), *blocks)


def _with_broadcasting(
    artifact: Artifact, module: Module, load: Callable[[], Module], setting: Setting, output: Output
) -> Artifact:
    """The artefact of a module with a program that has both meanings of dims; as it is where there is none."""
    try:
        general = load()
        assert "open_dims" not in general.main.attrs, f"{general.main.attrs['open_dims']} are taken for equal after all"
        program = _compile_program(general, setting, output)
        return link.with_broadcasting(artifact, program, module.main.attrs["open_dims"])
    except UnsupportedError as error:
        reason = f"dims that are taken for equal cannot be broadcast: {error.what}"
        remark = Remark("import", error.where or "the model", reason, "missed")
        return artifact.reporting(remarks=(*artifact.report.remarks, remark))


def _compile_program(module: Module, setting: Setting, output: Output) -> Artifact:
    """One program, in one piece or in parts. The artefact has no code and no weights yet."""
    done = Compilation(module, setting, output).run("program")
    assert done.artifact is not None
    return done.artifact


def edited_schedules(options: Options) -> EditedSchedules | None:
    """The schedules that the options give; TextError where they cannot be read."""
    given = options.schedule
    return None if given is None else EditedSchedules(given.text, given.name)


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
