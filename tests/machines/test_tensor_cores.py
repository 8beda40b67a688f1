"""Products of float32 and convolutions of bytes on tensor cores, whose fragments are loaded along the depth alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright
from tests.machines.fake_cuda import FakeCuda
from tests.machines.test_cuda import TARGET, driver, fake
from tests.machines.test_webgpu import model
from tilewright import Session
from tilewright.options import Options
from tilewright.stages import programs
from tilewright.target.gpu.cuda import CUDA
from tilewright.target.named import find_machine

__all__ = ["driver", "fake"]

TF32 = f"{TARGET},tf32"
BYTES = """g (int8[2,32,9,8] x) => (int32[2,16,{r},{c}] y) {{
  p = Constant<value=int8[3]{{1,-2,127}}>() e = Constant<value=int64[1]{{{n}}}>() t = Tile(p, e)
  s = Constant<value=int64[4]{{16,32,{k},{k}}}>() w = Reshape(t, s)
  y = ConvInteger<pads=[{pad},{pad},{pad},{pad}],strides=[{st},{st}]>(x, w)
}}"""
QUANTISED = """g (uint8[1,32,6,8] x) => (uint8[1,16,6,8] y) {
  p = Constant<value=int8[3]{1,-2,127}>() e = Constant<value=int64[1]{1536}>() t = Tile(p, e)
  s = Constant<value=int64[4]{16,32,3,3}>() w = Reshape(t, s)
  a = Constant<value=float{0.02}>() b = Constant<value=float{0.01}>() c = Constant<value=float{3.0}>()
  u = Constant<value=uint8{7}>() z = Constant<value=int8{0}>() v = Constant<value=uint8{100}>()
  y = QLinearConv<pads=[1,1,1,1]>(x, a, u, w, b, z, c, v)
}"""


def compiled(text: str, target: str, fake: FakeCuda, folder: Path) -> tuple[tilewright.Model, str]:
    session, options = Session(folder=folder), Options(target=target)
    fake.kernels(programs(model(text), "llvm", options=options, session=session))
    ptx = "".join(programs(model(text), "asm", options=options, session=session).values())
    return tilewright.compile(model(text), target=target, session=session), ptx


def rounded(x: np.ndarray) -> np.ndarray:
    """To 10 bits behind the point, of two numbers as far away to the one away from 0."""
    return ((x.view(np.uint32) + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("m", "k", "n", "turned"), [("32", 24, 40, 0), ("r", 16, 16, 1), ("37", 8, 53, 0)])
def test_products_of_float32_are_rounded_to_tf32_where_the_target_says_so(
    m: str, k: int, n: int, turned: int, fake: FakeCuda, tmp_path: Path
) -> None:
    """Sums are those of float32, in any order."""
    shape = (n, k) if turned else (k, n)
    product = "t = Transpose<perm=[1,0]>(b) p = MatMul(a, t)" if turned else "p = MatMul(a, b)"
    text = f"g (float[{m},{k}] a, float[{shape[0]},{shape[1]}] b) => (float[{m},{n}] y) {{ {product} y = Neg(p) }}"
    ours, ptx = compiled(text, TF32, fake, tmp_path)
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in ptx and "cvt.rna.tf32" in ptx
    assert ".local" not in ptx
    rows = int(m) if m.isdigit() else 33
    rng = np.random.default_rng(rows)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((rows, k), shape))
    right = b.T if turned else b
    exact = -(rounded(a).astype(np.float64) @ rounded(right).astype(np.float64))
    bound = k * 2.0**-23 * (np.abs(a).astype(np.float64) @ np.abs(right)) * (1 + 2.0**-9)
    assert (np.abs(ours(a, b)[0] - exact) <= bound).all()
    assert fake.fault == ""


def test_float32_is_not_rounded_by_default(tmp_path: Path) -> None:
    text = "g (float[32,32] a, float[32,32] b) => (float[32,32] y) { y = MatMul(a, b) }"
    ptx = programs(model(text), "asm", options=Options(target=TARGET), session=Session(folder=tmp_path))
    assert "mma.sync" not in "".join(ptx.values())
    assert find_machine(TF32, tuple) == CUDA["sm_90"].with_tf32
    with pytest.raises(tilewright.TilewrightError, match="unknown architecture 'sm_7'"):
        find_machine("cuda,sm_7,tf32", tuple)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 1)])
def test_convolutions_of_bytes_are_products_of_tensor_cores(
    kernel: int, stride: int, fake: FakeCuda, tmp_path: Path
) -> None:
    pad = kernel // 2
    rows, columns = ((n + 2 * pad - kernel) // stride + 1 for n in (9, 8))
    count = 16 * 32 * kernel * kernel // 3 + 1
    assert 3 * count >= 16 * 32 * kernel * kernel
    text = BYTES.format(r=rows, c=columns, n=count, k=kernel, pad=pad, st=stride)
    if 3 * count != 16 * 32 * kernel * kernel:
        text = text.replace("w = Reshape(t, s)", "a = Constant<value=int64[1]{0}>() "
                            f"z = Constant<value=int64[1]{{{16 * 32 * kernel * kernel}}}>() "
                            "q = Slice(t, a, z) w = Reshape(q, s)")  # fmt: skip
    ours, ptx = compiled(text, TARGET, fake, tmp_path)
    assert "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32" in ptx and ".local" not in ptx
    x = np.random.default_rng(kernel).integers(-128, 128, (2, 32, 9, 8)).astype(np.int8)
    (expected,) = tilewright.compile(model(text), session=Session(folder=tmp_path))(x)
    np.testing.assert_array_equal(ours(x)[0], expected)
    assert fake.fault == ""


@pytest.mark.sweep(1)
def test_quantised_convolutions_are_the_same_as_on_the_cpu(fake: FakeCuda, tmp_path: Path) -> None:
    """With zero points, which are added apart."""
    ours, ptx = compiled(QUANTISED, TARGET, fake, tmp_path)
    assert "mma.sync" in ptx
    x = np.random.default_rng(1).integers(0, 256, (1, 32, 6, 8)).astype(np.uint8)
    (expected,) = tilewright.compile(model(QUANTISED), session=Session(folder=tmp_path))(x)
    assert np.abs(ours(x)[0].astype(int) - expected.astype(int)).max() <= 1
    assert len(np.unique(expected)) > 20
