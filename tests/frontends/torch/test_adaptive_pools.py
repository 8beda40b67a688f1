"""Adaptive pooling of images whose sizes only a call tells, beside PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright

torch = pytest.importorskip("torch")
nn = torch.nn


@pytest.mark.parametrize(
    ("pool", "sizes"),
    [
        (nn.AdaptiveAvgPool1d(5), [(17,), (5,), (3,), (1,), (40,)]),
        (nn.AdaptiveAvgPool2d((3, 4)), [(17, 9), (3, 4), (2, 2), (16, 30)]),
        (nn.AdaptiveAvgPool3d((2, 3, 1)), [(5, 6, 7), (2, 3, 4)]),
        (nn.AdaptiveMaxPool1d(5, return_indices=True), [(17,), (5,), (3,), (40,)]),
        (nn.AdaptiveMaxPool2d((3, 4), return_indices=True), [(17, 9), (3, 4), (2, 2), (16, 30)]),
    ],
)
def test_any_size(pool: Any, sizes: list[tuple[int, ...]]) -> None:
    auto = dict.fromkeys(range(2, 2 + len(sizes[0])), torch.export.Dim.AUTO)
    example = (torch.randn(2, 3, *sizes[0]),)
    model = tilewright.compile(pool.eval(), example, dynamic_shapes=(auto,), cache=False, threads=1)
    for size in sizes:
        x = torch.randn(2, 3, *size)
        expected = pool(x) if isinstance(pool(x), tuple) else (pool(x),)
        for wanted, found in zip(expected, model(x.numpy()), strict=True):
            np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5, atol=1e-6)


def test_what_a_window_does_not_read_stays_out() -> None:
    pool = nn.AdaptiveAvgPool1d(3).eval()
    auto = ({2: torch.export.Dim.AUTO},)
    model = tilewright.compile(pool, (torch.randn(1, 1, 8),), dynamic_shapes=auto, cache=False, threads=1)
    x = torch.arange(7.0).reshape(1, 1, 7)
    x[0, 0, 0] = float("inf")
    np.testing.assert_array_equal(model(x.numpy())[0], pool(x).numpy())
