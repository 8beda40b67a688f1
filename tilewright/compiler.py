"""From a model to an artefact: its import, the programs that it needs, each through the stages of a `Compilation`, and
their code and weights in one artefact. Read it from top to bottom."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from tilewright import link
from tilewright.back_end import OnObjects, faults_of_plugins
from tilewright.codegen.devices.program import DeviceKernel
from tilewright.compilation import Clock, Compilation, Output, Setting, left_out
from tilewright.interventions import Dump, KernelOverrides
from tilewright.ir.core import Module, Op
from tilewright.ir.diag import Remark, UnsupportedError
from tilewright.ir.notes import ProgramWatch
from tilewright.ir.optional_steps import CHECKED, OptionalSteps, retry_without_failed_steps
from tilewright.ir.process_settings import rarely_collected, short_turns, with_room_for_frames
from tilewright.ir.types import TensorType
from tilewright.ops.indices import rows_of_indices
from tilewright.options import OnProgress, Options, Progress, Request, check_progress
from tilewright.plugins import NO_PLUGINS, Plugins
from tilewright.requested import RequestedGraphs, at_sizes, import_request
from tilewright.runtime import Artifact
from tilewright.runtime.errors import ExecutionError, OptionError
from tilewright.runtime.storage.image import Image
from tilewright.runtime.values.inputs import INDICES
from tilewright.schedule.edited import EditedSchedules
from tilewright.schedule.sharing.kernels import KnownKernels
from tilewright.session import Session
from tilewright.settings.flow import native_ops
from tilewright.settings.placing import WHOLE, KernelsRefused, Placing, nodes_of, single_op
from tilewright.target.hardware import usable_cores
from tilewright.target.host import host_target
from tilewright.target.machine import Machine
from tilewright.target.named import CTarget
from tilewright.target.target import Target, system_of

T = TypeVar("T")


class Checks(Protocol):
    """Looks at what a compilation does, in each attempt anew (`validation`)."""

    def begin_attempt(self) -> None: ...

    def watch(self, compilation: Compilation) -> ProgramWatch | None:
        """Who looks at the passes of a program."""

    def finish(self, artifact: Artifact, setting: Setting) -> Artifact:
        """Look at the code; the artefact with what there is to tell."""


def compile_request(
    request: Request, options: Options, progress: OnProgress | None = None, *, session: Session,
    on_objects: OnObjects | None = None, own_objects: bool = False, checks: Checks | None = None,
) -> Artifact:
    """From the model's file on, without the session's cache. The objects of which its code is linked are given to
    `on_objects`; with `own_objects` they are of the format of the machine's system, and no image is linked where that
    is not ELF. Raises ModelError, UnsupportedError, OptionError."""
    machines, plugins = session.machines(options), session.loaded_plugins
    if own_objects:
        machines = tuple(map(_with_own_objects, machines))
    check_levels(machines, options, own_objects)
    if options.validate and (checks is None or len(machines) > 1):
        raise OptionError(
            f"validate={options.validate!r:.80} is not allowed here: "
            + ("several targets are given" if len(machines) > 1 else "only tilewright.compile replays what it makes"),
            hint="compile the model for one target with validate= first, and see whether its report names anything",
        )
    request = request.with_states_of(options)

    def compiled(module: Module, optional: OptionalSteps, report_step: OnProgress | None) -> Artifact:
        graphs = RequestedGraphs.of(module, request, options.frequent, session, report_step)
        if len(machines) == 1:
            return compile_graphs(graphs, options, machines[0], report_step, plugins, optional, on_objects, checks)
        loads = [lambda: graphs]
        loads += [
            lambda: RequestedGraphs.of(
                import_request(request, session, report_step), request, options.frequent, session, report_step
            )
        ] * (len(machines) - 1)
        return compile_levels(loads, options, machines, report_step, plugins, optional, on_objects)

    artifact = compile_with_fallbacks(request, session, options, progress, compiled)
    if isinstance(request.model, Path):
        artifact = replace(artifact, model=request.model.name)
    return artifact


def _with_own_objects(machine: Machine) -> Machine:
    if isinstance(machine, Target) and system_of(machine.triple) == "macos":
        return replace(machine, own_objects=True)
    return machine


def check_levels(machines: Sequence[Machine], options: Options, own_objects: bool = False) -> None:
    """OptionError for several machines that no one CPU can be asked to choose from; artefacts, but for those that only
    tell of their own objects, have images, too."""
    if len(machines) == 1:
        return
    targets = [m for m in machines if isinstance(m, Target) and (m.links_images or own_objects)]
    if len({t.triple for t in targets}) != 1 or len(targets) != len(machines):
        raise OptionError(
            f"target={options.target!r:.200} is not allowed: levels of one artefact are CPUs of one kind and system",
            hint="give several of x86-64, x86-64-v2, x86-64-v3, x86-64-v4, ...",
        )
    names = [t.name for t in targets]
    if len({t.features for t in targets}) != len(targets) or len(set(names)) != len(names):
        raise OptionError(f"target={options.target!r:.200} is not allowed: two levels are the same")
    if options.guarded:
        raise OptionError("guarded=True runs the code of one machine: give one target")
    if options.schedule is not None or options.override or options.dump is not None:
        raise OptionError("schedules, kernels and stages are those of one machine: give one target")


@with_room_for_frames
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
    on_objects: OnObjects | None = None,
    checks: Checks | None = None,
) -> Artifact:
    """All programs of an artefact, and their code: those for frequent sizes are variants of the general one. Where a
    device lacks kernels, once more with what is known of that."""
    placing = _placing(machine, options)
    while True:
        again = None if placing is None else replace(graphs, general=graphs.general.copy())
        setting = _setting(options, machine, plugins, optional, progress, placing)
        if on_objects is not None:
            setting = setting.without_compilers("the objects of the model are linked by others")
        if checks is not None:
            checks.begin_attempt()
            known = KnownKernels() if setting.known is None and setting.edited is None else setting.known
            setting = replace(setting, watch=checks.watch, known=known)
        try:
            artifact = _compile_attempt(graphs, setting, on_objects)
            if placing is not None and again is not None and not placing.fits(artifact):
                graphs, placing = again, replace(placing, general=None)
                continue
            return artifact if checks is None else checks.finish(artifact, setting)
        except KernelsRefused as error:
            if placing is None or again is None or not _learnt(placing, error, again.general, setting):
                raise
            graphs = again
        except UnsupportedError:
            if placing is None or again is None or not placing.lacks or placing.has_hard:
                raise
            graphs, placing = again, replace(placing, trusts=True, lacks={}, general=None)


def _placing(machine: Machine, options: Options) -> Placing | None:
    """What is known of a device beside a CPU; None for other machines."""
    if machine.link is None:
        return None
    return Placing(machine, machine.link, host_target(), options.placement == "device")


def _setting(
    options: Options, machine: Machine, plugins: Plugins, optional: OptionalSteps, progress: OnProgress | None,
    placing: Placing | None,
) -> Setting:  # fmt: skip
    """That of a machine, and of the CPU beside it, which has the same numbers of kernels."""
    edited = edited_schedules(options)
    own = Setting.of(options, machine, plugins, optional=optional, progress=progress, edited=edited)
    if placing is not None:
        cpu = Setting.of(options, placing.cpu, plugins, optional=optional, progress=progress, edited=edited)
        own = replace(own, placing=placing, beside=replace(cpu, numbers=own.numbers))
    return _intervened(own)


def _learnt(placing: Placing, error: KernelsRefused, module: Module, setting: Setting) -> bool:
    """Note which operators of refused kernels a device lacks; whether there is anything new. The error, where nothing
    is left for the device."""
    placing.has_hard |= not error.is_doubt
    alone = replace(setting, placing=None, beside=None, watch=None, observe=None, dump=None, overrides=None)
    ops = list(native_ops(module.main.body))
    is_new = False
    for names, reason in error.refused:
        own = [op for op in ops if nodes_of(op, names)]
        found = {op: why for op in own if (why := _refused_alone(op, module, alone))}
        learnt = [placing.learn(op, names, found.get(op, reason.what)) for op in found or own]
        if not any(learnt):  # what passes made of the nodes is refused, and none of their operators
            learnt = [placing.learn(op, names, reason.what, WHOLE) for op in own]
        is_new |= any(learnt)
    placing.refuse_all_of(module, error)
    return is_new


def _refused_alone(op: Op, module: Module, setting: Setting) -> str:
    """Why a device refuses a kernel of one operator; "" where it has code for it."""
    try:
        made = Compilation(single_op(op, module), setting, is_part=True).run("scheduled")
        with setting.back_end.code(setting.machine, setting.options) as code:
            texts = [setting.text(f, code) for f in made.module.funcs.values() if f.level == "loops"]
    except UnsupportedError as error:
        return error.what
    return next((text.doubt for text in texts if isinstance(text, DeviceKernel) and text.doubt), "")


def _compile_attempt(graphs: RequestedGraphs, setting: Setting, on_objects: OnObjects | None) -> Artifact:
    """All programs, and their code."""
    options, machine, optional = setting.options, setting.machine, setting.optional
    with ExitStack() as stack:
        code = stack.enter_context(setting.back_end.code(machine, options))
        # distances to what is lent are numbers in the order of this process
        lends = options.share_weights and machine.kind == Target.kind and not _is_swapped(machine)
        lent = link.Lent(graphs.general.constants.values() if lends else ())
        weights = _weights(machine, options, optional, lent, setting.has_room_for_zones)
        output = Output(code, weights, on_objects)
        if (cpu := setting.beside) is not None:
            its = stack.enter_context(cpu.back_end.code(cpu.machine, options))
            beside = Output(its, weights, on_objects, output.programs, external=output.external)
            output = replace(output, beside=beside)
        artifact, ends = _compile_programs(graphs, setting, output)
        if setting.edited is not None:
            setting.edited.check_all_used()
        if setting.overrides is not None:
            setting.overrides.check_all_used()
        return _with_code(artifact, setting, output, ends)


def compile_rest(compilation: Compilation) -> Artifact:
    """The artefact of one program that is at some stage, in an output of its own."""
    setting = compilation.setting
    with setting.back_end.code(setting.machine, setting.options) as code:
        weights = _weights(
            setting.machine, setting.options, setting.optional, guarded=setting.has_room_for_zones
        )
        output = compilation.output = Output(code, weights)
        artifact = compilation.run("program").artifact
        assert artifact is not None
        return _with_code(artifact, setting, output, [(code.submitted, weights.total)])


def _intervened(setting: Setting) -> Setting:
    """With what users watch and replace."""
    options = setting.options
    return replace(
        setting,
        dump=None if options.dump is None else Dump(Path(options.dump)),
        overrides=KernelOverrides(tuple(options.override)) if options.override else None,  # type: ignore[arg-type]
    )


def compile_levels(
    loads: Sequence[Callable[[], RequestedGraphs]],
    options: Options,
    machines: Sequence[Machine],
    progress: OnProgress | None,
    plugins: Plugins,
    optional: OptionalSteps,
    on_objects: OnObjects | None = None,
) -> Artifact:
    """The programs of an artefact for each of several machines, with weights that all share: those that are packed in
    one way are there once. `on_objects` is told of the objects of each."""
    why = "there are several targets"
    settings = [
        Setting.of(options, m, plugins, optional=optional, progress=progress).without_compilers(why) for m in machines
    ]
    weights = _weights(machines[0], options, optional, guarded=settings[0].has_room_for_zones)
    made = []
    with ExitStack() as stack:
        for load, machine, setting in zip(loads, machines, settings, strict=True):
            output = Output(stack.enter_context(setting.back_end.code(machine, options)), weights, on_objects)
            made.append((*_compile_programs(load(), setting, output), setting, output, weights.placed()))
        blocks = weights.blocks()
        levels = [
            replace(_with_code(artifact, setting, output, ends, blocks), level=setting.machine.name, reads=reads)
            for artifact, ends, setting, output, reads in made
        ]
    return replace(levels[-1], levels=tuple(levels[:-1]))


def _compile_programs(
    graphs: RequestedGraphs, setting: Setting, output: Output
) -> tuple[Artifact, list[tuple[int, int]]]:
    """All programs of an artefact, still without code and weights, and what each left: objects, and bytes of
    weights."""
    module, broadcasting = graphs.general, graphs.broadcasting
    code, weights = output.code, output.weights
    artifact = _compile_program(module, setting, output)
    variants, ends = [], [(code.submitted, weights.total)]
    for sizes, load in graphs.frequent:
        with at_sizes(sizes):
            variants.append(link.make_variant(artifact, sizes, _compile_program(load(), setting, output)))
        ends.append((code.submitted, weights.total))
    if broadcasting is not None:
        artifact = setting.optional.attempt(
            "broadcasting",
            lambda: _with_broadcasting(artifact, module, broadcasting, setting, output),
            lambda: artifact,
        )
        ends.append((code.submitted, weights.total))
    return replace(artifact, variants=tuple(variants)), ends


def _weights(
    machine: Machine, options: Options, optional: OptionalSteps, lent: link.Lent | None = None,
    guarded: bool = False,
) -> link.Weights:  # fmt: skip
    """Constants for a machine: in its byte order, or for C as numbers, which have that of any machine."""
    threads = options.compile_threads or usable_cores()
    return link.Weights(
        lent, threads, optional, _is_swapped(machine), apart=machine.kind == CTarget.kind,
        guarded=guarded,
    )  # fmt: skip


def _is_swapped(machine: Machine) -> bool:
    """Whether a machine's byte order is another one than that of this process."""
    return isinstance(machine, Target) and machine.is_big_endian != (sys.byteorder == "big")


def _with_code(
    artifact: Artifact, setting: Setting, output: Output, ends: Sequence[tuple[int, int]], blocks: Any = None
) -> Artifact:
    """The artefact with its code and weights, which are those of the output where they are not given. `ends` are what
    each of its programs left: objects, and bytes of weights."""
    code, weights, clock = output.code, output.weights, Clock()
    blocks = weights.blocks() if blocks is None else blocks  # while threads make objects
    clock.lap("weights")
    try:
        objects = code.objects(setting.step("code"))
    except Exception as error:
        setting.optional.blame(code.failed, error)
    clock.lap("llvm")
    setting.tell("link", 0, 1)
    if output.on_objects is not None:
        output.on_objects(code.files(objects))
    image = code.image(objects)
    if output.beside is not None:
        objects, image = _beside(artifact, output.beside, objects)
    clock.lap("link")
    added = [
        (sum(map(len, objects[before[0] : after[0]])), after[1] - before[1]) for before, after in pairwise(ends)
    ]
    with_objects = image is None or (output.beside is not None and objects)
    kept = (*output.external, *(objects if with_objects else ()))
    return link.with_costs(artifact, clock.laps, added).sharing(image, kept, *blocks)


def _beside(artifact: Artifact, cpu: Output, objects: Sequence[bytes]) -> tuple[Sequence[bytes], Image | None]:
    """The objects of a device and the image of the CPU beside it, as far as parts of an artefact are for these."""
    kinds = {part.target.kind for program in artifact.programs for part in program.parts or (program,)}
    objects = objects if kinds - {Target.kind} else ()
    if Target.kind not in kinds:
        return objects, None
    made = cpu.code.objects()
    if cpu.on_objects is not None:
        cpu.on_objects(cpu.code.files(made))
    if (image := cpu.code.image(made)) is None:
        raise UnsupportedError(
            "parts of the model run on this machine's CPU, for whose system no code is linked beside a device",
            hint="compile the model for the CPU (target='host')",
        )
    return objects, image


def compile_text(
    text: str, options: Options, session: Session, *, file: str = "<text>", model: Any = None,
    constants: Mapping[str, np.ndarray] | None = None, progress: OnProgress | None = None,
) -> Artifact:
    """From the text of a stage on (`Compilation.text`), edited or not, in place of a model. Elements of constants that
    it leaves out are those of `constants`, by name, or those that a `model` has at this stage, compiled with the same
    options.

    TextError with line and column, VerifyError for an illegal program, ModelError for constants that are missing or
    others, OptionError for options that say what the text says.
    """  # fmt: skip
    if options.validate:
        raise OptionError("validate= is not allowed for a text of a stage: what it was made of is not known")
    for name in ("frequent", "states"):
        if getattr(options, name):
            raise OptionError(
                f"{name}= is not allowed for a text of a stage: it is one program, which says what it takes and keeps",
                hint="give it when the text is made of the model",
            )
    setting = replace(
        _intervened(Setting.chosen(options, session)), edited=edited_schedules(options), progress=progress,
        optional=OptionalSteps(verified=is_verified(options), raises=failures_are_errors(options)),
    )  # fmt: skip
    with faults_of_plugins(session.loaded_plugins.back_ends), setting.back_end.code(setting.machine, options) as code:
        weights = _weights(setting.machine, options, setting.optional, guarded=setting.has_room_for_zones)
        output = Output(code, weights)
        given = {**(constants or {})}
        if model is not None:
            read = Compilation.resumed(text, setting, file=file)
            given = _constants_of(read, model, options, session) | given
        done = Compilation.resumed(text, setting, given, file, output, complete=True)
        unknown = next((name for name in constants or {} if name not in done.whole().constants), None)
        if unknown is not None:
            raise OptionError(
                f"the text has no constant @{unknown}",
                hint=f"its constants are {', '.join(sorted(done.whole().constants)[:20]) or 'none'}",
            )
        artifact = done.run("program").artifact
        assert artifact is not None
        if setting.edited is not None:
            setting.edited.check_all_used()
        if setting.overrides is not None:
            setting.overrides.check_all_used()
        return _with_code(artifact, setting, output, [(code.submitted, weights.total)])


def _constants_of(read: Compilation, model: Any, options: Options, session: Session) -> dict[str, np.ndarray]:
    """The constants that a model has where a text was made of it. Texts of the graph before fusion do not say behind
    which stage: then it is the first one that has all that the text leaves out."""
    request = Request.of(model, None, None).with_states_of(options)
    again = Compilation(import_request(request, session), Setting.chosen(options, session))
    module = read.whole()
    wanted = {name: module.constants[name].shape for name in left_out(module)}
    found: dict[str, np.ndarray] = {}
    for stage in ("import", "graph") if read.stage in ("import", "parts") else (read.stage,):
        module = again.run(stage).whole()
        found = {name: np.asarray(module.constants[name]) for name in module.constants}
        if all(name in found and found[name].shape == shape for name, shape in wanted.items()):
            break
    return found


def _with_broadcasting(
    artifact: Artifact, module: Module, load: Callable[[], Module], setting: Setting, output: Output
) -> Artifact:
    """The artefact of a module with a program that has both meanings of dims; as it is where there is none."""
    try:
        general = load()
        assert "open_dims" not in general.main.attrs, f"{general.main.attrs['open_dims']} are taken for equal after all"
        program = _compile_program(general, setting, output)
        return link.with_broadcasting(artifact, program, module.main.attrs["open_dims"])
    except KernelsRefused:
        raise
    except UnsupportedError as error:
        reason = f"dims that are taken for equal cannot be broadcast: {error.what}"
        remark = Remark("import", error.where or "the model", reason, "missed")
        return artifact.reporting(remarks=(*artifact.report.remarks, remark))


def _compile_program(module: Module, setting: Setting, output: Output) -> Artifact:
    """One program, in one piece or in parts. The artefact has no code and no weights yet."""
    setting.optional.run(INDICES, lambda: _note_indices(module))
    done = Compilation(module, setting, output).run("program")
    assert done.artifact is not None
    return done.artifact


def _note_indices(module: Module) -> None:
    """Attach to a program of how many rows inputs are indices."""
    if rows := rows_of_indices(module.main):
        module.main.attrs["attached"] = {**module.main.attrs.get("attached", {}), INDICES: rows}


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
