"""Parts of a model that hand values on in the memory of a device: only what both sides need crosses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright
from tests.machines.test_cuda import TARGET, FakeCuda, driver, fake  # noqa: F401
from tests.machines.test_devices import CUT
from tests.machines.test_webgpu import gpu, model  # noqa: F401
from tilewright import Session
from tilewright.codegen.ptx.program import ptx_of
from tilewright.target.gpu.cuda import Cuda

SIZE = 16
BYTES = SIZE * SIZE * 4
"""Of a matrix: a multiple of 256, so that no copy has bytes between tensors."""
SENT, BACK, WITHIN = "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemcpyDtoDAsync_v2"
M = f"float[{SIZE},{SIZE}]"
LOOP = f"""g ({M} x, {M} w, int64 trips) => ({M} y) {{
    h = Exp(x)
    l = Loop(trips, , h) <body = trip (int64 i, bool go, {M} a) => (bool on, {M} c) {{
        on = Identity(go) b = MatMul(a, w) c = Tanh(b)
    }}>
    y = Relu(l)
}}"""
ROWS = f"""g ({M} x, {M} w, int64 trips) => ({M} y, {M} z, float[n,{SIZE},{SIZE}] rows) {{
    h = Exp(x)
    l, k, rows = Loop(trips, , h, x) <body = trip (int64 i, bool go, {M} a, {M} k) =>
        (bool on, {M} c, {M} k2, {M} row) {{
        on = Identity(go) b = MatMul(a, w) c = Tanh(b) k2 = Identity(k) row = Sub(c, k)
    }}>
    y = Relu(l)
    z = Add(h, k)
}}"""
WHILE = f"""g ({M} x) => ({M} y) {{
    yes = Constant<value = bool {{1}}>() zero = Constant<value = float {{0}}>() most = Constant<value = float {{3}}>()
    y = Loop(, yes, x) <body = trip (int64 i, bool go, {M} a) => (bool on, {M} b) {{
        b = Add(a, a) s = ReduceMax<keepdims=0>(b) on = Less(s, most)
    }}>
}}"""
BRANCH = f"""g ({M} x, {M} w, bool c) => ({M} y) {{ h = Exp(x)
    b = If(c) <then_branch = t () => ({M} a) {{ a = MatMul(h, w) }}, else_branch = e () => ({M} b) {{ b = Sub(h, w) }}>
    y = Tanh(b)
}}"""
NEITHER = f"""g ({M} x, bool c) => ({M} y, {M} z) {{ h = Exp(x)
    y = If(c) <then_branch = t () => ({M} a) {{ a = Identity(h) }}, else_branch = e () => ({M} b) {{ b = Neg(h) }}>
    z = Add(h, y)
}}"""
RNG = np.random.default_rng(4)
X, W = (RNG.standard_normal((SIZE, SIZE)).astype(np.float32) / 4 for _ in range(2))
CASES = {
    "loop": (LOOP, [(X, W, np.array(n)) for n in (3, 0, 1, 5)]),
    "rows": (ROWS, [(X, W, np.array(n)) for n in (3, 0, 1, 5)]),
    "while": (WHILE, [(X,), (np.abs(X) + 1,), (X,)]),
    "branch": (BRANCH, [(X, W, np.array(c)) for c in (True, False, True)]),
    "neither": (NEITHER, [(X, np.array(c)) for c in (True, False, True)]),
    "sizes": (CUT["sizes from data"], [(X[:n, :6].copy(),) for n in (3, 1, 4)]),
}


def on_cuda(text: str, fake: FakeCuda, folder: Path) -> tilewright.Model:  # noqa: F811
    """Kernels of parts are those that the compilation makes."""
    made: dict[str, str] = {}

    def noted(ir: str, machine: Cuda) -> str:
        made[f"k{len(made)}"] = ir
        return ptx_of(ir, machine)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilewright.codegen.ptx.program.ptx_of", noted)
        ours = tilewright.compile(
            model(text), target=TARGET, placement="device", session=Session(folder=folder), cache=False
        )
    fake.kernels(made)
    return ours


def check(ours: tilewright.Model, name: str, folder: Path) -> None:
    text, calls = CASES[name]
    host = tilewright.compile(model(text), session=Session(folder=folder))
    for given in calls:
        for found, expected in zip(ours(*given), host(*given), strict=True):
            assert found.dtype == expected.dtype and found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_parts_give_what_the_cpu_does(name: str, fake: FakeCuda, tmp_path: Path) -> None:  # noqa: F811
    check(on_cuda(CASES[name][0], fake, tmp_path), name, tmp_path)
    assert fake.fault == ""


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", CASES)
def test_so_they_do_on_webgpu(name: str, gpu: None, tmp_path: Path) -> None:  # noqa: F811
    session = Session(folder=tmp_path)
    ours = tilewright.compile(model(CASES[name][0]), target="webgpu", placement="device", session=session)
    check(ours, name, tmp_path)


def test_trips_of_a_loop_copy_nothing_through_the_host(fake: FakeCuda, tmp_path: Path) -> None:  # noqa: F811
    """Each trip and each part tell of errors, by 4 bytes."""
    ours = on_cuda(LOOP, fake, tmp_path)
    ours(X, W, np.array(2))
    before = [fake.bytes(name) for name in (SENT, BACK, WITHIN)]
    ours(X, W, np.array(6))
    sent, back, within = (fake.bytes(name) - n for name, n in zip((SENT, BACK, WITHIN), before, strict=True))
    assert sent == 2 * BYTES  # x, and w once
    assert back == BYTES + 1 + 4 * (1 + 6 + 1)  # one byte is the condition of the first trip
    assert within == 7 * BYTES
    assert fake.count("cuMemcpyHtoDAsync_v2") == fake.count("cuMemcpyDtoHAsync_v2") == 0


def test_a_branch_takes_what_is_on_the_device(fake: FakeCuda, tmp_path: Path) -> None:  # noqa: F811
    ours = on_cuda(BRANCH, fake, tmp_path)
    ours(X, W, np.array(True))
    before = [fake.bytes(name) for name in (SENT, BACK, WITHIN)]
    ours(X, W, np.array(True))
    sent, back, within = (fake.bytes(name) - n for name, n in zip((SENT, BACK, WITHIN), before, strict=True))
    assert (sent, back, within) == (2 * BYTES, BYTES + 3 * 4, 2 * BYTES)


def test_a_device_that_fails_between_parts_ends_the_call_alone(fake: FakeCuda, tmp_path: Path) -> None:  # noqa: F811
    ours = on_cuda(LOOP, fake, tmp_path)
    (expected,) = ours(X, W, np.array(3))
    for name in ("cuMemcpyDtoDAsync_v2", "cuMemcpyDtoH_v2", "cuLaunchKernel", "cuStreamSynchronize"):
        fake.fail(name, 700)
        with pytest.raises(tilewright.DeviceError, match=name):
            for _ in range(3):
                ours(X, W, np.array(3))
        np.testing.assert_array_equal(ours(X, W, np.array(3))[0], expected)
    assert fake.fault == ""
