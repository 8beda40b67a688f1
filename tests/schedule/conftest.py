"""Whatever is scheduled in these tests: its trace makes the same kernel again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.schedule.replays import why_not_identical
from tilewright.loops.stages import Lowered
from tilewright.schedule.defaults import schedule_kernel


@pytest.fixture(scope="module", autouse=True)
def traces_are_replayed() -> Iterator[None]:
    """Print, read and replay the trace of each kernel."""

    def replayed(lowered: Lowered, *arguments: Any) -> Lowered:
        result = schedule_kernel(lowered, *arguments)
        assert why_not_identical(lowered.func, result.func) is None
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilewright.schedule.sharing.kernels.schedule_kernel", replayed)
        yield
