"""Running a staged program: a table of values, and the steps that fill it."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from tilewright.runtime.errors import ExecutionError, InputError, TilewrightError, cancelled
from tilewright.runtime.kept.away import at_home
from tilewright.runtime.staged.functions.registry import HostFunction, bound
from tilewright.runtime.staged.native import NativeSteps
from tilewright.runtime.staged.program import (
    CallHost,
    RowType,
    RunLoop,
    RunNative,
    RunPart,
    Size,
    StagedProgram,
    Step,
    TakeBranch,
    nested,
    steps_within,
)
from tilewright.runtime.values.dtypes import numpy_dtype

Part = Callable[[tuple[Any, ...]], tuple[np.ndarray, ...]]


class StagedRun:
    """Runs a program whose parts are callables; many threads may call it at once."""

    def __init__(
        self,
        program: StagedProgram,
        parts: Sequence[Part],
        native: NativeSteps | None = None,
        stops: ctypes.c_int32 | None = None,
    ) -> None:
        """`native` runs what the program has native code for; a call ends where somebody changes `stops`."""
        self._stops = ctypes.c_int32() if stops is None else stops
        self._program = program
        self._parts = parts
        self.native = native
        steps = [*steps_within(program.steps)]
        self._functions = {id(s): bound(s.function, s.parameters) for s in steps if isinstance(s, CallHost)}
        self._handing = [getattr(part, "handing", None) for part in parts]
        self._made = {id(s): _made_within(s) for s in steps if isinstance(s, RunLoop | TakeBranch)}
        self._loops = program.loops
        self._never = _Deadline(None, self._loops)
        self._whole = _whole(program)

    def __call__(self, inputs: Sequence[Any], max_seconds: float | None = None) -> tuple[Any, ...]:
        """The outputs, as the steps leave them: arrays may be those of inputs. ExecutionError when a loop begins a trip
        after more than `max_seconds`."""
        deadline = self._never if max_seconds is None else _Deadline(max_seconds, self._loops)
        began = self._stops.value
        try:
            if self._whole is not None and self.native is not None:
                number, taken, given = self._whole
                results = self.native.run(number, taken(inputs), deadline.look)
                return given(results)
            return self._outputs(inputs, deadline.beside(self._stops, began))
        except TilewrightError:
            raise
        except Exception as error:  # of a step whose operands are other values than it was made for
            raise ExecutionError(
                f"a step of the model failed: {error!r:.200}",
                hint="compile the model again; if it fails then, please report this with the model",
            ) from error

    def _outputs(self, inputs: Sequence[Any], deadline: _Deadline) -> tuple[Any, ...]:
        values: list[Any] = [None] * self._program.values
        for number, value in zip(self._program.inputs, inputs, strict=True):
            values[number] = value
        self._steps(self._program.steps, values, deadline)
        return tuple([at_home(values[number]) for number in self._program.outputs])

    def _steps(self, steps: Sequence[Step], values: list[Any], deadline: _Deadline) -> None:
        for step in steps:
            deadline.check_stops()
            if type(step) is RunNative:  # looked at first: it may be all that a small model does
                self._native(step, values, deadline)
            elif type(step) is RunPart:
                self._part(step, values)
            elif type(step) is CallHost:
                _call_host(step, self._functions[id(step)], values)
            elif type(step) is TakeBranch:
                self._branch(step, values, deadline)
            else:
                assert type(step) is RunLoop
                self._loop(step, values, deadline)
            for number in step.frees:
                values[number] = None

    def _native(self, step: RunNative, values: list[Any], deadline: _Deadline) -> None:
        assert self.native is not None
        arrays = self.native.fitting(step, [at_home(values[number]) for number in step.inputs])
        for number, result in zip(step.outputs, self.native.run(step.function, arrays, deadline.look), strict=True):
            values[number] = result

    def _part(self, step: RunPart, values: list[Any]) -> None:
        args = [values[number] for number in step.inputs]
        if step.sizes:
            args.append(np.array([_size(s, values) for s in step.sizes], np.int64))
        if (handing := self._handing[step.part]) is not None:
            results = handing(tuple(args), _freed(step, values), values)
        else:
            results = self._parts[step.part](tuple(map(at_home, args)))
        for number, result in zip(step.outputs, results, strict=True):
            values[number] = result

    def _branch(self, step: TakeBranch, values: list[Any], deadline: _Deadline) -> None:
        way = 0 if at_home(values[step.condition]).any() else 1
        self._steps(step.ways[way], values, deadline)
        found = [values[result] for result in step.results[way]]
        self._forget(step, values)
        for number, value in zip(step.outputs, found, strict=True):
            values[number] = value

    def _forget(self, step: Step, values: list[Any]) -> None:
        """Nobody looks any more at what steps within a step have made."""
        for number in self._made[id(step)]:
            values[number] = None

    def _loop(self, step: RunLoop, values: list[Any], deadline: _Deadline) -> None:
        limit, condition, *states = [values[n] for n in step.inputs]
        trips, goes_on, trip = int(at_home(limit).reshape(())), bool(at_home(condition).any()), 0
        rows: list[list[Any]] = [[] for _ in step.row_types]
        while goes_on and trip < trips:
            for number, value in zip(step.arguments, (np.array(trip, np.int64), np.array(True), *states), strict=True):
                values[number] = value
            deadline.check(step.node, trip)
            self._steps(step.body, values, deadline)
            going, *results = [values[n] for n in step.results]
            self._forget(step, values)
            states, made = results[: len(states)], results[len(states) :]
            for column, row in zip(rows, made, strict=True):
                column.append(at_home(row))
            goes_on, trip = bool(at_home(going).any()), trip + 1
        stacked = [_stacked(column, t, values) for column, t in zip(rows, step.row_types, strict=True)]
        for number, value in zip(step.outputs, (*states, *stacked), strict=True):
            values[number] = value


def runner(
    program: StagedProgram | None, parts: Sequence[Part], native: NativeSteps | None, stops: ctypes.c_int32
) -> Callable[[Sequence[Any], float | None], tuple[Any, ...]]:
    """Runs a program of a staged model, which may be in one part."""
    if program is not None:
        return StagedRun(program, parts, native, stops)
    return lambda values, _: parts[0](tuple(values))


_Chosen = Callable[[Sequence[Any]], tuple[Any, ...]]


def _whole(program: StagedProgram) -> tuple[int, _Chosen, _Chosen] | None:
    """The function of the step that is all of a program, its inputs among the program's, and the program's outputs
    among its own: no table of values is needed."""
    step = program.steps[0] if len(program.steps) == 1 else None
    if not isinstance(step, RunNative) or not {*program.outputs} <= {*step.outputs}:
        return None
    return step.function, _chosen(program.inputs, step.inputs), _chosen(step.outputs, program.outputs)


def _chosen(of: Sequence[int], wanted: Sequence[int]) -> _Chosen:
    """What gives, of values with the numbers `of`, those that are wanted."""
    if tuple(of) == tuple(wanted):
        return tuple
    places = [of.index(number) for number in wanted]
    return itemgetter(*places) if len(places) > 1 else lambda values: tuple([values[k] for k in places])


class _Deadline:
    """When a call must have ended, of which these are the nodes of the loops."""

    def __init__(self, max_seconds: float | None, loops: Sequence[str]) -> None:
        self._max_seconds, self._loops = max_seconds, loops
        self._stops: ctypes.c_int32 | None = None
        self._began = 0
        self._end = math.inf if max_seconds is None else time.monotonic() + max_seconds

    def beside(self, stops: ctypes.c_int32, began: int) -> _Deadline:
        """The same for one call, which ends where the word is no longer what it was."""
        found = _Deadline(self._max_seconds, self._loops)
        found._end, found._stops, found._began = self._end, stops, began
        return found

    def check_stops(self) -> None:
        """CancelledError where somebody has ended the call."""
        if self._stops is not None and self._stops.value != self._began:
            raise cancelled()

    def look(self, loop: int, trip: int) -> None:
        """As `check`, for the loop of a number."""
        self.check(self._loops[loop], trip)

    def check(self, node: str, trip: int) -> None:
        if time.monotonic() > self._end:
            raise ExecutionError(
                f"a loop was in trip {trip} after max_seconds={self._max_seconds:g}",
                where=node,
                hint="give it more time, or look at what ends it",
            )


def _made_within(step: RunLoop | TakeBranch) -> tuple[int, ...]:
    """The numbers of values that are known within a step alone."""
    own = step.arguments if isinstance(step, RunLoop) else ()
    inner = [n for within in nested(step) for s in steps_within(within) for n in _given_by(s)]
    return tuple(dict.fromkeys((*own, *inner)))


def _given_by(step: Step) -> tuple[int, ...]:
    return (*step.outputs, *step.arguments) if isinstance(step, RunLoop) else step.outputs


def _freed(step: RunPart, values: list[Any]) -> frozenset[int]:
    """The identities of arrays that nobody needs after a step."""
    freed = {id(values[number]) for number in step.frees}
    return frozenset(freed - {id(value) for number, value in enumerate(values) if number not in step.frees})


def _size(size: Size, values: list[Any]) -> int:
    value = at_home(values[size.value]) if size.element else values[size.value]
    return int(value.flat[size.position]) if size.element else int(value.shape[size.position])


def _stacked(rows: Sequence[np.ndarray], type: RowType, values: list[Any]) -> np.ndarray:
    """The rows along a new first axis."""
    if not rows:
        shape = (d if isinstance(d, int) else _size(d, values) for d in type.shape)
        return np.empty((0, *shape), numpy_dtype(type.dtype))
    try:
        return np.stack(rows)
    except ValueError as error:
        shapes = ", ".join(str(list(s)) for s in dict.fromkeys(r.shape for r in rows))
        raise ExecutionError(
            f"the rows that a loop collects have different shapes: {shapes}", hint="pad them in the model"
        ) from error


def _call_host(step: CallHost, function: HostFunction, values: list[Any]) -> None:
    args = [at_home(values[n]) for n in step.inputs]
    try:
        results = function(*args)
    except TilewrightError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise InputError(f"{error}", where=step.node or step.function) from error
    for number, result in zip(step.outputs, results, strict=True):
        values[number] = result
