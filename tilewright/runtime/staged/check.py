"""Whether a staged program can be run: a file may hold anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.runtime.staged.program import (
    CallHost,
    RunLoop,
    RunNative,
    RunPart,
    StagedProgram,
    Step,
    TakeBranch,
)

MOST_VALUES = 1 << 20

DEEPEST = 32
"""Mappings and sequences within each other in the parameters of a host function."""


def check_program(program: StagedProgram, inputs: int, outputs: int, parts: Sequence[tuple[int, int]]) -> None:
    """ValueError unless each step reads what was given before, and the model, the `parts` and the blocks have as many
    operands and results as they are given. `parts` are the numbers of inputs and outputs of each."""
    if not 0 <= program.values <= MOST_VALUES:
        raise ValueError(f"there are {program.values} values")
    _same(len(program.inputs), inputs, "inputs")
    _same(len(program.outputs), outputs, "outputs")
    check = _Check(program, parts)
    known: set[int] = set()
    check.give(known, program.inputs)
    check.read(check.steps(program.steps, known), program.outputs)


class _Check:
    def __init__(self, program: StagedProgram, parts: Sequence[tuple[int, int]]) -> None:
        self._values = program.values
        self._parts = parts
        self._slots = {number for number, _ in program.slots}

    def steps(self, steps: Sequence[Step], known: set[int]) -> set[int]:
        """The values that are known after the steps, of those before, which it changes."""
        for step in steps:
            if isinstance(step, TakeBranch):
                self.read(known, [step.condition])
                known &= self._way(step, 0, set(known)) & self._way(step, 1, set(known))
            else:
                self.read(known, step.inputs)
                if isinstance(step, RunLoop):
                    self._loop(step, known)
                elif isinstance(step, RunPart):
                    self._part(step, known)
                elif isinstance(step, RunNative):
                    self._native(step)
                else:
                    assert isinstance(step, CallHost)
                    if _is_deep(step.parameters, DEEPEST):
                        raise ValueError(f"the parameters of {step.function} lie more than {DEEPEST} deep")
            self.give(known, [*step.outputs, *step.frees])
            known -= set(step.frees)
        return known

    def give(self, known: set[int], numbers: Sequence[int]) -> None:
        if not all(0 <= n < self._values for n in numbers):
            raise ValueError(f"there are {self._values} values, and {list(numbers)} are set")
        known.update(numbers)

    def read(self, known: set[int], numbers: Sequence[int]) -> None:
        if not known.issuperset(numbers):
            raise ValueError(f"the values {list(numbers)} are read, and not all of them are given before")

    def _way(self, step: TakeBranch, way: int, known: set[int]) -> set[int]:
        _same(len(step.results[way]), len(step.outputs), "results of a branch")
        after = self.steps(step.ways[way], known)
        self.read(after, step.results[way])
        return after

    def _loop(self, step: RunLoop, known: set[int]) -> None:
        states = len(step.inputs) - 2
        _same(len(step.arguments), len(step.inputs), "arguments of a loop")
        _same(len(step.results), 1 + len(step.outputs), "results of a loop")
        _same(len(step.outputs), states + len(step.row_types), "outputs of a loop")
        self.read(known, [size.value for type in step.row_types for size in type.sizes])
        inner = set(known)
        self.give(inner, step.arguments)
        after = self.steps(step.body, inner)
        self.read(after, [*step.results, *known])  # the next iteration reads them, too

    def _native(self, step: RunNative) -> None:
        _same(len(step.input_types), len(step.inputs), "inputs of native code")
        _same(len(step.output_types), len(step.outputs), "outputs of native code")
        if not self._slots.issuperset((*step.inputs, *step.outputs)):
            raise ValueError(f"values of function {step.function} have no places in the frame")

    def _part(self, step: RunPart, known: set[int]) -> None:
        if not 0 <= step.part < len(self._parts):
            raise ValueError(f"there are {len(self._parts)} parts, and {step.part} is called")
        inputs, outputs = self._parts[step.part]
        self.read(known, [size.value for size in step.sizes])
        _same(len(step.inputs) + bool(step.sizes), inputs, "inputs of a part")
        _same(len(step.outputs), outputs, "outputs of a part")


def _same(found: int, wanted: int, what: str) -> None:
    if found != wanted:
        raise ValueError(f"there are {wanted} {what}, and {found} are given")


def _is_deep(value: object, most: int) -> bool:
    """Whether mappings and sequences lie in each other more than so many times."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        return False
    return most == 0 or any(_is_deep(v, most - 1) for v in value)
