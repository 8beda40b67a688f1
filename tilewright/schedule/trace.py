"""A schedule as data: the steps that were taken on a kernel, with their decisions, in the order they were taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.ir.core import Func, Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import Sym
from tilewright.loops.conditions.clamp import clamp
from tilewright.loops.conditions.guard_reduction import guard_reduction
from tilewright.loops.conditions.simplify import simplify
from tilewright.loops.conditions.specialize import specialize
from tilewright.loops.edit import is_loop, loop_var
from tilewright.loops.lanes.dot import dot
from tilewright.loops.lanes.unroll import unroll
from tilewright.loops.lanes.unroll_and_jam import unroll_and_jam
from tilewright.loops.lanes.vectorize import Lanes, vectorize, vectorize_reduction
from tilewright.loops.order.boustrophedon import boustrophedon
from tilewright.loops.order.compute_at import Fused, compute_at
from tilewright.loops.order.fission import Fission, fission
from tilewright.loops.order.fuse import collapse, fuse
from tilewright.loops.order.parallel import parallel, serial
from tilewright.loops.order.peel import peel
from tilewright.loops.order.reorder import reorder
from tilewright.loops.order.split import Split, split
from tilewright.loops.order.split_range import split_range
from tilewright.loops.order.strided_split import strided_split
from tilewright.loops.storage.cache import Cached, cache, cache_write
from tilewright.loops.storage.compute_in import compute_in
from tilewright.loops.storage.merge_axes import merge_axes
from tilewright.loops.storage.nontemporal import nontemporal
from tilewright.loops.storage.pack import Packed, pack, pack_argument
from tilewright.loops.storage.packing import Packing
from tilewright.loops.storage.prefetch import prefetch, prefetch_run
from tilewright.loops.storage.preload import Preloaded, preload
from tilewright.loops.storage.rfactor import Rfactored, rfactor
from tilewright.loops.storage.swap_axes import swap_axes


@dataclass(frozen=True)
class Step:
    """One application of a primitive; loops and buffers are given by their names at that moment."""

    primitive: str
    subjects: tuple[str, ...]
    decisions: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        shown = [*self.subjects, *(f"{k}={v}" for k, v in self.decisions)]
        return f"{self.primitive}({', '.join(shown)})"


@dataclass
class Schedule:
    """The steps taken on `func` so far; each method is the primitive of its name.

    With `supposing` the kernel may be made for large dims only; another one then serves the others."""

    func: Func
    supposing: bool = False
    steps: list[Step] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)  # what was considered and not done, with the reason

    def at_least(self, extent: Sym, least: int, *, of_few: bool = False) -> bool:
        """Whether an extent has no value below `least`. Where dims decide that it is supposed of them, if it may be; of
        an extent that is known to be small only with `of_few`."""
        low, high = extent.bounds
        if low is not None and low >= least:
            return True
        if not self.supposing or (high is not None and not of_few):
            return False
        try:
            specialize(self.func, extent, least)
        except ScheduleError:
            return False
        self._note("specialize", (), {"extent": extent, "least": least})
        return True

    def split(self, loop: Op, factor: int, tail: str = "guard", rest: int = 0) -> Split:
        more = {"rest": rest} if rest else {}
        return self._do(split, loop, factor=factor, tail=tail, **more)

    def strided_split(self, loop: Op, parts: int) -> Split:
        return self._do(strided_split, loop, parts=parts)

    def reorder(self, *loops: Op) -> None:
        self._note("reorder", loops, {})
        reorder(self.func, loops)

    def collapse(self, outer: Op, inner: Op) -> Op:
        return self._do(collapse, outer, inner)

    def fuse(self, first: Op, second: Op) -> Op:
        return self._do(fuse, first, second)

    def compute_at(self, buffer: Value, loop: Op, space: str = "scratch", guard: str = "if") -> Fused:
        return self._do(compute_at, buffer, loop, space=space, guard=guard)

    def fission(self, last: Op, depth: int) -> Fission:
        return self._do(fission, last, depth=depth)

    def cache(self, buffer: Value, first: Op, last: Op | None = None, space: str = "reg") -> Cached:
        return self._do(cache, buffer, first, last or first, space=space)

    def cache_write(self, buffer: Value, space: str = "scratch") -> Cached:
        return self._do(cache_write, buffer, space=space)

    def compute_in(self, buffer: Value, output: Value) -> None:
        self._do(compute_in, buffer, output)

    def preload(self, load: Op, *loops: Op) -> Preloaded:
        result = preload(self.func, load, loops)
        self._note("preload", (result.buffer, *loops), {})
        return result

    def pack(self, buffer: Value, loop: Op, packing: Packing, only: Sequence[Op] = ()) -> Packed:
        result = pack(self.func, buffer, loop, packing, only=only)
        self._note("pack", (buffer, loop), {"packing": packing})
        return result

    def merge_axes(self, buffer: Value, axis: int) -> Value:
        return self._do(merge_axes, buffer, axis=axis)

    def swap_axes(self, buffer: Value, first: int, second: int) -> Value:
        return self._do(swap_axes, buffer, first=first, second=second)

    def pack_argument(self, buffer: Value, packing: Packing) -> Value:
        return self._do(pack_argument, buffer, packing=packing)

    def rfactor(self, buffer: Value, loop: Op, space: str = "reg") -> Rfactored:
        return self._do(rfactor, buffer, loop, space=space)

    def vectorize(self, loop: Op, lanes: int | None = None, tail: str = "guard") -> Split:
        return self._do(vectorize, loop, lanes=lanes, tail=tail)

    def vectorize_reduction(self, loop: Op, lanes: int, within: Op, tail: str = "guard") -> Lanes:
        return self._do(vectorize_reduction, loop, lanes=lanes, within=within, tail=tail)

    def prefetch(self, load: Op, loop: Op, ahead: int = 1, *, nearest: bool = False) -> list[Op]:
        return self._do(prefetch, load, loop, ahead=ahead, nearest=nearest)

    def prefetch_run(self, access: Op, loop: Op) -> list[Op]:
        return self._do(prefetch_run, access, loop)

    def nontemporal(self, store: Op, condition: Sym) -> Op:
        result = nontemporal(self.func, store, condition)
        self._note("nontemporal", (store.operands[-1],), {"condition": condition})
        return result

    def clamp(self, loop: Op) -> Op:
        return self._do(clamp, loop)

    def boustrophedon(self, loop: Op, around: Op) -> Op:
        return self._do(boustrophedon, loop, around)

    def unroll(self, loop: Op) -> Op:
        return self._do(unroll, loop)

    def unroll_and_jam(self, loop: Op) -> None:
        self._do(unroll_and_jam, loop)

    def peel(self, loop: Op, first: int, last: int) -> Op:
        return self._do(peel, loop, first=first, last=last)

    def split_range(self, loop: Op, position: Sym) -> tuple[Op, Op]:
        result: tuple[Op, Op] = self._do(split_range, loop, position=position)
        return result

    def dot(self, loop: Op) -> Op:
        return self._do(dot, loop)

    def guard_reduction(self, loop: Op) -> None:
        self._do(guard_reduction, loop)

    def parallel(self, loop: Op) -> Op:
        return self._do(parallel, loop)

    def serial(self, loop: Op) -> Op:
        return self._do(serial, loop)

    def simplify(self, within: Op | None = None) -> None:
        self._note("simplify", () if within is None else (within,), {})
        simplify(self.func, within)

    def _do(self, primitive: Callable[..., Any], *subjects: Op | Value, **decisions: Any) -> Any:
        result = primitive(self.func, *subjects, **decisions)
        self._note(primitive.__name__, subjects, decisions)
        return result

    def _note(self, name: str, subjects: tuple[Op | Value, ...], decisions: dict[str, Any]) -> None:
        self.steps.append(Step(name, tuple(map(_name, subjects)), tuple(decisions.items())))


def _name(subject: Op | Value) -> str:
    if isinstance(subject, Value):
        return subject.name or "?"
    return loop_var(subject).name if is_loop(subject) else subject.name
