"""Calls of models with all their memory between guard zones: inputs, outputs, constants, arena and scratch memory."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.runtime.arena import ALIGNMENT, address_of
from tilewright.runtime.artifact import Artifact, TensorInfo
from tilewright.runtime.context import Context, Linked, Planned
from tilewright.runtime.errors import BeyondBufferError, ExecutionError, short_name
from tilewright.runtime.executor import Executor, keeps_memory
from tilewright.runtime.guarded import GUARD_ZONES, PAGE
from tilewright.runtime.guarded.pages import (
    IS_AVAILABLE,
    NO_KERNELS,
    AccessBeyond,
    ZonedBuffer,
    ZonedMemory,
    check,
)
from tilewright.runtime.process.forks import free_in_children
from tilewright.runtime.values.dtypes import numpy_dtype
from tilewright.runtime.values.inputs import Shape

MOST_POISONED = 1 << 40
"""Bytes of arenas and outputs up to which all of it is poisoned before each call."""
MOST_COPIED = 1 << 40
"""Bytes of constants up to which a model gets a copy between zones; larger ones are used where they are."""

_POOL, _INPUTS, _OUTPUTS, _CONSTANTS, _ARENA, _SCRATCH, _DIMS = range(7)
"""Words of what a run is given, as `tilewright/runtime/artifact.py` describes it."""

_TELL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)
_TURN = ctypes.CFUNCTYPE(None, ctypes.c_int64)


class _PoolInTurns(ctypes.Structure):
    """The beginning of a pool whose caller runs the shares of all threads, one after the other
    (`codegen/cpu/program/pool.py`)."""

    _fields_ = (("threads", ctypes.c_int32), ("spin_ns", ctypes.c_int64), ("turn", _TURN))


class Zones:
    """The memory of all guarded calls of this process. `told` is given the text of each finding that is raised: an
    error that somebody handles is still a finding. Without `is_on`, calls run as they would without zones."""

    def __init__(self) -> None:
        self.memory = ZonedMemory()
        self.told: Callable[[str], object] | None = None
        self.is_on = True
        self._constants: dict[int, ZonedBuffer] = {}
        self._copying = free_in_children(threading.RLock())

    def report(self, findings: Sequence[AccessBeyond], where: str, kernels: Mapping[str, str] = NO_KERNELS) -> None:
        """Raise what is found, and tell of it."""
        try:
            check(findings, where, kernels)
        except BeyondBufferError as error:
            if self.told is not None:
                self.told(str(error))
            raise

    def constants(self, linked: Linked) -> ZonedBuffer:
        """A copy of a model's constants, made once, that only loads may touch."""
        with self._copying:
            return self._constants_of(linked)

    def _constants_of(self, linked: Linked) -> ZonedBuffer:
        array = linked.constants
        found = self._constants.get(id(array))
        if found is None:
            found = ZonedBuffer(self.memory, "constants", array.nbytes, ALIGNMENT)
            found.copy_from(address_of(array))
            words = (ctypes.c_int64 * (array.nbytes // 8)).from_address(found.address)
            for lent in linked.artifact.lent:  # what stands there is a distance from the constants
                words[lent.slot // 8] += address_of(array) - found.address
            found.make_read_only()
            self._constants[id(array)] = found
            weakref.finalize(array, self._drop_constants, id(array)).atexit = False
        if _tensors_of_arena(linked.artifact) is not None and found.address == found.base:
            infos = [i for i in linked.artifact.constant_table if not i.is_lent and 0 not in i.shape]
            places = [(i.offset, _bytes_of(i.shape, i.dtype)) for i in infos]
            found.names |= {i.offset: i.name for i in infos}
            found.add_parts(tuple(places))
        return found

    def _drop_constants(self, key: int) -> None:
        self._constants.pop(key).release()


def zones() -> Zones:
    """Those of this process; ExecutionError where this machine has none."""
    if not IS_AVAILABLE:
        raise ExecutionError(
            "this model was compiled with guarded=True, and guard zones are pages of Linux on x86-64",
            hint="run it there, or compile it without",
        )
    with _MAKING:  # two would have two handlers
        return _made()


_MAKING = free_in_children(threading.Lock())
_made = functools.cache(Zones)


class _Buffers:
    """Buffers that serve again for calls of the same sizes. Every second call has its inputs and outputs at the
    beginning of pages instead of their end, so that accesses before them are seen as well."""

    def __init__(self, memory: ZonedMemory) -> None:
        self._memory = memory
        self._kept: dict[tuple[str, int, bool], ZonedBuffer] = {}
        self._turns = itertools.count()
        self.at_end = True
        self.used: list[ZonedBuffer] = []
        weakref.finalize(self, _release_all, self._kept).atexit = False

    def begin(self) -> None:
        """A call begins."""
        self.at_end = next(self._turns) % 2 == 0
        self.used = []

    def take(self, kind: str, number: int, name: str, nbytes: int, alignment: int) -> ZonedBuffer:
        """A buffer for this call."""
        key = kind, number, self.at_end
        found = self._kept.get(key)
        if found is None or found.nbytes != nbytes:
            if found is not None:
                found.release()
            found = ZonedBuffer(self._memory, name, nbytes, alignment, at_end=self.at_end)
            self._kept[key] = found
        self.used.append(found)
        return found

    def tensors(self, kind: str, infos: Sequence[TensorInfo], shapes: Sequence[Shape]) -> list[ZonedBuffer]:
        """Buffers for inputs or outputs of these shapes, as callers see them."""
        found = []
        for k, (info, shape) in enumerate(zip(infos, shapes, strict=True)):
            nbytes = _bytes_of(shape, info.dtype)
            alignment = numpy_dtype(info.parts.dtype).itemsize
            found.append(self.take(kind, k, f"{kind} '{info.name:.40}'", nbytes, alignment))
        return found

    def stores_beside(self) -> list[AccessBeyond]:
        """What this call has written beside its buffers, on their pages."""
        return [found for buffer in self.used if (found := buffer.stores_beside()) is not None]


def _release_all(kept: dict[tuple[str, int, bool], ZonedBuffer]) -> None:
    for buffer in kept.values():
        buffer.release()
    kept.clear()


class _Code:
    """The code of a program, which a context runs: within all that is done around a call (states that are kept, sizes
    that are counted), so that this finds results where they belong."""

    def __init__(self, code: Executor, context: Callable[[], Any]) -> None:
        self.native, self._context = code.run, context
        self.run_guarded: Callable[..., int] | None = getattr(code, "run_guarded", None)
        self.plan, self.run_profiled = code.plan, code.run_profiled
        self.create_pool, self.destroy_pool = code.create_pool, code.destroy_pool

    def run(self, call: int) -> int:
        found: int = self._context().run_native(self, call)
        return found


@dataclass
class _Watch:
    """What is told after each kernel of a run: `begin` gets the numbers that code gave, `look` finds what went beyond
    buffers, which ends the run, after `done` of the `calls`."""

    begin: Callable[[Sequence[int]], None]
    look: Callable[[], list[AccessBeyond]]
    words: Any
    done: int = 0
    findings: list[AccessBeyond] = field(default_factory=list)
    last: int = 0
    error: BaseException | None = None

    def tell(self, done: int) -> int:
        """Called by native code; gives 0 to go on."""
        try:
            if not done:
                self.begin(self.words)
            self.findings = self.look() if done else []
            self.last = done
            if not self.findings:
                self.done = done
        except BaseException as error:  # would be lost in native code
            self.error = error
        return int(bool(self.findings or self.error))

    def run(self, code: Callable[..., int], call: int) -> int:
        callback = _TELL(self.tell)
        status = code(call, ctypes.addressof(self.words), ctypes.cast(callback, ctypes.c_void_p))
        if self.error is not None:
            raise self.error
        return status

    def kernels(self, artifact: Artifact) -> dict[str, str]:
        """Those that ran since nothing was found, and what each is for people."""
        calls = artifact.report.calls[self.done : self.last]
        return {c.kernel: c.kernel + (f" of '{short_name(c.node)}'" if c.node else "") for c in calls}


class _Turns:
    """A pool in which the threads of a call take turns; the scratch memory of the others is closed then, so that it is
    seen where two have one. `forking` are the kernels in which threads also read what the first one's holds."""

    def __init__(
        self, scratch: ZonedBuffer, threads: int, kernels: Sequence[str], forking: Collection[str], watch: _Watch
    ) -> None:  # fmt: skip
        self.scratch, self.kernels, self.forking, self.watch = scratch, kernels, forking, watch
        self.pool = _PoolInTurns(threads, 0, _TURN(self._turn))

    def _turn(self, thread: int) -> None:
        """Called by native code before the share of a thread, and with -1 after the last."""
        try:
            reads_first = any(name in self.forking for name in self.kernels[self.watch.done :][:1])
            self.scratch.leave_open(None if thread < 0 else {0, thread} if reads_first else {thread})
        except BaseException as error:  # would be lost in native code
            self.watch.error = error


class GuardedContext(Context):
    """What calls own, with `run` between zones: those of the arena's tensors, of single constants and of each thread's
    scratch memory where a program has room for them, which then is looked at after each kernel, and whose threads take
    turns."""

    takes_turns = True
    """Whether threads run one after the other where they have scratch memory."""

    def __init__(self, programs: Sequence[Linked], *args: Any, **named: Any) -> None:
        self._zones = zones()
        self._buffers = _Buffers(self._zones.memory)
        itself = weakref.ref(self)
        zoned = [p if keeps_memory(p.code) else replace(p, code=_Code(p.code, itself)) for p in programs]
        super().__init__(zoned, *args, **named)

    def run_native(self, code: _Code, call: int) -> int:
        """Run a program; results are in the memory of whoever called when this returns."""
        return self._run_between_zones(code) if self._zones.is_on else code.native(call)

    def _run_between_zones(self, code: _Code) -> int:
        program, buffers, memory = self.current, self._buffers, self._zones.memory
        artifact, shapes = program.linked.artifact, program.shapes
        assert shapes is not None
        buffers.begin()
        memory.listen()
        states = [state.info for state in artifact.states]
        fixed: list[Shape] = [tuple(int(d) for d in info.shape) for info in states]
        inputs = buffers.tensors("input", artifact.inputs, shapes)
        held = buffers.tensors("state", states, fixed)
        outputs = buffers.tensors("output", artifact.outputs, [shape for shape, _ in program.results.shapes])
        following = buffers.tensors("next state", states, fixed)
        read, written = [*inputs, *held], [*outputs, *following]
        in_place = {held[k] for k, state in enumerate(artifact.states) if state.way == "in place"}
        for buffer, address in zip(read, self.in_data, strict=True):
            buffer.make_writable()
            buffer.copy_from(address or 0)
            if buffer not in in_place:
                buffer.make_read_only()
        tables = [(ctypes.c_void_p * len(of))(*[b.address for b in of]) for of in (read, written)]
        words = (ctypes.c_void_p * 8).from_buffer_copy(program.arguments)
        words[_INPUTS], words[_OUTPUTS] = map(ctypes.addressof, tables)
        constants: list[ZonedBuffer] = []
        if 0 < program.linked.constants.nbytes <= MOST_COPIED:
            constants = [self._zones.constants(program.linked)]
            words[_CONSTANTS] = constants[0].address
        zones_of = artifact.attached.get(GUARD_ZONES) or {}
        arena, scratch = self._own_memory(program, bool(zones_of.get("scratch")))
        words[_ARENA] = arena.address
        words[_SCRATCH] = arena.address + program.needs[0] if scratch is None else scratch.address
        for buffer in written:
            buffer.poison(MOST_POISONED)
        own = {*buffers.used, *constants}

        def look() -> list[AccessBeyond]:
            return [*memory.findings(own), *buffers.stores_beside()]

        names = _tensors_of_arena(artifact)
        with memory.used(own):
            if names is None or code.run_guarded is None:
                for buffer in (arena,) if scratch is None else (arena, scratch):
                    buffer.poison(MOST_POISONED)
                status = code.native(ctypes.addressof(words))
            else:
                begin = functools.partial(self._divide, program, arena, scratch, names)
                watch = _Watch(begin, look, (ctypes.c_int64 * (1 + 2 * len(names)))())
                turns = self._turns(artifact, scratch, watch)
                if turns is not None:
                    words[_POOL] = ctypes.addressof(turns.pool)
                status = watch.run(code.run_guarded, ctypes.addressof(words))
                self._zones.report(watch.findings, _called(artifact, shapes), watch.kernels(artifact))
            findings = look()
        for buffer, address in zip(written, self.out_data, strict=True):
            if address:
                buffer.copy_to(address)
        for buffer, address in zip(held, self.in_data[len(inputs) :], strict=True):
            if buffer in in_place:
                buffer.copy_to(address or 0)
        self._zones.report(findings, _called(artifact, shapes))
        return status

    def _turns(self, artifact: Artifact, scratch: ZonedBuffer | None, watch: _Watch) -> _Turns | None:
        """The pool of a call in turns; None where there is nothing that threads could share by mistake, and for code
        that knows no turns."""
        forking = artifact.attached[GUARD_ZONES].get("forking")
        if not self.takes_turns or forking is None or scratch is None or not scratch.nbytes or self._threads < 2:
            return None
        return _Turns(scratch, self._threads, [c.kernel for c in artifact.report.calls], forking, watch)

    def _own_memory(self, program: Planned, is_apart: bool) -> tuple[ZonedBuffer, ZonedBuffer | None]:
        """The arena, and the threads' scratch memory where that is apart and not in the arena."""
        nbytes, stride = program.needs
        own = stride * self._threads
        arena = self._buffers.take("arena", 0, "arena", nbytes if is_apart else nbytes + own, ALIGNMENT)
        return arena, self._buffers.take("scratch", 0, "scratch memory", own, ALIGNMENT) if is_apart else None

    def _divide(
        self, program: Planned, arena: ZonedBuffer, scratch: ZonedBuffer | None, names: Sequence[str],
        told: Sequence[int],
    ) -> None:  # fmt: skip
        """Close the pages between tensors, and between threads, as the code says where they are."""
        own, *numbers = told
        if names:
            places = tuple(zip(numbers[::2], numbers[1::2], strict=True))
            arena.split(places)
            arena.names = {at: name for (at, _), name in zip(places, names, strict=True)}
        stride = program.needs[1]
        if scratch is not None and stride:
            first = stride - PAGE - own
            scratch.split(tuple((first + k * stride, own) for k in range(self._threads)))
        for buffer in (arena,) if scratch is None else (arena, scratch):
            buffer.poison(MOST_POISONED)


def _tensors_of_arena(artifact: Artifact) -> Sequence[str] | None:
    """The names of the arena's tensors, which are kept apart as constants are; None where each of these memories is
    looked at as a whole."""
    found: Sequence[str] | None = (artifact.attached.get(GUARD_ZONES) or {}).get("arena")
    return found


def _bytes_of(shape: Sequence[int], dtype: str) -> int:
    return math.prod(shape) * numpy_dtype(dtype).itemsize


def _called(artifact: Artifact, shapes: Sequence[Sequence[int]]) -> str:
    given = zip(artifact.inputs, shapes, strict=True)
    return "called with " + (
        ", ".join(f"{i.name:.40}: {i.dtype}{list(shape)}" for i, shape in given) or "no inputs"
    )
