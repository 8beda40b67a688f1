"""Numbers that the host computes of sizes, in Python's arithmetic: what PyTorch computes with, and native code does not
(powers, logarithms, whole numbers of more than 64 bits)."""

from __future__ import annotations

import sympy

from tilewright.frontends.translation import Translation
from tilewright.ir import dtype as dt
from tilewright.ir.sym import Sym, var
from tilewright.ir.types import tensor
from tilewright.ops.define.staged import host, measure_size
from tilewright.ops.source import sym_tensor

MOST_STEPS = 1000
"""Operations that one number may take."""


class Hosted:
    """One number, written down operation by operation, the operands of each before it."""

    def __init__(self) -> None:
        self._program: list[str | int | float] = []
        self._sizes: dict[Sym, int] = {}

    def size(self, size: Sym) -> None:
        self._program.append(f"size {self._sizes.setdefault(size, len(self._sizes))}")

    def number(self, number: int | float) -> None:
        self._program.append(number)

    def apply(self, operation: str, times: int = 1) -> None:
        """An operation of `runtime.staged.functions.arithmetic`; `times` over, it makes one number of several."""
        self._program += [operation] * times

    @property
    def is_long(self) -> bool:
        return len(self._program) > MOST_STEPS

    def computed(self, translation: Translation, *, otherwise: int | None = None, least: int | None = 0) -> Sym:
        """The whole number, known when a model is called: `otherwise` where Python raises an error. It is never below
        `least`."""
        vector = sym_tensor(values=tuple(self._sizes))
        parameters = {"program": tuple(self._program), "otherwise": otherwise}
        (found,) = host("arithmetic", [vector], [tensor(dt.i64, ())], parameters)
        return measure_size(found, var(translation.new_size().name, least))


_NAMES = {
    "IntTrueDiv": "/", "FloatTrueDiv": "/", "FloatPow": "**", "PowByNatural": "**", "Pow": "**", "ToFloat": "float",
    "TruncToFloat": "trunc", "TruncToInt": "trunc", "FloorToInt": "floor", "CeilToInt": "ceil", "RoundToInt": "round",
    "floor": "floor", "ceiling": "ceil", "RoundDecimal": "rounded to", "Abs": "abs", "Max": "max", "Min": "min",
    "Add": "+", "Mul": "*", "Where": "select", "FloorDiv": "//", "CleanDiv": "//", "Mod": "%", "PythonMod": "%",
}  # fmt: skip
"""What functions of PyTorch's expressions are called in `arithmetic`."""

_CHAINS = ("+", "*", "max", "min", "/")


def function_of(e: sympy.Basic) -> str | None:
    """The operation of `arithmetic` that a function of PyTorch's is; None for one that has none."""
    name = type(e).__name__
    return name.removeprefix("OpaqueUnaryFn_") if name.startswith("OpaqueUnaryFn_") else _NAMES.get(name)


def times_of(operation: str, operands: int) -> int:
    """How often an operation is applied to so many operands."""
    return operands - 1 if operation in _CHAINS else 1
