"""Whatever is scheduled in these tests: its trace makes the same kernel again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.schedule.replays import why_not_identical
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.stages import Lowered
from tilewright.schedule.defaults import schedule_kernel

SEEN: set[tuple[str, ...]] = set()
"""Traces that were replayed, without their numbers."""


@pytest.fixture(scope="module", autouse=True)
def traces_are_replayed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print, read and replay the trace of each kernel; of traces that are alike but for numbers the first one."""

    def replayed(lowered: Lowered, *arguments: Any) -> Lowered:
        result = schedule_kernel(lowered, *arguments)
        form = tuple(re.sub(r"\d+", "", line) for line in kernel_info(result.func).schedule)
        if form not in SEEN or request.config.getoption("--sweeps"):
            assert why_not_identical(lowered.func, result.func) is None
            SEEN.add(form)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilewright.schedule.sharing.kernels.schedule_kernel", replayed)
        yield
