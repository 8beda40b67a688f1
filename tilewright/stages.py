"""The programs of a compilation at each of its levels, as text, for people and tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.asm.listing import annotated
from tilewright.codegen.cpu.assemble import assembly
from tilewright.codegen.ptx.program import ptx_of
from tilewright.compilation import STAGES, Compilation, Setting
from tilewright.compiler import compile_with_fallbacks, edited_schedules
from tilewright.interventions import kernels_near
from tilewright.ir.core import Func, Module
from tilewright.ir.optional_steps import OptionalSteps
from tilewright.ir.text import print_func, print_module
from tilewright.loops.kernel_info import kernel_info
from tilewright.options import OnProgress, Options, Request
from tilewright.program.memory.places import is_planned
from tilewright.requested import RequestedGraphs, import_request
from tilewright.runtime.errors import OptionError, short_name
from tilewright.schedule.edited import EditedSchedules, print_schedule
from tilewright.session import Session
from tilewright.target.gpu.cuda import Cuda
from tilewright.target.target import Target

LEVELS = ("import", "graph", "program", "schedule", "loops", "llvm", "asm")


def programs(
    model: str | Path | bytes | Any,
    level: str,
    *,
    kernel: str | None = None,
    options: Options | None = None,
    constants: Mapping[str, Any] | str | Path | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    session: Session | None = None,
    progress: OnProgress | None = None,
) -> dict[str, str]:
    """Texts by name of function: of the graph or the program ("main"), or of the kernels whose names begin with
    `kernel`. Where sizes depend on data, the names begin with that of the part, such as "part0.main", and in variants
    with the frequent sizes, such as "batch=1: main"; those of the program for dims that are 1 with "broadcasting: ".

    Each call compiles up to the level, with the arguments of `tilewright.compile`; of the `session` only the
    plugins are used.
    Raises as that does; OptionError for an unknown level and for a kernel that does not exist.
    """
    if not isinstance(level, str) or level not in LEVELS:
        raise OptionError(f"there is no level '{level}'", hint=f"levels are {', '.join(LEVELS)}")
    if not isinstance(kernel, str | None):
        raise OptionError(f"kernel={kernel!r:.80} is not allowed: give the name of a kernel, or what it begins with")
    options = Options.of(options)
    request, session = Request.of(model, constants, shapes).with_states_of(options), Session.of(session)
    machine = session.machine(options)
    if level == "import":
        return {"main": print_module(import_request(request, session, progress))}

    def texts(module: Module, optional: OptionalSteps, told: OnProgress | None) -> dict[str, str]:
        graphs = RequestedGraphs.of(module, request, options.frequent, session, told)
        edited = edited_schedules(options) or EditedSchedules()
        setting = Setting.of(
            options, machine, session.loaded_plugins, optional=optional, progress=told, edited=edited
        )
        wholes = {prefix: Compilation(each, setting) for prefix, each in graphs.all()}
        for whole in wholes.values():
            whole.run(_STAGE_OF.get(level, "scheduled"))
        pieces = {f"{prefix}{name}": piece for prefix, whole in wholes.items() for name, piece in _pieces(whole)}
        if level == "graph":
            return {f"{name}main": piece.text() for name, piece in pieces.items()}
        if level == "program":
            found = {f"{prefix}main": whole for prefix, whole in wholes.items()}
            found |= {f"{name}main": piece for name, piece in pieces.items()}
            return {name: print_func(each.module.main) for name, each in found.items()}
        edited.check_all_used()
        made = ((name, f) for name, p in pieces.items() for f in p.module.funcs.values() if f.level == "loops")
        kernels = _chosen({f"{name}{f.name}": f for name, f in made}, kernel)
        if level == "schedule":
            mains = (piece.module.main for piece in pieces.values())
            calls = Counter(op.attrs["kernel"] for main in mains for op in main.body.ops if op.name == "call")
            return {n: print_schedule(f, edited.digests[f.name], calls[f.name]) for n, f in kernels.items()}
        return {n: kernel_text(f, level, setting) for n, f in kernels.items()}

    return compile_with_fallbacks(request, session, options, progress, texts)


def stage_text(
    model: str | Path | bytes | Any,
    stage: str,
    *,
    options: Options | None = None,
    constants: Mapping[str, Any] | str | Path | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    session: Session | None = None,
) -> str:
    """All that the program for all sizes has become at a stage, as one text that a compilation goes on from
    (`compile_text`). OptionError for stages that have no text."""
    if stage not in TEXT_STAGES:
        raise OptionError(f"there is no text of a stage '{stage}'", hint=f"stages are {', '.join(TEXT_STAGES)}")
    options, session = Options.of(options), Session.of(session)
    request = Request.of(model, constants, shapes).with_states_of(options)
    setting = Setting.chosen(options, session)
    return Compilation(import_request(request, session), setting).run(stage).text()


def planned_programs(
    model: str | Path | bytes | Any,
    *,
    options: Options | None = None,
    constants: Mapping[str, Any] | str | Path | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    session: Session | None = None,
) -> list[tuple[str, Func]]:
    """The main functions of the program for all sizes, or of each of its parts, with where values lie, by name."""
    found = planned_modules(model, options=options, constants=constants, shapes=shapes, session=session)
    return [(name, module.main) for name, module in found]


def planned_modules(
    model: str | Path | bytes | Any,
    *,
    options: Options | None = None,
    constants: Mapping[str, Any] | str | Path | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    session: Session | None = None,
) -> list[tuple[str, Module]]:
    """As `planned_programs`, with the kernels that are called."""
    options, session = Options.of(options), Session.of(session)
    request = Request.of(model, constants, shapes).with_states_of(options)
    whole = Compilation(import_request(request, session), Setting.chosen(options, session)).run("planned")
    pieces = [(prefix.rstrip(".") or "the program", piece.module) for prefix, piece in _pieces(whole)]
    return [(name, module) for name, module in pieces if is_planned(module.main)]


TEXT_STAGES = STAGES[:-1]
"""Stages that have a text of their own: the last one has code."""

_STAGE_OF = {"graph": "fused", "program": "planned"}
"""The stages whose texts are shown; kernels are shown as they are scheduled."""


def _pieces(whole: Compilation) -> list[tuple[str, Compilation]]:
    """What has kernels of its own, by what the names of its functions begin with."""
    return [("" if piece is whole else f"part{k}.", piece) for k, piece in enumerate(whole.pieces)]


def _chosen(kernels: dict[str, Func], prefix: str | None) -> dict[str, Func]:
    """The kernels whose names begin with a prefix; OptionError where there are none."""
    if prefix is None:
        return kernels
    # `k1` is the kernel of that number and not also k10 to k19
    chosen = {n: f for n, f in kernels.items() if f.name == prefix or f.name.startswith(f"{prefix}_")}
    chosen = chosen or {n: f for n, f in kernels.items() if f.name.startswith(prefix)}
    if not chosen:
        hint = kernels_near(prefix, [f.name for f in kernels.values()])
        raise OptionError(f"there is no kernel '{short_name(prefix)}'", hint=hint)
    return chosen


def kernel_text(func: Func, level: str, setting: Setting) -> str:
    """A scheduled kernel at one of the levels "loops", "llvm" and "asm". OptionError for a level that the machine has
    not."""
    if level == "loops":
        # one step a line is readable; in the attributes all of them stand on the line of the kernel's name
        info = kernel_info(func)
        func.info = replace(info, schedule=())
        try:
            return "".join(f"# {step}\n" for step in info.schedule) + print_func(func)
        finally:
            func.info = info
    machine = setting.machine
    with setting.back_end.code(machine, Options(compile_threads=1)) as code:
        text = setting.text(func, code).text
    if isinstance(machine, Cuda):
        return ptx_of(text, machine) if level == "asm" else text
    if not isinstance(machine, Target):
        if level == "llvm":
            raise OptionError(
                f"machine '{machine.name}' has no LLVM IR", hint="its code is shown at the level asm"
            )
        return text
    return annotated(assembly(text, machine, comments=True), machine) if level == "asm" else text
