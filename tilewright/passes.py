"""Passes, running a list of them, and their text form `canonicalize,fuse{max_ops=20, kind="map"}`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol, get_args, get_origin, get_type_hints, runtime_checkable

from tilewright.ir.core import Module
from tilewright.ir.diag import Loc, VerifyError
from tilewright.ir.notes import RewriteNotes
from tilewright.ir.text.attributes import print_attr
from tilewright.ir.text.scope import ScopedCursor
from tilewright.target.machine import HostLink
from tilewright.target.target import Target


class PassOptions(Protocol):
    """What passes read of the options of a compilation."""

    @property
    def numerics(self) -> str: ...

    @property
    def integer_only(self) -> bool: ...


@dataclass
class PassContext(RewriteNotes):
    """What passes share: the CPU that is compiled for (None for another kind of machine), compile options, and what
    they note.

    Parts of tensors that kernels take without a copy begin at multiples of `part_align` bytes. `direct` are the
    convolutions that are summed directly although another algorithm is quicker, by their places in the model; `saved`
    are the cycles that other algorithms save, which are noted whether they are taken or not. `link` are the facts of a
    device beside a CPU.
    """

    target: Target | None = None
    options: PassOptions | None = None
    part_align: int = 1
    direct: frozenset[Loc] = frozenset()
    saved: dict[Loc, float] = field(default_factory=dict)
    link: HostLink | None = None

    @property
    def strict(self) -> bool:
        """Whether rewrites that round differently are given up (`Options.numerics`)."""
        return self.options is not None and self.options.numerics == "strict"

    @property
    def fast(self) -> bool:
        """Whether operands of products may be rounded to fewer bits (`Options.numerics`)."""
        return self.options is not None and self.options.numerics == "fast"


@runtime_checkable
class Pass(Protocol):
    """A step that changes a module in place: a frozen dataclass whose fields are its options."""

    name: ClassVar[str]

    def run(self, module: Module, ctx: PassContext) -> None: ...


@runtime_checkable
class NeededPass(Pass, Protocol):
    """A pass of which programs need something even where it is switched off."""

    def run_plainly(self, module: Module, ctx: PassContext) -> None: ...


def run_passes(
    module: Module,
    passes: Iterable[Pass],
    ctx: PassContext,
    *,
    verify: Callable[[Module], None] | None = None,
    after: Callable[[Pass, Module], None] | None = None,
) -> Module:
    """Run `passes` in order on `module` and return it. Each is an optional step of the compilation by its name.

    `verify` is called after each pass; a VerifyError of it then names the pass. `after` is called after each
    pass that left a legal program (for dumps).
    """
    for step in passes:
        plain = partial(step.run_plainly, module, ctx) if isinstance(step, NeededPass) else _do_nothing
        ctx.optional.attempt(step.name, partial(step.run, module, ctx), plain)
        if verify is not None:
            try:
                verify(module)
            except VerifyError as e:
                raise VerifyError(
                    f"pass '{step.name}' left an illegal program: {e.what}", where=e.where, hint=e.hint
                ) from e
        if after is not None:
            after(step, module)
    return module


def _do_nothing() -> None:
    """What takes the place of a pass that is switched off."""


# Text form


def parse_passes(text: str, registry: Mapping[str, Callable[..., Any]]) -> list[Pass]:
    """The passes that `text` names, made of the dataclasses of `registry`, or of a `partial` that gives some fields.

    Options are integers, floats, `true`, `false`, "strings" and (tuples, of, these). TextError for an unknown pass or
    option (it lists the known ones), a value of another type than the field's, or bad syntax.
    """
    scope = ScopedCursor(text, "passes", {}, {})
    passes = scope.several(lambda: _parse_pass(scope, registry)) if scope.token else []
    if scope.token:
        scope.fail("expected ',' or the end")
    return passes


def options_of(make: Callable[..., Any]) -> list[tuple[dataclasses.Field[Any], Any]]:
    """The options of a pass in a registry, each with its type."""
    cls: Any = make.func if isinstance(make, partial) else make
    hints = get_type_hints(cls)
    return [(f, hints[f.name]) for f in dataclasses.fields(cls) if f.repr]


def _parse_pass(scope: ScopedCursor, registry: Mapping[str, Callable[..., Any]]) -> Pass:
    at = scope.at
    name = scope.name("the name of a pass")
    while scope.accept("-"):
        name += f"-{scope.name('the name of a pass')}"
    make = registry.get(name)
    if make is None:
        scope.fail(f"there is no pass '{name}'; there are: {', '.join(sorted(registry))}", at)
    hints = {f.name: hint for f, hint in options_of(make)}
    values: dict[str, Any] = {}
    if scope.accept("{"):
        scope.until("}", lambda: _parse_option(scope, name, hints, values))
    made: Pass = make(**values)
    return made


def _parse_option(scope: ScopedCursor, owner: str, hints: Mapping[str, Any], values: dict[str, Any]) -> None:
    at = scope.at
    name = scope.name("the name of an option")
    if name not in hints:
        known = ", ".join(hints) or "none"
        scope.fail(f"pass '{owner}' has no option '{name}'; its options: {known}", at)
    if name in values:
        scope.fail(f"option '{name}' is given twice", at)
    scope.expect("=")
    at, value = scope.at, scope.attr()
    kind, items = get_origin(hints[name]) or hints[name], get_args(hints[name])
    fits = type(value) is kind or (kind is float and type(value) is int)
    if not fits or (items and any(type(item) is not items[0] for item in value)):
        wanted = hints[name] if items else kind.__name__
        scope.fail(f"option '{name}' of pass '{owner}' is {wanted}, not {print_attr(value)}", at)
    values[name] = kind(value)
