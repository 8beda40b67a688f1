"""Printing attributes, types and variables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from tilewright.ir.diag import InternalError, Loc
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym
from tilewright.ir.text.notation import NAME
from tilewright.ir.types import Type


@dataclass(frozen=True, slots=True)
class Record:
    """An attribute that was read as `Name{field=value}` with a name that the reader knows no class for."""

    name: str
    fields: tuple[tuple[str, Any], ...]


def print_syms(syms: tuple[Sym, ...]) -> str:
    return ", ".join(map(str, syms))


def print_variable(variable: Sym) -> str:
    """The declaration of a variable: `n` for 0 and up, else with its bounds, as `1 <= n <= 64`."""
    lo, hi = variable.bounds
    below = "" if lo == 0 else "-inf <= " if lo is None else f"{lo} <= "
    return f"{below}{variable.name}{'' if hi is None else f' <= {hi}'}"


def print_string(text: str) -> str:
    return json.dumps(text)


def print_name(name: str) -> str:
    """A name after `@` or of an op: quoted when it is not an identifier."""
    return name if NAME.fullmatch(name) else print_string(name)


def print_number(value: bool | int | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # Not repr(value): NumPy's float64 is a float, and spells itself in another way.
    return int.__repr__(value) if isinstance(value, int) else float.__repr__(value)


def print_attrs(attrs: Mapping[str, Any]) -> str:
    return ", ".join([f"{key}={print_attr(value)}" for key, value in attrs.items()])


def print_attr(value: Any) -> str:
    """An attribute's value; InternalError when values of its kind have no text form."""
    match value:
        case bool() | int() | float():
            return print_number(value)
        case str():
            return print_string(value)
        case None:
            return "none"
        case Sym():
            return f"`{value}`"
        case DType():
            return value.name
        case tuple():
            if value and all(isinstance(v, Sym) for v in value):
                return f"[{print_syms(value)}]"
            return f"({', '.join(map(print_attr, value))}{',' if len(value) == 1 else ''})"
        case dict():
            return "{" + ", ".join(f"{print_attr(k)}: {print_attr(v)}" for k, v in value.items()) + "}"
        case Type():
            return f"type({value})"
        case np.generic():
            return print_attr(value.item())
        case Record():
            return f"{value.name}{{{print_attrs(dict(value.fields))}}}"
    if is_dataclass(value) and not isinstance(value, type):
        given = ((f, getattr(value, f.name)) for f in fields(value) if f.init)
        shown = {f.name: v for f, v in given if f.default is MISSING or v != f.default}
        return f"{type(value).__name__}{{{print_attrs(shown)}}}"
    raise InternalError(
        f"an attribute of type {type(value).__name__} has no text form: {value!r}",
        hint="attributes are numbers, strings, dtypes, types, Syms, None; tuples, dicts, records of these",
    )


def print_loc(loc: Loc) -> str:
    return f" loc({print_string(loc.node)}, {print_string(loc.op)})" if loc.node or loc.op else ""


def print_elements(array: np.ndarray) -> str:
    """All elements in row-major order: `[1.0, 2.0]`."""
    return f"[{', '.join(map(_print_element, array.reshape(-1)))}]"


def _print_element(element: Any) -> str:
    if isinstance(element, str | bytes):
        return print_string(element if isinstance(element, str) else element.decode("utf-8", "replace"))
    if isinstance(element, bool | np.bool_):
        return "true" if element else "false"
    if isinstance(element, int | np.integer):
        return str(int(element))
    number = float(element)
    # The integers of ml_dtypes are no np.integer.
    whole = np.asarray(element).dtype.name in ("int2", "uint2", "int4", "uint4") and not math.isnan(number)
    return str(int(number)) if whole else repr(number)
