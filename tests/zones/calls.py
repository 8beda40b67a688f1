"""Calls of models with all their memory between guard zones: inputs, outputs, constants, arena and scratch memory."""

from __future__ import annotations

import ctypes
import itertools
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tests.zones.pages import PAGE, BeyondBufferError, Buffer, Finding, Memory, Places, check
from tilewright.ir.sym import Sym, var
from tilewright.ir.symbolic.parse import parse_sym
from tilewright.runtime.arena import ALIGNMENT, address_of
from tilewright.runtime.artifact import Artifact, TensorInfo
from tilewright.runtime.context import Context, Linked, Planned
from tilewright.runtime.executor import Executor
from tilewright.runtime.module import Model
from tilewright.runtime.values.dtypes import numpy_dtype
from tilewright.runtime.values.inputs import Shape

MOST_POISONED = 4 << 20
"""Bytes of arenas and outputs up to which all of it is poisoned before each call."""
MOST_COPIED = 1 << 28
"""Bytes of constants up to which a model gets a copy between zones; larger ones are used where they are."""

REPORT = "guard zones"
"""The entry of an artefact's report where `plans` tells what is between zones: of tensors in the arena the offsets and
bytes, and the bytes of one thread's scratch memory, as texts of symbolic integers."""

_POOL, _INPUTS, _OUTPUTS, _CONSTANTS, _ARENA, _SCRATCH, _DIMS = range(7)
"""Words of what a run is given, as `tilewright/runtime/artifact.py` describes it."""


class Zones:
    """The memory of all calls of this process, and what has been found so far, which tests look at when they end: an
    error that somebody handles is still a finding."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.found: list[str] = []
        self.is_on = True
        self.has_room = False  # also within what the compiler lays out
        self.blocks: object = None  # what hands out blocks, as long as the process lives
        self._constants: dict[int, Buffer] = {}

    def report(self, findings: Sequence[Finding], where: str) -> None:
        """Raise what is found, and remember it."""
        try:
            check(findings, where)
        except BeyondBufferError as error:
            self.found.append(str(error))
            raise

    def constants(self, linked: Linked) -> Buffer:
        """A copy of a model's constants, made once, that only loads may touch."""
        array = linked.constants
        found = self._constants.get(id(array))
        if found is None:
            found = Buffer(self.memory, "constants", array.nbytes, ALIGNMENT)
            found.copy_from(address_of(array))
            words = (ctypes.c_int64 * (array.nbytes // 8)).from_address(found.address)
            for lent in linked.artifact.lent:  # what stands there is a distance from the constants
                words[lent.slot // 8] += address_of(array) - found.address
            found.make_read_only()
            self._constants[id(array)] = found
            weakref.finalize(array, self._drop_constants, id(array)).atexit = False
        if REPORT in linked.artifact.attached and found.address == found.base:
            found.add_parts(_constant_places(linked.artifact))
        return found

    def _drop_constants(self, key: int) -> None:
        self._constants.pop(key).release()


def _constant_places(artifact: Artifact) -> Places:
    """Of constants that have elements and lie here."""
    infos = [info for info in artifact.constant_table if not info.is_lent and math.prod(info.shape)]
    return tuple((info.offset, math.prod(info.shape) * numpy_dtype(info.dtype).itemsize) for info in infos)


def _evaluated(text: str, dims: Mapping[str, int]) -> int:
    return int(text) if text.isdigit() else _parsed(text).evaluate(dict(dims))


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Sym:
    return parse_sym(text, lambda name: var(name, None, None))  # values of any sign


class _Buffers:
    """Buffers that serve again for calls of the same sizes. Every second call has its inputs and outputs at the
    beginning of pages instead of their end, so that accesses before them are seen as well."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._kept: dict[tuple[str, int, bool], Buffer] = {}
        self._turns = itertools.count()
        self.at_end = True
        self.used: list[Buffer] = []
        weakref.finalize(self, _release_all, self._kept).atexit = False

    def begin(self) -> None:
        """A call begins."""
        self.at_end = next(self._turns) % 2 == 0
        self.used = []

    def take(self, kind: str, number: int, name: str, nbytes: int, alignment: int) -> Buffer:
        """A buffer for this call."""
        key = kind, number, self.at_end
        found = self._kept.get(key)
        if found is None or found.nbytes != nbytes:
            if found is not None:
                found.release()
            found = Buffer(self._memory, name, nbytes, alignment, at_end=self.at_end)
            self._kept[key] = found
        self.used.append(found)
        return found

    def tensors(self, kind: str, infos: Sequence[TensorInfo], shapes: Sequence[Shape]) -> list[Buffer]:
        """Buffers for inputs or outputs of these shapes, as callers see them."""
        found = []
        for k, (info, shape) in enumerate(zip(infos, shapes, strict=True)):
            nbytes = math.prod(shape) * numpy_dtype(info.dtype).itemsize
            alignment = numpy_dtype(info.parts.dtype).itemsize
            found.append(self.take(kind, k, f"{kind} '{info.name:.40}'", nbytes, alignment))
        return found

    def stores_beside(self) -> list[Finding]:
        """What this call has written beside its buffers, on their pages."""
        return [found for buffer in self.used if (found := buffer.stores_beside()) is not None]


def _release_all(kept: dict[tuple[str, int, bool], Buffer]) -> None:
    for buffer in kept.values():
        buffer.release()
    kept.clear()


class _Code:
    """The code of a program, which a context runs: within all that is done around a call (states that are kept, sizes
    that are counted), so that this finds results where they belong."""

    def __init__(self, code: Executor, context: Callable[[], Any]) -> None:
        self.native, self._context = code.run, context
        self.plan, self.run_profiled = code.plan, code.run_profiled
        self.create_pool, self.destroy_pool = code.create_pool, code.destroy_pool

    def run(self, call: int) -> int:
        found: int = self._context().run_native(self.native, call)
        return found


def zoned_context(zones: Zones) -> type[Context]:
    """What calls own, with `run` between zones."""

    class ZonedContext(Context):
        def __init__(self, programs: Sequence[Linked], *args: Any, **named: Any) -> None:
            self._buffers = _Buffers(zones.memory)
            itself = weakref.ref(self)
            super().__init__([replace(p, code=_Code(p.code, itself)) for p in programs], *args, **named)

        def run_native(self, native: Callable[[int], int], call: int) -> int:
            """Run a program; results are in the memory of whoever called when this returns."""
            return self._run_between_zones(native) if zones.is_on else native(call)

        def _run_between_zones(self, native: Callable[[int], int]) -> int:
            program, buffers = self.current, self._buffers
            artifact, shapes = program.linked.artifact, program.shapes
            assert shapes is not None
            buffers.begin()
            states = [state.info for state in artifact.states]
            fixed: list[Shape] = [tuple(int(d) for d in info.shape) for info in states]
            inputs = buffers.tensors("input", artifact.inputs, shapes)
            held = buffers.tensors("state", states, fixed)
            outputs = buffers.tensors(
                "output", artifact.outputs, [shape for shape, _ in program.results.shapes]
            )
            following = buffers.tensors("next state", states, fixed)
            read, written = [*inputs, *held], [*outputs, *following]
            for buffer, address in zip(read, self.in_data, strict=True):
                buffer.copy_from(address or 0)
            tables = [(ctypes.c_void_p * len(of))(*[b.address for b in of]) for of in (read, written)]
            words = (ctypes.c_void_p * 8).from_buffer_copy(program.arguments)
            words[_INPUTS], words[_OUTPUTS] = map(ctypes.addressof, tables)
            if 0 < program.linked.constants.nbytes <= MOST_COPIED:
                words[_CONSTANTS] = zones.constants(program.linked).address
            words[_ARENA], words[_SCRATCH] = self._own_memory(program)
            for buffer in buffers.used[len(read) :]:
                if buffer.nbytes <= MOST_POISONED:
                    buffer.fill()
            code = native(ctypes.addressof(words))
            in_place = {held[k] for k, state in enumerate(artifact.states) if state.way == "in place"}
            for buffer, address in zip(written, self.out_data, strict=True):
                if address:
                    buffer.copy_to(address)
            findings = [*zones.memory.findings(), *buffers.stores_beside()]
            for buffer, address in zip(read, self.in_data, strict=True):
                if buffer in in_place:
                    buffer.copy_to(address or 0)
                elif buffer.differs_from(address or 0):
                    findings.append(Finding(f"{buffer.name} ({buffer.nbytes} bytes): a store to an input"))
            zones.report(findings, _called(artifact, shapes))
            return code

        def _own_memory(self, program: Planned) -> tuple[int, int]:
            """The addresses of the arena and of the threads' scratch memory."""
            nbytes, stride = program.needs
            arena = self._buffers.take("arena", 0, "arena", nbytes, ALIGNMENT)
            scratch = self._buffers.take("scratch", 0, "scratch memory", stride * self._threads, ALIGNMENT)
            artifact = program.linked.artifact
            told = artifact.attached.get(REPORT)
            if told is None:
                return arena.address, scratch.address
            dims = dict(zip(artifact.variables, program.dims, strict=False))
            if told["arena"]:
                arena.split(tuple((_evaluated(at, dims), _evaluated(size, dims)) for at, size in told["arena"]))
            if not stride:
                return arena.address, scratch.address
            own = _evaluated(told["scratch"], dims)
            first = stride - PAGE - own
            scratch.split(tuple((first + k * stride, own) for k in range(self._threads)))
            return arena.address, scratch.address + first

    return ZonedContext


def _called(artifact: Artifact, shapes: Sequence[Sequence[int]]) -> str:
    given = zip(artifact.inputs, shapes, strict=True)
    return "called with " + (
        ", ".join(f"{i.name:.40}: {i.dtype}{list(shape)}" for i, shape in given) or "no inputs"
    )


def zoned_plan(zones: Zones) -> Callable[[Model, Context, tuple[Shape, ...]], None]:
    """`Model._plan` with inputs between zones for code that reads their elements to know sizes."""
    plan = Model._plan

    def plan_between_zones(self: Model, context: Context, shapes: tuple[Shape, ...]) -> None:
        if not zones.is_on or not any(linked.artifact.plan_reads_data for linked in context._programs):
            plan(self, context, shapes)
            return
        buffers, where = _Buffers(zones.memory), list(context.in_data)
        for k, buffer in enumerate(buffers.tensors("input", self.inputs, shapes)):
            buffer.copy_from(where[k] or 0)
            context.in_data[k] = buffer.address
        try:
            plan(self, context, shapes)
        finally:
            context.in_data[:] = where
            zones.report(zones.memory.findings(), "plan of a model " + _called(self.artifact, shapes))

    return plan_between_zones
