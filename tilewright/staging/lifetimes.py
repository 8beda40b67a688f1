"""When values of a staged program can be let go of, so that their memory serves later ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tilewright.runtime.staged.program import RunLoop, RunPart, Step, TakeBranch


def with_frees(steps: Iterable[Step], kept: Iterable[int]) -> tuple[Step, ...]:
    """The steps, each with the values that are made before and not read after it; those inside of branches and loops
    are freed after them, where nobody else reads them."""
    steps, live = list(steps), set(kept)
    made: set[int] = set().union(*(step.outputs for step in steps)) if steps else set()
    found: list[Step] = []
    for step in reversed(steps):
        touched = set(_reads(step)) | set(step.outputs)
        found.append(replace(step, frees=tuple(sorted((touched - live) & made))))
        live |= touched
    return tuple(reversed(found))


def _reads(step: Step) -> Iterator[int]:
    if isinstance(step, TakeBranch):
        yield step.condition
        for way, results in zip(step.ways, step.results, strict=True):
            yield from results
            for inner in way:
                yield from _reads(inner)
    elif isinstance(step, RunLoop):
        yield from (*step.inputs, *step.results)
        for inner in step.body:
            yield from _reads(inner)
    else:
        yield from step.inputs
        if isinstance(step, RunPart):
            yield from (s.value for s in step.sizes)
