"""A kind of decision: a question that the compiler asks `tilewright/cost`, the answers that it could get, and networks
of a layer or two, drawn by chance, in which it asks it.

The compiler is run once to see what it asks and what is chosen, and then once for each other answer. The times of the
programs say what the answer of the model loses to the best one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.types import TensorType, tensor
from tilewright.ops.define import constant
from tilewright.options import Options
from tilewright.runtime.artifact import Artifact
from tilewright.target.target import Target


@dataclass(frozen=True)
class Sample:
    """A network: the types of its inputs, what it computes of them, and its description."""

    text: str
    inputs: Sequence[TensorType]
    body: Callable[..., Any]

    def module(self) -> Module:
        """A module of its own for each compilation, which changes it."""
        module = Module()
        block = Block(list(self.inputs), [f"x{k}" for k in range(len(self.inputs))])
        module.add(Func("main", block))
        with Builder(block, module) as builder:
            made = self.body(*block.args)
            builder.emit("return", [made] if isinstance(made, Value) else list(made))
        return module


@dataclass(frozen=True)
class Kind:
    """`question` is a function of `tilewright/cost`; `answers`, given its arguments, are those that are compared, of
    which the one that it gives is one; `draw` makes a network; programs are made for, and run on, so many `threads`."""

    name: str
    question: Callable[..., Any]
    answers: Callable[..., Sequence[Any]]
    draw: Callable[[np.random.Generator], Sample]
    threads: int = 1


def compiled(kind: Kind, sample: Sample, target: Target) -> tuple[str, dict[str, Artifact]] | None:
    """The answer of the model as text, and a program for each answer that gives another one than those before; None
    where the compiler does not ask, or all answers give one program."""
    target = replace(target, cores=kind.threads)
    asked: dict[tuple[Any, ...], Any] = {}

    def recorded(*arguments: Any, **more: Any) -> Any:
        answer = kind.question(*arguments, **more)
        asked.setdefault((arguments, tuple(sorted(more.items()))), answer)
        return answer

    with replaced(kind.question, recorded):
        first = compile_module(sample.module(), Options(), target)
    if not asked:
        return None
    (arguments, more), chosen = next(iter(asked.items()))
    found = {str(chosen): first}
    code = {_code(first)}
    for answer in kind.answers(*arguments, **dict(more)):

        def forced(*given: Any, answer: Any = answer, **others: Any) -> Any:
            same = (given, tuple(sorted(others.items()))) == (arguments, more)
            return answer if same else kind.question(*given, **others)

        try:
            with replaced(kind.question, forced):
                made = compile_module(sample.module(), Options(), target)
        except Exception as error:  # an answer that the compiler cannot follow is none
            print(f"  {kind.name}, {sample.text}: {answer!s}: {error}", file=sys.stderr)
            continue
        if _code(made) not in code:
            code.add(_code(made))
            found[str(answer)] = made
    return (str(chosen), found) if len(found) > 1 else None


def _code(made: Artifact) -> bytes:
    assert made.image is not None
    return bytes(made.image.text)


@contextmanager
def replaced(function: Callable[..., Any], other: Callable[..., Any]) -> Iterator[None]:
    """Every module of the package that has `function` under some name has `other` instead."""
    patches = [
        patch.object(module, name, other)
        for path, module in list(sys.modules.items())
        if path.startswith("tilewright.")
        for name, value in list(vars(module).items())
        if value is function
    ]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


# Drawing


def extent(rng: np.random.Generator, least: int, most: int, unit: int = 1) -> int:
    """Drawn evenly in its logarithm, and rounded to a multiple of `unit`."""
    drawn = np.exp(rng.uniform(np.log(least), np.log(most)))
    return max(unit, round(float(drawn) / unit) * unit)


def f32(*shape: int) -> TensorType:
    return tensor(dt.f32, shape)


def weights(*shape: int) -> Value:
    """A constant of normal random numbers, small as those of a trained network."""
    rng = np.random.default_rng(sum(shape))
    return constant(rng.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5), "w")
