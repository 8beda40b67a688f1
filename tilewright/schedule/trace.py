"""A schedule as data: the steps that were taken on a kernel, with all of their arguments, in the order they were taken.

The text of a step is a call of a primitive, whose subjects are named as they are called at that moment (see
`references`):

    split(i0, factor=16, tail="peel")
    reorder(i0o, i1, i0i)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

from tilewright.ir.core import Func, Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import Sym
from tilewright.ir.text.attributes import print_attr
from tilewright.loops.conditions.clamp import clamp
from tilewright.loops.conditions.guard_reduction import guard_reduction
from tilewright.loops.conditions.pad_reduction import pad_reduction
from tilewright.loops.conditions.simplify import simplify
from tilewright.loops.conditions.skip_masked import skip_masked
from tilewright.loops.conditions.specialize import specialize
from tilewright.loops.edit import reason_of
from tilewright.loops.lanes.dot import dot
from tilewright.loops.lanes.unroll import unroll
from tilewright.loops.lanes.unroll_and_jam import unroll_and_jam
from tilewright.loops.lanes.vectorize import vectorize, vectorize_reduction
from tilewright.loops.machine.async_copy import async_copy, wait
from tilewright.loops.machine.barrier import barrier
from tilewright.loops.machine.overlap import overlap
from tilewright.loops.machine.pipeline import pipeline
from tilewright.loops.machine.split_run import split_run, wait_later
from tilewright.loops.machine.tensorize import tensorize
from tilewright.loops.order.boustrophedon import boustrophedon
from tilewright.loops.order.choose_before import choose_before
from tilewright.loops.order.compute_at import compute_at
from tilewright.loops.order.fission import fission
from tilewright.loops.order.fuse import collapse, fuse
from tilewright.loops.order.parallel import parallel, serial
from tilewright.loops.order.peel import peel
from tilewright.loops.order.reorder import reorder
from tilewright.loops.order.split import split
from tilewright.loops.order.split_evenly import split_evenly
from tilewright.loops.order.split_range import split_range
from tilewright.loops.order.strided_split import strided_split
from tilewright.loops.primitive import PRIMITIVES, Parameter, Primitive
from tilewright.loops.storage.axes import merge_axes, pad_axis, split_axis
from tilewright.loops.storage.cache import cache, cache_write
from tilewright.loops.storage.compute_in import compute_in
from tilewright.loops.storage.nontemporal import nontemporal
from tilewright.loops.storage.pack import pack, pack_argument
from tilewright.loops.storage.packing import Packing
from tilewright.loops.storage.prefetch import prefetch, prefetch_run
from tilewright.loops.storage.preload import preload
from tilewright.loops.storage.rfactor import rfactor
from tilewright.loops.storage.set_space import set_space
from tilewright.loops.storage.swap_axes import swap_axes
from tilewright.loops.storage.tree_reduce import tree_reduce
from tilewright.loops.sums.factor_out import factor_out
from tilewright.loops.sums.round_terms import round_terms
from tilewright.loops.sums.running_max import running_max
from tilewright.schedule.references import References
from tilewright.target.machine import Intrinsic, Route, VectorUnit

P = ParamSpec("P")
R = TypeVar("R")

Argument = str | int | bool | Packing | tuple[str, ...] | None
"""What a step is told: references to its subjects, expressions and records of the machine are text."""

EXPRESSIONS = ("Sym", "Sym | int")
OPS = ("Op", "Op | None")
SEVERAL_OPS = "Sequence[Op]"
BUFFERS = ("Value",)
_BARE = (*EXPRESSIONS, *OPS, SEVERAL_OPS, *BUFFERS)
"""Types of parameters, as primitives spell them, whose arguments stand in the text as they are."""

def _step_of(primitive: Primitive, func: Func, positional: Sequence[object], named: dict[str, object]) -> Step:
    """What a call with these arguments is; `func` is the kernel before it."""
    given = dict(named)
    for k, p in enumerate(primitive.parameters[: len(positional)]):
        given[p.name] = tuple(positional[k:]) if p.many else positional[k]
    references = References(func)
    arguments = [(p, _as_argument(given[p.name], references)) for p in primitive.parameters if p.name in given]
    return Step(primitive.name, tuple((p.name, a) for p, a in arguments if a != p.default))


def _as_argument(value: Any, references: References) -> Argument:
    if isinstance(value, Op | Value):
        return references.to(value)
    if isinstance(value, Sym):
        return str(value)
    if isinstance(value, Intrinsic | VectorUnit):
        return value.name
    if isinstance(value, Route):
        return f"{value.source} -> {value.target}"
    if isinstance(value, list | tuple):
        return tuple(map(references.to, value))
    found: Argument = value
    return found


@dataclass(frozen=True, slots=True)
class Step:
    """One application of a primitive: names and values of the arguments that are not left at their defaults. `place` is
    where it stands in the text that it was read from."""

    primitive: str
    arguments: tuple[tuple[str, Argument], ...]
    place: int = field(default=0, compare=False)

    def __str__(self) -> str:
        """The text that `parse_trace` reads: required subjects by their places, all else by name."""
        given = dict(self.arguments)
        shown = [_shown(p, given[p.name]) for p in PRIMITIVES[self.primitive].parameters if p.name in given]
        return f"{self.primitive}({', '.join(shown)})"


def _shown(p: Parameter, argument: Argument) -> str:
    bare = p.type in _BARE
    if p.many:
        assert isinstance(argument, tuple)
        return ", ".join(argument)
    if isinstance(argument, tuple):
        text = f"[{', '.join(argument)}]"
    else:
        text = str(argument) if bare and argument is not None else print_attr(argument)
    return text if bare and p.is_required else f"{p.name}={text}"


@dataclass(frozen=True, slots=True)
class Trace:
    """The steps of a kernel. Where they specialise it for some dims, `otherwise` are those of the kernel for all
    others; `place` is where its text begins."""

    steps: tuple[Step, ...] = ()
    otherwise: Trace | None = None
    place: int = field(default=0, compare=False)

    def lines(self) -> tuple[str, ...]:
        """One line for each step, as `parse_trace` reads them."""
        own = tuple(map(str, self.steps))
        return own if self.otherwise is None else with_otherwise(own, self.otherwise.lines())


def with_otherwise(lines: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """The steps of a kernel for some dims, and of the one for all others."""
    return (*lines, "otherwise {", *(f"  {line}" for line in others), "}")


def _step(function: Callable[Concatenate[Func, P], R]) -> Callable[Concatenate[Schedule, P], R]:
    """The method of `Schedule` that applies a primitive."""

    def method(s: Schedule, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return s.apply(function, *args, **kwargs)

    update_wrapper(method, function)
    return method


@dataclass
class Schedule:
    """The steps taken on `func` so far. The methods after `lines` are the primitives of these names; `apply` takes a
    step of any primitive.

    With `may_specialize` the kernel may be made for large dims only; another one then serves the others."""

    func: Func
    may_specialize: bool = False
    steps: list[Step] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)  # what was considered and not done, with the reason

    def at_least(self, extent: Sym, least: int, *, of_few: bool = False) -> bool:
        """Whether an extent has no value below `least`. Where dims decide that, the kernel is specialised for those
        where it is so, if it may be; for an extent that is known to be small only with `of_few`."""
        low, high = extent.bounds
        if low is not None and low >= least:
            return True
        if not self.may_specialize or (high is not None and not of_few):
            return False
        try:
            self.specialize(extent, least)
        except ScheduleError as e:
            self.missed.append(f"no kernel for {extent} of {least} and more alone: {reason_of(e)}")
            return False
        return True

    def apply(
        self, function: Callable[Concatenate[Func, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Apply a primitive and write the step down."""
        step = _step_of(PRIMITIVES[function.__name__], self.func, args, kwargs)  # with the names of this moment
        result = function(self.func, *args, **kwargs)
        self.steps.append(step)
        return result

    @contextmanager
    def noting(self, consequence: str) -> Iterator[None]:
        """Around steps that the kernel also does without: where one is refused, the reason is noted, and what follows
        from it."""
        try:
            yield
        except ScheduleError as e:
            self.missed.append(f"{consequence}: {reason_of(e)}")

    def lines(self) -> tuple[str, ...]:
        """The steps as text, one a line."""
        return tuple(map(str, self.steps))

    specialize = _step(specialize)
    split = _step(split)
    split_evenly = _step(split_evenly)
    strided_split = _step(strided_split)
    reorder = _step(reorder)
    collapse = _step(collapse)
    fuse = _step(fuse)
    compute_at = _step(compute_at)
    fission = _step(fission)
    cache = _step(cache)
    cache_write = _step(cache_write)
    compute_in = _step(compute_in)
    preload = _step(preload)
    pack = _step(pack)
    merge_axes = _step(merge_axes)
    split_axis = _step(split_axis)
    pad_axis = _step(pad_axis)
    swap_axes = _step(swap_axes)
    set_space = _step(set_space)
    pack_argument = _step(pack_argument)
    rfactor = _step(rfactor)
    tree_reduce = _step(tree_reduce)
    factor_out = _step(factor_out)
    round_terms = _step(round_terms)
    running_max = _step(running_max)
    vectorize = _step(vectorize)
    vectorize_reduction = _step(vectorize_reduction)
    prefetch = _step(prefetch)
    prefetch_run = _step(prefetch_run)
    nontemporal = _step(nontemporal)
    choose_before = _step(choose_before)
    clamp = _step(clamp)
    boustrophedon = _step(boustrophedon)
    unroll = _step(unroll)
    unroll_and_jam = _step(unroll_and_jam)
    peel = _step(peel)
    split_range = _step(split_range)
    dot = _step(dot)
    guard_reduction = _step(guard_reduction)
    pad_reduction = _step(pad_reduction)
    skip_masked = _step(skip_masked)
    parallel = _step(parallel)
    serial = _step(serial)
    tensorize = _step(tensorize)
    async_copy = _step(async_copy)
    wait = _step(wait)
    barrier = _step(barrier)
    pipeline = _step(pipeline)
    overlap = _step(overlap)
    split_run = _step(split_run)
    wait_later = _step(wait_later)
    simplify = _step(simplify)
