"""Times of single kernels: what they are counted from, and of which models."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

import tilewright
from tests import models
from tilewright.runtime import profile
from tilewright.runtime.profile import KernelCounts, measured_spans

X86 = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="the cycle counter is x86-64's"
)


class Machine:
    """A clock, and a counter of 1e9 counts a second, which go on by what is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 5.0
        monkeypatch.setattr(profile.time, "perf_counter", lambda: self.now)

    def count(self) -> int:
        return int(self.now * 1e9)


@pytest.mark.parametrize("stalls", [set(), {0}, {3, 8}], ids=str)
def test_seconds_come_from_counts_and_the_clock(stalls: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the thread loses its core between the clock and the counter, in the first run or the last one."""
    machine = Machine(monkeypatch)
    monkeypatch.setattr(profile, "LEAST_S", 0.008)
    spans = [(100_000, 300_000), (100_000, 500_000), (100_000, 310_000)]
    calls = 0

    def code(call: int, address: int) -> int:
        nonlocal calls
        assert call == 7
        counts = (ctypes.c_uint64 * 8).from_address(address)
        first, second = spans[calls % 3]
        machine.now += 2e-3 if calls - 1 in stalls else 1e-7
        begin = machine.count()
        assert counts[3] == 2 and not any(counts[4:])
        counts[:3] = [begin, begin + first, begin + first + second]
        counts[4:6] = [60_000, 40_000]
        calls += 1
        machine.now += 1e-3
        return 0

    counts = KernelCounts(2, code, threads=2)
    first, second = measured_spans(lambda: counts.run(7), [counts], 9)
    assert calls == 10
    np.testing.assert_allclose([first.median, second.median], [100e-6, 310e-6], rtol=1e-3)
    np.testing.assert_allclose([first.least, second.least], [100e-6, 300e-6], rtol=1e-3)
    np.testing.assert_allclose(first.busy, [60e-6, 40e-6], rtol=1e-3)
    assert second.busy == ()


def test_kernels_come_to_a_median_call_where_each_meets_another_disturbance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three kernels of 100 us, of which one takes 400 in each call: their medians know nothing of it. What is called
    between the runs is called before each of them."""
    machine = Machine(monkeypatch)
    counted: list[int] = []
    between: list[int] = []

    def code(call: int, address: int) -> int:
        counts = (ctypes.c_uint64 * 8).from_address(address)
        spans = [400_000 if k == len(counted) % 3 else 100_000 for k in range(3)]
        begin = machine.count()
        counts[:4] = [begin + sum(spans[:k]) for k in range(4)]
        counted.append(call)
        machine.now += 1e-3
        return 0

    counts = KernelCounts(3, code)
    spans = measured_spans(lambda: counts.run(7), [counts], 30, lambda: between.append(len(counted)))
    assert sum(s.median for s in spans) == pytest.approx(300e-6, rel=1e-3)
    assert sum(s.typical for s in spans) == pytest.approx(600e-6, rel=0.02)
    assert between == [*range(1, len(counted))] and len(counted) > 30


@X86
def test_a_profiled_model_names_each_call_and_what_it_computes(tmp_path: Path) -> None:
    path = models.written(models.mlp(), tmp_path, "mlp")
    model = tilewright.compile(path, threads=1, cache=False, profile=True)
    x = np.ones((4, models.FEATURES), np.float32)
    times = model.profile({"x": x}, runs=3)
    calls = model.report().calls
    assert [t.node for t in times] == [c.node for c in calls] == ["dense", "probabilities"]
    assert all(0 < t.seconds < 1 for t in times)
    weights = models.FEATURES * models.CLASSES * 4 + models.CLASSES * 4
    assert calls[0].constant_bytes == str(weights)
    np.testing.assert_allclose(model(x)[0], models.mlp_expected(x), rtol=1e-5)


@X86
def test_flops_of_a_matrix_product(tmp_path: Path) -> None:
    path = models.written(models.mlp(), tmp_path, "mlp")
    shapes = {"x": [6, models.FEATURES]}
    model = tilewright.compile(path, threads=1, cache=False, profile=True, shapes=shapes)
    calls = model.report().calls
    elements = 6 * models.CLASSES
    # a product and a sum for each step, then the bias and the activation
    assert elements * 2 * models.FEATURES <= int(calls[0].flops) <= elements * (2 * models.FEATURES + 3)


def test_other_models_say_how_to_get_times(tmp_path: Path) -> None:
    model = tilewright.compile(models.written(models.mlp(), tmp_path, "mlp"), threads=1, cache=False)
    with pytest.raises(tilewright.TilewrightError, match="profile=True"):
        model.profile({"x": np.ones((1, models.FEATURES), np.float32)})


LOOP = """g (float[n] x, int64 trips) => (float[n] y, float[k] z) {
    y = Loop (trips, , x) <body = trip (int64 i, bool go, float[n] a) => (bool on, float[n] b) {
        on = Identity (go)
        b = Tanh (a)
    }>
    zero = Constant <value_float = 0.0> ()
    above = Greater (y, zero)
    z = Compress (y, above)
}"""


@X86
def test_kernels_of_a_staged_model_are_summed_up_over_trips() -> None:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{LOOP}').SerializeToString()
    compiled = tilewright.compile(model, threads=1, cache=False, profile=True)
    x = np.ones(500, np.float32)
    times = compiled.profile({"x": x, "trips": np.array(50)}, runs=3)
    calls = compiled.report().calls
    assert [(t.kernel, t.node) for t in times] == [(c.kernel, c.node) for c in calls]
    assert {t.count for t in times} == {1, 50} and all(t.seconds > 0 for t in times)
    assert {t.count for t in compiled.profile({"x": x, "trips": np.array(0)}, runs=3)} == {0, 1}
    assert compiled(x, np.array(2))[1].shape == (500,)
    with pytest.raises(tilewright.TilewrightError, match="profile=True"):
        tilewright.compile(model, threads=1, cache=False).profile({"x": x, "trips": np.array(1)})
