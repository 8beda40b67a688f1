"""Products in tiles on GPUs where sizes are unknown, or no tile divides them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

import tilewright
from tests.loops.interleave import run_interleaved
from tests.machines.fake_cuda import FakeCuda
from tests.machines.networks import Network
from tests.machines.test_cuda import TARGET, driver, fake
from tests.machines.test_webgpu import gpu, model
from tilewright import Session
from tilewright.codegen.devices.phases import phases_of
from tilewright.ir.diag import VerifyError
from tilewright.ir.verify import verify_func
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.machine.rules import machine_spec
from tilewright.options import Options
from tilewright.stages import programs
from tilewright.target.gpu.cuda import CUDA
from tilewright.target.gpu.webgpu import WEBGPU

__all__ = ["driver", "fake", "gpu"]

ROWS = "g ({t}[b,n,48] x, {t}[48,40] w) => ({t}[b,n,40] y) {{ p = MatMul(x, w) y = Relu(p) }}"
BOTH = "g ({t}[b,n,48] x, {t}[48,m] w) => ({t}[b,n,m] y) {{ p = MatMul(x, w) y = Relu(p) }}"
KNOWN = "g ({t}[2,37,48] x, {t}[48,56] w) => ({t}[2,37,56] y) {{ p = MatMul(x, w) y = Relu(p) }}"
PRIME = "g ({t}[2,37,19] x, {t}[19,53] w) => ({t}[2,37,53] y) {{ p = MatMul(x, w) y = Relu(p) }}"
CASES = [
    *(("webgpu", "float", text) for text in (ROWS, BOTH, PRIME)),
    *((TARGET, "float", text) for text in (ROWS, BOTH, PRIME)),
    *((TARGET, "float16", text) for text in (ROWS, BOTH, KNOWN)),
]
NAMES = ["rows", "both", "prime"] * 2 + ["rows", "both", "known"]


def loops_of(text: str, target: str, folder: Path) -> str:
    (found,) = programs(model(text), "loops", options=Options(target=target), session=Session(folder=folder)).values()
    return found


def data(text: str, n: int) -> list[np.ndarray]:
    rng, depth = np.random.default_rng(n), 19 if "19" in text else 48
    rows = 37 if "37" in text else n
    columns = next((m for m in (40, 56, 53) if f"{m}]" in text), n + 3)
    dtype = np.float16 if "float16" in text else np.float32
    return [rng.standard_normal(s).astype(dtype) for s in ((2, rows, depth), (depth, columns))]


def check(found: np.ndarray, x: np.ndarray, w: np.ndarray) -> None:
    """Sums in float32, in any order, and one rounding."""
    wide = x.astype(np.float64), w.astype(np.float64)
    exact, sizes = np.maximum(wide[0] @ wide[1], 0), np.abs(wide[0]) @ np.abs(wide[1])
    rounding = np.finfo(found.dtype).eps * exact
    assert found.shape == exact.shape
    assert (np.abs(found - exact) <= x.shape[-1] * 2.0**-23 * sizes + rounding).all()


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("target", "dtype", "text"), CASES, ids=[f"{c[0]}-{c[1]}-{n}" for c, n in zip(CASES, NAMES, strict=True)]
)
def test_products_of_any_size_are_made_in_tiles(
    target: str, dtype: str, text: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    text, session = text.format(t=dtype), Session(folder=tmp_path)
    device = request.getfixturevalue("gpu" if target == "webgpu" else "fake")
    assert "shared" in loops_of(text, target, tmp_path)
    if isinstance(device, FakeCuda):
        device.kernels(programs(model(text), "llvm", options=Options(target=target), session=session))
        ptx = "".join(programs(model(text), "asm", options=Options(target=target), session=session).values())
        assert ".local" not in ptx and ("mma.sync" in ptx) == (dtype == "float16")
        assert ("cp.async" in ptx) == (dtype == "float16")
    ours = tilewright.compile(model(text), target=target, session=session)
    for n in (70, 17, 8, 3):
        given = data(text, n)
        check(ours(*given)[0], *given)
    assert not isinstance(device, FakeCuda) or device.fault == ""


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("rows", "n", "columns"), [("n", 33, 4), ("n", 9, 4), ("n", 3, 4), ("17", 17, 17)])
def test_threads_may_take_turns_in_any_order(rows: str, n: int, columns: int, tmp_path: Path) -> None:
    """Also where the last tile begins early, and where it has columns beyond the last."""
    text = f"g (float[{rows},2] x, float[2,{columns}] w) => (float[{rows},{columns}] y) {{ y = MatMul(x, w) }}"
    func, rng = parse_kernel(loops_of(text, "webgpu", tmp_path)), np.random.default_rng(n)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((n, 2), (2, columns)))
    y = np.full((n, columns), np.nan, np.float32)
    run_interleaved(func, [x, w, y], {dim.name: n for dim in func.dims}, random.Random(n))
    np.testing.assert_allclose(y, x @ w, rtol=1e-6, atol=4 * 2.0**-23 * float((np.abs(x) @ np.abs(w)).max()))


@pytest.mark.parametrize(("target", "machine"), [("webgpu", WEBGPU), (TARGET, CUDA["sm_90"])])
def test_each_barrier_is_needed(target: str, machine: object, tmp_path: Path) -> None:
    text, spec = loops_of(BOTH.format(t="float"), target, tmp_path), machine_spec(machine)  # type: ignore[arg-type]
    count = sum(op.name == "barrier" for op in parse_kernel(text).body.walk())
    assert count == 2
    for k in range(count):
        func = parse_kernel(text)
        barrier = [op for op in func.body.walk() if op.name == "barrier"][k]
        barrier.parent.ops.remove(barrier)
        with pytest.raises(VerifyError, match="may meet in"):
            verify_func(func, spec)


VERSIONS = """kernel @k(x: &f32[n], y: &f32[n]) dims(n) with {{outputs=1}} {{
  if n >= 4 {{ for i in 0..n parallel with {{level="group"}} {{ y[i] = x[i] }} }}
  if {other} {{ for j in 0..n parallel with {{level="layer"}} {{ y[n - 1 - j] = x[j] }} }}
  return
}}"""


def test_of_two_versions_of_a_kernel_one_runs() -> None:
    """So they may write the same, which they may not where both may run."""
    verify_func(parse_kernel(VERSIONS.format(other="n < 4")), machine_spec(WEBGPU))
    with pytest.raises(VerifyError, match="may meet in"):
        verify_func(parse_kernel(VERSIONS.format(other="n < 5")), machine_spec(WEBGPU))


def test_a_version_that_does_not_run_has_no_groups() -> None:
    func = parse_kernel(VERSIONS.format(other="n < 4"))
    phases, n = phases_of(func) or [], func.dims[0]
    groups = [phase.groups((n, n, n))[0] for phase in phases]
    assert [[g.evaluate({"n": k}) for g in groups] for k in (3, 4)] == [[0, 3], [4, 0]]


def test_tiles_are_smaller_where_windows_have_no_room(tmp_path: Path) -> None:
    """Of 28 rows of 16 channels in windows of 3 x 3, and the filters, 16,768 bytes would be in shared memory."""
    net = Network()
    y = net.node("Conv", "x", net.weight(64, 64, 3, 3), pads=[1] * 4)
    net.node("Relu", y, out=["y"])
    type = TensorProto.FLOAT, [1, 64, 28, 28]
    options = Options(target="webgpu")
    source = net.model("conv", {"x": type}, {"y": type})
    texts = programs(source, "loops", options=options, session=Session(folder=tmp_path))
    (conv,) = [loops for name, loops in texts.items() if "conv" in name]
    assert conv.count("shared f32[") == 3 and "shared f32[1, 1, 3, 16, 16]" in conv
