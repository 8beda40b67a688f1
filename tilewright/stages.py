"""The programs of a compilation at each of its levels, as text, for people and tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.asm.listing import annotated
from tilewright.back_end import BackEnd, back_end_for
from tilewright.codegen.cpu.assemble import assembly
from tilewright.compiler import (
    edited_schedules,
    import_request,
    lower_graph,
    pass_context,
    steps,
    strategies_with,
    whatever_fails,
)
from tilewright.ir.core import Func, Module
from tilewright.ir.switches import Switches
from tilewright.ir.text import print_func, print_module
from tilewright.loops.kernel_info import kernel_info
from tilewright.options import OnProgress, Options, Request
from tilewright.runtime.errors import OptionError
from tilewright.schedule.edited import EditedSchedules, print_schedule
from tilewright.schedule.sharing.kernels import schedule_regions
from tilewright.session import Session
from tilewright.staging.split import split
from tilewright.target.machine import Machine
from tilewright.target.target import Target

LEVELS = ("import", "graph", "schedule", "loops", "llvm", "asm")


def programs(
    model: str | Path | bytes | Any,
    level: str,
    *,
    kernel: str | None = None,
    options: Options | None = None,
    constants: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    session: Session | None = None,
    progress: OnProgress | None = None,
) -> dict[str, str]:
    """Texts by name of function: of the graph ("main"), or of the kernels whose names begin with `kernel`. Where the
    host runs a model part by part, the names begin with that of the part, such as "part0.main".

    Each call compiles up to the level, with the arguments of `tilewright.compile`; of the `session` only the
    plugins are used.
    Raises as that does; OptionError for an unknown level and for a kernel that does not exist.
    """
    if level not in LEVELS:
        raise OptionError(f"there is no level '{level}'", hint=f"levels are {', '.join(LEVELS)}")
    options = options or Options()
    request, session = Request.of(model, constants, shapes), session or Session()
    machine, plugins = session.machine(options), session.loaded_plugins
    back_end = back_end_for(machine, plugins)
    if level == "import":
        return {"main": print_module(import_request(request, session, progress))}

    def texts(module: Module, switches: Switches, told: OnProgress | None) -> dict[str, str]:
        staged = split(module)
        if staged is None:
            return texts_of_part(module, switches, told)
        found: dict[str, str] = {}
        refused: OptionError | None = None
        for k, part in enumerate(staged.parts):
            try:
                found |= {f"part{k}.{name}": text for name, text in texts_of_part(part, switches, told).items()}
            except OptionError as error:  # the kernel may be in another part
                refused = error
        if refused is not None and not found:
            raise refused
        return found

    def texts_of_part(module: Module, switches: Switches, told: OnProgress | None) -> dict[str, str]:
        ctx = pass_context(machine, options, switches)
        strategies = strategies_with(plugins, ctx.remarks, machine, back_end, switches)
        lower_graph(module, ctx, options, told, strategies, back_end.passes(machine, options))
        if level == "graph":
            return {module.main.name: print_module(module)}
        edited = edited_schedules(options) or EditedSchedules()
        told_kernels = steps(told, "kernels")
        schedule_regions(
            module, machine, strategies, ctx.remarks, step=told_kernels, switches=switches, edited=edited
        )
        kernels = _kernels(module, kernel)
        if level == "schedule":
            calls = Counter(op.attrs["kernel"] for op in module.main.body.ops if op.name == "call")
            return {f.name: print_schedule(f, edited.digests[f.name], calls[f.name]) for f in kernels}
        return {f.name: _kernel_text(f, level, machine, back_end) for f in kernels}

    return whatever_fails(request, session, options, progress, texts)


def _kernels(module: Module, prefix: str | None) -> list[Func]:
    kernels = [f for f in module.funcs.values() if f.level == "loops"]
    if prefix is None:
        return kernels
    # `k1` is the kernel of that number and not also k10 to k19
    chosen = [f for f in kernels if f.name == prefix or f.name.startswith(f"{prefix}_")]
    chosen = chosen or [f for f in kernels if f.name.startswith(prefix)]
    if not chosen:
        names = ", ".join(f.name for f in kernels) or "none"
        raise OptionError(f"there is no kernel '{prefix}'", hint=f"the kernels are: {names}")
    return chosen


def _kernel_text(func: Func, level: str, machine: Machine, back_end: BackEnd) -> str:
    if level == "loops":
        # one step a line is readable; in the attributes all of them stand on the line of the kernel's name
        info = kernel_info(func)
        func.info = replace(info, schedule=())
        return "".join(f"# {step}\n" for step in info.schedule) + print_func(func)
    with back_end.code(machine, Options(compile_threads=1)) as code:
        text = code.kernel(func).text
    if not isinstance(machine, Target):
        if level == "llvm":
            raise OptionError(
                f"machine '{machine.name}' has no LLVM IR", hint="its code is shown at the level asm"
            )
        return text
    return annotated(assembly(text, machine, comments=True), machine) if level == "asm" else text
