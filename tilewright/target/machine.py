"""What all kinds of machines have: memories, a hierarchy of parallelism, intrinsics, and ways to move data.

A machine is frozen data. `Target` is the kind for CPUs; a plugin brings others (`docs/decisions/0037`). The loops level
checks kernels against these facts (`loops/machine/rules.py`), and scheduling steps take the records as arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar

from tilewright.ir.core import Func
from tilewright.ir.diag import TextError, TilewrightError
from tilewright.ir.sym import Sym, parse_sym, var
from tilewright.ir.text import parse_func
from tilewright.ir.types import BufferType

COPY = "copy"
"""The intrinsic of a `run` that moves data along a route."""


class TargetError(TilewrightError):
    """A machine's name or one of its features is not known, or its facts contradict each other."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A place for buffers, which name it as their space.

    `bytes` is its capacity (None: more than programs ask for), `align` what the address of each buffer is a multiple
    of. Each instance of the parallel level `level` has such a memory of its own, which the others cannot see ("": there
    is one for the whole machine). With `constant_sizes` buffers have a constant number of elements, as registers.
    """

    name: str
    bytes: int | None = None
    align: int = 1
    level: str = ""
    constant_sizes: bool = False


GLOBAL = Memory("global", align=64)
"""The memory of the arguments of kernels; each machine has one of this name."""


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the hierarchy of parallelism: `count` instances in each instance of the level above."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Route:
    """A way from one memory to another: copies along it run on `queue`, beside the thread that starts them, in the
    order in which they are started. Runs of consecutive elements are multiples of `unit` bytes, and each unit takes
    `cycles`."""

    source: str
    target: str
    queue: str
    unit: int = 1
    cycles: float = 1


@dataclass(frozen=True)
class Intrinsic:
    """An instruction, described by what it computes.

    `body` is the text of a kernel over its operands: their memories are those of its arguments, and its dims are free
    (`m` in `acc f32[m, 16] strides(s, 1)`). `sizes` bounds dims (least and most), `limits` are further conditions on
    them, as "s % 4 == 0", and `cycles` is the time as an expression over them. It runs on `queue`, or where that is ""
    in the thread itself.
    """

    name: str
    body: str
    queue: str = ""
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=lambda: MappingProxyType({}))
    limits: tuple[str, ...] = ()
    cycles: str = "1"

    @cached_property
    def kernel(self) -> Func:
        """The body as a program."""
        return parse_func(self.body)

    @cached_property
    def conditions(self) -> tuple[Sym, ...]:
        """The limits as expressions that are not 0 where they hold."""
        return tuple(parse_sym(text, self._dim) for text in self.limits)

    def time(self, sizes: Mapping[str, int]) -> int:
        """Cycles for these values of its dims."""
        return int(parse_sym(self.cycles, self._dim).evaluate(sizes))

    def _dim(self, name: str) -> Sym:
        return next((d for d in self.kernel.attrs.get("dims", ()) if d.name == name), var(name))


@dataclass(frozen=True)
class Machine:
    """A machine to compile for: its memories, its parallel levels from the outermost on, its intrinsics, and the routes
    between its memories. `kind` names the back end that makes its code."""

    kind: ClassVar[str] = ""

    name: str
    memories: tuple[Memory, ...] = field(default=(GLOBAL,), kw_only=True)
    levels: tuple[Level, ...] = field(default=(), kw_only=True)
    intrinsics: tuple[Intrinsic, ...] = field(default=(), kw_only=True)
    routes: tuple[Route, ...] = field(default=(), kw_only=True)

    def memory(self, name: str) -> Memory | None:
        """The memory of this name; None when there is none."""
        return next((m for m in self.memories if m.name == name), None)

    def level(self, name: str) -> int | None:
        """How deep in the hierarchy a level is, 0 for the outermost; None when there is none of this name."""
        return next((k for k, level in enumerate(self.levels) if level.name == name), None)

    def intrinsic(self, name: str) -> Intrinsic | None:
        """The intrinsic of this name; None when there is none."""
        return next((i for i in self.intrinsics if i.name == name), None)

    def route(self, source: str, target: str) -> Route | None:
        """The way from one memory to another; None when there is none."""
        return next((r for r in self.routes if (r.source, r.target) == (source, target)), None)

    def queues(self) -> tuple[str, ...]:
        """Names of the queues of routes and intrinsics."""
        queues = [*(r.queue for r in self.routes), *(i.queue for i in self.intrinsics)]
        return tuple(dict.fromkeys(filter(None, queues)))


def check_machine(machine: Machine) -> None:
    """TargetError when facts of a machine contradict each other: a name twice, or one that it does not declare."""
    spaces = [m.name for m in machine.memories]
    _check_unique(machine, "memory", spaces)
    _check_unique(machine, "level", [level.name for level in machine.levels])
    _check_unique(machine, "intrinsic", [i.name for i in machine.intrinsics])
    if GLOBAL.name not in spaces:
        _wrong(machine, f"has no memory '{GLOBAL.name}', in which the arguments of kernels lie")
    for memory in machine.memories:
        if memory.level and machine.level(memory.level) is None:
            _wrong(machine, f"memory '{memory.name}' belongs to the level '{memory.level}', which it does not have")
    for route in machine.routes:
        _check_spaces(machine, f"the route on queue '{route.queue}'", (route.source, route.target), spaces)
    for intrinsic in machine.intrinsics:
        _check_intrinsic(machine, intrinsic, spaces)


def _check_intrinsic(machine: Machine, intrinsic: Intrinsic, spaces: Collection[str]) -> None:
    what = f"intrinsic '{intrinsic.name}'"
    if intrinsic.name == COPY:
        _wrong(machine, f"{what} has the name of what moves data along routes")
    try:
        kernel = intrinsic.kernel
        used = {v for c in intrinsic.conditions for v in c.vars}
    except (TextError, ValueError) as error:
        raise TargetError(f"machine '{machine.name}': the text of {what} cannot be read: {error}") from error
    dims = {d.name for d in kernel.attrs.get("dims", ())}
    unknown = sorted({*intrinsic.sizes, *(v.name for v in used)} - dims)
    if unknown:
        _wrong(machine, f"{what} has no dim '{unknown[0]}'")
    types = [a.type for a in kernel.args]
    _check_spaces(machine, what, [t.space for t in types if isinstance(t, BufferType)], spaces)


def _check_unique(machine: Machine, what: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            _wrong(machine, f"has two of the {what} '{name}'")


def _check_spaces(machine: Machine, what: str, names: Iterable[str], spaces: Collection[str]) -> None:
    for name in names:
        if name not in spaces:
            known = ", ".join(sorted(spaces))
            _wrong(machine, f"{what} names the memory '{name}', which it does not have; its memories are {known}")


def _wrong(machine: Machine, problem: str) -> None:
    raise TargetError(f"machine '{machine.name}': {problem}")
