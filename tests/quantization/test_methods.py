"""Each method against its definition, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.quantization.networks import image_network
from tilewright.quantization.methods import bias, rounding, smooth
from tilewright.quantization.methods.equalise import equalised, factors
from tilewright.quantization.methods.histogram import Histogram, Observer
from tilewright.quantization.methods.integers import (
    TYPES,
    affine,
    check_parameters,
    quantized,
    rounded,
    symmetric,
)
from tilewright.quantization.methods.ranges import METHODS, channel_parameters, percentile, tensor_parameters
from tilewright.quantization.network import Network, read_graph
from tilewright.runtime.errors import InputError


def test_affine_numbers_are_those_of_the_standard() -> None:
    x = np.random.default_rng(0).uniform(-3, 5, 1000).astype(np.float32)
    p = affine(-2.0, 4.0, TYPES["uint8"])
    wanted = np.clip(np.round(x.astype(np.float32) / p.scale) + int(p.zero_point), 0, 255)
    assert np.array_equal(quantized(x, p), wanted)
    inside = (x > -2) & (x < 4)
    assert np.abs(rounded(x, p) - x)[inside].max() <= 0.51 * float(p.scale)
    assert rounded(np.zeros(1, np.float32), p)[0] == 0


def test_symmetric_parameters_of_channels() -> None:
    w = (
        np.random.default_rng(1).standard_normal((6, 40)).astype(np.float32)
        * np.geomspace(0.01, 10, 6)[:, None]
    )
    w = w.astype(np.float32)
    p = channel_parameters(w, 0, TYPES["uint8"], "min-max")
    assert np.allclose(p.scale, np.abs(w).max(axis=1) / 127) and (p.zero_point == 128).all()
    assert np.abs(rounded(w, p, 0) - w).max(axis=1) == pytest.approx(p.scale / 2, rel=0.2)
    assert symmetric(np.zeros(2), TYPES["int8"]).scale.tolist() == [1, 1]


def filled(x: np.ndarray, parts: int = 7) -> Histogram:
    histogram = Histogram()
    for part in np.array_split(x, parts):
        histogram.add(part)
    return histogram


def test_a_histogram_that_is_filled_in_parts_counts_all() -> None:
    x = (np.random.default_rng(2).standard_normal(20000) * np.geomspace(0.1, 50, 20000)).astype(np.float32)
    h = filled(x)
    assert h.counts.sum() == x.size and (h.low, h.high) == (x.min(), x.max())
    counts, _ = np.histogram(x, bins=h.counts.size, range=(-h.extent, h.extent))
    assert (
        np.abs(np.cumsum(counts) - np.cumsum(h.counts)).max() <= 40
    )  # bins are merged, elements are not moved


def test_min_max_and_percentile() -> None:
    x = np.append(np.random.default_rng(3).standard_normal(100_000), [40.0, -30.0]).astype(np.float32)
    h = filled(x)
    assert METHODS["min-max"](h, TYPES["uint8"]) == (x.min(), x.max())
    low, high = percentile(h, TYPES["uint8"], 0.999)
    width = 2 * h.extent / h.counts.size
    assert low == pytest.approx(np.quantile(x, 0.0005), abs=2 * width)
    assert high == pytest.approx(np.quantile(x, 0.9995), abs=2 * width)


def test_the_range_of_least_squares_is_the_best_of_a_grid() -> None:
    x = np.random.default_rng(4).laplace(size=50_000).astype(np.float32)
    p = tensor_parameters(filled(x), TYPES["uint4"], "mse")
    error = np.square(rounded(x, p) - x.astype(np.float64)).mean()
    grid = [
        np.square(rounded(x, affine(x.min() * a, x.max() * b, TYPES["uint4"])) - x.astype(np.float64)).mean()
        for a in np.linspace(0.2, 1, 17)
        for b in np.linspace(0.2, 1, 17)
    ]
    assert error <= 1.02 * min(grid)


def test_entropy_leaves_outliers_out() -> None:
    x = np.append(np.random.default_rng(5).standard_normal(200_000), [200.0]).astype(np.float32)
    low, high = METHODS["entropy"](filled(x), TYPES["uint8"])
    assert high < 150 and low > -150


def test_observers_restore() -> None:
    observer = Observer(1)
    x = np.random.default_rng(6).standard_normal((4, 3, 5, 5)).astype(np.float32)
    observer.add(x[:2])
    again = Observer.restored(observer.record())
    again.add(x[2:])
    assert again.channels is not None
    assert np.allclose(again.channels.extent, np.abs(x).max(axis=(0, 2, 3)))
    assert np.allclose(again.channels.mean, x.astype(np.float64).mean(axis=(0, 2, 3)))


def test_smoothing_makes_both_sides_alike() -> None:
    x, w = np.array([100.0, 1.0, 0.0]), np.array([1.0, 1.0, 2.0])
    s = smooth.factors(x, w, 0.5)
    assert np.allclose(x[:2] / s[:2], w[:2] * s[:2]) and s[2] == 1


def test_equalised_networks_compute_the_same() -> None:
    import tilewright

    network = Network.of(read_graph(image_network()))
    other, pairs = equalised(network)
    assert [(p.first.node, p.second.node) for p in pairs] == [("conv0", "conv1"), ("conv1", "gemm")][
        : len(pairs)
    ]
    x = np.random.default_rng(7).standard_normal((2, 3, 12, 12)).astype(np.float32)
    before, after = (tilewright.compile(n.module, threads=1, cache=False)(x)[0] for n in (network, other))
    assert np.allclose(before, after, rtol=1e-4, atol=1e-4)
    a, b = np.abs(other.array("k0")).max(axis=(1, 2, 3)), np.abs(other.array("k1")).max(axis=(0, 2, 3))
    assert np.allclose(a, b, rtol=1e-3)
    assert np.allclose(factors(np.array([4.0]), np.array([1.0])), 2)


def test_bias_correction_is_the_mean_error() -> None:
    network = Network.of(read_graph(image_network()))
    gemm = network.units[2].layers[0]
    rng = np.random.default_rng(8)
    x = rng.standard_normal((1000, 16)) + 1
    w = gemm.matrix(network.array(gemm.weight))
    short = np.round(w * 4) / 4
    found = bias.correction(x, w, x, short)
    assert np.allclose(found, (x @ (w - short).astype(np.float64)).mean(axis=0), atol=1e-5)


def test_reconstruction_loses_less_than_rounding() -> None:
    rng = np.random.default_rng(9)
    x = rng.standard_normal((4000, 48)) @ rng.standard_normal((48, 48))
    square = x.T @ x / len(x)
    w = rng.standard_normal((48, 12)).astype(np.float32)
    p = channel_parameters(w, 1, TYPES["int4"], "min-max")
    plain = rounding.nearest(w, p.scale, p.zero_point, p.type)
    better = rounding.reconstructed(w, rounding.Corrections.of(square), p.scale, p.zero_point, p.type)
    assert better.min() >= -8 and better.max() <= 7
    errors = [np.square(x @ (w - q * p.scale)).sum(axis=1).mean() for q in (plain, better)]
    assert errors[1] < 0.6 * errors[0]


def test_windows_are_what_filters_meet() -> None:
    network = Network.of(read_graph(image_network()))
    layer = network.units[1].layers[0]
    x = np.random.default_rng(10).standard_normal((2, 8, 7, 7)).astype(np.float32)
    k = network.array("k1")
    assert layer.windows is not None
    rows = layer.windows.rows(x, 1000, {}) @ k.reshape(16, -1).T
    wanted = np.array(
        [
            [(x[n, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] * k[o]).sum() for o in range(16)]
            for n in range(2)
            for i in range(3)
            for j in range(3)
        ]
    )
    assert np.allclose(rows, wanted, atol=1e-3)


@pytest.mark.parametrize(
    ("scale", "zero", "channels", "said"),
    [
        (0.0, 0, None, "the scale is zero"),
        (np.nan, 0, None, "the scale is NaN"),
        (np.inf, 0, None, "infinite"),
        (-1.0, 0, None, "negative"),
        (1e-42, 0, None, "denormal"),
        ([1.0, 2.0], [0, 0], 3, "2 scales for 3 channels"),
        ([1.0, 0.0], [0, 0], 2, "of channel 1 is zero"),
        (1.0, 300, None, "zero point 300 is out of the range of uint8"),
        ([1.0, 2.0], [0], 2, "zero points of shape"),
    ],
)
def test_parameters_that_no_integer_can_be_read_by(
    scale: object, zero: object, channels: int | None, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        check_parameters(np.asarray(scale, np.float32), np.asarray(zero), TYPES["uint8"], channels=channels)
