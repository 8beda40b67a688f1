"""Scales of blocks in products of quantised weights."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.frontends.microsoft.against import Case, agree, f32, u8
from tilewright.options import Options
from tilewright.stages import programs


@pytest.mark.parametrize("zeros", [False, True])
def test_scales_and_zero_points_of_blocks_lie_by_columns(zeros: bool) -> None:
    k, n, block = 1024, 512, 32
    arrays = [f32(40, k), u8(n, k // block, block // 2), np.abs(f32(n * k // block))]
    arrays += [u8(n * -(-(k // block) // 2))] if zeros else []
    attrs = {"K": k, "N": n, "bits": 4, "block_size": block}
    case = Case("MatMulNBits", arrays, attrs, tuple(range(1, len(arrays))), error=1e-5)
    model = case.model().SerializeToString()
    text = "\n".join(programs(model, "loops", options=Options(target="zen4")).values())
    assert re.search(r"f32\[1, \d+, 32, 64\]", text)
    assert not re.search(r"(f32|u8|i32)\[512, 32", text)  # as they come, a gather for each vector
    agree(case)
