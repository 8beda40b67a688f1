"""Elementwise kernels are vectors to the last element."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.ir import dtype as dt
from tilewright.ir.types import tensor
from tilewright.loops.edit import kind_of, loops_in
from tilewright.ops.elementwise import tanh

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("left", (1, 7, 8, 13))
def test_what_is_left_of_a_short_line_that_threads_share_is_a_vector(left: int) -> None:
    size = 3200 + left  # so few that threads share vectors, and no pieces of many
    x = RNG.standard_normal(size).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, (size,))], tanh, [x])
    (kernel,) = [f for f in module.funcs.values() if f.level == "loops"]
    found = [kind_of(loop) for loop in loops_in(kernel.body)]
    assert "parallel" in found
    assert "serial" not in found or left == 13  # pieces of many lanes are one vector under a mask, in a loop of one
    assert found.count("vector") == 2 or left == 1
