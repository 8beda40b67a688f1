"""Models on GPUs of NVIDIA: PTX, and its driver as one in C plays it, which runs kernels on this CPU."""

from __future__ import annotations

import gc
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilewright
from tests.machines.fake_cuda import COMPILER, FakeCuda
from tests.machines.test_webgpu import MODELS, UNKNOWN, X, model
from tilewright import Session
from tilewright.ir.core import Func, Op
from tilewright.ir.diag import VerifyError
from tilewright.ir.verify import verify_func
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.machine.rules import machine_spec
from tilewright.ops.define.loop_programs import run_kernel
from tilewright.options import Options
from tilewright.runtime.devices import cuda_driver
from tilewright.runtime.devices.cuda_driver import CudaDevice
from tilewright.stages import programs
from tilewright.target.gpu.cuda import CUDA
from tilewright.target.named import find_machine

PTXAS = shutil.which("ptxas")
TARGET = "cuda,sm_90"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeCuda:
    if COMPILER is None:
        pytest.skip("there is no C compiler")
    return FakeCuda(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def fake(driver: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    monkeypatch.setattr(cuda_driver, "LIBRARY", str(driver.path))
    cuda_driver.device.cache_clear()
    driver.reset()
    yield driver
    cuda_driver.device.cache_clear()


def compiled(text: str, fake: FakeCuda, folder: Path) -> tilewright.Model:
    session = Session(folder=folder)
    fake.kernels(programs(model(text), "llvm", options=Options(target=TARGET), session=session))
    return tilewright.compile(model(text), target=TARGET, session=session)


ALL = MODELS | {
    "padded": "g (float[3,700] x) => (float[1,16,12,16] y) { s = Constant<value=int64[4]{1,10,12,16}>() "
    "a = Constant<value=int64[1]{0}>() b = Constant<value=int64[1]{1920}>() c = Constant<value=int64[1]{1440}>() "
    "one = Constant<value=int64[1]{-1}>() f = Reshape(x, one) g = Slice(f, a, b) i = Reshape(g, s) h = Slice(f, a, c) "
    "t = Constant<value=int64[4]{16,10,3,3}>() w = Reshape(h, t) y = Conv<pads=[1,1,1,1]>(i, w) }"
}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ALL)
def test_kernels_compute_what_they_do_on_the_cpu(name: str, fake: FakeCuda, tmp_path: Path) -> None:
    found = compiled(ALL[name], fake, tmp_path)(X)
    expected = tilewright.compile(model(ALL[name]), session=Session(folder=tmp_path))(X)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", UNKNOWN)
def test_sizes_may_be_others_in_each_call(name: str, fake: FakeCuda, tmp_path: Path) -> None:
    ours, host = compiled(UNKNOWN[name], fake, tmp_path), tilewright.compile(model(UNKNOWN[name]))
    for n, m, k in ((3, 5, 2), (70, 66, 33), (1, 1, 1), (0, 4, 2), (4, 0, 3), (3, 5, 2)):
        data = [np.resize(X, (n, m)), np.resize(X, (m, k))]
        if len(host.inputs) > 2:
            data.append(np.array([m, n]))
        (found,), (expected,) = ours(*data), host(*data)
        assert found.dtype == expected.dtype and found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_sums_of_products_stay_in_registers(fake: FakeCuda, tmp_path: Path) -> None:
    """Also where tiles overlap, as 16 rows divide no 20."""
    text = "g (float[20,24] l, float[24,48] r) => (float[20,48] y) { p = MatMul(l, r) y = Relu(p) }"
    left, right = X.reshape(-1)[:480].reshape(20, 24), X.reshape(-1)[:1152].reshape(24, 48)
    (found,) = compiled(text, fake, tmp_path)(left, right)
    np.testing.assert_allclose(found, np.maximum(left @ right, 0), rtol=1e-5, atol=1e-5)
    options, session = Options(target=TARGET), Session(folder=tmp_path)
    ptx, loops = (
        "".join(programs(model(text), level, options=options, session=session).values()) for level in ("asm", "loops")
    )
    assert ".local" not in ptx and "ld.shared.v" in ptx
    assert loops.count("barrier row") == 2
    for k in range(2):
        func = parse_kernel(loops)
        barrier = [op for op in func.body.walk() if op.name == "barrier"][k]
        barrier.parent.ops.remove(barrier)
        with pytest.raises(VerifyError, match="may meet in"):
            verify_func(func, machine_spec(CUDA["sm_90"]))


NARROW = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.mark.parametrize(
    ("dtype", "m", "k", "n"),
    [
        ("float16", 16, 64, 24), pytest.param("bfloat16", 16, 32, 32, marks=pytest.mark.sweep(1)),
        ("float16", 32, 16, 34),
    ],
)  # fmt: skip
def test_tensor_cores_multiply_16_bit_floats(
    dtype: str, m: int, k: int, n: int, fake: FakeCuda, tmp_path: Path
) -> None:
    """Also where tiles overlap, and where rows begin at no multiple of 16 bytes."""
    text = f"g ({dtype}[{m},{k}] l, {dtype}[{k},{n}] r) => ({dtype}[{m},{n}] y) {{ p = MatMul(l, r) y = Relu(p) }}"
    left, right = (np.resize(X, (a, b)).astype(NARROW[dtype]) for a, b in ((m, k), (k, n)))
    expected = np.maximum(left.astype(np.float64) @ right.astype(np.float64), 0)
    ours = compiled(text, fake, tmp_path)
    for seed in range(3):
        fake.library.fake_seed(seed)
        (found,) = ours(left, right)
        assert fake.fault == ""
        np.testing.assert_allclose(found.astype(np.float64), expected, rtol=2.0**-8, atol=1e-4)
    options, session = Options(target=TARGET), Session(folder=tmp_path)
    (ptx,) = programs(model(text), "asm", options=options, session=session).values()
    assert "mma.sync.aligned.m16n8k16" in ptx and ptx.count("ldmatrix.") and ".local" not in ptx
    assert "cp.async.cg" in ptx


@pytest.mark.parametrize(("kernel", "strides"), [(3, 2), pytest.param(1, 1, marks=pytest.mark.sweep(1))])
def test_convolutions_are_products_of_tensor_cores(
    kernel: int, strides: int, fake: FakeCuda, tmp_path: Path
) -> None:
    """Their windows are brought together in shared memory, where they are no matrix in memory."""
    rows = 12 // strides
    text = f"""g (float16[2,16,12,8] x, float16[16,16,{kernel},{kernel}] w, float16[2,16,{rows},{8 // strides}] z) =>
      (float16[2,16,{rows},{8 // strides}] y) {{
        c = Conv<pads=[{kernel // 2},{kernel // 2},{kernel // 2},{kernel // 2}],strides=[{strides},{strides}]>(x, w)
        s = Add(c, z) y = Relu(s)
      }}"""
    shapes = (2, 16, 12, 8), (16, 16, kernel, kernel), (2, 16, rows, 8 // strides)
    data = [np.resize(X, shape).astype(np.float16) for shape in shapes]
    (expected,) = tilewright.compile(model(text), session=Session(folder=tmp_path))(*data)
    np.testing.assert_allclose(compiled(text, fake, tmp_path)(*data)[0], expected, rtol=2e-3, atol=2e-3)
    assert fake.fault == ""
    options, session = Options(target=TARGET), Session(folder=tmp_path)
    ptx = "".join(programs(model(text), "asm", options=options, session=session).values())
    assert "mma.sync" in ptx and "cp.async.cg" in ptx


def test_tensor_cores_multiply_bytes(fake: FakeCuda, tmp_path: Path) -> None:
    text = """g (uint8[32,64] l) => (int32[32,24] y) {
      r = Constant<value=int8[2,3]{1,-2,127,-128,5,6}>() e = Constant<value=int64[2]{32,8}>() w = Tile(r, e)
      z = Constant<value=uint8{7}>() y = MatMulInteger(l, w, z)
    }"""
    left = np.random.default_rng(3).integers(0, 256, (32, 64)).astype(np.uint8)
    right = np.tile(np.array([[1, -2, 127], [-128, 5, 6]]), (32, 8))
    np.testing.assert_array_equal(compiled(text, fake, tmp_path)(left)[0], (left.astype(np.int32) - 7) @ right)
    options, session = Options(target=TARGET), Session(folder=tmp_path)
    ptx = "".join(programs(model(text), "asm", options=options, session=session).values())
    assert "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32" in ptx


def test_parts_of_tensors_begin_where_16_bytes_are_read_at_once(fake: FakeCuda, tmp_path: Path) -> None:
    text = """g (float16[n] x, float16[16,16] w) => (float16[16,16] y) {
      n = Shape(x) m = Constant<value=int64[1]{256}>() s = Sub(n, m) e = Constant<value=int64[2]{16,16}>()
      p = Slice(x, s, n) r = Reshape(p, e) y = MatMul(r, w)
    }"""
    x, w = np.resize(X, 259).astype(np.float16), np.eye(16, dtype=np.float16)
    np.testing.assert_array_equal(compiled(text, fake, tmp_path)(x, w)[0], x[3:].reshape(16, 16))
    assert fake.fault == ""


@pytest.mark.parametrize("n", [32, 34])
def test_each_wait_and_barrier_of_a_product_is_needed(n: int, tmp_path: Path) -> None:
    """With copies beside other work, and where threads copy one of the operands."""
    text = f"g (float16[16,64] l, float16[64,{n}] r) => (float16[16,{n}] y) {{ y = MatMul(l, r) }}"
    options, session = Options(target=TARGET), Session(folder=tmp_path)
    (loops,) = programs(model(text), "loops", options=options, session=session).values()
    verify_func(parse_kernel(loops), machine_spec(CUDA["sm_90"]))
    count = len(_orders(parse_kernel(loops)))
    assert count == (5 if n == 32 else 3)
    for k in range(count):
        func = parse_kernel(loops)
        op = _orders(func)[k]
        op.set_operands([])
        op.parent.ops.remove(op)
        with pytest.raises(VerifyError, match=r"may meet in buffer|may not have ended"):
            verify_func(func, machine_spec(CUDA["sm_90"]))


def _orders(func: Func) -> list[Op]:
    """What makes threads wait: for each other, or for copies."""
    return [op for op in func.body.walk() if op.name in ("barrier", "wait")]


def test_a_call_is_two_copies_and_then_one_graph(fake: FakeCuda, tmp_path: Path) -> None:
    ours = compiled(UNKNOWN["product"], fake, tmp_path)
    before = fake.library.fake_live()
    data = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    names = ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuLaunchKernel", "cuGraphLaunch", "cuMemAlloc_v2")
    ours(*data)
    first = [fake.count(name) for name in names]
    assert first[:2] == [1, 1] and first[3] == 0
    for k in range(3):
        (found,) = ours(data[0] * k, data[1])
        np.testing.assert_array_equal(found, np.full((2, 4), 3 * k))
    assert [fake.count(name) for name in names] == [2, 2, 2 * first[2], 3, first[4]]
    ours(np.ones((5, 3), np.float32), data[1])
    assert fake.fault == ""
    del ours
    gc.collect()
    assert fake.library.fake_live() <= before


def test_states_go_there_and_back_with_a_call(fake: FakeCuda, tmp_path: Path) -> None:
    text = "g (float[3] x, float[3] before) => (float[3] y, float[3] after) { after = Add(x, before) y = Neg(after) }"
    session, kept = Session(folder=tmp_path), {"before": "after"}
    fake.kernels(programs(model(text), "llvm", options=Options(target=TARGET, states=kept), session=session))
    ours = tilewright.compile(model(text), target=TARGET, states=kept, session=session)
    for k in (1, 2, 3):  # the third call is a graph
        np.testing.assert_array_equal(ours(np.ones(3, np.float32))[0], -k)
    assert fake.fault == ""


def test_errors_of_a_model_are_those_of_the_cpu(fake: FakeCuda, tmp_path: Path) -> None:
    ours = compiled("g (int32[n] a, int32[n] b) => (int32[n] y) { y = Div(a, b) }", fake, tmp_path)
    a = np.arange(200, dtype=np.int32)
    for _ in range(3):
        with pytest.raises(tilewright.ExecutionError, match="division by zero"):
            ours(a, a)
        np.testing.assert_array_equal(ours(a, a + 1)[0], 0)


def test_a_device_that_fails_is_named_and_tried_anew(fake: FakeCuda, tmp_path: Path) -> None:
    ours = compiled("g (float[3] x) => (float[3] y) { y = Neg(x) }", fake, tmp_path)
    x = np.ones(3, np.float32)
    names = ("cuMemAlloc_v2", "cuModuleLoadDataEx", "cuLaunchKernel", "cuMemHostAlloc", "cuStreamSynchronize")
    for name in (*names, "cuGraphInstantiateWithFlags"):
        fake.fail(name, 2)
        if name not in names:  # it is the second call that makes a graph
            np.testing.assert_array_equal(ours(x)[0], -x)
        with pytest.raises(tilewright.DeviceError, match=f"{name} says CUDA_ERROR_OUT_OF_MEMORY"):
            ours(x)
    for _ in range(3):
        np.testing.assert_array_equal(ours(x)[0], -x)
    assert fake.fault == ""


def test_weights_without_room_name_the_way_out(
    fake: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "g (float[3] x) => (float[3] y) { w = Constant<value=float[3]{1.0,2.0,3.0}>() y = Mul(x, w) }"
    ours = compiled(text, fake, tmp_path)
    allocate = CudaDevice.allocate

    def full(self: CudaDevice, size: int, way: str = "") -> int:
        if way:
            fake.fail("cuMemAlloc_v2", 2)
        return allocate(self, size, way)

    with monkeypatch.context() as patch, pytest.raises(
        tilewright.DeviceError, match=r"needs \d+ bytes more on the GPU, which has 100 of 1000 free"
    ) as error:
        patch.setattr(CudaDevice, "allocate", full)
        ours(np.ones(3, np.float32))
    assert "memory=BYTES in the target" in str(error.value)
    np.testing.assert_array_equal(ours(np.ones(3, np.float32))[0], [1, 2, 3])


@pytest.mark.parametrize(
    ("devices", "capability", "message"), [(0, 90, "CUDA_ERROR_NO_DEVICE"), (1, 80, "this GPU is sm_80")]
)
def test_a_gpu_that_is_not_there_or_too_old_is_named(
    devices: int, capability: int, message: str, fake: FakeCuda, tmp_path: Path
) -> None:
    fake.library.fake_devices(devices, capability)
    ours = compiled("g (float[3] x) => (float[3] y) { y = Neg(x) }", fake, tmp_path)
    with pytest.raises(tilewright.DeviceError, match=message):
        ours(np.ones(3, np.float32))


def test_a_driver_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda_driver, "LIBRARY", str(tmp_path / "libcuda.so.1"))
    cuda_driver.device.cache_clear()
    text = "g (float[3] x) => (float[3] y) { y = Neg(x) }"
    ours = tilewright.compile(model(text), target="cuda", session=Session(folder=tmp_path))
    with pytest.raises(tilewright.DeviceError, match="driver is not installed"):
        ours(np.ones(3, np.float32))


def test_targets_have_names() -> None:
    assert find_machine("cuda", tuple) is CUDA["sm_80"]
    assert find_machine("cuda, sm_100", tuple) is CUDA["sm_100"]
    with pytest.raises(tilewright.TilewrightError, match="unknown architecture 'sm_7'"):
        find_machine("cuda,sm_7", tuple)


@pytest.mark.skipif(PTXAS is None, reason="ptxas is not installed")
@pytest.mark.sweep(1)
@pytest.mark.parametrize("architecture", CUDA)
def test_ptx_is_what_its_assembler_takes(architecture: str, tmp_path: Path) -> None:
    text = MODELS["softmax"].replace("y = Softmax(x)", "z = Softmax(x) y = Sin(z)")
    options = Options(target=f"cuda,{architecture}")
    for name, ptx in programs(model(text), "asm", options=options, session=Session(folder=tmp_path)).items():
        (file := tmp_path / f"{name}.ptx").write_text(ptx)
        command = [str(PTXAS), "-v", f"-arch={architecture}", str(file), "-o", str(tmp_path / "made")]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        assert "0 bytes spill stores" in said and "Used" in said


@pytest.mark.skipif(PTXAS is None, reason="ptxas is not installed")
@pytest.mark.sweep(1)
@pytest.mark.parametrize("after", ["Identity(p)", "Add(p, b)"])
@pytest.mark.parametrize("architecture", CUDA)
def test_sums_of_the_largest_tile_leave_registers_for_its_operands(
    architecture: str, after: str, tmp_path: Path
) -> None:
    """Two groups have room on a multiprocessor, and nothing is spilled."""
    bias = ", float[4096] b" if after.startswith("Add") else ""
    text = (
        f"g (float[4096,4096] l, float[4096,4096] r{bias}) => (float[4096,4096] y) "
        f"{{ p = MatMul(l, r) y = {after} }}"
    )
    options = Options(target=f"cuda,{architecture}")
    (ptx,) = programs(model(text), "asm", options=options, session=Session(folder=tmp_path)).values()
    (file := tmp_path / "product.ptx").write_text(ptx)
    command = [str(PTXAS), "-v", f"-arch={architecture}", str(file), "-o", str(tmp_path / "made")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert ptx.count("fma.rn.f32") == 1024 and ptx.count("ld.shared.v4") == 64
    assert "0 bytes spill stores" in said and "Used 128 registers" in said


def test_functions_of_the_c_library_are_refused(tmp_path: Path) -> None:
    text = "g (double[3] x) => (double[3] y) { y = Acosh(x) }"
    with pytest.raises(tilewright.UnsupportedError, match="no C library, whose function 'acosh'"):
        tilewright.compile(model(text), target="cuda", session=Session(folder=tmp_path))


def test_both_operands_of_a_product_may_be_parts_of_one_tensor(tmp_path: Path) -> None:
    text = """g (float[32,32] x) => (float[32,32] y) {
      s = Constant<value=int64[1]{0}>() e = Constant<value=int64[1]{16}>() f = Constant<value=int64[1]{32}>()
      k = Constant<value=int64[1]{1}>() a = Slice(x, s, e, k) b = Slice(x, e, f, k) c = Transpose<perm=[1,0]>(b)
      p = MatMul(a, c) y = Relu(p)
    }"""
    options, session = Options(target=TARGET), Session(folder=tmp_path)
    (loops,) = programs(model(text), "loops", options=options, session=session).values()
    func, x, result = parse_kernel(loops), X[:2, :512].reshape(32, 32), np.zeros((32, 32), np.float32)
    verify_func(func, machine_spec(CUDA["sm_90"]))
    assert "owned" in loops and loops.count("shared f32[16, 16]") == 2
    run_kernel(func, [x, result])
    np.testing.assert_allclose(result, np.maximum(x[:, :16] @ x[:, 16:].T, 0), rtol=1e-5, atol=1e-5)
