"""Some models that tests compile as a means are compiled with validation: rules, passes and kernels are replayed beside
what they were made of, and what changes the meaning fails the test. In the ordinary suite these are a share of what is
cheap to replay, drawn anew each day; by night all of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from tilewright import api
from tilewright.compilation import Compilation, Setting
from tilewright.compiler import compile_request
from tilewright.ir.core import Module, Op
from tilewright.ir.diag import TilewrightError
from tilewright.ir.notes import ProgramWatch
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType, product
from tilewright.ops.define import OPERATORS
from tilewright.ops.traits.work import computation_of, parts_of, terms_of
from tilewright.options import OnProgress, Options, Request
from tilewright.runtime import Artifact
from tilewright.session import Session
from tilewright.validation.validate import Validation

SECONDS_PER_COMPILATION = 0.003
"""Processor time that validation may take of the ordinary suite, for each of its compilations: what takes a hundred
times as long is validated in one run of a hundred. There are some 3000 of them."""

MOST_SECONDS = 1.0
"""Processor time of the dearest model that the ordinary suite validates, so that none is cut short by the time that
validation has for one program on a slow machine."""

OF_A_MODEL, OF_A_NODE, OF_A_TERM = 0.05, 0.01, 1e-7
"""Seconds of processor time for a model, each of its operators, and each number that one of them adds up or gives:
fitted to what compilations of this suite take with validation."""

TYPICAL_SIZE = 16
"""Of dims that a call chooses, among those that validation tries."""


@dataclass
class SomeValidation(Validation):
    """Looks at a model if `is_chosen` says so of what that is estimated to take, and leaves the report as it is
    without."""

    is_chosen: Callable[[float], bool] = field(kw_only=True)
    looks: bool | None = None

    def watch(self, compilation: Compilation) -> ProgramWatch | None:
        if self.looks is None:
            self.looks = self.is_chosen(seconds_of(compilation.module))
        return super().watch(compilation) if self.looks else None

    def finish(self, artifact: Artifact, setting: Setting) -> Artifact:
        if self.looks:
            super().finish(artifact, setting)
        return artifact


def seconds_of(module: Module) -> float:
    """What it takes to compile a model with validation, estimated in seconds of processor time."""
    ops = [op for func in module.funcs.values() for op in func.body.walk()]
    return OF_A_MODEL + OF_A_NODE * len(ops) + OF_A_TERM * sum(map(numbers_of, ops))


def numbers_of(op: Op) -> float:
    """Numbers that an operator adds up or gives; those of its results where its definition has no sums, or what it is
    given is no tensor."""
    if op.name in OPERATORS and all(isinstance(v.type, TensorType) for v in op.operands):
        try:
            return sum(map(_terms_of_part, parts_of(op)))
        except TilewrightError:
            pass  # the compilation says so
    return _terms_of_part(op, with_sums=False)


def _terms_of_part(op: Op, *, with_sums: bool = True) -> float:
    computation = computation_of(op) if with_sums else None
    if computation is not None:
        return _number(product((*computation.shape, *terms_of(op))))
    return sum(_number(product(v.type.shape)) for v in op.results if isinstance(v.type, TensorType))


def _number(size: Sym) -> float:
    return float(size.evaluate({v.name: TYPICAL_SIZE for v in size.vars}))


def is_by_day(draw: float) -> Callable[[float], bool]:
    """Whether the ordinary suite validates what takes so many seconds."""
    return lambda seconds: seconds <= MOST_SECONDS and draw * seconds < SECONDS_PER_COMPILATION


@contextmanager
def some_are_validated(item: pytest.Item, day: str | None) -> Iterator[None]:
    """Validate some of what a test compiles, those of a day or all, unless it changes something of the compiler, looks
    at what this does, or is marked `unvalidated`: something in it computes what it should not."""
    drawn = random.Random(f"{day} {item.nodeid}")
    compiled = api._compiled

    def sometimes(request: Request, options: Options, progress: OnProgress | None, session: Session) -> Artifact:
        looks = options.validate or options.schedule is not None or options.override or options.dump is not None
        is_chosen = is_by_day(drawn.random()) if day is not None else lambda seconds: True
        if looks or progress is not None or not is_chosen(OF_A_MODEL):
            return compiled(request, options, progress, session)
        return compile_request(request, options, session=session, checks=SomeValidation(is_chosen=is_chosen))

    with pytest.MonkeyPatch.context() as patch:
        if "monkeypatch" not in getattr(item, "fixturenames", ()) and item.get_closest_marker("unvalidated") is None:
            patch.setattr(api, "_compiled", sometimes)
        yield
