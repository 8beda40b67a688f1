"""What makes a function a scheduling primitive: `@primitive`, after which traces and texts of schedules know it.

Its first parameter is the kernel; the types of the others, as they are spelled, say how arguments are read and printed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a primitive; `type` is its annotation, and `many` says that it takes all further arguments."""

    name: str
    type: str
    default: object = _REQUIRED
    many: bool = False

    @property
    def is_required(self) -> bool:
        return self.default is _REQUIRED and not self.many


@dataclass(frozen=True, slots=True)
class Primitive:
    """A transformation of kernels that steps may name."""

    name: str
    function: Callable[..., Any]
    parameters: tuple[Parameter, ...]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Primitive:
        """From the signature `(func, *parameters)`."""
        code, types = function.__code__, function.__annotations__
        count = code.co_argcount
        names = code.co_varnames[: count + code.co_kwonlyargcount]
        defaults = dict(zip(reversed(names[:count]), reversed(function.__defaults__ or ()), strict=False))
        defaults |= function.__kwdefaults__ or {}
        parameters = [Parameter(n, types[n], defaults.get(n, _REQUIRED)) for n in names[1:]]
        if code.co_flags & 0x04:  # *arguments
            many = code.co_varnames[len(names)]
            parameters.append(Parameter(many, types[many], many=True))
        return cls(function.__name__, function, tuple(parameters))


PRIMITIVES: dict[str, Primitive] = {}
"""By name, those whose modules have been imported."""


def primitive(function: F) -> F:
    """Enter the function, under its own name. ValueError where a function of another module has this name."""
    name = function.__name__
    if name in PRIMITIVES and PRIMITIVES[name].function.__module__ != function.__module__:
        raise ValueError(f"primitive '{name}' exists already, in {PRIMITIVES[name].function.__module__}")
    PRIMITIVES[name] = Primitive.of(function)
    return function
