"""Products whose depth no part divides, or is unknown: zeros are added at the end."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilewright
from tests.machines.test_cuda import TARGET, FakeCuda, driver, fake  # noqa: F401
from tests.machines.test_webgpu import gpu, model  # noqa: F401
from tilewright import Session
from tilewright.ir.diag import VerifyError
from tilewright.ir.verify import verify_func
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.machine.rules import machine_spec
from tilewright.options import Options
from tilewright.stages import programs
from tilewright.target.gpu.cuda import CUDA

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float": np.float32}
EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float": 2.0**-24, "tf32": 2.0**-11}


def product(dtype: str, rows: int, depth: object, columns: int) -> str:
    return (
        f"g ({dtype}[{rows},{depth}] l, {dtype}[{depth},{columns}] r) => ({dtype}[{rows},{columns}] y) "
        "{ p = MatMul(l, r) y = Relu(p) }"
    )


def loops_of(text: str, target: str, folder: Path) -> str:
    options = Options(target=target)
    return "".join(programs(model(text), "loops", options=options, session=Session(folder=folder)).values())


def on_cuda(text: str, target: str, fake: FakeCuda, folder: Path) -> tilewright.Model:  # noqa: F811
    session = Session(folder=folder)
    fake.kernels(programs(model(text), "llvm", options=Options(target=target), session=session))
    return tilewright.compile(model(text), target=target, session=session)


def check(ours: tilewright.Model, dtype: str, rows: int, depth: int, columns: int, seed: int, own: float) -> None:
    """Beside float64; numbers beside the operands in memory are none. The bound is that of sums in float32 in any
    order, of one rounding of the result, and (`own`) of both operands."""
    rng = np.random.default_rng(seed)
    shapes = (rows, depth), (depth, columns)
    left, right = (rng.standard_normal(shape).astype(np.float32).astype(DTYPES[dtype]) for shape in shapes)
    exact, size = (f(left.astype(np.float64)) @ f(right.astype(np.float64)) for f in (lambda x: x, np.abs))
    (found,) = ours(left, right)
    expected = np.maximum(exact, 0)
    least = 2.0**-25 if dtype == "float16" else 0.0  # of a rounding to a denormal number
    bound = ((depth + 2) * 2.0**-24 + 3 * own) * size + EPSILON[dtype] * np.abs(exact) + least
    assert (np.abs(found.astype(np.float64) - expected) <= bound).all()


CASES = [
    ("float16", TARGET, 32, 147, 24), ("bfloat16", TARGET, 16, 40, 32), ("float16", TARGET, 34, 9, 40),
    ("float", TARGET, 32, 37, 32), ("float", f"{TARGET},tf32", 32, 13, 24), ("float16", TARGET, 32, 8, 16),
]  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize(("dtype", "target", "rows", "depth", "columns"), CASES)
def test_zeros_are_added_to_a_sum(
    dtype: str, target: str, rows: int, depth: int, columns: int, fresh_seed: int, fake: FakeCuda, tmp_path: Path  # noqa: F811
) -> None:
    text = product(dtype, rows, depth, columns)
    is_tf32 = target.endswith("tf32")
    assert ("mma" in loops_of(text, target, tmp_path)) == (dtype != "float" or is_tf32)
    ours = on_cuda(text, target, fake, tmp_path)
    fake.library.fake_seed(fresh_seed % 2**31)
    check(ours, dtype, rows, depth, columns, fresh_seed, EPSILON["tf32"] if is_tf32 else 0)
    assert fake.fault == ""


@pytest.mark.sweep(1)
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("dtype", ["float16", "float"])
def test_the_depth_may_be_unknown(dtype: str, fresh_seed: int, fake: FakeCuda, tmp_path: Path) -> None:  # noqa: F811
    text = product(dtype, 32, "k", 32)
    assert ("mma" if dtype == "float16" else "owned") in loops_of(text, TARGET, tmp_path)
    ours = on_cuda(text, TARGET, fake, tmp_path)
    for depth in (1, 0, 16, 17, 64, 100):
        check(ours, dtype, 32, depth, 32, fresh_seed + depth, 0)
    assert fake.fault == ""


@pytest.mark.sweep(1)
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("depth", [37, "k"])
def test_so_it_is_on_webgpu(depth: object, fresh_seed: int, gpu: None, tmp_path: Path) -> None:  # noqa: F811
    text = product("float", 32, depth, 40)
    assert "shared" in loops_of(text, "webgpu", tmp_path)
    ours = tilewright.compile(model(text), target="webgpu", session=Session(folder=tmp_path))
    for size in (1, 0, 16, 53) if depth == "k" else (37,):
        check(ours, "float", 32, size, 40, fresh_seed + size, 0)


def test_bytes_have_zeros_added(fake: FakeCuda, tmp_path: Path) -> None:  # noqa: F811
    text = """g (uint8[32,44] l) => (int32[32,24] y) {
      r = Constant<value=int8[2,3]{1,-2,127,-128,5,6}>() e = Constant<value=int64[2]{22,8}>() w = Tile(r, e)
      z = Constant<value=uint8{7}>() y = MatMulInteger(l, w, z)
    }"""
    left = np.random.default_rng(3).integers(0, 256, (32, 44)).astype(np.uint8)
    right = np.tile(np.array([[1, -2, 127], [-128, 5, 6]]), (22, 8))
    assert "mma" in loops_of(text, TARGET, tmp_path)
    found = on_cuda(text, TARGET, fake, tmp_path)(left)[0]
    np.testing.assert_array_equal(found, (left.astype(np.int32) - 7) @ right)


def test_the_first_convolution_of_a_network_has_tensor_cores(fake: FakeCuda, tmp_path: Path) -> None:  # noqa: F811
    """Three channels and windows of 7 x 7: a depth of 147."""
    text = """g (float16[1,3,20,16] x, float16[16,3,7,7] w) => (float16[1,16,10,8] y) {
        c = Conv<pads=[3,3,3,3],strides=[2,2]>(x, w) y = Relu(c) }"""
    rng = np.random.default_rng(2)
    data = [rng.standard_normal(s).astype(np.float16) for s in ((1, 3, 20, 16), (16, 3, 7, 7))]
    (expected,) = tilewright.compile(model(text), session=Session(folder=tmp_path))(*data)
    assert "mma" in loops_of(text, TARGET, tmp_path)
    np.testing.assert_allclose(on_cuda(text, TARGET, fake, tmp_path)(*data)[0], expected, rtol=2e-3, atol=2e-2)
    assert fake.fault == ""


@pytest.mark.parametrize("depth", [40, 45])
def test_each_wait_and_barrier_is_needed(depth: int, tmp_path: Path) -> None:
    """With copies beside the products, whose last rows are filled with zeros, and without."""
    loops = loops_of(product("float16", 16, depth, 32), TARGET, tmp_path)
    verify_func(parse_kernel(loops), machine_spec(CUDA["sm_90"]))
    count = sum(op.name in ("barrier", "wait") for op in parse_kernel(loops).body.walk())
    assert count == (5 if depth == 40 else 3)
    for k in range(count):
        func = parse_kernel(loops)
        op = [op for op in func.body.walk() if op.name in ("barrier", "wait")][k]
        op.set_operands([])
        op.parent.ops.remove(op)
        with pytest.raises(VerifyError, match=r"may meet in buffer|may not have ended"):
            verify_func(func, machine_spec(CUDA["sm_90"]))
