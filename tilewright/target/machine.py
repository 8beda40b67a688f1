"""What all kinds of machines have: memories, a hierarchy of parallelism, intrinsics, and ways to move data.

A machine is frozen data. `Target` is the kind for CPUs; plugins bring others (`docs/decisions/0037-machines.md`). The
loops level checks kernels against these facts (`loops/machine/rules.py`), and scheduling steps take them as arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FrameType, MappingProxyType
from typing import ClassVar

from tilewright.ir.diag import TilewrightError

COPY = "copy"
"""The intrinsic of a `run` that moves data along a route."""


class TargetError(TilewrightError):
    """A machine's name or one of its features is not known, or its facts contradict each other."""


Place = tuple[str, tuple[int, ...]]
"""A file, and the lines in it that lead to where a fact is written, the innermost first."""

_HELPERS = frozenset({__name__, "dataclasses", "tilewright.machines.families"})
"""Modules in which facts are built for others."""


def _place() -> Place:
    """Where a fact is written: of the frames around, those of the file that asks for it."""
    frame: FrameType | None = sys._getframe(1)
    file, lines = "", list[int]()
    while frame is not None:
        if frame.f_globals.get("__name__") not in _HELPERS:
            if file and frame.f_code.co_filename != file:
                break
            file = frame.f_code.co_filename
            lines.append(frame.f_lineno)
        if frame.f_code.co_name == "<module>":
            break
        frame = frame.f_back
    return file, tuple(dict.fromkeys(lines))


@dataclass(frozen=True, slots=True)
class Fact:
    """What a machine is made of, one record each; it knows the lines of the program that it is written in."""

    place: Place = field(default=("", ()), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", _place())


@dataclass(frozen=True, slots=True)
class Memory(Fact):
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
SCRATCH = Memory("scratch", align=64)
"""Memory of a worker; what is allocated outside of a parallel loop is the first worker's, and all see it."""
REGISTERS = Memory("reg", constant_sizes=True)


@dataclass(frozen=True, slots=True)
class Level(Fact):
    """A level of the hierarchy of parallelism: `count` instances in each instance of the level above."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Route(Fact):
    """A way from one memory to another: copies along it run on `queue`, beside the thread that starts them, in the
    order in which they are started. A copy takes `start` cycles, and `cycles` more for each unit of `unit` bytes.

    Runs of consecutive elements are multiples of `unit` bytes; with `partial` they may be shorter, and what is left of
    a run takes as long as a unit. With `fills` elements may be copied under a condition: others are filled by a number,
    as those of padding are.
    """

    source: str
    target: str
    queue: str
    unit: int = 1
    cycles: float = 1
    start: float = 0
    partial: bool = False
    fills: bool = False


@dataclass(frozen=True, slots=True)
class Intrinsic(Fact):
    """An instruction, described by what it computes.

    `body` is the text of a kernel over its operands: their memories are those of its arguments, and its dims are free
    (`m` in `acc f32[m, 16] strides(s, 1)`). `sizes` bounds dims (least and most), `limits` are further conditions on
    them, as "s % 4 == 0", and `cycles` is the time as an expression over them. It runs on `queue`, or where that is ""
    in the thread itself.
    """

    name: str
    body: str
    queue: str = ""
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    limits: tuple[str, ...] = ()
    cycles: str = "1"


@dataclass(frozen=True, slots=True)
class VectorUnit(Fact):
    """A unit that does scalar operations on many lanes at once: a run on it is a nest of loops over buffers in the
    `memories` it reads and writes.

    `lanes` are the elements of a vector by name of dtype, the widest that occurs in a run counts. `operations` are the
    cycles that a vector of results takes by name of the scalar operation: others it does not do. What copies alone
    takes those of one `move`. `across` are the cycles in which the lanes of a sum come together, `start` those of each
    run.
    """

    name: str
    memories: tuple[str, ...]
    lanes: Mapping[str, int] = field(hash=False)
    operations: Mapping[str, float] = field(hash=False)
    queue: str = ""
    move: float = 1
    across: float = 1
    start: float = 0


ANY = "*"
"""In the place of a queue in `Events`: each of them."""


@dataclass(frozen=True, slots=True)
class Events(Fact):
    """How many events there are for each pair of a queue `source`, on which runs set them, and of a queue `target`,
    whose runs wait for them: "" is the thread, which waits itself, and "*" stands for any queue, the thread included.
    Of several facts for a pair the first counts.

    A run that is started clears its events, and sets them when it has ended. So one number serves two runs where all
    that wait for the first have begun before the second is started.
    """

    source: str
    target: str
    count: int

    def names(self, source: str, target: str) -> bool:
        """Whether it is about a pair of queues."""
        return self.source in (source, ANY) and self.target in (target, ANY)


@dataclass(frozen=True, slots=True)
class HostLink:
    """What it takes to use a device beside a CPU: `call` seconds for starting it and waiting for it, and `bus` bytes a
    second between both memories. The device does `operations` scalar operations a second, `alone` where one thread
    does all of them, and moves `bandwidth` bytes a second in its own memory. `clock` are cycles a second of the CPU's
    cores, `capacity` the bytes of weights that the device holds (None: any number), `kernel` the seconds until what one
    kernel has written is there for the next."""

    call: float
    bus: float
    operations: float
    bandwidth: float
    alone: float
    clock: float = 3e9
    capacity: int | None = None
    kernel: float = 3e-6


@dataclass(frozen=True)
class Machine:
    """A machine to compile for: its memories, its parallel levels from the outermost on, its intrinsics, and the routes
    between its memories. `kind` names the back end that makes its code. With a `link` the CPU beside it computes what
    it does not. Where it has `events`, pairs of queues that none of them names have none; else there are as many as
    programs ask for."""

    kind: ClassVar[str] = ""
    part_align: ClassVar[int] = 1
    """Bytes of which the start of a part of a tensor is a multiple where a kernel takes it without a copy."""

    name: str
    memories: tuple[Memory, ...] = field(default=(GLOBAL,), kw_only=True)
    levels: tuple[Level, ...] = field(default=(), kw_only=True)
    intrinsics: tuple[Intrinsic, ...] = field(default=(), kw_only=True)
    routes: tuple[Route, ...] = field(default=(), kw_only=True)
    units: tuple[VectorUnit, ...] = field(default=(), kw_only=True)
    events: tuple[Events, ...] = field(default=(), kw_only=True)
    link: HostLink | None = field(default=None, kw_only=True)

    @property
    def buffer_memories(self) -> tuple[Memory, ...]:
        """Those in which buffers of kernels may lie."""
        return self.memories

    def memory(self, name: str) -> Memory | None:
        """The memory of this name; None when there is none."""
        return next((m for m in self.memories if m.name == name), None)

    def level(self, name: str) -> int | None:
        """How deep in the hierarchy a level is, 0 for the outermost; None when there is none of this name."""
        return next((k for k, level in enumerate(self.levels) if level.name == name), None)

    def intrinsic(self, name: str) -> Intrinsic | None:
        """The intrinsic of this name; None when there is none."""
        return next((i for i in self.intrinsics if i.name == name), None)

    def unit(self, name: str) -> VectorUnit | None:
        """The vector unit of this name; None when there is none."""
        return next((u for u in self.units if u.name == name), None)

    def route(self, source: str, target: str) -> Route | None:
        """The way from one memory to another; None when there is none."""
        return next((r for r in self.routes if (r.source, r.target) == (source, target)), None)

    def event_count(self, source: str, target: str) -> int | None:
        """Events of a pair of queues (target "": the thread); None for as many as programs ask for."""
        if not self.events:
            return None
        return next((e.count for e in self.events if e.names(source, target)), 0)

    def queues(self) -> tuple[str, ...]:
        """Names of the queues of routes, intrinsics and vector units."""
        queues = [each.queue for group in (self.routes, self.intrinsics, self.units) for each in group]
        return tuple(dict.fromkeys(filter(None, queues)))


@dataclass(frozen=True, slots=True)
class ScalarUnit(Fact):
    """What a thread does itself, in cycles: each scalar operation, load and store, and each start of a run, wait or
    iteration of a loop."""

    operation: float = 1
    load: float = 2
    store: float = 1
    issue: float = 1


@dataclass(frozen=True)
class Accelerator(Machine):
    """A machine with memories that programs manage, units on queues, and threads that start them. Operations that no
    unit does run on the scalar unit, of which each has registers, and scratch memory beside the arguments of kernels
    for what has no place in the memories that are declared."""

    kind: ClassVar[str] = "accelerator"

    scalar: ScalarUnit = field(default=ScalarUnit(), kw_only=True)
    clock_hz: float = field(default=1e9, kw_only=True)
    place: Place = field(default=("", ()), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", _place())

    @property
    def buffer_memories(self) -> tuple[Memory, ...]:
        declared = {m.name for m in self.memories}
        return (*self.memories, *(m for m in (SCRATCH, REGISTERS) if m.name not in declared))
