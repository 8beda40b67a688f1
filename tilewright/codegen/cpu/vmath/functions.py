"""The tables of vector math functions: how each is built and how exact it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from tilewright.codegen.cpu.kernel.functions import sqrt
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.codegen.cpu.vmath import exponential, logarithm, rational, remainder, trigonometric
from tilewright.codegen.cpu.vmath.float64 import error_function, library
from tilewright.codegen.cpu.vmath.float64 import exponential as exponential64
from tilewright.codegen.cpu.vmath.float64 import logarithm as logarithm64
from tilewright.codegen.cpu.vmath.float64 import trigonometric as circular64


@dataclass(frozen=True)
class Function:
    """One function of `arity` arguments with an error of at most `ulp` units in the last place.

    `build` appends the instructions for a whole vector. Where `far` is given, arguments of magnitude
    `far_from` and more, or those that `is_far` tells, are rare and expensive, and it computes them one by one instead.
    `calls` are the functions of the math library that are called.
    """

    build: Callable[..., Reg]
    ulp: float
    arity: int = 1
    far: Callable[..., Reg] | None = None
    far_from: float = 0.0
    is_far: Callable[..., Reg] | None = None
    calls: tuple[str, ...] = ()


def _reciprocal_root(x: Reg) -> Reg:
    """1 / sqrt(x)."""
    return 1.0 / sqrt(x)


def _circular(build: Callable[[Reg], Reg], far: Callable[[Reg], Reg], ulp: float) -> Function:
    return Function(build, ulp, far=far, far_from=trigonometric.FAR_ARGUMENT)


def _circular64(name: str, build: Callable[[Reg], Reg], ulp: float) -> Function:
    far = partial(library.call_per_lane, name)
    return Function(build, ulp, far=far, far_from=circular64.FAR_ARGUMENT, calls=(name,))


def _library(name: str) -> Function:
    return Function(partial(library.call_per_lane, name), 4.0, calls=(name,))


_REMAINDER = Function(remainder.rem, 0.0, arity=2, far=remainder.far_rem, is_far=remainder.is_far)

SINGLE: Mapping[str, Function] = MappingProxyType(
    {
        "acos": Function(trigonometric.acos, 1.5),
        "acosh": Function(logarithm.acosh, 1.0),
        "asin": Function(trigonometric.asin, 2.0),
        "asinh": Function(logarithm.asinh, 1.0),
        "atan": Function(trigonometric.atan, 2.0),
        "atanh": Function(logarithm.atanh, 1.0),
        "cos": _circular(trigonometric.cos, trigonometric.far_cos, 2.0),
        "cosh": Function(exponential.cosh, 1.0),
        "erf": Function(rational.erf, 3.5),
        "exp": Function(exponential.exp, 3.0),
        "expm1": Function(exponential.expm1, 2.0),
        "log": Function(logarithm.log, 1.5),
        "log1p": Function(logarithm.log1p, 2.0),
        "pow": Function(logarithm.pow, 1.0, arity=2),
        "rem": _REMAINDER,
        "rsqrt": Function(_reciprocal_root, 1.5),
        "sigmoid": Function(exponential.sigmoid, 4.0),
        "sin": _circular(trigonometric.sin, trigonometric.far_sin, 2.0),
        "sinh": Function(exponential.sinh, 1.0),
        "tan": _circular(trigonometric.tan, trigonometric.far_tan, 4.0),
        "tanh": Function(rational.tanh, 3.5),
    }
)

DOUBLE: Mapping[str, Function] = MappingProxyType(
    {
        "acos": Function(circular64.acos, 2.0),
        "acosh": _library("acosh"),
        "asin": Function(circular64.asin, 2.0),
        "asinh": _library("asinh"),
        "atan": Function(circular64.atan, 2.0),
        "atanh": _library("atanh"),
        "cos": _circular64("cos", circular64.cos, 1.0),
        "cosh": Function(exponential64.cosh, 2.5),
        "erf": Function(error_function.erf, 2.0),
        "exp": Function(exponential64.exp, 1.5),
        "expm1": Function(exponential64.expm1, 2.0),
        "log": Function(logarithm64.log, 1.0),
        "log1p": Function(logarithm64.log1p, 2.0),
        "pow": Function(exponential64.pow, 2.0, arity=2),
        "rem": _REMAINDER,
        "rsqrt": Function(_reciprocal_root, 1.5),
        "sigmoid": Function(exponential64.sigmoid, 3.0),
        "sin": _circular64("sin", circular64.sin, 1.0),
        "sinh": Function(exponential64.sinh, 3.0),
        "tan": _circular64("tan", circular64.tan, 2.5),
        "tanh": Function(exponential64.tanh, 3.0),
    }
)
