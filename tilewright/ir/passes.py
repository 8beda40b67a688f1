"""Passes, running a list of them, and their text form `canonicalize,fuse{max_ops=20, kind="map"}`."""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import (
    Any,
    ClassVar,
    Literal,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from tilewright.ir.core import Module
from tilewright.ir.diag import Remark, VerifyError
from tilewright.ir.switches import CHECKED, Switches
from tilewright.ir.textpos import text_error


@dataclass
class PassContext:
    """What passes share: target and compile options (objects that this room does not know), and remarks."""

    target: Any = None
    options: Any = None
    remarks: list[Remark] = field(default_factory=list)
    switches: Switches = CHECKED

    @property
    def strict(self) -> bool:
        """Whether rewrites that round differently are given up (`Options.numerics`)."""
        return getattr(self.options, "numerics", "default") == "strict"

    def remark(self, stage: str, subject: str, message: str, applied: bool = False) -> None:
        """Note what was (`applied`) or was not done to `subject`, and why."""
        self.remarks.append(Remark(stage, subject, message, "applied" if applied else "missed"))


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
        ctx.switches.attempt(step.name, partial(step.run, module, ctx), plain)
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


def print_passes(passes: Sequence[Pass]) -> str:
    """The text that `parse_passes` reads back; options with their default value are left out, and fields that are not
    shown (`repr=False`), which whoever reads the text gives."""
    return ",".join(map(_print_pass, passes))


def _print_pass(step: Pass) -> str:
    shown = [
        f"{f.name}={_print_option(getattr(step, f.name))}"
        for f in dataclasses.fields(step)  # type: ignore[arg-type]
        if f.repr and getattr(step, f.name) != f.default
    ]
    return f"{step.name}{{{', '.join(shown)}}}" if shown else step.name


def _print_option(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, tuple):
        return f"({', '.join(map(_print_option, value))})"
    return "none" if value is None else repr(value)


def parse_passes(text: str, registry: Mapping[str, Callable[..., Any]]) -> list[Pass]:
    """The passes that `text` names, made of the dataclasses of `registry`, or of a `partial` that gives some fields.

    Options are integers, floats, `true`, `false`, `none`, "strings" and (tuples, of, these). TextError for an
    unknown pass or option (it lists the known ones), a value of another type than the field's, or bad syntax.
    """
    return _PassParser(text, registry).pipeline()


def options_of(make: Callable[..., Any]) -> list[tuple[dataclasses.Field[Any], Any]]:
    """The options of a pass in a registry, each with its type."""
    cls: Any = make.func if isinstance(make, partial) else make
    hints = get_type_hints(cls)
    return [(f, hints[f.name]) for f in dataclasses.fields(cls) if f.repr]


_TOKEN = re.compile(
    r"""\s*(?:
        (?P<float>[-+]?(?:\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+|inf\b|nan\b))
      | (?P<int>[-+]?\d+)
      | (?P<name>[A-Za-z_][\w-]*)
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<sign>[,={}()])
      | (?P<end>$)
    )""",
    re.VERBOSE,
)
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "none": None}


class _PassParser:
    """Recursive descent over one line of text; one token of look-ahead."""

    def __init__(self, text: str, registry: Mapping[str, Callable[..., Any]]) -> None:
        self.text = text
        self.registry = registry
        self.end = 0
        self.advance()

    def advance(self) -> None:
        found = _TOKEN.match(self.text, self.end)
        if found is None:
            start = self.end + len(self.text[self.end :]) - len(self.text[self.end :].lstrip())
            raise text_error("this character starts nothing", self.text, start, file="passes")
        self.kind = found.lastgroup or "end"
        self.token = found.group(self.kind)
        self.start, self.end = found.start(self.kind), found.end()

    def error(self, message: str, pos: int | None = None) -> Exception:
        return text_error(message, self.text, self.start if pos is None else pos, file="passes")

    def take(self, kind: str, what: str) -> str:
        if self.kind != kind:
            raise self.error(f"expected {what}")
        token = self.token
        self.advance()
        return token

    def accept(self, sign: str) -> bool:
        if self.kind == "sign" and self.token == sign:
            self.advance()
            return True
        return False

    def expect(self, sign: str) -> None:
        if not self.accept(sign):
            raise self.error(f"expected '{sign}'")

    def pipeline(self) -> list[Pass]:
        if self.kind == "end":
            return []
        passes = [self.one_pass()]
        while self.accept(","):
            passes.append(self.one_pass())
        if self.kind != "end":
            raise self.error("expected ',' or the end")
        return passes

    def one_pass(self) -> Pass:
        start = self.start
        name = self.take("name", "the name of a pass")
        make = self.registry.get(name)
        if make is None:
            known = ", ".join(sorted(self.registry))
            raise self.error(f"there is no pass '{name}'; there are: {known}", start)
        fields = {f.name: hint for f, hint in options_of(make)}
        values: dict[str, Any] = {}
        if self.accept("{") and not self.accept("}"):
            self.option(name, fields, values)
            while self.accept(","):
                self.option(name, fields, values)
            self.expect("}")
        made: Pass = make(**values)
        return made

    def option(self, owner: str, fields: Mapping[str, Any], values: dict[str, Any]) -> None:
        start = self.start
        name = self.take("name", "the name of an option")
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise self.error(f"pass '{owner}' has no option '{name}'; its options: {known}", start)
        if name in values:
            raise self.error(f"option '{name}' is given twice", start)
        self.expect("=")
        start = self.start
        value = self.value()
        if not _fits(value, fields[name]):
            wanted = _describe(fields[name])
            raise self.error(
                f"option '{name}' of pass '{owner}' is {wanted}, not {_print_option(value)}", start
            )
        values[name] = float(value) if fields[name] is float else value

    def value(self) -> Any:
        kind, token = self.kind, self.token
        if self.accept("("):
            items: list[Any] = []
            while not self.accept(")"):
                items.append(self.value())
                if not self.accept(","):
                    self.expect(")")
                    break
            return tuple(items)
        if (kind == "name" and token not in _WORDS) or kind in ("sign", "end"):
            raise self.error('expected a number, a "string", true, false, none or a (tuple)')
        self.advance()
        if kind == "string":
            return re.sub(r"\\(.)", r"\1", token[1:-1])
        return _WORDS[token] if kind == "name" else int(token) if kind == "int" else float(token)


def _fits(value: Any, hint: Any) -> bool:
    """Whether `value` is of the annotated type; an int also fits a float, a bool fits only bool."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if origin is Literal:
        return any(value == option and type(value) is type(option) for option in get_args(hint))
    if origin is tuple:
        args = get_args(hint)
        if not isinstance(value, tuple):
            return False
        if args[-1] is Ellipsis:
            return all(_fits(v, args[0]) for v in value)
        return len(value) == len(args) and all(map(_fits, value, args))
    if hint is None or hint is type(None):
        return value is None
    return type(value) is hint or (hint is float and type(value) is int)


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(_print_option, get_args(hint)))
    return hint.__name__ if isinstance(hint, type) and get_origin(hint) is None else str(hint)
