"""Room for guard zones in what the compiler lays out: between the tensors of the arena, between constants, and between
the scratch memories of threads.

Each tensor and each constant ends at the end of a page (but for what aligns it), and a page that is closed follows.
Where an arena shares memory among tensors, every second plan stays as it is, so that sharing is tested, too. Where the
zones are is attached to the artefact, which `calls` reads.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from tests.zones.calls import REPORT, Zones
from tests.zones.pages import PAGE
from tilewright import compilation, link
from tilewright.codegen.program import Program
from tilewright.ir.core import Func, Module
from tilewright.ir.sym import Sym, sym
from tilewright.program.memory import plan
from tilewright.program.memory.effort import PlanEffort
from tilewright.program.memory.plan import ArenaPlan, Lifetime
from tilewright.program.memory.storage import Storage
from tilewright.runtime.arena import aligned_bytes
from tilewright.runtime.artifact import Artifact

_ALIGNMENT = plan.ALIGNMENT

_ATTRIBUTE = "guard_zones"
"""Of a main function: where the zones are."""


class _Apart(dict[int, Sym]):
    """Offsets of tensors with zones between them, whose bytes are `sizes`."""

    sizes: Mapping[int, Sym]


def _rounded(size: Sym, unit: int) -> Sym:
    return (size + (unit - 1)) // unit * unit


def zoned_arena(zones: Zones) -> Callable[[Sequence[Lifetime], PlanEffort], ArenaPlan]:
    """`plan_arena` with tensors between zones."""
    shared = plan.plan_arena

    def plan_arena(lifetimes: Sequence[Lifetime], effort: PlanEffort) -> ArenaPlan:
        packed = shared(lifetimes, effort)
        is_shared = packed.total != packed.unshared
        if not zones.has_room or not lifetimes or (is_shared and zlib.crc32(repr(lifetimes).encode()) % 2):
            return packed
        offsets, start = _Apart(), sym(0)
        offsets.sizes = {t.key: t.size for t in lifetimes}
        for t in lifetimes:
            end = start + _rounded(t.size, PAGE)
            offsets[t.key] = end - _rounded(t.size, _ALIGNMENT)
            start = end + PAGE
        return ArenaPlan(offsets, start, packed.unshared)

    return plan_arena


_exact_scratch: Callable[[Program], Sym] = Program.__dict__["scratch"].func


def zoned_scratch(zones: Zones) -> cached_property[Sym]:
    """`Program.scratch` with a closed page after that of each thread."""

    def scratch(self: Program) -> Sym:
        most = _exact_scratch(self)
        return most if not zones.has_room or most == 0 else _rounded(most, PAGE) + PAGE

    found = cached_property(scratch)
    found.__set_name__(Program, "scratch")
    return found


def zoned_place(zones: Zones) -> Callable[..., tuple[int, bool]]:
    """`Weights.place` with a closed page after each constant."""
    place = link.Weights.place

    def place_between_zones(self: link.Weights, *given: Any) -> tuple[int, bool]:
        before = self.total
        offset, is_lent = place(self, *given)
        size = self.total - before  # none where the constant was there already
        if not zones.has_room or not size or is_lent:
            return offset, is_lent
        first = -(-before // PAGE) * PAGE
        moved = first + -size % PAGE
        _move(self, offset, moved)
        self.total = moved + size + PAGE
        return moved, is_lent

    return place_between_zones


def _move(weights: link.Weights, offset: int, to: int) -> None:
    """Give the constant that was placed last another offset."""
    weights._arrays[-1] = (to, *weights._arrays[-1][1:])
    for same in (same for same in weights._alike.values() if same and same[-1][0] == offset):
        same[:] = [(to if at == offset else at, kind, data) for at, kind, data in same]


def zeroed_bytes(nbytes: int) -> np.ndarray:
    """`aligned_bytes` for constants: what lies between them is the same in every artefact."""
    found = aligned_bytes(nbytes)
    found[:] = 0
    return found


def zoned_places(zones: Zones) -> Callable[[Func, Storage], None]:
    """`annotate`, which also notes in the main function where the zones of the arena are, as texts of offsets and
    sizes."""
    annotate = compilation.annotate

    def annotate_with_zones(main: Func, storage: Storage) -> None:
        annotate(main, storage)
        offsets = storage.arena.offsets
        if zones.has_room and isinstance(offsets, _Apart):
            main.attrs[_ATTRIBUTE] = tuple((str(offsets[k]), str(offsets.sizes[k])) for k in offsets)

    return annotate_with_zones


def zoned_artifact(zones: Zones) -> Callable[..., Artifact]:
    """`make_artifact` with a note of where the zones are."""
    make_artifact = link.make_artifact

    def artifact_with_zones(module: Module, constants: link.Constants, program: Program, *given: Any) -> Artifact:
        artifact: Artifact = make_artifact(module, constants, program, *given)
        if zones.has_room:
            tensors = [list(place) for place in module.main.attrs.get(_ATTRIBUTE, ())]
            told = {"arena": tensors, "scratch": str(_exact_scratch(program))}
            artifact = replace(artifact, attached={**artifact.attached, REPORT: told})
        return artifact

    return artifact_with_zones
