"""Which weights are split into planes of bits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.programs import program
from tests.graph.quantised.test_half_bytes import NEAR, after, numbers, stored, weights
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.index import gather


@pytest.mark.parametrize(
    ("low", "high", "planes"),
    [
        (0, 1, {"bool"}),
        (-1, 0, {"int2"}),
        (-2, 1, {"int2"}),
        (0, 3, {"uint2"}),
        (-4, 3, {"int2", "bool"}),
        (0, 7, {"uint2", "bool"}),
        (-8, 7, {"int4"}),
        (-16, 15, {"int4", "bool"}),
        (0, 31, {"uint4", "bool"}),
        (-32, 31, {"int4", "uint2"}),
        (0, 63, {"uint4", "uint2"}),
        (-64, 63, {"int8"}),
        (0, 127, {"uint8"}),
    ],
)
def test_bits_that_elements_need(low: int, high: int, planes: set[str]) -> None:
    q = numbers(low, high, 64, 20, dtype=np.int8 if low < 0 else np.uint8)
    module = program(lambda x: ct.matmul(x, weights(q)), (2, 64))
    after(module)
    assert stored(module) == planes


@pytest.mark.parametrize(("depth", "bits"), [(48, 5), (40, 6), (31, 5)])
def test_columns_of_no_whole_words_stay_bytes(depth: int, bits: int) -> None:
    high = (1 << bits) - 1
    module = program(lambda x: ct.matmul(x, weights(numbers(0, high, depth, 20, dtype=np.uint8))), (2, depth))
    ctx = after(module)
    assert stored(module) == {"uint8"}
    assert any("no multiple of the" in r.message for r in ctx.remarks)


def test_near_weights_stay_bytes_where_that_is_faster() -> None:
    q = numbers(-32, 31, 512, 512)
    module = program(lambda x: ct.matmul(x, weights(q)), (1, 512))
    ctx = after(module, NEAR)
    assert stored(module) == {"int8"}
    assert any("joining planes" in r.message for r in ctx.remarks)


def test_what_picks_rows_reads_planes() -> None:
    def body(x: Value) -> Value:
        wide = ew.cast(constant(numbers(-16, 15, 32, 20), "q"), dtype=dt.f32)
        rows = gather(wide, constant(np.arange(2), "at"), axis=0)
        return ew.add(ct.matmul(x, wide), rows)

    module = program(body, (2, 32))
    after(module)
    assert stored(module) == {"int4", "bool", "int64"}
