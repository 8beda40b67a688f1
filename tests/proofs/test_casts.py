"""Chains of two casts that become one, for all numbers of short types and all types that there are between."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.graph.programs import program
from tilewright.graph.rewrites.arithmetic import needless_cast
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module
from tilewright.ir.dtype import DType
from tilewright.ir.rewrite import rewrite
from tilewright.ir.types import tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.define.interp import evaluate_func

_PATTERNS = np.arange(1 << 16, dtype=np.uint16)
NUMBERS = {
    dt.bool_: np.array([False, True]),
    dt.i8: np.arange(-128, 128, dtype=np.int8),
    dt.u8: np.arange(256, dtype=np.uint8),
    dt.i32: np.int32([0, 1, -1, 127, 128, -128, -129, 255, 256, 300, 65535, 65536, 2**24 + 1, 2**31 - 1, -(2**31)]),
    dt.f16: _PATTERNS.view(np.float16),
    dt.bf16: _PATTERNS.view(ml_dtypes.bfloat16),
}
BETWEEN = (dt.i32, dt.i64, dt.f16, dt.bf16, dt.f32, dt.f64)
TARGETS = (*NUMBERS, dt.i16, dt.u16, dt.u32, dt.i64, dt.u64, dt.f32, dt.f64)


@pytest.mark.parametrize("source", NUMBERS, ids=str)
def test_a_chain_of_casts_gives_the_same_numbers_when_it_is_shortened(source: DType) -> None:
    shortened = 0
    numbers = NUMBERS[source]
    for between in BETWEEN:
        for target in TARGETS:
            chain = _chain(source, between, target, len(numbers))
            changed = rewrite(chain.main, [needless_cast], chain)
            if changed and between != source and between != target:
                shortened += 1
                found = _evaluated(chain, numbers)
                wanted = _evaluated(_chain(source, between, target, len(numbers)), numbers)
                assert found.dtype == wanted.dtype
                chained = f"{source} -> {between} -> {target}"
                np.testing.assert_array_equal(_comparable(found), _comparable(wanted), err_msg=chained)
    assert shortened


def _chain(source: DType, between: DType, target: DType, count: int) -> Module:
    return program(lambda x: ew.cast(ew.cast(x, dtype=between), dtype=target), tensor(source, (count,)))


def _evaluated(module: Module, numbers: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        (found,) = evaluate_func(module.main, module, [numbers])
    return found


def _comparable(found: np.ndarray) -> np.ndarray:
    """Short floats as long ones, of which NumPy knows that NaN is NaN."""
    with np.errstate(invalid="ignore"):
        return found.astype(np.float64) if found.dtype.kind not in "biuf" else found
