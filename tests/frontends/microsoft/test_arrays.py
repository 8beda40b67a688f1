"""Operators that are nearly those of the standard, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.frontends.microsoft.against import RNG, Case, agree, f16, f32, ints

BOXES = RNG.uniform(-0.2, 1.2, (5, 4)).astype(np.float32)
CASES = [
    Case("GridSample", [f32(1, 2, 4, 5), np.tanh(f32(1, 3, 6, 2))], {"padding_mode": "border"}),
    Case("Pad", [f32(2, 3), np.array([0, 1, 2, 0]), np.float32([4])], {}, (1, 2)),
    Case("Pad", [f32(4, 3), np.array([1, 1, 2, 0])], {"mode": "reflect"}, (1,)),
    Case("Trilu", [f32(3, 4), np.array(1)], {"upper": 0}, (1,)),
    Case("Trilu", [f32(2, 3, 4)]),
    Case("Range", [np.float32(1), np.float32(7), np.float32(2.5)], {}, (0, 1, 2)),
    Case("Range", [np.int64([2]), np.int64([9])], {}, (0, 1), error=0),
    Case("GatherND", [f32(3, 4, 5), ints(0, 3, 6, 2)]),
    Case("ExpandDims", [f32(3, 4), np.int32(1)], {}, (1,)),
    Case("CDist", [f32(3, 8), f32(5, 8)], {"metric": "euclidean"}, error=1e-5),
    Case("CDist", [f32(3, 8), f32(5, 8)], error=1e-5),
    Case("Inverse", [f32(3, 5, 5) + 3 * np.eye(5, dtype=np.float32)], error=1e-5),
    Case(
        "CropAndResize",
        [f32(2, 3, 7, 9), BOXES, ints(0, 2, 5), np.int32([4, 6])],
        {"extrapolation_value": 0.5},
        (3,),
        error=1e-5,
    ),
    Case(
        "CropAndResize",
        [f32(2, 3, 7, 9), np.clip(BOXES, 0, 1), ints(0, 2, 5), np.int32([1, 6])],
        {},
        (3,),
        error=1e-5,
    ),
    Case(
        "CropAndResize",
        [
            f32(2, 3, 7, 9),
            np.float32([[0, 0, 1, 1], [0.1, 0.2, 0.93, 0.71]]),
            ints(0, 2, 2),
            np.int32([5, 4]),
        ],
        {"mode": "nearest"},
        (3,),
    ),
    Case("CropAndResize", [f16(2, 3, 7, 9), BOXES.astype(np.float16), ints(0, 2, 5), np.int32([4, 6])], {}, (3,)),
]


@pytest.mark.sweep
@pytest.mark.with_scalar_kernels  # CDist: a product of few columns, of unknown numbers of rows
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_means_what_onnxruntime_does(case: Case, symbolic: bool, fresh_seed: int) -> None:
    needs_size = case.op in ("GridSample", "GatherND")  # of coordinates
    is_sensitive = case.op == "Inverse"  # the same numbers at other places may be nearly singular
    agree(case if is_sensitive else case.redrawn(fresh_seed), symbolic and not needs_size)


@pytest.mark.parametrize(
    ("attrs", "values", "wanted"),
    [
        ({}, [1, np.inf], False),
        ({}, [1, np.nan], False),
        ({}, [1, 2], True),
        ({"isnan_only": 1}, [1, np.inf], True),
        ({"isinf_only": 1}, [np.nan, 1], True),
    ],
)
def test_whether_all_is_finite(attrs: dict[str, int], values: Sequence[float], wanted: bool) -> None:
    """By hand: ONNX Runtime's CPU has no such operator."""
    case = Case("IsAllFinite", [f32(2, 3), np.float32(values)], attrs)
    agree(case, reference=lambda *_: [np.array(wanted)])
