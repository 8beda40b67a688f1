"""Taking the steps of a trace on a kernel as it was lowered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.ir.core import Func
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import Sym
from tilewright.ir.symbolic.parse import parse_sym
from tilewright.loops.conditions.specialize import for_other_dims, specialize_less
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.primitive import PRIMITIVES
from tilewright.loops.queues.waits import finish_queues
from tilewright.schedule.references import find_buffer, find_op
from tilewright.schedule.trace import BUFFERS, EXPRESSIONS, OPS, Argument, Step, Trace
from tilewright.target.machine import Intrinsic, Machine, Route, VectorUnit

RECORDS = ("Intrinsic | VectorUnit", "Route")
"""Types of parameters, as primitives spell them, that are records of the machine."""


class ReplayError(ScheduleError):
    """A step of a trace that cannot be taken; `place` is where it stands in the trace's text."""

    def __init__(
        self, what: str, *, where: str | None = None, hint: str | None = None, place: int = 0
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.place = place


def replay(naive: Func, trace: Trace, machine: Machine | None = None) -> Func:
    """The kernel that the steps of a trace make of `naive`, which stays as it is; `machine` has the intrinsics and
    routes that steps name. ReplayError for a step that does not fit or is not legal, and for a kernel that would not
    serve all dims."""
    func = naive.clone()
    for step in trace.steps:
        take(func, step, machine)
    specialized_for = kernel_info(func).specialized_for
    if specialized_for and trace.otherwise is None:
        needed = " and ".join(f"{name} >= {least}" for name, least in specialized_for.items())
        raise ReplayError(
            f"the kernel is right only for {needed}",
            hint="add the steps for all other dims, at the end: otherwise { ... }",
            place=trace.place,
        )
    if trace.otherwise is not None:
        _join(func, naive, trace.otherwise, machine)
    if machine is not None:
        finish_queues(func, machine)
    func.info = replace(kernel_info(func), schedule=trace.lines())
    return func


def take(func: Func, step: Step, machine: Machine | None = None) -> None:
    """Take one step. ReplayError when it is refused."""
    try:
        _apply(func, step, machine)
    except ScheduleError as e:
        raise ReplayError(e.what, hint=e.hint, place=step.place) from e
    except MemoryError:
        raise
    except Exception as e:  # a primitive takes any loop, but not just anything for a loop
        what = f"{step} does not fit the kernel: {type(e).__name__}: {e}"
        raise ReplayError(what, place=step.place) from e


def _join(func: Func, naive: Func, trace: Trace, machine: Machine | None) -> None:
    """Complete a kernel for some dims by the one that `trace` makes for all others."""
    specialized_for = kernel_info(func).specialized_for
    if not specialized_for:
        raise ReplayError("the steps before 'otherwise' specialise for no dims", place=trace.place)
    others = naive.clone()
    specialize_less(others, specialized_for)
    small = replay(others, trace, machine)
    try:
        for_other_dims(func, small, naive.dims)
    except ScheduleError as e:
        raise ReplayError(e.what, place=trace.place) from e


def _apply(func: Func, step: Step, machine: Machine | None) -> None:
    primitive = PRIMITIVES[step.primitive]
    given = dict(step.arguments)
    in_order: list[Any] = []
    by_name: dict[str, Any] = {}
    for p in primitive.parameters:
        if p.name not in given:
            continue
        value = _value(given[p.name], p.type, func)
        if isinstance(value, str) and p.type in RECORDS:
            value = _record(value, p.type, machine)
        if p.many:
            in_order += value
        elif p.is_required:
            in_order.append(value)
        else:
            by_name[p.name] = value
    primitive.function(func, *in_order, **by_name)


def _value(argument: Argument, type: str, func: Func) -> Any:
    """What an argument of a parameter of this type stands for."""
    if isinstance(argument, tuple):
        return [find_op(item, func) for item in argument]
    if isinstance(argument, str) and type in OPS:
        return find_op(argument, func)
    if isinstance(argument, str) and type in BUFFERS:
        return find_buffer(argument, func)
    if isinstance(argument, str) and type in EXPRESSIONS:
        return parse_sym(argument, lambda name: _variable(name, func))
    return argument


def _record(name: str, type: str, machine: Machine | None) -> Intrinsic | VectorUnit | Route:
    """The intrinsic or the vector unit of a name, or the route from one memory to another, of the machine."""
    source, _, target = name.partition(" -> ")
    if machine is not None:
        found = machine.route(source, target) if type == "Route" else machine.intrinsic(name) or machine.unit(name)
        if found is not None:
            return found
    where = "no machine is given" if machine is None else f"machine '{machine.name}' has none of this name"
    what = type.partition(" ")[0].lower()
    raise ScheduleError(f"there is no {what} '{name}': {where}")


def _variable(name: str, func: Func) -> Sym:
    """The dim, loop variable or bound index of that name."""
    variables: list[Sym] = [
        *func.dims,
        *(op.attrs["var"] for op in func.body.walk() if op.name in ("for", "bind")),
    ]
    for variable in variables:
        if variable.name == name:
            return variable
    known = ", ".join(dict.fromkeys(v.name for v in variables)) or "none"
    raise ScheduleError(f"there is no dim or loop variable '{name}' here; those of the kernel are {known}")
