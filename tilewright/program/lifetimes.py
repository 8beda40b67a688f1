"""When values of a staged program can be let go of, so that their memory serves later ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tilewright.runtime.staged.program import RunLoop, RunNative, RunPart, Step, TakeBranch, nested


def with_frees(steps: Iterable[Step], kept: Iterable[int], given: Iterable[int] = ()) -> tuple[Step, ...]:
    """The steps, each with the values that are made before, or `given`, and not read after it, nor `kept`; those inside
    of branches and loops free what is made there."""
    steps, live = list(steps), set(kept)
    made = set(given).union(*(step.outputs for step in steps))
    found: list[Step] = []
    for step in reversed(steps):
        touched = set(reads(step)) | set(step.outputs)
        freed = (touched - live) & made
        found.append(replace(_inside(step, freed - set(step.outputs)), frees=tuple(sorted(freed))))
        live |= touched
    return tuple(reversed(found))


def _inside(step: Step, freed: Iterable[int]) -> Step:
    """The step with the values that its own steps free, of which those that nobody needs after it."""
    if isinstance(step, TakeBranch):
        ways = zip(step.ways, step.results, strict=True)
        one, other = (with_frees(way, results, freed) for way, results in ways)
        return replace(step, ways=(one, other))
    if isinstance(step, RunLoop):
        return replace(step, body=with_frees(step.body, step.results, step.arguments))
    return step


def reads(step: Step) -> Iterator[int]:
    """Values that must be there before a step, and some that it makes for itself."""
    for inner in (s for steps in nested(step) for s in steps):
        yield from reads(inner)
    if isinstance(step, TakeBranch):
        yield step.condition
        for results in step.results:
            yield from results
    elif isinstance(step, RunLoop):
        yield from (*step.inputs, *step.results, *(s.value for type in step.row_types for s in type.sizes))
    elif not isinstance(step, RunNative):
        yield from step.inputs
        if isinstance(step, RunPart):
            yield from (s.value for s in step.sizes)
