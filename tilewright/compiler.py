"""From a model to an artefact: its import, the programs that it needs, each through the stages of a `Compilation`, and
their code and weights in one artefact. Read it from top to bottom."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from tilewright import link
from tilewright.back_end import CpuCode, faults_of_plugins
from tilewright.compilation import Clock, Compilation, Output, Setting, remarks_of_import, split, verify_graph
from tilewright.frontends.built_in import FRONT_ENDS
from tilewright.frontends.inputs import shapes_with
from tilewright.ir.core import Module
from tilewright.ir.diag import (
    InternalError,
    ModelError,
    Remark,
    TilewrightError,
    UnsupportedError,
    VerifyError,
)
from tilewright.ir.optional_steps import CHECKED, OptionalSteps, retry_without_failed_steps
from tilewright.ir.process_settings import rarely_collected, short_turns
from tilewright.ir.types import TensorType
from tilewright.ops.define.broadcasting import both_meanings
from tilewright.ops.define.operator import staying_whole
from tilewright.options import FrequentSizes, OnProgress, Options, Progress, Request, check_progress
from tilewright.plugins import NO_PLUGINS, Plugins
from tilewright.program.places import OVERWRITES
from tilewright.program.steps import staged_program
from tilewright.runtime import Artifact
from tilewright.runtime.artifact import sizes_text
from tilewright.runtime.errors import ExecutionError
from tilewright.schedule.edited import EditedSchedules
from tilewright.session import Session
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


def import_request(request: Request, session: Session, progress: OnProgress | None = None) -> Module:
    """The graph as the model says it, with the values and shapes that the request gives."""
    _tell(progress, "import", 0, 1)
    front_end = session.front_end(request.model)
    try:
        module = front_end.load(request.model, constants=request.constants, shapes=request.shapes)
        if front_end not in FRONT_ENDS:
            if not isinstance(module, Module):
                raise TypeError(f"its 'load' gave a {type(module).__name__}, and no Module")
            verify_graph(module)
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


def import_graph(model: Any, session: Session | None = None, whole: Container[str] = ()) -> Module:
    """The graph of a model, for tools that change it: it means all that the model means. Composites named in `whole`
    stay whole where sizes can be followed through them. Raises as `import_request`."""
    request, session = Request.of(model, None, None), Session.of(session)
    try:
        with staying_whole(whole):
            return _with_all_meanings(request, session)
    except UnsupportedError:
        if not whole:
            raise
        return _with_all_meanings(request, session)


def _with_all_meanings(request: Request, session: Session) -> Module:
    module = import_request(request, session)
    both = broadcasting_module(module, request, session)
    if both is not None:
        with suppress(UnsupportedError):  # dims that must be equal are refused in other calls
            return both()
        del module.main.attrs["open_dims"]
    return module


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
    """All programs of an artefact, and their code. The module is changed: afterwards it holds the kernels and the calls
    of them, or where sizes depend on data, what the host does between its parts. The `frequent` modules become
    variants, and the one that is `broadcasting` the program for dims that are 1."""
    edited = edited_schedules(options)
    setting = Setting.of(options, machine, plugins, optional=optional, progress=progress, edited=edited)
    with setting.back_end.code(machine, options) as code:
        lends = options.share_weights and machine.kind == Target.kind
        lent = link.Lent(module.constants.values() if lends else ())
        weights = link.Weights(lent, options.compile_threads or usable_cores(), optional)
        output = Output(code, weights)
        artifact = _compile_staged(module, setting, output)
        variants, ends = [], [(code.submitted, weights.total)]
        for sizes, load in frequent:
            with at_sizes(sizes):
                variants.append(link.make_variant(artifact, sizes, _compile_staged(load(), setting, output)))
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
    for stage, seconds in clock.laps.items():
        link.add_time(artifact.report, stage, seconds)
    for program, (before, after) in zip(artifact.programs[1:], pairwise(ends), strict=False):
        link.add_bytes(program.report, objects[before[0] : after[0]], after[1] - before[1])
    return artifact.sharing(tuple(objects), *blocks)


def _with_broadcasting(
    artifact: Artifact, module: Module, load: Callable[[], Module], setting: Setting, output: Output
) -> Artifact:
    """The artefact of a module with a program that has both meanings of dims; as it is where there is none."""
    try:
        general = load()
        assert "open_dims" not in general.main.attrs, f"{general.main.attrs['open_dims']} are taken for equal after all"
        program = _compile_staged(general, setting, output)
        return link.with_broadcasting(artifact, program, module.main.attrs["open_dims"])
    except UnsupportedError as error:
        reason = f"dims that are taken for equal cannot be broadcast: {error.what}"
        artifact.report["remarks"].append(Remark("import", error.where or "the model", reason, "missed").record())
        return artifact


def _compile_staged(module: Module, setting: Setting, output: Output) -> Artifact:
    """A graph in one piece or, where sizes depend on data, a program of parts that are compiled by themselves."""
    parts = split(module, setting)
    if parts == (module,):
        return _compile_program(module, setting, output)
    if setting.options.integer_only:
        raise UnsupportedError(
            "the model cannot be computed by integers only: sizes of its tensors depend on data",
            hint="give the inputs that they depend on as constants",
        )
    staged = staged_program(module)
    compiled = [_compile_program(part, setting, output) for part in parts]
    if isinstance(output.code, CpuCode) and staged.program.slots:
        forms = [link.part_form(made, part.main.attrs[OVERWRITES]) for made, part in zip(compiled, parts, strict=True)]
        output.code.begin_steps(staged.program, link.value_forms(staged), forms)
    target = setting.back_end.target(setting.machine)
    numerics = setting.options.numerics
    states = link.make_states(module, output.weights)
    artifact = link.make_staged(module, staged, compiled, target, numerics, states)
    artifact.report["remarks"] += [remark.record() for remark in remarks_of_import(module)]
    return artifact


def _compile_program(module: Module, setting: Setting, output: Output) -> Artifact:
    """One program of native code. The artefact has no code and no weights yet."""
    done = Compilation(module, setting, output).run("program")
    assert done.artifact is not None
    return done.artifact


def edited_schedules(options: Options) -> EditedSchedules | None:
    """The schedules that the options give; TextError where they cannot be read."""
    given = options.schedule
    return None if given is None else EditedSchedules(given.text, given.name)


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
