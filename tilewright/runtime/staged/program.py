"""A staged program as plain data: the parts of native code that the host calls, and what it does between them.

Values have numbers, which name places of a table. A part takes values, and after them one vector of `sizes`, where it
has any: lengths of axes, and elements of integer tensors that were computed before.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tilewright.runtime.storage.records import TAG


@dataclass(frozen=True, slots=True)
class Size:
    """The length of an axis of a value, or (`element`) its element at a flat position."""

    value: int
    position: int
    element: bool = False


@dataclass(frozen=True, slots=True)
class RunPart:
    """Call a part; `frees` are values that nobody reads afterwards."""

    part: int
    inputs: tuple[int, ...]
    sizes: tuple[Size, ...]
    outputs: tuple[int, ...]
    frees: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CallHost:
    """Call the function that `runtime.staged.functions` has by that name for the parameters."""

    function: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    node: str = ""
    frees: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TakeBranch:
    """Run the steps of one of two ways, whose `results` become `outputs`."""

    condition: int
    ways: tuple[tuple[Step, ...], tuple[Step, ...]]
    results: tuple[tuple[int, ...], tuple[int, ...]]
    outputs: tuple[int, ...]
    frees: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RowType:
    """The dtype of the rows that a loop collects, and their shape where it makes no trip."""

    dtype: str
    shape: tuple[int | Size, ...]

    @property
    def sizes(self) -> tuple[Size, ...]:
        """What of the shape is read from values."""
        return tuple(d for d in self.shape if isinstance(d, Size))


@dataclass(frozen=True, slots=True)
class RunLoop:
    """Run `body` again and again: `inputs` are the number of trips, the condition and the states before; `arguments`
    those of the body (trip, condition, states); `results` what a trip gives (condition, states, rows); `outputs` the
    last states, and the rows of all trips in one array."""

    inputs: tuple[int, ...]
    arguments: tuple[int, ...]
    body: tuple[Step, ...]
    results: tuple[int, ...]
    outputs: tuple[int, ...]
    row_types: tuple[RowType, ...] = ()
    node: str = ""
    frees: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RunNative:
    """Call the function of a number of the program's native code, in which the host does nothing but answer `loops`
    that ask whether to go on. Of inputs and outputs it has the dtypes and ranks."""

    function: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    input_types: tuple[tuple[str, int], ...]
    output_types: tuple[tuple[str, int], ...]
    loops: bool = False
    frees: tuple[int, ...] = ()


Step = RunPart | CallHost | TakeBranch | RunLoop | RunNative


@dataclass(frozen=True, slots=True)
class StagedProgram:
    """`inputs` and `outputs` are numbers of values, of which there are so many. Native code has a frame of
    `frame_words`, in which the `slots` of the values that the host hands over begin at these words, and those of parts
    at `parts`; its `loops` are known by these nodes."""

    values: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[Step, ...]
    slots: tuple[tuple[int, int], ...] = ()
    parts: int = 0
    frame_words: int = 0
    loops: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """As JSON data, of which `storage.records` makes a program."""
        return {
            "values": self.values,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "steps": [_record(s) for s in self.steps],
            "slots": self.slots,
            "parts": self.parts,
            "frame_words": self.frame_words,
            "loops": self.loops,
        }

    def native_suffix(self, parts: Sequence[str]) -> str:
        """The end of the names of native code: it is found for no other program, and for no other parts than those
        whose code has these names."""
        text = json.dumps([self.record(), list(parts)], sort_keys=True)
        return f".{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def steps_within(steps: Iterable[Step]) -> Iterator[Step]:
    """All steps, also those that are nested in others."""
    for step in steps:
        yield step
        for inner in nested(step):
            yield from steps_within(inner)


def nested(step: Step) -> tuple[tuple[Step, ...], ...]:
    """The lists of steps that a step runs."""
    if isinstance(step, TakeBranch):
        return step.ways
    return (step.body,) if isinstance(step, RunLoop) else ()


def _record(step: Step) -> dict[str, Any]:
    kind = {TAG: type(step).__name__}
    if isinstance(step, TakeBranch):
        ways = [[_record(s) for s in way] for way in step.ways]
        return {**kind, "condition": step.condition, "ways": ways, "results": step.results, "outputs": step.outputs,
                "frees": step.frees}  # fmt: skip
    if isinstance(step, RunLoop):
        plain = {name: getattr(step, name) for name in RunLoop.__slots__}
        types = [asdict(t) for t in step.row_types]
        return {**kind, **plain, "body": [_record(s) for s in step.body], "row_types": types}
    if isinstance(step, CallHost):
        return {**kind, **asdict(step), "parameters": _plain(step.parameters)}
    return {**kind, **asdict(step)}


def _plain(value: Any) -> Any:
    """A parameter as JSON data, which has no infinities."""
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return {"float": repr(value)} if isinstance(value, float) and not math.isfinite(value) else value
