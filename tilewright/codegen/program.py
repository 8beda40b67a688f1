"""A model as kernels and calls of them: what a back end makes a program of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from tilewright.ir.core import Func, Op, substitute
from tilewright.ir.dtype import DType
from tilewright.ir.sym import ZERO, Sym, maximum, sym
from tilewright.loops.kernel_info import kernel_info

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
    that several kernels share takes `numbers` after its dims.
    """

    symbol: str
    text: str
    checks: tuple[Check, ...] = ()
    scratch: Sym = ZERO
    parallel: Sym | None = None
    forks: bool = False
    dots: Mapping[tuple[Op, int], str] = field(default_factory=dict, repr=False, compare=False)
    numbers: tuple[int, ...] = ()


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
    worker, and the errors it can report."""

    kernel: str
    buffers: tuple[BufferRef, ...]
    dims: tuple[Sym, ...]
    parallel: Sym | None
    work: Sym
    scratch: Sym = ZERO
    checks: tuple[Check, ...] = ()
    forks: bool = False


@dataclass(frozen=True, slots=True)
class ConcurrentCalls:
    """Calls whose iterations threads share as if they were one kernel's. The kernels do not fork, and report no
    errors."""

    steps: tuple[KernelCall, ...]


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
    """A whole model after memory planning.

    `ranks` are those of the inputs. `dims` may refer to earlier ones. `arena` is in bytes. What is in `order` runs one
    after the other. With `flush_denormals` they take denormal numbers as zero, whatever the caller's modes are, and the
    caller gets its modes back: arithmetic on a denormal takes a hundred cycles and more on many cores. `suffix`
    ends the names of its entry points, which tells it from other programs of the same code.
    """

    ranks: tuple[int, ...]
    outputs: tuple[tuple[Sym, ...], ...]
    order: tuple[KernelCall | ConcurrentCalls, ...]
    arena: Sym
    dims: tuple[Dim, ...] = ()
    conditions: tuple[Condition, ...] = ()
    flush_denormals: bool = False
    suffix: str = ""

    @cached_property
    def steps(self) -> tuple[KernelCall, ...]:
        """All calls."""
        return tuple(s for o in self.order for s in (o.steps if isinstance(o, ConcurrentCalls) else (o,)))

    @cached_property
    def scratch(self) -> Sym:
        """Bytes of scratch memory that one worker needs, a multiple of a cache line."""
        most = maximum(0, *{step.scratch: None for step in self.steps})
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
