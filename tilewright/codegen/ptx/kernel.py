"""One kernel of the loops level as LLVM IR for GPUs of NVIDIA: an entry point for each of its grids.

It is what CPUs get, one lane wide, with these differences. Iterations of a loop of the grid are those of groups,
iterations of a loop of threads are shared among the threads of a group, and what is in no loop of threads and writes is
done by the first one. Nests that follow each other are grids of their own, as groups cannot wait for each other. A
kernel whose nests are none of these is done by one thread, in order. A run of an intrinsic is an instruction of all
threads of a warp; one that copies is shared by the threads of the group.
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
from tilewright.codegen.devices.phases import phases_of
from tilewright.codegen.devices.program import DeviceKernel, Launch, doubt_of_serial
from tilewright.codegen.program import Check
from tilewright.codegen.ptx import warps
from tilewright.codegen.ptx.shared_pointers import with_shared_pointers
from tilewright.ir.core import Block, Func, Op, Value
from tilewright.ir.diag import InternalError, UnsupportedError
from tilewright.ir.sym import ONE, ZERO, Sym, maximum
from tilewright.ir.types import BufferType
from tilewright.ir.types import buffer as dense
from tilewright.loops.edit import (
    address_of,
    body_of,
    describe,
    enclosing_loops,
    extent_of,
    is_in_run,
    is_loop,
    loop_var,
    places_of,
)
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.machine.copies import copy_in
from tilewright.loops.machine.match_intrinsic import IntrinsicMatch, Operand, match_intrinsic
from tilewright.target.gpu.cuda import OWNED, Cuda
from tilewright.target.gpu.tensor_cores import LANE_ROWS, LANES, LEFT, RIGHT, WARP, WARP_ROW
from tilewright.target.gpu.webgpu import DEVICE, GRID, REGISTERS, ROW, SHARED, THREAD
from tilewright.target.machine import COPY
from tilewright.target.target import Target

TRIPLE = "nvptx64-nvidia-cuda"
_BARRIER = "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)"
_AXES = dict(zip(GRID, "zyx", strict=True))
"""The axes of the grid that levels are."""
_INNER = (WARP_ROW, WARP, ROW, THREAD)
"""Levels within a group, of which the last one is its x axis, and the others together are its y axis."""
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
    phases = phases_of(func)
    text, launches, made, room = "", [], None, ZERO
    for k, phase in enumerate([None] if phases is None else phases):
        entry = f"{func.name}_{k}"
        threads = dict.fromkeys(_INNER, 1) if phase is None else _threads(phase.nest, machine)
        groups = (ONE, ONE, ONE) if phase is None else phase.groups(_groups(phase.nest))
        made = _Grid(func, machine, threads, phase is None, made)
        launches.append(GroupLaunch(entry, groups, made.shape))
        ops = [op for op in func.body.ops if op.name != "return"] if phase is None else [*phase.before, phase.nest]
        text += made.entry(entry, ops)
        room = maximum(room, made.scratch)
    if made is None:
        return PtxKernel(func.name, f'target triple = "{TRIPLE}"\n', dims=tuple(func.dims))
    if foreign := _FOREIGN.findall("\n".join(made.text.declarations)):
        raise UnsupportedError(
            f"a GPU has no C library, whose function '{foreign[0]}' kernel '{func.name}' calls",
            hint="compile this model for the CPU (target='host'), or use float32 in place of float64",
        )
    head = f'target triple = "{TRIPLE}"\n{made.text.module()}'
    return PtxKernel(
        func.name, head + text, tuple(made.checks.found), launches=tuple(launches), room=room,
        shared=made.shared, dims=tuple(func.dims), doubt=doubt_of_serial(func) if phases is None else "",
    )  # fmt: skip


class _Grid(Kernel):
    """The state of the translation of one grid; declarations, helper functions and checks are those of all grids of a
    kernel."""

    def __init__(
        self, func: Func, machine: Cuda, threads: dict[str, int], is_serial: bool, before: _Grid | None
    ) -> None:
        super().__init__(func, target_of(machine), keeps_denormals=True, has_floats=True)
        self.parallel, self.forks = None, False
        self.machine = machine
        self.threads = threads
        self.shape = threads[THREAD], prod(threads[level] for level in _INNER[:-1])
        self.has_warps = (threads[ROW], threads[THREAD]) == (LANE_ROWS, LANES)
        self.is_serial = is_serial
        self.level = THREAD if is_serial else ""
        self.checks = KernelChecks() if before is None else before.checks
        self.shared: int = 0 if before is None else before.shared
        if before is not None:
            self.text.share(before.text)
        self.repeated: Block | None = None
        self.owned: dict[Value, tuple[int, ...]] = {}
        self.arrays: dict[Value, str] = {}
        self.positions: dict[str, str] = {}
        self.counts: dict[str, str] = {}

    def entry(self, name: str, ops: Sequence[Op]) -> str:
        """The function of a grid."""
        parameters = [*self._parameters(), "ptr align 64 %scratch"]
        for level, axis in _AXES.items():
            self.positions[level] = self._special(f"ctaid.{axis}")
            self.counts[level] = self._special(f"nctaid.{axis}")
        self._place_threads()
        for op in ops:
            self._place(op)
        lines = "\n".join(with_shared_pointers(self._lines()))
        x, y = self.shape
        bound = f'nounwind "nvvm.reqntid"="{x},{y},1"'
        if self.owned:  # two groups at least, one of which computes while the other waits
            bound += f' "nvvm.minctasm"="{_GROUPS}"'
        return f"define ptx_kernel void @{name}({', '.join(parameters)}) {bound} {{\nentry:\n{lines}\n}}\n"

    def _place_threads(self) -> None:
        """Where a thread is in its group, by levels."""
        self.counts |= {level: str(count) for level, count in self.threads.items()}
        self.positions[THREAD], rest = self._special("tid.x"), self._special("tid.y")
        levels = [level for level in _INNER[-2::-1] if self.threads[level] > 1]
        self.positions |= dict.fromkeys(_INNER[:-1], "0")
        for level in levels:
            is_last = level == levels[-1]
            self.positions[level] = rest if is_last else self.text.emit(f"urem i64 {rest}, {self.threads[level]}")
            rest = rest if is_last else self.text.emit(f"udiv i64 {rest}, {self.threads[level]}")
        if self.has_warps:
            x, y = (self.indices.integer(self._special(f"tid.{axis}")) for axis in "xy")
            self.indices.bind(warps.MEMBER, x + y * LANES)
            thread, row = (self.indices.integer(self.positions[level]) for level in (THREAD, ROW))
            self.indices.bind(warps.LANE, thread + row * LANES)

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
        below = _INNER[_INNER.index(self.level) + 1 :] if self.level in _INNER else _INNER
        level = op.attrs.get("level")
        if op.name in _WRITING and self.level in (*GRID, *_INNER[:-1]) and not _has_threads(op):
            outer, self.level = self.level, THREAD
            with self._first_only(below):
                self._statement(op)
            self.level = outer
        elif op.name == "for" and self.level and level in below:
            with self._first_only(below[: below.index(level)]):
                self._statement(op)
        else:
            self._statement(op)

    def _statement(self, op: Op) -> None:
        if self.is_serial or op.name not in ("barrier", "wait"):
            self._operate(op)
        elif op.name == "wait":
            self.text.line(warps.WAIT)
        else:
            is_of_warp = self.has_warps and op.attrs["level"] in (ROW, THREAD)
            self.text.line(warps.WARP_BARRIER if is_of_warp else _BARRIER)

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

    # Runs

    def _run(self, op: Op) -> None:
        """What a warp does together, or a group copies; in a kernel of one thread it does so by itself."""
        if self.is_serial:
            super()._run(op)
        elif op.attrs["intrinsic"] == COPY:
            self._copy(op)
        else:
            intrinsic = self.machine.intrinsic(op.attrs["intrinsic"])
            found = None if intrinsic is None else match_intrinsic(intrinsic, body_of(op))
            if not isinstance(found, IntrinsicMatch):
                raise InternalError(f"no intrinsic of the machine does what '{describe(op)}' does", where=str(op.loc))
            if len(found.operands) == 3:
                self._multiply(op, found)
            elif found.operands[0].buffer.buffer.space == OWNED:
                self._pack_fragment(op, found)
            else:
                self._load_fragment(found)

    def _copy(self, op: Op) -> None:
        copy = copy_in(body_of(op).ops)
        assert not isinstance(copy, str), "the rules of runs have looked at that"
        dtype = copy.target.buffer.dtype
        source = self.text.emit(f"addrspacecast ptr {self.buffers[copy.source].pointer} to ptr addrspace(1)")
        for places, left in warps.pieces_of(copy, prod(self.threads.values())):
            is_there = [] if left is None else [self.indices.integer(self.indices.uniform(left)) < 0]
            with self._only_where(self.indices.combined(is_there)):
                to, at = (
                    warps.element_pointer(
                        self.text, space, base, dtype, self.indices.uniform(address_of(place).subs(places))
                    )
                    for place, space, base in ((copy.store, 3, self.arrays[copy.target]), (copy.load, 1, source))
                )
                size = None
                if copy.is_filled:
                    flags = [self.indices.condition(c.subs(places)) for c in copy.load.attrs["guard"]]
                    inside = self.indices.combined(flags)
                    size = self.text.emit(f"select i1 {inside.name}, i32 16, i32 0")
                    at = self.text.emit(
                        f"select i1 {inside.name}, ptr addrspace(1) {at}, ptr addrspace(1) {source}"
                    )
                warps.copy_piece(self.text, to, at, size)

    def _load_fragment(self, found: IntrinsicMatch) -> None:
        source, target = found.operands
        type = source.buffer.buffer
        is_across = found.intrinsic.name.endswith("_trans")
        row = warps.row_of_lane(target.buffer.buffer.space, found.dims["s"], type.dtype.bytes, is_across)
        index = self.indices.uniform(source.start + row)
        pointer = warps.element_pointer(self.text, 3, self.arrays[source.buffer], type.dtype, index)
        for k, register in enumerate(warps.load_fragment(self.text, pointer, type.dtype, is_across)):
            self.text.line(f"store i32 {register}, ptr {self._register(target, k)}")

    def _pack_fragment(self, op: Op, found: IntrinsicMatch) -> None:
        """A thread owns what its registers of the left operand hold: of rows 0 and 8, columns 0 and 8 of its own, two
        elements each."""
        target = found.operands[1]
        dtype = target.buffer.buffer.dtype
        half, _, part, _, pair = (loop_var(o) for o in op.walk() if is_loop(o))
        load = next(o for o in op.walk() if o.name == "load")
        for k in range(4):
            pointer = self._register(target, k)
            for e in range(2):
                with self.indices.scope(is_block=False):
                    for v, n in ((half, k % 2), (part, k // 2), (pair, e)):
                        self.indices.bind(v, n)
                    self._load(load)
                value = self.values[load.result]
                at = self.text.emit(f"getelementptr {memory_type(dtype)}, ptr {pointer}, i64 {e}")
                self.text.line(f"store {memory_type(dtype)} {value.name}, ptr {at}, align 2")

    def _multiply(self, op: Op, found: IntrinsicMatch) -> None:
        """The sums of a thread are its rows 0 and 8 of a tile, of two columns each."""
        left, right, _ = found.operands
        store = next(o for o in op.walk() if o.name == "store")
        half, _, _, pair, _ = (loop_var(o) for o in op.walk() if is_loop(o))
        pointers = []
        buffer = self.buffers[store.operands[-1]]
        element = memory_type(buffer.type.dtype)
        for k in range(4):
            with self.indices.scope(is_block=False):
                self.indices.bind(half, k // 2)
                self.indices.bind(pair, k % 2)
                index = self.indices.uniform(self._address(store))
                pointers.append(self.text.emit(f"getelementptr {element}, ptr {buffer.pointer}, i64 {index}"))
        sums = [self.text.emit(f"load {element}, ptr {pointer}") for pointer in pointers]
        a, b = (
            [self.text.emit(f"load i32, ptr {self._register(operand, k)}") for k in range(count)]
            for operand, count in ((left, 4), (right, 2))
        )
        made = warps.multiply(self.text, left.buffer.buffer.dtype, a, b, sums)
        for value, pointer in zip(made, pointers, strict=True):
            self.text.line(f"store {element} {value}, ptr {pointer}")

    def _register(self, operand: Operand, k: int) -> str:
        """A pointer to a register of a fragment that begins at an element of a buffer of fragments."""
        start = self.indices.number(operand.start)
        if not isinstance(start, int):
            raise InternalError(f"a fragment begins at {operand.start}, which is known in the call only")
        first = warps.registers_of(start, operand.buffer.buffer.dtype)
        return self.text.emit(f"getelementptr i32, ptr {self.buffers[operand.buffer].pointer}, i64 {first + k}")

    # Memory and errors

    def _alloc(self, op: Op) -> None:
        type = op.result.buffer
        if type.space in (LEFT, RIGHT) and not self.is_serial:
            pointer = self.text.alloca(f"[{warps.registers_of(type.size.value, type.dtype)} x i32]", 16)
            self.buffers[op.result] = Buffer(pointer, type)
            return
        if type.space == SHARED and not self.is_serial and type.size.is_const:
            name = f"@shared{len(self.text.globals)}"
            element, count = memory_type(type.dtype), max(1, type.size.value)
            self.text.globals[name] = (
                f"{name} = internal addrspace(3) global [{count} x {element}] poison, align 16\n"
            )
            self.shared += count * type.dtype.bytes
            self.arrays[op.result] = name
            self.buffers[op.result] = Buffer(f"addrspacecast (ptr addrspace(3) {name} to ptr)", type)
            return
        if type.space == OWNED and not self.is_serial:
            kept = self.owned[op.result] = _kept_axes(op.result)
            count = prod(type.shape[k].value for k in kept)
            pointer = self.text.alloca(f"[{count} x {memory_type(type.dtype)}]", 16)
            self.buffers[op.result] = Buffer(pointer, dense(type.dtype, (count,), REGISTERS))
            return
        if type.space != REGISTERS:
            is_outside = not enclosing_loops(op) and type.space == DEVICE
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
        if is_in_run(op):  # of a warp, which knows which elements are of which of its threads
            continue
        threads = {loop_var(o) for o in enclosing_loops(op) if o.attrs.get("level") in _INNER and extent_of(o) != 1}
        found = {k for k, index in enumerate(op.attrs["idx"]) if index in threads}
        own = found if own is None else own & found
        if {op.attrs["idx"][k] for k in own} != threads:
            raise InternalError(f"threads do not own what '{describe(op)}' touches", where=str(op.loc))
    return tuple(k for k in range(buffer.buffer.rank) if k not in (own or ()))


def _threads(nest: Op, machine: Cuda) -> dict[str, int]:
    """Threads of a group, by levels. Where threads have registers, their loops say how many there are; others go
    around."""
    loops = [op for op in nest.walk() if op.name == "for"]
    owning = [op for op in loops if any(map(_is_of_a_thread, op.walk()))]

    def most(level: str, ops: Sequence[Op]) -> int:
        found = _extents(level, ops)
        known = max([0, *(n.value if n.is_const else machine.alone for n in found)])
        return 1 << (known - 1).bit_length() if known else 0

    found = {level: most(level, loops) or 1 for level in (WARP_ROW, WARP)}
    if any(_extents(level, loops) for level in found):
        return found | {ROW: LANE_ROWS, THREAD: LANES}
    columns, rows = (most(level, owning) or most(level, loops) or 1 for level in (THREAD, ROW))
    while columns * rows > machine.threads:
        columns, rows = (columns // 2, rows) if columns >= rows else (columns, rows // 2)
    return found | {ROW: rows, THREAD: columns}


def _groups(nest: Op) -> tuple[Sym, Sym, Sym]:
    """Groups along x, y and z."""
    loops = [op for op in nest.walk() if op.name == "for"]
    inner = {loop_var(op) for op in loops}
    z, y, x = (maximum(1, *(n for n in _extents(level, loops) if inner.isdisjoint(n.vars))) for level in GRID)
    return x, y, z


def _is_of_a_thread(op: Op) -> bool:
    """Whether an op makes a thread's registers, or touches what is its own."""
    if op.name == "alloc":
        return op.result.buffer.space == REGISTERS
    return any(isinstance(v.type, BufferType) and v.type.space == OWNED for v in op.operands)


def _extents(level: str, loops: Sequence[Op]) -> list[Sym]:
    """Those of the loops of a level."""
    return [extent_of(op) for op in loops if op.attrs.get("level") == level]


def _has_threads(op: Op) -> bool:
    return any(o.name in ("barrier", "run") or o.attrs.get("level") in (*GRID, *_INNER) for o in op.walk())


def _is_shared(op: Op) -> bool:
    return op.name == "alloc" and op.result.buffer.space == SHARED
