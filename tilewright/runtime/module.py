"""A loaded model: the object users call."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tilewright.runtime import staged
from tilewright.runtime.arena import address_of, release_free_memory
from tilewright.runtime.artifact import Artifact, StoredModel
from tilewright.runtime.context import Context, Linked, Planned, context_class
from tilewright.runtime.errors import (
    ArtifactError,
    ExecutionError,
    InputError,
    OptionError,
    TilewrightError,
    cancelled,
    error_class,
)
from tilewright.runtime.executor import MakeExecutor
from tilewright.runtime.guard import ShapeGuard
from tilewright.runtime.kept.recorder import RecordsCalls
from tilewright.runtime.named_calls import CalledByName
from tilewright.runtime.needed import TellsBytes, needs_of
from tilewright.runtime.process.forks import free_in_children
from tilewright.runtime.process.interrupts import end_interruptible
from tilewright.runtime.profile import HOW_TO_TIME, KernelCounts, KernelTime, Step, kernel_times
from tilewright.runtime.report.notebooks import ShownInNotebooks
from tilewright.runtime.sizes_seen import CountsSizes
from tilewright.runtime.staged.frame import CANCELLED
from tilewright.runtime.staged.handing import handing_of
from tilewright.runtime.states import KeepsStates, States
from tilewright.runtime.storage.levels import at_level
from tilewright.runtime.storage.loader import NativeCode, StepsCode
from tilewright.runtime.tensors import TensorModel
from tilewright.runtime.threads import threads_within
from tilewright.runtime.values.dtypes import numpy_dtype
from tilewright.runtime.values.inputs import Shape, as_array, check_named, check_shapes, place_named
from tilewright.runtime.values.outputs import no_memory, shapes_of, views_of

if TYPE_CHECKING:
    from tilewright.runtime.report.shown import Report

_forks = [0]
"""How often this process was forked off; a list is read faster than the process's number."""
_REMEMBERED = 64
"""Shapes of calls of a staged model that are known to be for the program that broadcasts."""
_CLOSED = -1
"""Stands in a closed model for that number, so that calls need no look of their own."""


def _count_fork() -> None:
    _forks[0] += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def _loaded_again(
    source: bytes, threads: int | None, executor: MakeExecutor | None, states: Mapping[str, np.ndarray]
) -> Model:
    """A model that was pickled, with what its states held."""
    model = Model(Artifact.load(source), threads, executor)
    model._states.put(states)
    return model


@dataclass(frozen=True)
class _Native:
    """What a model of native code runs with: the general program, and its variants."""

    artifact: Artifact
    programs: tuple[Linked, ...]


@dataclass(frozen=True)
class _Staged:
    """The same where programs are staged, each with its parts: `runs` take the inputs, and the seconds that loops may
    take."""

    artifact: Artifact
    parts: tuple[tuple[_Part, ...], ...]
    runs: tuple[Callable[[Sequence[Any], float | None], tuple[Any, ...]], ...]

    @property
    def native(self) -> Iterator[staged.native.NativeSteps]:
        """What runs steps of the programs."""
        yield from (run.native for run in self.runs if isinstance(run, staged.run.StagedRun) and run.native is not None)


class Model(CalledByName, CountsSizes, KeepsStates, RecordsCalls, ShownInNotebooks, TellsBytes):
    """A compiled model that can be called with NumPy arrays, made by `tilewright.compile` and `tilewright.load`.

    `inputs` and `outputs` describe its tensors in order, `threads` is the number of threads a call uses.
    Several Python threads may call one model at once: the GIL is released while it runs, and the results'
    bits depend neither on that nor on the number of threads. Models may be used on both sides of a fork.

    Memory that calls needed is kept for the next ones. Besides weights and code, a model holds for each call that
    ever ran at the same time as others: an arena for intermediate tensors and scratch memory for the threads, as
    large as the largest call needed; and for each output of 4 KiB and more the memory of up to two results that
    are gone. An arena becomes smaller when 64 changes of shapes in a row needed less than half of it. `trim` gives
    all but weights and code back to the operating system, `close` (or the end of
    `with tilewright.load(...) as model:`) everything.

    Models can be pickled, as the bytes of `save`, weights included: where these are large, let each process load the
    file by itself. A copy (`copy.copy`, `copy.deepcopy`) shares code and weights, and is closed by itself.

    A model that was compiled with `states` keeps these from call to call: calls run one after the other, whichever
    threads make them, and each finds the states as the one before has left them. Streams that do not belong together
    have a copy each, whose states begin as those of the model are. `save` and `load` have states as they are before
    the first call, pickles and copies as they are now.

    A model that was compiled with `frequent` sizes runs the variant for the sizes of its inputs, or the general
    program. Both share weights, code, threads and the memory of calls.

    `max_seconds` may be set: a call in which a loop with a computed end takes longer is ended by an ExecutionError.
    """

    max_seconds: float | None = None

    def __init__(
        self, artifact: Artifact, threads: int | None = None, executor: MakeExecutor | None = None, *,
        _beside: Linked | None = None, _stops: ctypes.c_int32 | None = None,
        _whole: Artifact | StoredModel | None = None,
    ) -> None:
        """Link `artifact` into this process; OptionError, ArtifactError when it cannot run here. Code for another kind
        of machine is run by `executor(artifact)`, by default that of the plugin which brings the kind."""
        if not isinstance(artifact, Artifact):
            raise ArtifactError(
                f"a model is made of an Artifact, not of {artifact!r:.80}",
                hint="call tilewright.load for a file of a compiled model, tilewright.compile for an ONNX model",
            )
        self._levels = artifact if artifact.levels else _whole
        artifact = at_level(artifact)
        self.inputs = artifact.inputs
        self.outputs = artifact.outputs
        self._signature = artifact.signature
        self.threads = threads_within(artifact.static_plan, threads)
        self._wanted_threads = threads
        self._input_dtypes = tuple(numpy_dtype(info.dtype) for info in artifact.inputs)
        self._output_dtypes = tuple(numpy_dtype(info.dtype) for info in artifact.outputs)
        self._executor = executor
        self._gives_complex = any(info.is_complex for info in artifact.outputs)
        self._takes_tensors = all(
            info.kind == "tensor" and info.dtype != "string" and not info.is_complex for info in artifact.inputs
        )
        self._guard = ShapeGuard(artifact)
        self._has_broadcasting = artifact.broadcasting is not None
        self._broadcast: set[tuple[Shape, ...]] = set()
        self._stops = ctypes.c_int32() if _stops is None else _stops
        self._loaded: _Native | _Staged | None
        programs = artifact.programs
        if any(program.program is not None for program in programs):
            self._loaded = self._staged(artifact, programs)
        else:
            linked: list[Linked] = []
            for program in programs:
                linked.append(Linked.of(program, self.threads, executor, linked[0] if linked else _beside))
            self._loaded = _Native(artifact, tuple(linked))
        self._states = States(artifact.states, artifact.constants)
        self._is_plain = isinstance(self._loaded, _Native) and not artifact.states
        self._start_process()

    def __call__(self, /, *args: Any, out: Sequence[Any] | None = None, **named: Any) -> tuple[np.ndarray, ...]:
        """Compute the outputs, always a tuple in the order of `outputs`, of inputs by position or by name.

        An input is an array of the right dtype, used in place when C-contiguous (also anything with
        `__dlpack__` or `__array__`, such as torch tensors in the CPU's memory), or a Python number or list. Strings are
        lists of them or arrays of objects, sequences are lists, maps dicts, and an empty optional is None. The
        outputs are new arrays, or those of `out`, returned as given: arrays or tensors, C-contiguous, of the right
        dtype and shape, apart from the inputs. The memory of a new array serves a later call as soon as the array
        and all its views are gone. InputError says what does not fit, ExecutionError what went wrong while running.
        """
        if named or len(args) != len(self.inputs):
            args = place_named(self.inputs, args, named)
        if self._forks != _forks[0]:
            self._start_process()
        if not self._is_plain:
            return self._call_otherwise(args, out)
        contexts = self._contexts
        try:
            context = contexts.pop()
        except IndexError:
            context = self._new_context()
        try:
            return self._call(context, args, out)
        finally:
            contexts.append(context)

    def with_outputs(self, package: Any) -> TensorModel:
        """The same model, with outputs as tensors of a package: `net = model.with_outputs(torch)`, `(y,) = net(x)`.

        The package is a module that has `from_dlpack`, such as `torch` and `jax.numpy`; nothing is copied, and of
        bfloat16 they are as well. OptionError for another object, and for outputs of a dtype that the package lacks.
        """
        return TensorModel(self, package)

    def profile(self, inputs: Mapping[str, Any], runs: int = 20, between: Step | None = None) -> tuple[KernelTime, ...]:
        """Run at least `runs` times on `inputs`, each behind `between()`, and time each kernel (as the report's calls).

        OptionError for a model that was not compiled with `profile=True`."""
        if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
            raise OptionError(f"runs={runs!r:.80} is not allowed", hint="give a whole number from 1 on")
        loaded = self._open()
        args = place_named(self.inputs, (), check_named(inputs))
        if self._forks != _forks[0]:
            self._start_process()
        with self._states.set_aside() as again:
            return self._profiled(loaded, args, runs, between, again)

    def _profiled(
        self, loaded: _Native | _Staged, args: tuple[Any, ...], runs: int, between: Step | None, again: Step
    ) -> tuple[KernelTime, ...]:
        if isinstance(loaded, _Staged):
            values, shapes, number = self._staged_values(args)
            values = self._with_states(values)
            _, number = self._run_staged(loaded, values, shapes, number)
            artifact = loaded.artifact.programs[number]
            counted = [part._counting(part._new_context()) for part in loaded.parts[number]]
            native = _native_steps(artifact, loaded.parts[number], self._stops, [c.callback for _, c in counted])
            every = staged.run.runner(artifact.program, [run for run, _ in counted], native, self._stops)
            steps: list[Step] = [again, partial(every, values, self.max_seconds)]
        else:
            context = self._new_context()
            steps = [again, partial(self._states.give, context.in_data, len(self.inputs))]
            steps[1]()
            self._call(context, args, None)
            artifact, counted = context.current.linked.artifact, [self._counting(context)]
            steps.append(partial(counted[0][0], args))
        counts, calls = [c for _, c in counted], artifact.report.calls
        sizes = next((v.text for v in loaded.artifact.variants if v.artifact is artifact), "")
        return kernel_times(calls, sizes, lambda: [step() for step in steps], counts, runs, between)

    def _counting(self, context: Context) -> tuple[staged.run.Part, KernelCounts]:
        """A call in the context, which is for it alone, and what it counts. OptionError for code that does not."""
        program = context.current
        profiled = program.linked.code.run_profiled
        if profiled is None:
            raise OptionError("this model's code does not time its kernels", hint=HOW_TO_TIME)
        counts = KernelCounts(len(program.linked.artifact.report.calls), profiled, self.threads)
        program.run = context.run = counts.run
        return lambda args: self._call(context, args, None), counts

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the model to a file that `load` reads; whole or not at all, also over the compiled file it came from.
        A file of another kind, such as the source of the model, is replaced only by `force`; otherwise an
        ArtifactError says what is there."""
        self._whole().save(path, force=force)

    def report(self) -> Report:
        """What was compiled, as a record: signature, target, sizes, and what the compiler noted: kernels, times, and
        `remarks`, which say what was and was not done. `products`, `types` and `layers` say in which types it is
        computed, in all, by kernels and by layers of the model (docs/quantize.md). Each remark has a `stage` (a pass or
        a strategy), a `subject` (a kernel or a node), a `message` and a `kind`: "applied", "missed", "failed" (a defect
        prevented it), "warning" or "analysis"."""
        return replace(self.artifact.summary(), threads=self.threads)

    def cancel(self) -> None:
        """End all calls that are running now, in whatever threads, with a CancelledError: before the next kernel of
        each, which takes as long as the longest kernel. Later calls run as usual. What states hold then is as after any
        call that fails. Any thread may call this; a call that ends at the same time may give its results."""
        self._stops.value += 1
        end_interruptible(self._stops)

    def trim(self) -> None:
        """Give the memory that calls have left behind back to the operating system; the next call takes it anew.

        Calls that are running keep theirs until they end. Results that somebody holds stay.
        """
        if isinstance(loaded := self._loaded, _Staged):  # looked at once: another thread may close it
            for part in chain(*loaded.parts):
                part.trim()
            for native in loaded.native:
                native.trim()
        self._states.trim()
        self._contexts = deque[Context]()  # the old one ends with the last running call, which gives its context back
        release_free_memory()

    def close(self) -> None:
        """Let go of weights, code, threads and memory; calls from now on raise an ExecutionError.

        Does not wait: calls that are running in other threads end as usual, and the last of them frees what they use.
        Results stay valid. Closing a closed model does nothing.
        """
        self._loaded = None  # first: a call that finds no context left asks for this one
        self._states.come_home()
        self._forks = _CLOSED
        self._levels = None
        self.trim()

    @property
    def artifact(self) -> Artifact:
        """The model as data; ExecutionError when it is closed."""
        return self._open().artifact

    def _whole(self) -> Artifact:
        """With all levels, of which those that are in a file still are looked at now."""
        levels = self._levels
        return levels.whole() if isinstance(levels, StoredModel) else levels or self.artifact

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        return (_loaded_again, (self._whole().to_bytes(), self._wanted_threads, self._executor, self._states.copies()))

    def __copy__(self) -> Self:
        loaded = self._open()
        beside = loaded.programs[0] if isinstance(loaded, _Native) else None
        made = type(self)(loaded.artifact, self._wanted_threads, self._executor, _beside=beside, _whole=self._levels)
        self._states.copy_to(made._states)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()

    def __repr__(self) -> str:
        closed = ", closed" if self._loaded is None else ""
        return f"<tilewright model {self._signature}, {self.threads} threads{closed}>"

    def _staged(self, artifact: Artifact, programs: Sequence[Artifact]) -> _Staged:
        """All parts of all programs, which share code, weights and threads."""
        first: dict[str, Linked] = {}  # of each kind of machine
        def part(of: Artifact) -> _Part:
            beside = first.get(of.target.kind, next(iter(first.values()), None))
            executor = self._executor if of.target.kind == artifact.target.kind else None
            made = _Part(of, self._wanted_threads, executor, _beside=beside, _stops=self._stops)
            first.setdefault(of.target.kind, made.linked)
            return made

        own = [tuple(map(part, p.parts if p.program is not None else [p.of_parts()])) for p in programs]
        pairs = zip(programs, own, strict=True)
        runs = [staged.run.runner(p.program, of, _native_steps(p, of, self._stops), self._stops) for p, of in pairs]
        return _Staged(artifact, tuple(own), tuple(runs))

    def _open(self) -> _Native | _Staged:
        loaded = self._loaded
        if loaded is None:
            raise ExecutionError("this model is closed", hint="load or compile it again, or close it later")
        return loaded

    def _start_process(self) -> None:
        """Fresh state for this process: after a fork, the old may be in use by threads that are gone."""
        self._lock = free_in_children(threading.Lock())
        self._contexts = deque[Context]()
        self._forks = _forks[0]
        self._states.start_process()
        if isinstance(loaded := self._loaded, _Staged):
            for native in loaded.native:
                native.start_process()
        if self._loaded is None:  # looked at last: it may be closed at any time
            self._forks = _CLOSED
            self._open()

    def _new_context(self) -> Context:
        with self._lock:
            loaded = self._open()
            assert isinstance(loaded, _Native)
            pool = loaded.programs[0].pool.address()
        own = self.threads, pool, self._states, self._counter, self._stops
        return context_class(loaded.programs)(loaded.programs, *own)

    def _call_otherwise(self, args: tuple[Any, ...], out: Sequence[Any] | None) -> tuple[Any, ...]:
        """A call of a model in parts, or that keeps states, or whose inputs are recorded."""
        results = self._call_of_any(args, out)
        if self._recorder is not None:
            self._note_call(args)
        return results

    def _call_of_any(self, args: tuple[Any, ...], out: Sequence[Any] | None) -> tuple[Any, ...]:
        loaded = self._open()
        if not self._states.infos and isinstance(loaded, _Staged):
            return self._call_staged(loaded, args, out)
        if not self._states.infos:
            return self._call_in_context(args, out)
        self._states.begin()
        try:
            if isinstance(loaded, _Staged):
                return self._call_staged(loaded, args, out)
            return self._call_in_context(args, out)
        finally:
            self._states.end()

    def _call_in_context(self, args: tuple[Any, ...], out: Sequence[Any] | None) -> tuple[Any, ...]:
        try:
            context = self._contexts.pop()
        except IndexError:
            context = self._new_context()
        try:
            self._states.give(context.in_data, len(self.inputs))
            return self._call(context, args, out)
        finally:
            self._contexts.append(context)

    def _call_staged(self, loaded: _Staged, args: tuple[Any, ...], out: Sequence[Any] | None) -> tuple[Any, ...]:
        values, shapes, number = self._staged_values(args)
        if self._counter is not None:
            self._counter.add(shapes)
        given = self._with_states(values) if self._states.infos else values
        try:
            results, _ = self._run_staged(loaded, given, shapes, number)
        except TilewrightError as error:
            if "called with" not in (error.where or ""):
                about = zip(self.inputs, values, strict=True)
                listed = ", ".join(f"{info.name} {staged.host_values.described(value)}" for info, value in about)
                error.where = f"{error.where + ', ' if error.where else ''}called with {listed or 'no inputs'}"
            raise
        if self._states.infos:
            own = staged.host_values.own_copies(results, given)
            infos = [state.info for state in self._states.infos]
            self._states.hand_on(staged.host_values.as_given(own[len(self.outputs) :], infos))
            results, values = own[: len(self.outputs)], []
        if self._gives_complex:
            results = staged.host_values.as_given(results, self.outputs)
        if out is None:
            return staged.host_values.own_copies(results, values)
        staged.host_values.write_to(out, self.outputs, results, values)
        return tuple(out)

    def _with_states(self, values: list[Any]) -> list[Any]:
        """What the steps of a model in parts take: the inputs, and what the states hold."""
        infos = [state.info for state in self._states.infos]
        return [*values, *staged.host_values.as_parts(self._states.current, infos)]

    def _run_staged(
        self, loaded: _Staged, values: list[Any], shapes: tuple[Shape, ...], number: int
    ) -> tuple[tuple[Any, ...], int]:
        """What a program gives, or the one that broadcasts where it refuses the dims, and the number of that."""
        try:
            if not self._broadcast or shapes not in self._broadcast:
                return loaded.runs[number](values, self.max_seconds), number
        except InputError:
            if not self._has_broadcasting:
                raise
        results = loaded.runs[-1](values, self.max_seconds)
        if len(self._broadcast) < _REMEMBERED:
            self._broadcast.add(shapes)
        return results, len(loaded.runs) - 1

    def _staged_values(self, args: tuple[Any, ...]) -> tuple[list[Any], tuple[Shape, ...], int]:
        """The inputs as steps take them, their shapes, and the number of the program for these."""
        if self._takes_tensors:  # the usual way is short, as small models take microseconds
            arrays = staged.host_values.as_arrays(args, self.inputs, self._input_dtypes)
            shapes = tuple([array.shape for array in arrays])
            return arrays, shapes, self._guard(shapes)
        values = [staged.host_values.as_value(value, info) for value, info in zip(args, self.inputs, strict=True)]
        infos = zip(values, self.inputs, strict=True)
        shapes = tuple([value.shape if info.kind == "tensor" else () for value, info in infos])
        return staged.host_values.as_parts(values, self.inputs), shapes, self._guard(shapes)

    def _call(self, context: Context, args: tuple[Any, ...], out: Sequence[Any] | None) -> tuple[np.ndarray, ...]:
        arrays = []
        in_data, out_data, dtypes = context.in_data, context.out_data, self._input_dtypes
        for index, value in enumerate(args):
            dtype = dtypes[index]
            if type(value) is not np.ndarray or value.dtype is not dtype or not value.flags.carray:
                value = as_array(value, self.inputs[index], dtype)
            arrays.append(value)
            in_data[index] = address_of(value)
        shapes = tuple([array.shape for array in arrays])
        if shapes != context.planned or context.reads_data:
            self._plan(context, shapes)
        if out is None:
            try:
                results = context.results.make(out_data)
            except (MemoryError, ValueError, OverflowError) as error:
                raise no_memory(context.results.shapes, self.outputs) from error
        else:
            results = list(out) if isinstance(out, tuple | list) else []
            views = views_of(out, self.outputs, context.results.shapes, arrays)
            out_data[: len(views)] = [address_of(view) for view in views]
        code = (context.run or context.run_measured)(context.call)
        if code:
            raise self._failure(context.current, code, shapes)
        return tuple(results)

    def _plan(self, context: Context, shapes: tuple[Shape, ...]) -> None:
        """Choose the program for new shapes, and compute from them the outputs' shapes and the memory a run needs."""
        program = self._program_for(context, shapes)
        if context.planned != shapes:
            context.use(program)

    def _program_for(self, context: Context, shapes: tuple[Shape, ...]) -> Planned:
        number = self._guard(shapes)
        try:
            return self._planned(context, number, shapes)
        except InputError:
            if number == context.last or not self._has_broadcasting:
                raise
            return self._planned(context, context.last, shapes)

    def _needs(self, shapes: tuple[Shape, ...]) -> tuple[int, int, int] | None:
        loaded = self._open()
        is_one = isinstance(loaded, _Native) and not any(p.plan_reads_data for p in loaded.artifact.programs)
        return needs_of(self._program_for(self._new_context(), shapes)) if is_one else None

    def _planned(self, context: Context, number: int, shapes: tuple[Shape, ...]) -> Planned:
        """A program that is planned for these shapes; InputError where it refuses them."""
        program = context.program(number)
        if shapes != program.shapes or program.reads_data:
            known = context.planned if program is context.current else None
            context.planned = program.shapes = None  # until all of it is known
            plan = program.linked.code.plan
            assert plan is not None, "the guard has looked at fixed shapes"
            if shapes != known:
                context.in_shapes[:] = [
                    size
                    for info, shape in zip(self.inputs, shapes, strict=True)
                    for size in ((*shape, 2) if info.is_complex else shape)
                ]
            code = plan(context.in_shapes, context.in_data, program.dims, context.out_shapes, context.sizes)
            if code:
                raise self._failure(program, code, shapes)
            planned = (*context.out_shapes, *context.sizes)
            if shapes == known and planned == program.planned:  # data that ask for the same sizes as before
                context.planned = program.shapes = shapes
                return program
            outputs = zip(shapes_of(self.outputs, context.out_shapes), self._output_dtypes, strict=True)
            arena, scratch = context.sizes
            program.plan(shapes, list(outputs), (arena, scratch))
            program.planned = planned
        return program

    def _failure(self, program: Planned, code: int, shapes: tuple[Shape, ...]) -> Exception:
        errors = program.linked.artifact.errors
        given = ", ".join(
            f"{info.name} {dtype}{list(shape)}"
            for info, dtype, shape in zip(self.inputs, self._input_dtypes, shapes, strict=True)
        )
        if code == CANCELLED:
            return cancelled()
        if not 0 < code <= len(errors):
            return ExecutionError(f"the model failed with the unknown code {code}", where=f"called with {given}")
        entry = errors[code - 1]
        return error_class(entry.kind)(entry.message, where=f"called with {given or 'no inputs'}")


class _Part(Model):
    """A part of a staged model, called with the arguments of a step."""
    handing = property(handing_of)

    @property
    def linked(self) -> Linked:
        loaded = self._open()
        assert isinstance(loaded, _Native)
        return loaded.programs[0]

    def __call__(self, args: tuple[Any, ...]) -> tuple[np.ndarray, ...]:  # type: ignore[override]
        return super().__call__(*args)

    def addresses(self, instead: Any = None) -> tuple[int, int, int]:
        """Of its plan (0 for fixed shapes), its code, or a function `instead`, and its constants."""
        functions: tuple[Any, ...] = (self.linked.code.plan, instead or self.linked.code.run)
        plan, run = (ctypes.cast(f, ctypes.c_void_p).value or 0 if f else 0 for f in functions)
        return plan, run, address_of(self.linked.constants)

    def error_of(self, code: int, shapes: list[Shape]) -> Exception:
        """The error of a code; 0 stands for shapes that do not fit."""
        if not code:
            try:
                check_shapes(self.inputs, shapes)
            except InputError as error:
                return error
        return self._failure(self._new_context().current, code, tuple(shapes))


def _native_steps(
    artifact: Artifact, parts: Sequence[_Part], stops: ctypes.c_int32, instead: Sequence[Any] = ()
) -> staged.native.NativeSteps | None:
    """What runs the native code between the parts of a program; None where it has none. It calls the parts, or the
    functions `instead`, which must live as long. ArtifactError where parts are of another machine."""
    program, code = artifact.program, parts[0].linked.code if parts else None
    if program is None or not program.slots:
        return None
    if not isinstance(code, NativeCode):
        raise ArtifactError("executor= cannot run parts that native code calls", hint="load the model without it")
    return staged.native.NativeSteps(
        program,
        StepsCode(code, program, [part.artifact.run_symbol for part in parts]),
        [part.addresses(run) for part, run in zip(parts, instead or [None] * len(parts), strict=True)],
        [[len(info.shape) for info in part.inputs] for part in parts],
        parts[0].linked.constants.nbytes, parts[0].threads, parts[0].linked.pool.address, stops,
        lambda part, code, shapes: parts[part].error_of(code, shapes),
    )
