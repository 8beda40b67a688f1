"""Programs of StableHLO as text, and what they give."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import tilewright
from tilewright.frontends.stablehlo.load import load_stablehlo
from tilewright.ir.core import Module
from tilewright.ops.define.interp import evaluate_func


def program(arguments: str, results: str, *lines: str, functions: str = "") -> bytes:
    """A module whose function `main` has these arguments ("%x: tensor<3xf32>"), results and ops."""
    body = "\n".join(f"    {line}" for line in lines)
    head = f"func.func public @main({arguments}) -> ({results})"
    return f"module @test {{\n  {head} {{\n{body}\n  }}\n{functions}\n}}\n".encode()


def one(type: str, op: str, arguments: str, results: str = "") -> bytes:
    """A program of one op, whose result is of `type`."""
    return program(arguments, results or type, f"%r = {op}", f"return %r : {type}")


def evaluated(source: bytes, *inputs: np.ndarray, **options: object) -> list[np.ndarray]:
    """What the translation means, by the interpreter: fast for programs of few elements."""
    module = load_stablehlo(source, **options)  # type: ignore[arg-type]
    return list(evaluate_func(module.main, module, list(inputs)))


def compiled(source: bytes, *inputs: np.ndarray) -> Sequence[np.ndarray]:
    """What native code gives."""
    return tilewright.compile(source, threads=1, cache=False)(*inputs)


def ops_of(module: Module) -> list[str]:
    return [op.name for op in module.main.body.walk()]
