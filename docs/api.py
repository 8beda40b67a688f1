"""Writes docs/api.md from the docstrings of the public names. Run by `make docs`; a test compares."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, get_overloads

import tilewright
from tilewright.runtime import errors as errors_module
from tilewright.runtime.report import records

PAGE = Path(__file__).parent / "api.md"

INTRODUCTION = """\
# The Python interface

Made by `make docs` from the docstrings; do not edit. All of these are names of the package `tilewright`, which
imports them when they are first used: a program that only loads compiled models imports nothing of the compiler.
Programs written for ONNX Runtime can run as they are: [onnxruntime.md](onnxruntime.md).
"""

_ITEM = re.compile(r"^(\w+): ", re.MULTILINE)
"""An argument or option that a docstring explains: its name at the begin of a line."""

INTERNAL = {"NodeArg.of", "Options.of", "Options.fingerprint", "Session.key", "Session.find", "Session.keep"}
"""Methods that the package itself calls."""


def page() -> str:
    """The text of the page: functions, classes with their methods, errors."""
    names = {name: getattr(tilewright, name) for name in sorted(tilewright.__all__)}
    functions = [n for n, v in names.items() if not inspect.isclass(v)]
    errors = [n for n, v in names.items() if inspect.isclass(v) and issubclass(v, Exception)]
    classes = [n for n in names if n not in {*functions, *errors}]
    parts = [INTRODUCTION, "## Functions\n"]
    parts += [entry("###", f"tilewright.{name}", names[name]) for name in functions]
    parts.append("## Classes\n")
    for name in classes:
        parts += class_entries(name, names[name])
    parts.append("## Records of a report\n")
    kinds = (v for v in vars(records).values() if dataclasses.is_dataclass(v) and v.__module__ == records.__name__)
    parts += [record_entry(kind) for kind in (errors_module.Remark, *kinds) if not kind.__name__.startswith("_")]
    parts.append("## Errors and warnings\n")
    parts += [f"- `{name}`: {text(names[name])}".replace("\n", "\n  ").replace("  \n", "\n") for name in errors]
    return "\n".join(parts) + "\n"


def class_entries(name: str, cls: type) -> Iterator[str]:
    """The class itself, then its public methods and properties in the order of the source."""
    head = f"### `tilewright.{name}`\n\n{text(cls)}\n"
    if dataclasses.is_dataclass(cls) and dataclasses.fields(cls):
        head += field_line(cls)
    yield head
    for member, value in _own(cls).items():
        if f"{name}.{member}" in INTERNAL or (member.startswith("_") and member != "__call__"):
            continue
        if isinstance(value, property):
            yield f"#### `{name}.{member}`\n\n{text(value)}\n"
        elif isinstance(value, FunctionType | classmethod):
            yield entry("####", f"{name}.{member}", getattr(cls, member))


def record_entry(kind: Any) -> str:
    """A record: what it is, and its fields."""
    return f"### `{kind.__name__}`\n\n{text(kind)}\n{field_line(kind)}"


def field_line(cls: Any) -> str:
    """The fields of a dataclass with their types."""
    return f"\nFields: {', '.join(f'`{f.name}: {f.type}`' for f in dataclasses.fields(cls))}.\n"


def _own(cls: type) -> dict[str, Any]:
    """The members of a class, and those of its bases that have no entry of their own."""
    found = dict(vars(cls))
    for base in cls.__mro__[1:-1]:
        if base.__name__ not in tilewright.__all__ and base.__module__.startswith("tilewright."):
            found |= {name: value for name, value in vars(base).items() if name not in found}
    return found


def entry(heading: str, name: str, function: Callable[..., Any]) -> str:
    """Heading, all signatures and documentation of a function or method."""
    name = name.replace("Model.__call__", "model")
    signatures = "\n".join(f"{name}{signature(call)}" for call in get_overloads(function) or [function])
    return f"{heading} `{name}()`\n\n```\n{signatures}\n```\n\n{text(function)}\n"


def signature(function: Callable[..., Any]) -> str:
    """Parameters with types and defaults, without `self`."""
    found = inspect.signature(function)
    parameters = [p for p in found.parameters.values() if p.name != "self"]
    return str(found.replace(parameters=parameters)).replace("'", "").replace("(/, *args", "(*args")


def text(documented: Any) -> str:
    """The docstring, whose explained arguments become a list."""
    paragraphs = (inspect.getdoc(documented) or "").split("\n\n")
    return "\n\n".join(_list(p) if len(_ITEM.findall(p)) > 1 else p for p in paragraphs)


def _list(paragraph: str) -> str:
    return _ITEM.sub(r"- `\1`: ", re.sub(r"\n {4}", "\n  ", paragraph))


if __name__ == "__main__":
    PAGE.write_text(page())
