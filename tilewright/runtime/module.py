"""A loaded model: the object users call."""

from __future__ import annotations

import copy
import ctypes
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime.arena import Arena, address_of, aligned_constants
from tilewright.runtime.artifact import Artifact, TensorInfo
from tilewright.runtime.errors import ArtifactError, ExecutionError, InputError, OptionError, error_class
from tilewright.runtime.inputs import Shape, as_array, check_shapes, numpy_dtype, place_named
from tilewright.runtime.loader import NativeCode
from tilewright.runtime.profile import KernelTime, median_seconds
from tilewright.runtime.report import Report
from tilewright.runtime.results import Results
from tilewright.runtime.threads import ThreadPool, check_threads

_forks = [0]
"""How often this process was forked off; a list is read faster than the process's number."""


def _count_fork() -> None:
    _forks[0] += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def load(path: str | Path, threads: int | None = None, *, check_weights: bool = True) -> Model:
    """Load a compiled model from a file; see `Artifact.load` and `Model`."""
    return Model(Artifact.load(path, check_weights=check_weights), threads)


class _Context:
    """What a running call owns: argument arrays for native code, memory, the plan of its last shapes."""

    def __init__(self, artifact: Artifact, threads: int, pool: int | None, constants: int) -> None:
        inputs, outputs = artifact.inputs, artifact.outputs
        self.in_shapes = (ctypes.c_int64 * sum(len(info.shape) for info in inputs))()
        self.out_shapes = (ctypes.c_int64 * sum(len(info.shape) for info in outputs))()
        self.in_data = (ctypes.c_void_p * len(inputs))()
        self.out_data = (ctypes.c_void_p * len(outputs))()
        self.sizes = (ctypes.c_int64 * 2)()
        self.arena = Arena("intermediate tensors")
        self.scratch = Arena("scratch memory of the threads")
        self.planned: tuple[Shape, ...] | None = None
        self.results = Results()
        plan = artifact.static_plan
        values = plan.dims if plan else ()
        self.dims = (ctypes.c_int64 * max(artifact.dims_count, len(values)))(*values)
        self._threads = threads
        places = map(ctypes.addressof, (self.in_data, self.out_data))
        arenas = (self.arena.address, self.scratch.address)
        self._call = (ctypes.c_void_p * 7)(pool, *places, constants, *arenas, ctypes.addressof(self.dims))
        self.call = ctypes.addressof(self._call)

    def reserve(self, arena: int, scratch: int) -> None:
        """Make room for so many bytes in the arena, and of scratch memory for each thread."""
        if arena < 0 or scratch < 0:
            raise ExecutionError(
                f"the memory needed is out of range: arena {arena}, scratch {scratch} bytes",
                hint="use smaller inputs (batch, sequence length)",
            )
        self.arena.reserve(arena)
        self.scratch.reserve(scratch * self._threads)
        self._call[4:6] = [self.arena.address, self.scratch.address]


class Model:
    """A compiled model that can be called with NumPy arrays.

    `inputs` and `outputs` describe its tensors in order, `threads` is the number of threads a call uses.
    Several Python threads may call one model at once: the GIL is released while it runs, and the results'
    bits depend neither on that nor on the number of threads. Models may be used on both sides of a fork.
    """

    def __init__(self, artifact: Artifact, threads: int | None = None) -> None:
        """Link `artifact` into this process; OptionError, ArtifactError when it cannot run here."""
        self.artifact = artifact
        self.inputs = artifact.inputs
        self.outputs = artifact.outputs
        self.threads = check_threads(threads)
        self._input_dtypes = tuple(numpy_dtype(info.dtype) for info in artifact.inputs)
        self._output_dtypes = tuple(numpy_dtype(info.dtype) for info in artifact.outputs)
        self._code = NativeCode(artifact)
        self._run: Callable[..., int] = self._code.run
        self._constants = aligned_constants(artifact.constants)
        self._pool = ThreadPool(self._code, self.threads)
        self._reads_data = artifact.plan_reads_data
        self._static = artifact.static_plan is not None
        self._start_process()

    def __call__(
        self, /, *args: Any, out: Sequence[np.ndarray] | None = None, **named: Any
    ) -> tuple[np.ndarray, ...]:
        """Compute the outputs, always a tuple in the order of `outputs`, of inputs by position or by name.

        An input is an array of the right dtype, used in place when C-contiguous (also anything with
        `__dlpack__` or `__array__`), or a Python number or list. The outputs are new arrays, or those of
        `out`: C-contiguous, of the right dtype and shape, apart from the inputs. The memory of a new array serves
        a later call as soon as the array and all its views are gone. InputError says what does not fit,
        ExecutionError what went wrong while running.
        """
        if named or len(args) != len(self.inputs):
            args = place_named(self.inputs, args, named)
        if self._forks != _forks[0]:
            self._start_process()
        contexts = self._contexts
        try:
            context = contexts.pop()
        except IndexError:
            context = self._new_context()
        try:
            return self._call(context, args, out)
        finally:
            contexts.append(context)

    def run(
        self, inputs: Mapping[str, Any], out: Sequence[np.ndarray] | None = None
    ) -> tuple[np.ndarray, ...]:
        """As a call with names, for names that are no Python identifiers (or `out`)."""
        return self(*place_named(self.inputs, (), inputs), out=out)

    def profile(self, inputs: Mapping[str, Any], runs: int = 20) -> tuple[KernelTime, ...]:
        """Run at least `runs` times on `inputs` and time each kernel, in the order of the report's calls.

        OptionError for a model that was not compiled with `profile=True`.
        """
        profiled = self._code.run_profiled
        if profiled is None:
            raise OptionError(
                "this model's code does not time its kernels", hint="compile the model with profile=True"
            )
        args, calls = place_named(self.inputs, (), inputs), self.artifact.report["calls"]
        timed = copy.copy(self)

        def run(counts: int) -> None:
            timed._run = lambda call: profiled(call, counts)
            timed(*args)

        seconds = median_seconds(run, len(calls), runs)
        return tuple(KernelTime(c["kernel"], c["node"], s) for c, s in zip(calls, seconds, strict=True))

    def save(self, path: str | Path) -> None:
        """Write the model to a file that `load` reads; whole or not at all."""
        self.artifact.save(path)

    def report(self) -> Report:
        """What was compiled: signature, target, sizes, and what the compiler noted (kernels, times)."""
        return Report({"threads": self.threads, **self.artifact.summary().data})

    def __repr__(self) -> str:
        signature = f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"
        return f"<tilewright model {signature}, {self.threads} threads>"

    def _start_process(self) -> None:
        """Fresh state for this process: after a fork, the old may be in use by threads that are gone."""
        self._lock = threading.Lock()
        self._contexts: deque[_Context] = deque()
        self._forks = _forks[0]

    def _new_context(self) -> _Context:
        with self._lock:
            pool = self._pool.address()
        context = _Context(self.artifact, self.threads, pool, address_of(self._constants))
        plan = self.artifact.static_plan
        if plan is not None:
            context.planned = tuple(_fixed(info) for info in self.inputs)
            context.results.plan(self._typed([_fixed(info) for info in self.outputs]))
            context.reserve(plan.arena, plan.scratch)
        return context

    def _call(
        self, context: _Context, args: tuple[Any, ...], out: Sequence[np.ndarray] | None
    ) -> tuple[np.ndarray, ...]:
        arrays = []
        in_data, out_data, dtypes = context.in_data, context.out_data, self._input_dtypes
        for index, value in enumerate(args):
            dtype = dtypes[index]
            if type(value) is not np.ndarray or value.dtype is not dtype or not value.flags.carray:
                value = as_array(value, self.inputs[index], dtype)
            arrays.append(value)
            in_data[index] = address_of(value)
        shapes = tuple([array.shape for array in arrays])
        if shapes != context.planned or self._reads_data:
            self._plan(context, shapes)
        if out is None:
            try:
                results = context.results.make(out_data)
            except (MemoryError, ValueError, OverflowError) as error:
                raise self._no_memory(context) from error
        else:
            results = self._check_out(context, out, arrays)
            out_data[:] = [address_of(result) for result in results]
        code = self._run(context.call)
        if code:
            raise self._failure(code, shapes)
        return tuple(results)

    def _plan(self, context: _Context, shapes: tuple[Shape, ...]) -> None:
        """Check new shapes, and compute from them the outputs' shapes and the memory a run needs."""
        check_shapes(self.inputs, shapes)
        plan = self._code.plan
        if plan is None:
            return
        context.planned = None  # until all of it is known
        context.in_shapes[:] = [size for shape in shapes for size in shape]
        code = plan(context.in_shapes, context.in_data, context.dims, context.out_shapes, context.sizes)
        if code:
            raise self._failure(code, shapes)
        context.results.plan(self._typed(self._output_shapes(context)))
        context.reserve(*context.sizes)
        context.planned = shapes

    def _output_shapes(self, context: _Context) -> tuple[Shape, ...]:
        sizes = iter(context.out_shapes)
        shapes = tuple(tuple(next(sizes) for _ in info.shape) for info in self.outputs)
        for info, shape in zip(self.outputs, shapes, strict=True):
            if any(size < 0 for size in shape):
                raise InputError(
                    f"with these inputs output '{info.name}' would have the shape {list(shape)}",
                    hint=f"the model's outputs are: {', '.join(map(str, self.outputs))}",
                )
        return shapes

    def _typed(self, shapes: Sequence[Shape]) -> list[tuple[Shape, np.dtype]]:
        return list(zip(shapes, self._output_dtypes, strict=True))

    def _check_out(
        self, context: _Context, out: Sequence[np.ndarray], arrays: list[np.ndarray]
    ) -> list[np.ndarray]:
        if isinstance(out, np.ndarray) or len(out) != len(self.outputs):
            raise InputError(f"out must be a tuple of {len(self.outputs)} arrays")
        for given, (shape, dtype), info in zip(out, context.results.shapes, self.outputs, strict=True):
            fits = isinstance(given, np.ndarray) and given.dtype == dtype and given.shape == shape
            if not fits or not given.flags.carray:
                raise InputError(
                    f"out for '{info.name}' must be a C-contiguous, writeable {dtype}{list(shape)}, "
                    f"given is {_describe(given)}"
                )
        others = list(arrays)
        for given, info in zip(out, self.outputs, strict=True):
            if any(np.may_share_memory(given, other) for other in others):
                raise InputError(f"out for '{info.name}' overlaps an input or another output")
            others.append(given)
        return list(out)

    def _no_memory(self, context: _Context) -> ExecutionError:
        """The error for outputs that cannot be allocated, naming the largest."""
        shape, dtype, name = max(
            (
                (shape, dtype, info.name)
                for (shape, dtype), info in zip(context.results.shapes, self.outputs, strict=True)
            ),
            key=lambda result: math.prod(result[0]) * result[1].itemsize,
        )
        return ExecutionError(
            f"no memory for output '{name}': {dtype}{list(shape)}",
            hint="use smaller inputs (batch, sequence length), or a machine with more memory",
        )

    def _failure(self, code: int, shapes: tuple[Shape, ...]) -> Exception:
        errors = self.artifact.errors
        given = ", ".join(
            f"{info.name} {dtype}{list(shape)}"
            for info, dtype, shape in zip(self.inputs, self._input_dtypes, shapes, strict=True)
        )
        if not 0 < code <= len(errors):
            return ExecutionError(
                f"the model failed with the unknown code {code}", where=f"called with {given}"
            )
        entry = errors[code - 1]
        return error_class(entry.kind)(entry.message, where=f"called with {given or 'no inputs'}")


def _fixed(info: TensorInfo) -> Shape:
    """The shape of a tensor of a static model; ArtifactError when it is symbolic after all."""
    sizes = tuple(size for size in info.shape if isinstance(size, int))
    if len(sizes) != len(info.shape):
        raise ArtifactError(
            f"the artefact says its shapes are fixed, but has {info}", hint="compile the model again"
        )
    return sizes


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return (
            f"{value.dtype}{list(value.shape)}{'' if value.flags.carray else ', not contiguous or read-only'}"
        )
    return type(value).__name__
