"""Scales of blocks in products of quantised weights."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.frontends.microsoft.against import Case, agree, f32, u8
from tilewright.options import Options
from tilewright.stages import programs


@pytest.mark.parametrize("zeros", [False, True])
def test_scales_that_rows_share_are_gathered_once_for_them(zeros: bool) -> None:
    k, n, block = 1024, 512, 32
    arrays = [f32(40, k), u8(n, k // block, block // 2), np.abs(f32(n * k // block))]
    arrays += [u8(n * -(-(k // block) // 2))] if zeros else []
    attrs = {"K": k, "N": n, "bits": 4, "block_size": block}
    case = Case("MatMulNBits", arrays, attrs, tuple(range(1, len(arrays))), error=1e-5)
    model = case.model().SerializeToString()
    text = "\n".join(programs(model, "schedule", options=Options(target="zen4")).values())
    assert "scales are gathered" not in text
    assert re.search(r'pack\(x0, .*space="reg"', text)
    agree(case)
