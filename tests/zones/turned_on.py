"""The switch: guard zones for the native code of this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest

from tests.zones import plans
from tests.zones.blocks import Blocks
from tilewright.runtime.arena import ALIGNMENT
from tilewright.runtime.errors import BeyondBufferError
from tilewright.runtime.guarded import calls
from tilewright.runtime.guarded.calls import GuardedContext, Zones
from tilewright.runtime.guarded.pages import IS_AVAILABLE, ZonedBuffer

MOST_POISONED, MOST_COPIED = 4 << 20, 1 << 28
"""Bytes of what is poisoned before each call, and of constants that are copied, in tests."""


class TestZones:
    """The zones of this process, and what has been found so far, which tests look at when they end."""

    __test__ = False

    def __init__(self, of: Zones) -> None:
        self.of, self.memory = of, of.memory
        self.found: list[str] = []
        self.has_room = False  # also within what the compiler lays out
        self.blocks = Blocks(self)
        of.told = self.found.append

    @property
    def is_on(self) -> bool:
        return self.of.is_on


@cache
def zones() -> TestZones | None:
    """Those of this process; None where this machine has none."""
    return TestZones(calls.zones()) if IS_AVAILABLE else None


@contextmanager
def guard_zones() -> Iterator[None]:
    """Models that are made within it run between guard zones, as long as `zones().is_on`."""
    here = zones()
    with pytest.MonkeyPatch.context() as patch:
        if here is not None:
            patch.setattr(calls, "MOST_POISONED", MOST_POISONED)
            patch.setattr(calls, "MOST_COPIED", MOST_COPIED)
            patch.setattr(GuardedContext, "takes_turns", False)  # threads run at the same time, as in production
            patch.setattr("tilewright.runtime.module.context_class", lambda programs: GuardedContext)
            patch.setattr("tilewright.runtime.module.Model._plan", plans.zoned_plan(here))
            has_room = property(lambda self: self.options.guarded or here.has_room)
            patch.setattr("tilewright.compilation.Setting.has_room_for_zones", has_room)
            patch.setattr("tilewright.program.memory.planned.assign_storage", plans.sometimes_shared)
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
    before = here.of.is_on, here.has_room
    here.of.is_on, here.has_room = is_on, is_on and has_room
    try:
        yield
    finally:
        here.of.is_on, here.has_room = before
    here.found += [found.text for found in here.memory.findings()]
    texts = list(here.found)
    here.found.clear()
    if texts:
        raise BeyondBufferError("\n".join(texts))


@contextmanager
def findings_are_expected() -> Iterator[None]:
    """What is found within is for those who handled it there: a test about them does not fail because of it."""
    here = zones()
    before = [] if here is None else list(here.found)
    try:
        yield
    finally:
        if here is not None:
            here.found[:] = before


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
    copies: dict[int, ZonedBuffer] = {}
    for array, name in zip(arrays, names, strict=True):
        address = array.ctypes.data
        if address not in copies or copies[address].nbytes < array.nbytes:
            assert array.flags.carray, f"{name} is not contiguous"
            copies[address] = ZonedBuffer(here.memory, name, array.nbytes, max(1, array.dtype.itemsize))
            copies[address].copy_from(address)
    scratch = ZonedBuffer(here.memory, "scratch memory", scratch_bytes, ALIGNMENT)
    scratch.fill()
    yield [copies[a.ctypes.data].address for a in arrays], scratch.address
    findings = here.memory.findings()
    findings += [found for b in (*copies.values(), scratch) if (found := b.stores_beside()) is not None]
    for address, copy in copies.items():
        copy.copy_to(address)
        copy.release()
    scratch.release()
    here.of.report(findings, where)
