"""The switch: guard zones for the native code of this process."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from tests.zones import plans
from tests.zones.blocks import Blocks
from tests.zones.calls import Zones, zoned_context, zoned_plan
from tests.zones.pages import IS_AVAILABLE, BeyondBufferError, Buffer
from tilewright.runtime.arena import ALIGNMENT


@functools.cache
def zones() -> Zones | None:
    """Those of this process; None where this machine has none."""
    if not IS_AVAILABLE:
        return None
    here = Zones()
    here.blocks = Blocks(here)
    return here


@contextmanager
def guard_zones() -> Iterator[None]:
    """Models that are made within it run between guard zones, as long as `zones().is_on`."""
    here = zones()
    with pytest.MonkeyPatch.context() as patch:
        if here is not None:
            patch.setattr("tilewright.runtime.module.Context", zoned_context(here))
            patch.setattr("tilewright.runtime.module.Model._plan", zoned_plan(here))
            patch.setattr("tilewright.program.memory.storage.plan_arena", plans.zoned_arena(here))
            patch.setattr("tilewright.codegen.program.Program.scratch", plans.zoned_scratch(here))
            patch.setattr("tilewright.link.Weights.place", plans.zoned_place(here))
            patch.setattr("tilewright.link.aligned_bytes", plans.zeroed_bytes)
            patch.setattr("tilewright.compilation.annotate", plans.zoned_places(here))
            patch.setattr("tilewright.link.make_artifact", plans.zoned_artifact(here))
        yield


@contextmanager
def findings_are_errors(*, is_on: bool = True, has_room: bool = True) -> Iterator[None]:
    """Raises in the end what was found within and then handled by somebody. Without `is_on`, there are no zones;
    without `has_room`, none between the tensors, constants and threads that a compilation lays out."""
    here = zones()
    if here is None:
        yield
        return
    here.found.clear()
    before = here.is_on, here.has_room
    here.is_on, here.has_room = is_on, is_on and has_room
    try:
        yield
    finally:
        here.is_on, here.has_room = before
    here.found += [found.text for found in here.memory.findings()]
    texts = list(here.found)
    here.found.clear()
    if texts:
        raise BeyondBufferError("\n".join(texts))


@contextmanager
def arrays_between_zones(
    where: str, arrays: Sequence[np.ndarray], names: Sequence[str], scratch_bytes: int = 0
) -> Iterator[tuple[list[int], int]]:
    """The addresses of copies of arrays, and of scratch memory, all between guard zones; the arrays get back what is
    in the copies in the end. Arrays that share memory share it in their copies, too. BeyondBufferError for what went
    beyond."""
    here = zones()
    if here is None:
        scratch = np.zeros(scratch_bytes + ALIGNMENT, np.uint8)
        yield [a.ctypes.data for a in arrays], -(-scratch.ctypes.data // ALIGNMENT) * ALIGNMENT
        return
    copies: dict[int, Buffer] = {}
    for array, name in zip(arrays, names, strict=True):
        address = array.ctypes.data
        if address not in copies or copies[address].nbytes < array.nbytes:
            assert array.flags.carray, f"{name} is not contiguous"
            copies[address] = Buffer(here.memory, name, array.nbytes, max(1, array.dtype.itemsize))
            copies[address].copy_from(address)
    scratch = Buffer(here.memory, "scratch memory", scratch_bytes, ALIGNMENT)
    scratch.fill()
    yield [copies[a.ctypes.data].address for a in arrays], scratch.address
    findings = here.memory.findings()
    findings += [found for b in (*copies.values(), scratch) if (found := b.stores_beside()) is not None]
    for address, copy in copies.items():
        copy.copy_to(address)
        copy.release()
    scratch.release()
    here.report(findings, where)
