"""A planned program and what is known of it when it is linked: what a back end makes code of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from tilewright.ir.core import Func, Module, Op, Value, substitute
from tilewright.ir.diag import InternalError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import ZERO, Sym, maximum, sym
from tilewright.loops.kernel_info import kernel_info
from tilewright.program.memory.places import OF_THREAD, SCRATCH, arena_of, of_thread, places_of
from tilewright.program.memory.storage import Place
from tilewright.runtime.guarded import PAGE

UNCOUNTED_WORK = 1 << 62
"""Scalar operations of a kernel that nobody has counted: threads share it."""


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that can fail while a kernel runs: `kind` names the error class, `message` says what
    happened."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class KernelText:
    """One kernel as text: for CPUs a complete LLVM module.

    `symbol` is the kernel, and on CPUs `symbol.task` its form for the thread pool, which shares the loop of extent
    `parallel`. `scratch` is the memory it needs per worker, in bytes; `checks` are the errors it can report, in the
    order of their numbers (from 1). A kernel that `forks` calls the thread pool itself and has no such form. `dots`
    names the machine's instructions for loops of kind `dot`, by the number of lanes; for others it has none. A function
    that several kernels share takes `numbers` after its dims. Code of a `little` one is to be made quickly.
    """

    symbol: str
    text: str
    checks: tuple[Check, ...] = ()
    scratch: Sym = ZERO
    parallel: Sym | None = None
    forks: bool = False
    dots: Mapping[tuple[Op, int], str] = field(default_factory=dict, repr=False, compare=False)
    numbers: tuple[int, ...] = ()
    little: bool = False


@dataclass(frozen=True, slots=True)
class BufferRef:
    """Where a tensor lies: `offset` bytes into input or output `index`, the constants or the arena; of what is "lent"
    the start has a distance from that of the constants, which stands there `index` bytes on."""

    base: Literal["input", "output", "constants", "lent", "arena"]
    index: int = 0
    offset: Sym = ZERO


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A call of a kernel: arguments, the values of its dims and of what else it takes, its parallel extent (None: one
    thread, or one that `forks`, which calls the pool itself), its work in scalar operations, the scratch bytes of a
    worker, the errors it can report, and where in the arena its scratch memory begins (None: behind it)."""

    kernel: str
    buffers: tuple[BufferRef, ...]
    dims: tuple[Sym, ...]
    parallel: Sym | None
    work: Sym
    scratch: Sym = ZERO
    checks: tuple[Check, ...] = ()
    forks: bool = False
    scratch_at: Sym | None = None


@dataclass(frozen=True, slots=True)
class InputAxis:
    """The length of an axis of an input."""

    input: int
    axis: int


@dataclass(frozen=True, slots=True)
class InputElement:
    """An element of an integer input, at a flat position."""

    input: int
    element: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Dim:
    """A variable of the program, and where its value comes from when it is called."""

    var: Sym
    source: InputAxis | InputElement | Sym


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold for the inputs; `check` is the error when it does not."""

    holds: Sym
    check: Check


@dataclass(frozen=True)
class Program:
    """The main function of a module, planned, and all that a back end must know to make code of its ops.

    A program of kernels has their texts, and where its constants lie. `dims` are its variables; they may refer to
    earlier ones. With `flush_denormals` kernels take denormal numbers as zero, whatever the caller's modes are, and the
    caller gets its modes back: arithmetic on a denormal takes a hundred cycles and more on many cores. `suffix` ends
    the names of its entry points, which tells it from other programs of the same code. One that is `guarded` leaves a
    page behind each thread's scratch memory, and tells where the tensors of its arena are.

    A program that calls `parts`, which are programs of kernels, has code for its `native` ops alone; `slots` are the
    words of the frame at which values begin, and `parts_at` the word of the first part.
    """

    module: Module
    kernels: Mapping[str, KernelText] = field(default_factory=dict)
    constants: Mapping[str, BufferRef] = field(default_factory=dict)
    dims: tuple[Dim, ...] = ()
    conditions: tuple[Condition, ...] = ()
    flush_denormals: bool = False
    suffix: str = ""
    guarded: bool = False
    parts: tuple[Program, ...] | None = None
    slots: Mapping[Value, int] = field(default_factory=dict)
    parts_at: int = 0

    @property
    def main(self) -> Func:
        return self.module.main

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Those of the inputs."""
        return tuple(a.tensor.rank for a in self.main.args)

    @cached_property
    def outputs(self) -> tuple[tuple[Sym, ...], ...]:
        """The shapes of the outputs."""
        return tuple(v.tensor.shape for v in self.main.returns)

    @property
    def arena(self) -> Sym:
        """Bytes that a call takes beside those of each thread (`scratch`)."""
        return arena_of(self.main) - of_thread(self.main)

    @property
    def is_static(self) -> bool:
        """Whether nothing must be computed or looked at before a call."""
        return not self.dims and all(c.holds.is_const and c.holds.value for c in self.conditions)

    @cached_property
    def steps(self) -> tuple[KernelCall, ...]:
        """What the calls of kernels come to, in their order."""
        return tuple(self.step(op) for op in self.main.body.ops if op.name == "call")

    def step(self, call: Op) -> KernelCall:
        """What a call of a kernel comes to. Its `where` is the place of the op in the model."""
        kernel = self.module.funcs[call.attrs["kernel"]]
        buffers = [self.buffer(v) for v in (*call.operands, *call.results)]
        found = kernel_step(kernel, self.kernels[kernel.name], buffers, call.attrs["dims"], str(call.loc))
        start, bytes = call.attrs.get(SCRATCH, (None, ZERO))
        if OF_THREAD not in self.main.attrs or found.scratch == 0:
            return found
        if start is None:
            raise InternalError(f"scratch memory of {found.scratch} bytes that has no place", where=str(call.loc))
        if found.scratch.is_const and bytes.is_const and found.scratch.value > bytes.value:
            raise InternalError(f"scratch memory of {bytes} bytes, where {found.scratch} are used", where=str(call.loc))
        return replace(found, scratch_at=start)

    def buffer(self, value: Value) -> BufferRef:
        """The place of a value: states are behind the inputs, and what takes their place behind the outputs."""
        place = self._places[value]
        if place.base == "state":
            return BufferRef("input", len(self.main.args) + place.index, place.offset)
        if place.base == "next":
            return BufferRef("output", len(self.main.returns) + place.index, place.offset)
        if place.base == "constant":
            start = self.constants[place.constant]
            return replace(start, offset=start.offset + place.offset)
        return BufferRef(place.base, place.index, place.offset)

    @cached_property
    def _places(self) -> Mapping[Value, Place]:
        return places_of(self.main)

    @cached_property
    def scratch(self) -> Sym:
        """Bytes from the scratch memory of one worker to that of the next, a multiple of a cache line."""
        most = self.used_scratch
        is_apart = self.guarded and OF_THREAD not in self.main.attrs
        return most if not is_apart or most == 0 else (most + (PAGE - 1)) // PAGE * PAGE + PAGE

    @cached_property
    def used_scratch(self) -> Sym:
        """Bytes of scratch memory that one worker needs, a multiple of a cache line."""
        found = self.main.attrs.get(OF_THREAD)
        most = maximum(0, *{step.scratch: None for step in self.steps}) if found is None else found
        return (most + 63) // 64 * 64


@dataclass(eq=False)
class ErrorTable:
    """The run-time errors of a program; an error's code is its position from 1."""

    entries: list[Check] = field(default_factory=list)
    _starts: dict[tuple[Check, ...], int] = field(default_factory=dict)

    def base(self, checks: tuple[Check, ...]) -> int:
        """What a step adds to the numbers of its kernel's checks to get codes."""
        if checks not in self._starts:
            self._starts[checks] = len(self.entries)
            self.entries.extend(checks)
        return self._starts[checks]

    def metadata(self) -> list[dict[str, str]]:
        """The table as the artefact stores it: `kind` is "input" or "execution"."""
        kinds = {"InputError": "input"}
        return [{"kind": kinds.get(c.kind, "execution"), "message": c.message} for c in self.entries]


@dataclass(frozen=True, slots=True)
class ProgramText:
    """The entry points as a complete LLVM module, the errors that they can return, and the suffix of their names."""

    text: str
    errors: ErrorTable
    suffix: str


def kernel_step(
    func: Func, kernel: KernelText, buffers: Sequence[BufferRef], dims: Sequence[Sym], where: str = ""
) -> KernelCall:
    """The call of `func` with `dims` for its dims, in order; `where` names its place in the model in
    errors."""
    actual = dict(zip(func.dims, dims, strict=True))
    counted = kernel_info(func).work
    work = sym(UNCOUNTED_WORK) if counted is None else counted
    parallel, work, scratch = (substitute(e, actual) for e in (kernel.parallel, work, kernel.scratch))
    checks = tuple(Check(c.kind, f"{c.message} (in {where})" if where else c.message) for c in kernel.checks)
    numbers = (*dims, *map(sym, kernel.numbers))
    return KernelCall(kernel.symbol, tuple(buffers), numbers, parallel, work, scratch, checks, forks=kernel.forks)
