"""Normalisations of sums and embeddings against ONNX Runtime."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from tests.frontends.microsoft.against import Case, agree, f16, f32, ints

SUM = (True, False, False, True)
CASES = [
    Case(
        "SkipLayerNormalization",
        [f32(2, 3, 8), f32(2, 3, 8), f32(8), f32(8), f32(8)],
        {"epsilon": 1e-3},
        (),
        SUM,
    ),
    Case("SkipLayerNormalization", [f32(2, 3, 8), f32(3, 8), f32(8), f32(8)]),
    Case("SkipLayerNormalization", [f32(2, 3, 8), f32(1, 3, 8), f32(8)], {}, (2,), SUM),
    Case("SkipLayerNormalization", [f16(2, 3, 8), f16(2, 3, 8), f16(8), f16(8), f16(8)], {}, (), SUM),
    Case(
        "SkipSimplifiedLayerNormalization",
        [f32(2, 3, 8), f32(2, 3, 8), f32(8), f32(8)],
        {"epsilon": 1e-2},
        (),
        SUM,
    ),
    Case("SkipSimplifiedLayerNormalization", [f16(3, 8), f16(3, 8), f16(8)]),
    Case("SimplifiedLayerNormalization", [f32(2, 3, 8), f32(8)], {"epsilon": 1e-2}, domain=""),
    Case("SimplifiedLayerNormalization", [f32(2, 3, 8), f32(3, 8)], {"axis": 1}, (), (True, True), domain=""),
    Case("SimplifiedLayerNormalization", [f16(2, 3, 8), f16(8)], {"stash_type": 1}, domain=""),
    Case(
        "EmbedLayerNormalization",
        [
            ints(0, 9, 2, 5),
            ints(0, 2, 2, 5),
            f32(9, 8),
            f32(7, 8),
            f32(2, 8),
            f32(8),
            f32(8),
            ints(0, 2, 2, 5),
        ],
        {"epsilon": 1e-4},
        (),
        (True, True, True),
    ),
    Case(
        "EmbedLayerNormalization",
        [ints(0, 9, 2, 5), None, f32(9, 8), f32(7, 8), None, f32(8), f32(8), None, ints(0, 7, 2, 5)],
        {},
        (2, 3),
        (True, True),
    ),
    Case(
        "EmbedLayerNormalization",
        [ints(0, 9, 2, 5), None, f32(9, 8), f32(7, 8), None, f32(8), f32(8), None, ints(0, 7, 1, 5)],
        {},
        (2, 3),
        (True, True),
    ),
]


@pytest.mark.sweep
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_means_what_onnxruntime_does(case: Case, symbolic: bool, fresh_seed: int) -> None:
    agree(case.redrawn(fresh_seed), symbolic)


def group_norm(
    x: np.ndarray, scale: np.ndarray, bias: np.ndarray, groups: int, last: bool, silu: bool
) -> np.ndarray:
    """In float64; ONNX Runtime's CPU has none."""
    y = np.moveaxis(x, -1, 1) if last else x
    apart = y.reshape(len(y), groups, -1).astype(np.float64)
    normal = (apart - apart.mean(2, keepdims=True)) / np.sqrt(apart.var(2, keepdims=True) + 1e-5)
    result = normal.reshape(y.shape) * scale[:, None, None] + bias[:, None, None]
    result = result / (1 + np.exp(-result)) if silu else result
    return np.moveaxis(result, 1, -1) if last else result


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("silu", [False, True])
def test_groups_of_channels(last: bool, silu: bool) -> None:
    x = f32(2, 3, 4, 6) if last else f32(2, 6, 3, 4)
    attrs = {"groups": 3, "activation": int(silu), "channels_last": int(last)}

    def reference(*arrays: np.ndarray) -> Sequence[np.ndarray]:
        return [group_norm(*arrays, 3, last, silu).astype(np.float32)]  # type: ignore[arg-type]

    agree(Case("GroupNorm", [x, f32(6), f32(6)], attrs), reference=reference)


def test_the_sum_with_a_skip_is_normalised_and_given() -> None:
    attrs = {"groups": 2, "activation": 0, "channels_last": 1}

    def reference(
        x: np.ndarray, scale: np.ndarray, bias: np.ndarray, skip: np.ndarray, offset: np.ndarray
    ) -> Sequence[np.ndarray]:
        total = x + skip[:, None, None] + offset
        return [group_norm(total, scale, bias, 2, True, False).astype(np.float32), total]

    arrays = [f32(2, 3, 3, 4), f32(4), f32(4), f32(2, 4), f32(4)]
    agree(Case("SkipGroupNorm", arrays, attrs, (), (True, True)), reference=reference)


def test_what_onnx_runtime_writes_into_the_standard_s_domain_is_known_without_its_own() -> None:
    """A model may begin with it, before anything of its domain is asked for."""
    code = (
        "from tilewright.frontends.onnx.registry import find_adapter; import tilewright.frontends.onnx.importer; "
        "assert find_adapter('', 'SimplifiedLayerNormalization', 21) is not None"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
