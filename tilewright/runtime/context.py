"""What a running call of native code owns: argument arrays, memory, and the plans of the programs that it may run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from time import perf_counter

import numpy as np

from tilewright.runtime.arena import Arena, address_of, aligned_constants
from tilewright.runtime.artifact import Artifact, TensorInfo
from tilewright.runtime.errors import ArtifactError, ExecutionError
from tilewright.runtime.executor import Executor, MakeExecutor, executor_of
from tilewright.runtime.guarded import GUARD_ZONES
from tilewright.runtime.process.interrupts import LASTING_S, MUCH, run_interruptible
from tilewright.runtime.sizes_seen import SizeCounter
from tilewright.runtime.states import States
from tilewright.runtime.storage.loader import NativeCode
from tilewright.runtime.threads import SharedPools, ThreadPool
from tilewright.runtime.values.dtypes import numpy_dtype
from tilewright.runtime.values.inputs import Shape
from tilewright.runtime.values.output_pool import Results

_Pointers = ctypes.Array[ctypes.c_void_p]


@dataclass(frozen=True)
class Linked:
    """A program of an artefact, linked: what a model runs with, and lets go of when it is closed. A call that is
    running holds it too, so that it lives until the last call ends."""

    artifact: Artifact
    code: Executor
    constants: np.ndarray
    pool: ThreadPool

    @classmethod
    def of(
        cls, artifact: Artifact, threads: int, executor: MakeExecutor | None, beside: Linked | None = None
    ) -> Linked:
        """A program with the weights, the code and the threads of another program of the same artefact, or of its
        own. Threads are those of machines of one kind."""
        code = executor_of(artifact, executor)
        if beside is not None and beside.artifact.target.kind == artifact.target.kind:
            return cls(artifact, code, beside.constants, beside.pool)
        constants = aligned_constants(artifact.constants) if beside is None else beside.constants
        shares = isinstance(code, NativeCode) and code.has_pool and threads > 1
        pool = _POOLS.pool(code, threads, code) if shares else ThreadPool(code, threads)
        return cls(artifact, code, constants, pool)


_POOLS = SharedPools()


class Planned:
    """A program in a context: its arguments, and what is known for the last shapes. `weights` are the bytes of these,
    `needs` those of the arena and of each thread's scratch memory, `planned` the numbers that native code gave for
    shapes and data."""

    def __init__(
        self,
        linked: Linked,
        in_data: _Pointers,
        out_data: _Pointers,
        pool: int | None,
        counter: SizeCounter | None,
        states: States,
        stops: ctypes.c_int32,
    ) -> None:
        artifact = linked.artifact
        self.linked = linked
        self.weights = linked.constants.nbytes
        self._run = linked.code.run
        if artifact.states:
            self._run = states.runner(linked.code, artifact.states, out_data, len(artifact.outputs))
        self.run: Callable[[int], int] = self._run if counter is None else partial(self._counted, counter)
        self.reads_data = artifact.plan_reads_data
        self.results = Results()
        self.shapes: tuple[Shape, ...] | None = None
        self.needs = (0, 0)
        self.planned: tuple[int, ...] = ()
        plan = artifact.static_plan
        values = plan.dims if plan else ()
        self.dims = (ctypes.c_int64 * max(artifact.dims_count, len(values)))(*values)
        places = map(ctypes.addressof, (in_data, out_data))
        constants = address_of(linked.constants)
        own = (None, None, ctypes.addressof(self.dims), ctypes.addressof(stops))
        self.arguments = (ctypes.c_void_p * 8)(pool, *places, constants, *own)
        if plan is not None:
            self.plan(
                tuple([_fixed(info) for info in artifact.inputs]),
                [(_fixed(info), numpy_dtype(info.dtype)) for info in artifact.outputs],
                (plan.arena, plan.scratch),
            )

    def _counted(self, counter: SizeCounter, call: int) -> int:
        assert self.shapes is not None
        counter.add(self.shapes)
        return self._run(call)

    def plan(
        self, shapes: tuple[Shape, ...], outputs: Sequence[tuple[Shape, np.dtype]], needs: tuple[int, int]
    ) -> None:
        """The shapes of the inputs and outputs, and the memory needed, from now on."""
        self.results.plan(outputs)
        self.needs = needs
        self.shapes = shapes


class Context:
    """Belongs to one call at a time. `planned` are the shapes for which `run(call)` computes the outputs that `results`
    makes; None where nothing is planned. `run` is None, and `run_measured` what to call, until a run of these shapes
    was short. A `counter` is told the shapes of each call."""

    def __init__(
        self,
        programs: Sequence[Linked],
        threads: int,
        pool: int | None,
        states: States,
        counter: SizeCounter | None = None,
        stops: ctypes.c_int32 | None = None,
    ) -> None:
        inputs, outputs = programs[0].artifact.inputs, programs[0].artifact.outputs
        kept = len(states.infos)
        self.in_shapes = (ctypes.c_int64 * sum(len(info.parts.shape) for info in inputs))()
        self.out_shapes = (ctypes.c_int64 * sum(len(info.parts.shape) for info in outputs))()
        self.in_data = (ctypes.c_void_p * (len(inputs) + kept))()
        self.out_data = (ctypes.c_void_p * (len(outputs) + kept))()
        self.sizes = (ctypes.c_int64 * 2)()
        self.arena = Arena("intermediate tensors, and scratch memory of the threads")
        self._programs = programs
        self.last = len(programs) - 1
        self._planned: list[Planned | None] = [None] * len(programs)
        self._threads = threads
        self._pool = pool
        self._counter = counter
        self._states = states
        self._stops = ctypes.c_int32() if stops is None else stops
        self._lasts = False  # the last run that was measured took long
        self._short = -0.5  # elements of the inputs with which runs did not
        first = self.program(0)
        if first.shapes is None:
            self._take(first, None)
        else:
            self.use(first)

    def program(self, number: int) -> Planned:
        """A program of the model with its arguments."""
        found = self._planned[number]
        if found is None:
            own = (self.in_data, self.out_data, self._pool, self._counter, self._states, self._stops)
            found = Planned(self._programs[number], *own)
            self._planned[number] = found
        return found

    def use(self, program: Planned) -> None:
        """Run this program from now on, as it is planned. ExecutionError when there is not so much memory."""
        self.planned: tuple[Shape, ...] | None = None  # until there is memory
        arena, scratch = program.needs
        if arena < 0 or scratch < 0:
            raise ExecutionError(
                f"the memory needed is out of range: arena {arena}, scratch {scratch} bytes",
                hint="use smaller inputs (batch, sequence length)",
            )
        self.arena.reserve(arena + scratch * self._threads)
        program.arguments[4:6] = [self.arena.address, self.arena.address + arena]
        self._take(program, program.shapes)

    def _take(self, program: Planned, shapes: tuple[Shape, ...] | None) -> None:
        self.current = program
        self.run: Callable[[int], int] | None = None
        self.call = ctypes.addressof(program.arguments)
        self.results = program.results
        self.reads_data = program.reads_data
        self.planned = shapes

    def run_measured(self, call: int) -> int:
        """A run that may last: then Ctrl-C ends it."""
        program = self.current
        arena, scratch = program.needs
        elements = -1
        if program.weights + arena + scratch * self._threads >= MUCH:
            elements = sum(map(prod, self.planned or ()))
        began = perf_counter()
        if self._lasts or elements > 2 * self._short:
            code = run_interruptible(program.run, call, program.arguments, 7, self._stops)
        else:
            code = program.run(call)
        self._lasts = perf_counter() - began >= LASTING_S
        if not self._lasts and not code:
            self.run = program.run
            if elements > self._short:
                self._short = elements
        return code


def context_class(programs: Sequence[Linked]) -> type[Context]:
    """What calls of programs own: between guard zones where these were compiled for that. ExecutionError where there
    is nothing that makes zones."""
    if not any(GUARD_ZONES in program.artifact.attached for program in programs):
        return Context
    try:
        from tilewright.runtime.guarded.calls import GuardedContext
    except ImportError as error:
        raise ExecutionError(
            f"this model was compiled with guarded=True, and what runs it cannot be imported: {error}",
            hint="install llvmlite, or compile the model without",
        ) from error
    return GuardedContext


def _fixed(info: TensorInfo) -> Shape:
    """The shape of a tensor of a static model; ArtifactError when it is symbolic after all."""
    sizes = tuple(size for size in info.shape if isinstance(size, int))
    if len(sizes) != len(info.shape):
        raise ArtifactError(f"the artefact says its shapes are fixed, but has {info}", hint="compile the model again")
    return sizes
