"""What profiles say of times: rooflines, scaling laws, modules, traces, and what the hardware counts."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.profiling.counters import _why, count_events
from tilewright.profiling.records import (
    KernelProfile,
    LayerProfile,
    MachineRates,
    ModelProfile,
    PeakRate,
    ReadRate,
    ScalingPoint,
)
from tilewright.profiling.run import batch_dim, grown_inputs, layer_profiles
from tilewright.profiling.scaling import most_speedup, scaled_speedups, serial_share, speedup
from tilewright.profiling.trace import trace_events
from tilewright.profiling.work import CallWork, amount, bound
from tilewright.runtime import TensorInfo
from tilewright.runtime.errors import InputError
from tilewright.runtime.report.paths import module_path
from tilewright.runtime.report.records import ProductForm

MACHINE = MachineRates(
    {"cpu": "a machine of round numbers"},
    4,
    (PeakRate("f32", "", 100, 400), PeakRate("f64", "", 50, 200), PeakRate("u8", "vpdpbusd", 400, 1600)),
    (ReadRate("L1", 32_000, 200, 800), ReadRate("L2", 1_000_000, 100, 400), ReadRate("DRAM", None, 10, 20)),
    "2026-01-01T00:00:00+00:00",
)
FLOATS, BYTES = ProductForm("f32", "f32", "f32", "fused multiply-adds"), ProductForm("u8", "i8", "i32", "vpdpbusd")


@pytest.mark.parametrize(
    ("work", "threads", "seconds", "by"),
    [
        (CallWork(2_000_000, {FLOATS: 1_000_000}, 0, 1000), 1, 20e-6, "f32"),  # 2 MFLOP at 100 GFLOP/s
        (CallWork(2_000_000, {FLOATS: 1_000_000}, 0, 1000), 4, 5e-6, "f32"),
        (CallWork(2_000_000, {FLOATS: 1_000_000}, 0, 1000), 2, 10e-6, "f32"),  # a third of the way to four threads: 200
        (CallWork(0, {BYTES: 1_000_000}, 0, 1000), 1, 5e-6, "u8"),  # 2 MOP at 400
        (CallWork(100_000, {BYTES: 100_000}, 0, 1000), 1, 1e-6 + 0.5e-6, "f32"),
        (CallWork(1000, {}, 0, 900_000), 1, 9e-6, "L2"),  # 0.9 MB at 100 GB/s
        (CallWork(1000, {}, 0, 60_000), 4, 0.075e-6, "L1"),  # four threads have four times the L1
        (CallWork(1000, {}, 5_000_000, 900_000), 1, 509e-6, "DRAM"),  # constants come from memory
    ],
)
def test_the_bound_of_a_kernel_by_hand(work: CallWork, threads: int, seconds: float, by: str) -> None:
    found = bound(work, MACHINE, threads, work.constant_bytes or 0)
    assert found is not None and found.by == by
    assert found.seconds == pytest.approx(seconds)


def test_amounts_that_depend_on_sizes() -> None:
    assert amount("24960", {}) == 24960
    assert amount("4*batch*(seq + 1)", {"batch": 2, "seq": 7}) == 64
    assert [amount(None, {}), amount("4*batch", {}), amount("not an expression (", {})] == [None] * 3
    assert bound(CallWork(None, {}, 0, 0), MACHINE, 1, 0) is None


def test_amdahls_law_is_fitted_to_times() -> None:
    """Times that follow the law give its share; a share of nothing has no limit."""
    points = [ScalingPoint(n, 80 * (0.25 + 0.75 / n)) for n in (1, 2, 4, 8)]
    assert serial_share(points) == pytest.approx(0.25) and most_speedup(0.25) == 4
    assert speedup(0.25, 3) == pytest.approx(2)
    assert serial_share([ScalingPoint(n, 80 / n) for n in (1, 2)]) == 0 and most_speedup(0) is None
    assert serial_share([ScalingPoint(1, 80), ScalingPoint(2, 200)]) == 1.0  # slower with two
    assert serial_share([ScalingPoint(1, 80)]) == 1.0


def test_gustafsons_speed_ups() -> None:
    growing = [ScalingPoint(1, 10.0, 3), ScalingPoint(2, 12.5, 6)]
    assert scaled_speedups(growing) == (1.0, 1.6)


def test_inputs_grow_along_the_symbolic_dim() -> None:
    shapes = {"x": ("batch", 3), "m": (3, "batch"), "k": ()}
    infos = [TensorInfo(name, "float32", shape) for name, shape in shapes.items()]
    feed = {"x": np.ones((2, 3), np.float32), "m": np.zeros((3, 2), np.int64), "k": np.array(7)}
    found = grown_inputs(infos, feed, batch_dim(infos, None), 3)
    assert [np.shape(found[name]) for name in ("x", "m", "k")] == [(6, 3), (3, 6), ()]
    with pytest.raises(InputError, match="symbolic dims: batch"):
        batch_dim(infos, "bach")
    assert batch_dim(infos[2:], None) == ""


@pytest.mark.parametrize(
    ("node", "path"),
    [
        ("/layer1/layer1.0/conv1/Conv", "layer1.0/conv1"),
        ("/encoder/layer.3/output/dense/MatMul", "encoder/layer.3/output/dense"),
        ("features.0/conv2d", "features.0"),
        ("Conv_7", ""),
        ("", ""),
        ("//a//b/", "a"),
        ("/layer1/layer10/conv", "layer1/layer10"),
    ],
)
def test_modules_are_read_from_the_names_of_nodes(node: str, path: str) -> None:
    assert module_path(node) == path


def kernel(path: str, ms: float, **fields: object) -> KernelProfile:
    known = {"flops": 10, "bytes": 20, "bound_ms": ms / 2}
    return replace(KernelProfile("k0", (f"{path}/Conv",), path, 1, ms, ms, 0.25), **{**known, **fields})  # type: ignore[arg-type]


def profiled() -> ModelProfile:
    kernels = (kernel("a", 1.0), kernel("a", 2.0, busy_ms=(2.0, 1.0)), kernel("b", 1.0, flops=None, bound_ms=None))
    layers = layer_profiles(kernels)
    return ModelProfile("m.onnx", 2, {"batch": 3}, "", 20, 4.1, 4.0, 4.0, kernels, layers, MACHINE)


def test_layers_sum_up_their_kernels() -> None:
    first, second = profiled().layers
    assert (first.path, first.kernels, first.median_ms, first.flops, first.percent) == ("a", (0, 1), 3.0, 20, 50.0)
    assert (second.kernels, second.flops, second.percent) == ((2,), None, None)
    assert isinstance(first, LayerProfile)


def test_profiles_are_read_from_their_json() -> None:
    found = profiled()
    assert ModelProfile.from_json(found.to_json()) == found
    for text in ("", "[]", "{}", found.to_json().replace('"threads":2', '"threads":"2"', 1)):
        with pytest.raises(InputError, match="this is no profile"):
            ModelProfile.from_json(text)


def test_a_trace_has_kernels_one_after_the_other_within_their_modules() -> None:
    events = json.loads(json.dumps(trace_events(profiled())))["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    kernels = [(e["ts"], e["dur"]) for e in spans if e["tid"] == 2]
    assert kernels == [(0, 1000), (1000, 2000), (3000, 1000)]
    assert [(e["name"], e["ts"], e["dur"]) for e in spans if e["tid"] == 1] == [("a", 0, 3000), ("b", 3000, 1000)]
    assert [(e["tid"], e["ts"], e["dur"]) for e in spans if e["tid"] >= 10] == [(10, 1000, 2000), (11, 1000, 1000)]


@pytest.mark.parametrize(
    ("number", "level", "said"),
    [
        (errno.EACCES, "4\n", "perf_event_paranoid is 4 (2 or less allows it"),
        (errno.EPERM, "2\n", "a container or sandbox forbids"),
        (errno.EPERM, None, "perf_event_paranoid is not known"),
        (errno.ENOENT, "2\n", "has no such counters"),
        (errno.ENOSYS, "2\n", "no perf_event_open"),
    ],
)
def test_why_events_are_not_counted(
    number: int, level: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "paranoid"
    if level is not None:
        file.write_text(level)
    monkeypatch.setattr("tilewright.profiling.counters._PARANOID", file)
    assert said in _why({"cycles": number}) and "No such file" not in _why({"cycles": number})


def test_events_are_counted_or_the_reason_is_told() -> None:
    found, note = count_events(lambda: sum(range(1000)), 2)
    assert found or note
    assert all(count >= 0 for count in found.values()) and (not note or "\n" not in note)
