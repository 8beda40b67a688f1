"""A second machine, which is nothing but facts: a systolic array, whose operands come to it by one route each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright
from tests.simulator.test_npu import halves, told
from tilewright.loops.kernel_info import parse_kernel
from tilewright.machines import PRESETS
from tilewright.options import Options
from tilewright.session import Session
from tilewright.simulator import time_kernel
from tilewright.stages import programs

SYSTOLIC = PRESETS["systolic16"]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("sizes", [(70, 64, 40), (1, 16, 3), (33, 300, 17)])
def test_products_run_on_the_array(sizes: tuple[int, int, int], tmp_path: Path) -> None:
    data, (x, right) = halves(*sizes, then=True)
    made = tilewright.compile(data, target="systolic16", session=Session(tmp_path, plugins=()), verify=True)
    assert np.array_equal(made(x)[0], right)
    assert "execute" in told(made) and "accumulator -> line" in told(made)


def test_tiles_follow_each_other_without_a_memory_between(tmp_path: Path) -> None:
    """The operands of the next tile come, and the sums of the last one leave, while the array works."""
    data, _ = halves(256, 256, 256)
    session = Session(tmp_path, plugins=())
    (text,) = programs(data, "loops", options=Options(target="systolic16"), session=session).values()
    timed = time_kernel(parse_kernel(text), SYSTOLIC)
    assert timed.busy["execute"] >= 256**3 / 256
    assert timed.cycles <= timed.bound / 0.9
