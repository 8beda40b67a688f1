"""Which steps of a staged program native code runs one after the other, without the host.

Parts, branches and loops of tensors need nothing of the host. Where several of them stand together, one call runs them
all; it takes the inputs and gives the outputs in a frame (`runtime/staged/frame.py`). So is a part alone whose sizes
are read from data: planning it costs the host more than the frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from tilewright.ir.types import TensorType, Type, is_native
from tilewright.program.lifetimes import reads
from tilewright.runtime.staged import frame
from tilewright.runtime.staged.program import (
    CallHost,
    RunLoop,
    RunNative,
    RunPart,
    StagedProgram,
    Step,
    TakeBranch,
    makes,
    steps_within,
)

Types = Mapping[int, Type]


def with_native_steps(program: StagedProgram, types: Types, ranks: Sequence[int]) -> StagedProgram:
    """The program with steps joined that native code can run; `ranks` are those of all inputs of a part together."""
    grouping = _Grouping(types)
    steps = grouping.grouped(program.steps)
    if not grouping.functions:
        return program
    parts = frame.SHAPES + max(ranks, default=0)
    words = parts + frame.PART_WORDS * len(ranks)
    slots: dict[int, int] = {}
    for number in sorted(grouping.values):
        slots[number] = words
        words += frame.DIMS + _tensor(types, number).rank
    return replace(program, steps=steps, slots=tuple(slots.items()), parts=parts, frame_words=words)


class _Grouping:
    def __init__(self, types: Types) -> None:
        self.types = types
        self.functions = 0
        self.values: set[int] = set()

    def grouped(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        found: list[Step] = []
        for native, run in groupby(steps, self.is_native):
            together = list(run)
            first = together[0]
            if native and (len(together) > 1 or not isinstance(first, RunPart) or first.sizes):
                found.append(self.native(together))
            else:
                found += map(self.inside, together)
        return tuple(found)

    def inside(self, step: Step) -> Step:
        if isinstance(step, TakeBranch):
            one, other = map(self.grouped, step.ways)
            return replace(step, ways=(one, other))
        return replace(step, body=self.grouped(step.body)) if isinstance(step, RunLoop) else step

    def is_native(self, step: Step) -> bool:
        steps = [*steps_within([step])]
        values = {v for s in steps for v in (*makes(s), *reads(s))}
        return not any(isinstance(s, CallHost) for s in steps) and all(is_native(self.types[v]) for v in values)

    def native(self, steps: Sequence[Step]) -> RunNative:
        """One step for all; what they free that was made before is freed after them."""
        made = {v for s in steps for v in makes(s)}
        read = dict.fromkeys(v for s in steps for v in reads(s) if v not in made)
        freed = {v for s in steps for v in s.frees}
        outputs = tuple(v for s in steps for v in s.outputs if v not in freed)
        self.values |= {*made, *read}
        self.functions += 1
        inner = tuple(replace(s, frees=tuple(v for v in s.frees if v in made)) for s in steps)
        types = (tuple(map(self.type_of, read)), tuple(map(self.type_of, outputs)))
        return RunNative(self.functions - 1, inner, tuple(read), outputs, *types, tuple(sorted(freed - made)))

    def type_of(self, number: int) -> tuple[str, int]:
        type = _tensor(self.types, number)
        return type.dtype.storage.name, type.rank


def _tensor(types: Types, number: int) -> TensorType:
    type = types[number]
    assert isinstance(type, TensorType)
    return type
