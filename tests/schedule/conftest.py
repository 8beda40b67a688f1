"""Whatever is scheduled in these tests: its trace makes the same kernel again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.schedule.replays import why_not_identical
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.stages import Lowered
from tilewright.schedule.defaults import schedule_kernel

SEEN: set[tuple[str, str]] = set()
"""Steps of traces that were replayed and what came before each, without their numbers."""


@pytest.fixture(scope="module", autouse=True)
def traces_are_replayed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print, read and replay the trace of each kernel; by day of those alone in which a step comes behind another one
    as it did in none that was replayed, but for numbers."""

    def replayed(lowered: Lowered, *arguments: Any) -> Lowered:
        result = schedule_kernel(lowered, *arguments)
        forms = [re.sub(r"\d+", "", line) for line in kernel_info(result.func).schedule]
        steps = {*pairwise(("", *forms))}
        if not steps <= SEEN or request.config.getoption("--sweeps"):
            assert why_not_identical(lowered.func, result.func) is None
            SEEN.update(steps)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilewright.schedule.sharing.kernels.schedule_kernel", replayed)
        yield
