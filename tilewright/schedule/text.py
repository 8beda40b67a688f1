"""Reading traces from their text.

kernel @k3_conv digest="0f4c1d2e" {        # which kernel, and how it was before its schedule
  specialize(n0, least=28)
  split(i2, factor=14)                     # a step on each line
  reorder(i1, i2o, i2i)
  otherwise {                              # for all n0 below 28
    split(i2, factor=7)
  }
}
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir.text.scope import ScopedCursor
from tilewright.loops.primitive import PRIMITIVES, Parameter, Primitive
from tilewright.loops.storage.packing import Packing
from tilewright.schedule.references import similar
from tilewright.schedule.trace import (
    BUFFERS,
    EXPRESSIONS,
    OPS,
    SEVERAL_OPS,
    Argument,
    Step,
    Trace,
)

_COMMENT = re.compile(r"#[^\n]*")


@dataclass(frozen=True, slots=True)
class KernelTrace:
    """The trace of one kernel of a file: the digest tells how the kernel was before it ("" where nothing is said), and
    `place` is where its text begins."""

    kernel: str
    digest: str
    trace: Trace
    place: int


def parse_trace(text: str, *, file: str = "text") -> Trace:
    """The steps that `text` spells. TextError shows the line and the place of what is wrong."""
    scope = _scope(text, file)
    found = _trace(scope)
    if scope.token:
        scope.fail("expected the name of a step")
    return found


def parse_schedules(text: str, *, file: str = "text") -> dict[str, KernelTrace]:
    """The traces of several kernels, by the names of these. TextError shows the line and the place of what is wrong."""
    scope = _scope(text, file)
    found: dict[str, KernelTrace] = {}
    while scope.token:
        at = scope.at
        if not scope.accept("kernel"):
            scope.fail("expected 'kernel'", hint='a kernel is written as kernel @name digest="..." { steps }')
        name = scope.reference("the name of a kernel")
        if name in found:
            scope.fail(f"kernel @{name} is given twice", at)
        digest = ""
        if scope.accept("digest"):
            scope.expect("=")
            digest = scope.string("the digest")
        scope.expect("{")
        found[name] = KernelTrace(name, digest, _trace(scope), scope.starts[at])
        scope.expect("}")
    return found


def _scope(text: str, file: str) -> ScopedCursor:
    return ScopedCursor(text, file, {"Packing": Packing}, {})


def _trace(scope: ScopedCursor) -> Trace:
    """Steps up to a closing bracket or the end."""
    place = scope.starts[scope.at]
    steps: list[Step] = []
    while scope.token not in ("}", ""):
        if scope.accept("otherwise"):
            scope.expect("{")
            others = _trace(scope)
            scope.expect("}")
            if scope.token not in ("}", ""):
                scope.fail(
                    "nothing follows the steps for other dims", hint="move the step before 'otherwise'"
                )
            return Trace(tuple(steps), others, place)
        steps.append(_step(scope))
    return Trace(tuple(steps), place=place)


def _step(scope: ScopedCursor) -> Step:
    at = scope.at
    name = scope.name("the name of a step")
    primitive = PRIMITIVES.get(name)
    if primitive is None:
        hint = similar(name, PRIMITIVES) or f"the steps are {', '.join(sorted(PRIMITIVES))}"
        scope.fail(f"there is no step '{name}'", at, hint)
    scope.expect("(")
    given: dict[str, Argument] = {}
    scope.until(")", lambda: _argument(scope, primitive, given))
    missing = [p.name for p in primitive.parameters if p.is_required and p.name not in given]
    if missing:
        scope.fail(f"{name} needs {' and '.join(missing)}", at, _usage(primitive))
    arguments = [(p.name, given[p.name]) for p in primitive.parameters if p.name in given]
    defaults = {p.name: p.default for p in primitive.parameters}
    return Step(name, tuple((n, a) for n, a in arguments if a != defaults[n]), scope.starts[at])


def _argument(scope: ScopedCursor, primitive: Primitive, given: dict[str, Argument]) -> None:
    parameter = _parameter(scope, primitive, given)
    given[parameter.name] = _several(scope) if parameter.many else _READERS[parameter.type](scope)


def _parameter(scope: ScopedCursor, primitive: Primitive, given: dict[str, Argument]) -> Parameter:
    """The parameter that the next argument is for: that of its name, or else of its place."""
    if scope.kind == "name" and scope.peek() == "=":
        at, name = scope.at, scope.advance()
        scope.advance()
        found = next((p for p in primitive.parameters if p.name == name and not p.many), None)
        if found is None:
            hint = similar(name, [p.name for p in primitive.parameters]) or _usage(primitive)
            scope.fail(f"{primitive.name} has no argument '{name}'", at, hint)
        if name in given:
            scope.fail(f"argument '{name}' is given twice", at)
        return found
    if len(given) == len(primitive.parameters):
        scope.fail(f"{primitive.name} has no further argument", hint=_usage(primitive))
    return next(p for p in primitive.parameters if p.name not in given)


def _usage(primitive: Primitive) -> str:
    """How the step is written."""
    shown = [
        p.name if p.is_required else f"{p.name}..." if p.many else f"[{p.name}=]"
        for p in primitive.parameters
    ]
    return f"it is written {primitive.name}({', '.join(shown)})"


# Arguments


def _reference(scope: ScopedCursor) -> str:
    name = scope.name("the name of a loop, buffer or access")
    if not scope.accept("@"):
        return name
    at, number = scope.at, scope.integer()
    if number < 1:
        scope.fail("references count from 1", at)
    return name if number == 1 else f"{name}@{number}"


def _several(scope: ScopedCursor) -> tuple[str, ...]:
    return tuple(scope.several(lambda: _reference(scope)))


def _listed(scope: ScopedCursor) -> tuple[str, ...]:
    scope.expect("[")
    return tuple(scope.until("]", lambda: _reference(scope)))


def _expression(scope: ScopedCursor) -> str:
    """The text of an expression; its variables get their meaning when the step is taken."""
    start = scope.starts[scope.at]
    scope.sym()
    last = scope.at - 1
    text = scope.text[start : scope.starts[last] + len(scope.tokens[last])]
    return " ".join(_COMMENT.sub("", text).split())


def _bool(scope: ScopedCursor) -> bool:
    if scope.token not in ("true", "false"):
        scope.fail("expected true or false")
    return scope.advance() == "true"


def _packing(scope: ScopedCursor) -> Packing:
    at = scope.at
    if scope.token != "Packing":
        scope.fail("expected a Packing", hint="such as Packing{factors=((), (16,)), order=(1, 0, 2)}")
    found = scope.attr()
    if not isinstance(found, Packing):
        scope.fail("expected a Packing", at)
    return found


def _number_or_none(scope: ScopedCursor) -> int | None:
    return None if scope.accept("none") else scope.integer()


_READERS: dict[str, Callable[[ScopedCursor], Argument]] = {
    **dict.fromkeys((*OPS, *BUFFERS), _reference),
    **dict.fromkeys(EXPRESSIONS, _expression),
    SEVERAL_OPS: _listed,
    "int": ScopedCursor.integer,
    "int | None": _number_or_none,
    "bool": _bool,
    **dict.fromkeys(("str", "Intrinsic | VectorUnit", "Route"), lambda scope: scope.string("text")),
    "Packing": _packing,
    "Packing | None": _packing,
}
"""For each type of parameters that primitives have, what reads an argument."""
