"""One kernel of the loops level as LLVM IR for GPUs of NVIDIA: an entry point for each of its grids.

It is what CPUs get, one lane wide, with these differences. Iterations of a loop of the grid are those of groups,
iterations of a loop of threads are shared among the threads of a group, and what is in no loop of threads and writes is
done by the first one. Nests that follow each other are grids of their own, as groups cannot wait for each other. A
kernel whose nests are none of these is done by one thread, in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any

from tilewright.codegen.cpu.kernel.checks import KernelChecks
from tilewright.codegen.cpu.kernel.emit import Kernel
from tilewright.codegen.cpu.kernel.functions import any_lane
from tilewright.codegen.cpu.kernel.lanes import memory_type
from tilewright.codegen.cpu.kernel.memory import Buffer
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.codegen.devices.program import DeviceKernel, Launch, doubt_of_serial
from tilewright.codegen.program import Check
from tilewright.codegen.ptx.shared_pointers import with_shared_pointers
from tilewright.ir.core import Block, Func, Op, Value
from tilewright.ir.diag import InternalError, UnsupportedError
from tilewright.ir.sym import ONE, ZERO, Sym, maximum
from tilewright.ir.types import BufferType
from tilewright.ir.types import buffer as dense
from tilewright.loops.edit import body_of, describe, enclosing_loops, extent_of, loop_var, places_of
from tilewright.loops.kernel_info import kernel_info
from tilewright.target.gpu.cuda import OWNED, Cuda
from tilewright.target.gpu.webgpu import DEVICE, GRID, REGISTERS, ROW, SHARED, THREAD
from tilewright.target.target import Target

TRIPLE = "nvptx64-nvidia-cuda"
_BARRIER = "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)"
_AXES = {**dict(zip(GRID, "zyx", strict=True)), ROW: "y", THREAD: "x"}
"""The axes of the grid and of a group that levels are."""
_MOST = {"x": 2**31 - 1, "y": 65535, "z": 65535}
"""Groups of a grid along its axes."""
_GROUPS = 2
"""Groups of a multiprocessor for which registers must do."""
_FOREIGN = re.compile(r"@(?!llvm\.)(\w+)\(")
_WRITING = ("store", "for", "if", "check")


@dataclass(frozen=True)
class GroupLaunch(Launch):
    """One grid of a kernel, with the threads of a group along x and y."""

    threads: tuple[int, int] = (1, 1)

    def more(self, size: Callable[[Sym], Any]) -> list[Any]:
        return [list(self.threads)]


@dataclass(frozen=True)
class PtxKernel(DeviceKernel):
    """The LLVM IR of a kernel. `shared` are the bytes of shared memory that it needs."""

    shared: int = 0


def target_of(machine: Cuda) -> Target:
    """What code for one lane must know of a GPU."""
    return Target(machine.name, TRIPLE, machine.architecture, (machine.version,), 128, 255)


def kernel_ptx(func: Func, machine: Cuda) -> PtxKernel:
    """The LLVM IR of a kernel. UnsupportedError for what a GPU has not."""
    ops = [op for op in func.body.ops if op.name != "return"]
    first = [op for op in ops if op.results and op.name != "load"]
    nests = [op for op in ops if op not in first and op.name != "barrier"]
    if all(op.name == "for" and op.attrs.get("level") in GRID for op in nests):
        phases, is_serial = [[*first, op] for op in nests], False
    else:
        phases, is_serial = [ops], True
    text, launches, made = "", [], None
    for k, phase in enumerate(phases):
        shape = ((1, 1), (ONE, ONE, ONE)) if is_serial else _shape(phase[-1], machine)
        made = _Grid(func, machine, shape[0], is_serial, made)
        launches.append(GroupLaunch(f"{func.name}_{k}", shape[1], shape[0]))
        text += made.entry(launches[-1].entry, phase)
    if made is None:
        return PtxKernel(func.name, f'target triple = "{TRIPLE}"\n', dims=tuple(func.dims))
    if foreign := _FOREIGN.findall("\n".join(made.text.declarations)):
        raise UnsupportedError(
            f"a GPU has no C library, whose function '{foreign[0]}' kernel '{func.name}' calls",
            hint="compile this model for the CPU (target='host'), or use float32 in place of float64",
        )
    head = f'target triple = "{TRIPLE}"\n{made.text.module()}'
    return PtxKernel(
        func.name, head + text, tuple(made.checks.found), launches=tuple(launches), room=made.scratch,
        shared=made.shared, dims=tuple(func.dims), doubt=doubt_of_serial(func) if is_serial else "",
    )  # fmt: skip


class _Grid(Kernel):
    """The state of the translation of one grid; declarations, helper functions and checks are those of all grids of a
    kernel."""

    def __init__(
        self, func: Func, machine: Cuda, threads: tuple[int, int], is_serial: bool, before: _Grid | None
    ) -> None:
        super().__init__(func, target_of(machine), keeps_denormals=True, has_floats=True)
        self.parallel, self.forks = None, False
        self.threads = dict(zip((THREAD, ROW), threads, strict=True))
        self.is_serial = is_serial
        self.level = THREAD if is_serial else ""
        self.checks = KernelChecks() if before is None else before.checks
        self.shared: int = 0 if before is None else before.shared
        if before is not None:
            self.text.share(before.text)
        self.repeated: Block | None = None
        self.owned: dict[Value, tuple[int, ...]] = {}
        self.positions: dict[str, str] = {}
        self.counts: dict[str, str] = {}

    def entry(self, name: str, ops: Sequence[Op]) -> str:
        """The function of a grid."""
        parameters = [*self._parameters(), "ptr align 64 %scratch"]
        for level, axis in _AXES.items():
            what = "ctaid" if level in GRID else "tid"
            self.positions[level] = self._special(f"{what}.{axis}")
            self.counts[level] = (
                self._special(f"nctaid.{axis}") if level in GRID else str(self.threads[level])
            )
        for op in ops:
            self._place(op)
        lines = "\n".join(with_shared_pointers(self._lines()))
        x, y = self.threads[THREAD], self.threads[ROW]
        bound = f'nounwind "nvvm.reqntid"="{x},{y},1"'
        if self.owned:  # two groups at least, one of which computes while the other waits
            bound += f' "nvvm.minctasm"="{_GROUPS}"'
        return f"define ptx_kernel void @{name}({', '.join(parameters)}) {bound} {{\nentry:\n{lines}\n}}\n"

    def _special(self, register: str) -> str:
        return self.text.emit(f"zext i32 {self.text.emit(f'call i32 @llvm.nvvm.read.ptx.sreg.{register}()')} to i64")

    def _parameters(self) -> list[str]:
        """The word for the first error, what is added to the numbers of errors, buffers and dims."""
        state, *others = super()._parameters()
        inputs = len(self.func.args) - kernel_info(self.func).outputs
        found = [state, "i64 %errors"]
        for k, parameter in enumerate(others):
            if k < len(self.func.args):
                is_read = k < inputs and parameter.startswith("ptr noalias")
                parameter = parameter.replace(" %", f"{' readonly' if is_read else ''} align 16 %")
            found.append(parameter)
        return found

    # Levels

    def _block(self, block: Block) -> None:
        for op in block.ops:
            self._place(op)
        if block is self.repeated:  # another iteration fills the memory that these threads may still read
            self.text.line(_BARRIER)

    def _place(self, op: Op) -> None:
        """An op; what writes outside of the loops of threads, the first thread does."""
        if op.name in _WRITING and self.level in (*GRID, ROW) and not _has_threads(op):
            outer, self.level = self.level, THREAD
            with self._first_only((THREAD,) if outer == ROW else (THREAD, ROW)):
                self._statement(op)
            self.level = outer
        elif self.level in GRID and op.attrs.get("level") == THREAD:
            with self._first_only((ROW,)):
                self._statement(op)
        else:
            self._statement(op)

    def _statement(self, op: Op) -> None:
        if op.name == "barrier" and not self.is_serial:
            self.text.line(_BARRIER)
        else:
            self._operate(op)

    def _first_only(self, levels: Sequence[str]):  # type: ignore[no-untyped-def]
        """What is emitted inside only the first thread of these levels does."""
        tested = [level for level in levels if self.threads[level] > 1]
        if not tested:
            return nullcontext()
        flags = [self.indices.integer(self.positions[level]).equals(0) for level in tested]
        return self._only_where(self.indices.combined(flags))

    def _iterate(self, op: Op) -> None:
        level = "" if self.is_serial else op.attrs.get("level", "")
        if not level:
            super()._iterate(op)
            return
        outer, self.level = self.level, level
        self._share(op, level)
        self.level = outer

    def _share(self, op: Op, level: str) -> None:
        """The iterations of a loop that are those of a group or thread."""
        extent, at = extent_of(op), self.positions[level]
        count = _MOST[_AXES[level]] if level in GRID else self.threads[level]
        if extent.is_const and extent.value <= count:
            is_all = level not in GRID and extent.value == count
            flag = [] if is_all else [self.indices.integer(at) < extent.value]
            with self._only_where(self.indices.combined(flag)):
                self._iteration(op, at)
        else:
            end = self.indices.uniform(extent)
            if level in GRID and any(_is_shared(o) for o in op.walk()):
                self.repeated = body_of(op)
            self._loop(op, at, end, at_least_once=False, step=self.counts[level])

    def _iteration(self, op: Op, at: str) -> None:
        with self.indices.scope(is_block=False):
            self.indices.bind(loop_var(op), self.indices.integer(at))
            self._block(body_of(op))

    # Memory and errors

    def _alloc(self, op: Op) -> None:
        type = op.result.buffer
        if type.space == SHARED and not self.is_serial and type.size.is_const:
            name = f"@shared{len(self.text.globals)}"
            element, count = memory_type(type.dtype), max(1, type.size.value)
            self.text.globals[name] = (
                f"{name} = internal addrspace(3) global [{count} x {element}] poison, align 16\n"
            )
            self.shared += count * type.dtype.bytes
            self.buffers[op.result] = Buffer(f"addrspacecast (ptr addrspace(3) {name} to ptr)", type)
            return
        if type.space == OWNED and not self.is_serial:
            kept = self.owned[op.result] = _kept_axes(op.result)
            count = prod(type.shape[k].value for k in kept)
            pointer = self.text.alloca(f"[{count} x {memory_type(type.dtype)}]", 16)
            self.buffers[op.result] = Buffer(pointer, dense(type.dtype, (count,), REGISTERS))
            return
        if type.space != REGISTERS:
            is_outside = op.parent is self.func.body and type.space == DEVICE
            if not self.is_serial and not is_outside:
                raise UnsupportedError(f"a buffer of device memory in a loop of groups: {type}")
            known = {dim.name for dim in self.func.dims}
            if not known.issuperset(v.name for v in type.size.vars):
                raise UnsupportedError(f"the size of {type} is not known before the kernel runs")
        super()._alloc(op)

    def _address(self, op: Op) -> Sym:
        """Of what a thread owns, it has its own part."""
        buffer = op.operands[-1]
        kept = self.owned.get(buffer)
        if kept is None:
            return super()._address(op)
        at, index = ZERO, op.attrs["idx"]
        for k in kept:
            at = at * buffer.buffer.shape[k] + index[k]
        return at

    def _fail_where(self, failed: Reg, check: Check) -> None:
        """The least number of an error stays."""
        number = self.checks.number(check)
        bad, good = self.text.label("bad"), self.text.label("good")
        self.text.branch(any_lane(failed).name, bad, good)
        self.text.start(bad)
        code = self.text.emit(f"add i64 %errors, {number}")
        word = self.text.emit(f"trunc i64 {code} to i32")
        self.text.emit(f"atomicrmw umin ptr %state, i32 {word} monotonic, align 4")
        self.text.jump(good)
        self.text.start(good)


def _kept_axes(buffer: Value) -> tuple[int, ...]:
    """The axes of what is in memory that threads own, but those that are the variables of loops of threads."""
    own: set[int] | None = None
    for op in places_of(buffer):
        threads = {loop_var(o) for o in enclosing_loops(op) if o.attrs.get("level") in (ROW, THREAD)}
        found = {k for k, index in enumerate(op.attrs["idx"]) if index in threads}
        own = found if own is None else own & found
        if {op.attrs["idx"][k] for k in own} != threads:
            raise InternalError(f"threads do not own what '{describe(op)}' touches", where=str(op.loc))
    return tuple(k for k in range(buffer.buffer.rank) if k not in (own or ()))


def _shape(nest: Op, machine: Cuda) -> tuple[tuple[int, int], tuple[Sym, Sym, Sym]]:
    """Threads of a group along x and y, and groups along x, y and z. Where threads have registers, their loops say how
    many threads there are; others go around."""
    loops = [op for op in nest.walk() if op.name == "for"]
    owning = [op for op in loops if any(map(_is_of_a_thread, op.walk()))]

    def most(level: str, ops: Sequence[Op]) -> int:
        found = _extents(level, ops)
        known = max([0, *(n.value if n.is_const else machine.alone for n in found)])
        return 1 << (known - 1).bit_length() if known else 0

    columns, rows = (most(level, owning) or most(level, loops) or 1 for level in (THREAD, ROW))
    while columns * rows > machine.threads:
        columns, rows = (columns // 2, rows) if columns >= rows else (columns, rows // 2)
    inner = {loop_var(op) for op in loops}
    z, y, x = (maximum(1, *(n for n in _extents(level, loops) if inner.isdisjoint(n.vars))) for level in GRID)
    return (columns, rows), (x, y, z)


def _is_of_a_thread(op: Op) -> bool:
    """Whether an op makes a thread's registers, or touches what is its own."""
    if op.name == "alloc":
        return op.result.buffer.space == REGISTERS
    return any(isinstance(v.type, BufferType) and v.type.space == OWNED for v in op.operands)


def _extents(level: str, loops: Sequence[Op]) -> list[Sym]:
    """Those of the loops of a level."""
    return [extent_of(op) for op in loops if op.attrs.get("level") == level]


def _has_threads(op: Op) -> bool:
    return any(o.name == "barrier" or o.attrs.get("level") in (*GRID, ROW, THREAD) for o in op.walk())


def _is_shared(op: Op) -> bool:
    return op.name == "alloc" and op.result.buffer.space == SHARED
