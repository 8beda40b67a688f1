"""Whether a module at any level is legal: graphs, programs, parts and kernels."""

from __future__ import annotations

from tilewright.ir.core import Module
from tilewright.ir.diag import VerifyError
from tilewright.ir.verify import Spec, verify_func
from tilewright.ops.define.spec import graph_spec
from tilewright.program.memory.places import broken_plan, is_planned
from tilewright.program.spec import LEVEL, program_spec
from tilewright.program.split import is_of_parts, parts_of


def verify_graph(module: Module) -> None:
    """VerifyError where the main function is no legal graph."""
    verify_func(module.main, graph_spec(module))


def verify_all(module: Module, kernels: Spec | None = None) -> None:
    """VerifyError where the main function or a part is illegal; with the Spec of `kernels` also where a kernel is."""
    if module.main.level != LEVEL:
        verify_graph(module)
        return
    verify_program(module, kernels)
    for part in parts_of(module) if is_of_parts(module.main) else ():
        verify_all(part, kernels)


def verify_program(module: Module, kernels: Spec | None = None) -> None:
    """VerifyError where the main function is no legal program, or is planned so that it overwrites what it needs; with
    the Spec of `kernels` also where a kernel is illegal."""
    verify_func(module.main, program_spec(module))
    for func in module.funcs.values():
        if func.level == "loops" and kernels is not None:
            verify_func(func, kernels)
    if is_planned(module.main) and (wrong := broken_plan(module)) is not None:
        raise VerifyError(wrong[0], where=f"@main, {wrong[1].loc}")
