"""Interpolation has PyTorch's rules: which elements are read, by the given factor or by the ratio of the sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402

F = torch.nn.functional
DYNAMIC = torch.export.Dim.DYNAMIC
LEAST = 8
"""Smaller sizes are refused where PyTorch's program refuses them, for results of one element."""


class Interpolated(torch.nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Any) -> Any:
        return F.interpolate(x, **self.how) * 1


MODES: dict[str, dict[str, Any]] = {
    "nearest": {"mode": "nearest"},
    "exact": {"mode": "nearest-exact"},
    "linear": {"mode": "bilinear"},
    "corners": {"mode": "bilinear", "align_corners": True},
    "linear aa": {"mode": "bilinear", "antialias": True},
    "cubic": {"mode": "bicubic"},
    "cubic aa": {"mode": "bicubic", "antialias": True},
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("recompute", [None, True])
@pytest.mark.parametrize("factor", [1.2, 1 / 3, 0.7, 1.05, 2.0, 41 / 10])
@pytest.mark.parametrize("name", ["nearest", "exact", "linear", "cubic aa"])
def test_unknown_sizes(name: str, factor: float, recompute: bool | None) -> None:
    module = Interpolated(scale_factor=factor, recompute_scale_factor=recompute, **MODES[name]).eval()
    examples = (torch.randn(1, 2, 30, 26),)
    model = tilewright.compile(module, examples, dynamic_shapes=({2: DYNAMIC, 3: DYNAMIC},), cache=False, threads=1)
    rng = np.random.default_rng(0)
    for h, w in [(30, 26), (19, 20), *rng.integers(LEAST, 80, (12, 2)).tolist()]:
        compare(module, model, torch.randn(1, 2, h, w), name)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", MODES)
def test_static_sizes(name: str) -> None:
    for size, factor in (((7, 23), 1.2), ((5, 19), 1.05), ((13, 48), 19 / 48), ((10, 9), 7.0), ((4, 4), 3.0)):
        for dtype in (torch.float32, torch.float64):
            module = Interpolated(scale_factor=factor, **MODES[name]).eval()
            x = torch.randn(1, 2, *size, dtype=dtype)
            compare(module, tilewright.compile(module, (x,), cache=False, threads=1), x, name)


@pytest.mark.parametrize("name", ["nearest", "linear", "linear aa", "cubic aa"])
def test_bytes_are_rounded_after_each_axis(name: str) -> None:
    x = torch.randint(0, 256, (1, 3, 21, 34), dtype=torch.uint8)
    for factor in (1.7, 0.6):
        module = Interpolated(scale_factor=factor, **MODES[name]).eval()
        (found,) = tilewright.compile(module, (x,), cache=False, threads=1)(x)
        expected = module(x).numpy()
        assert found.shape == expected.shape and found.dtype == np.uint8
        difference = np.abs(found.astype(int) - expected.astype(int))
        # PyTorch's weights are 16-bit integers
        assert difference.max() <= (0 if name == "nearest" else 2) and (difference > 1).mean() < 0.01
        assert (difference > 0).mean() < 0.15


def compare(module: Any, model: Any, x: Any, name: str) -> None:
    expected = module(x).numpy()
    (found,) = model(x)
    assert found.shape == expected.shape
    tolerance = 0 if name in ("nearest", "exact") else 2e-4
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance, err_msg=str(tuple(x.shape)))
