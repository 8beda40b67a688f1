"""Models on a GPU: kernels as compute shaders, run on whatever adapter there is (drivers without a GPU among them)."""

from __future__ import annotations

import copy
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

import tilewright
from tests.loops.interleave import run_interleaved
from tests.runtime.test_states import CASES, source
from tilewright import Session
from tilewright.codegen.wgsl.functions import definitions
from tilewright.ir.core import Func
from tilewright.ir.diag import VerifyError
from tilewright.ir.verify import verify_func
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.machine.rules import machine_spec
from tilewright.options import Options
from tilewright.runtime.devices import webgpu
from tilewright.runtime.devices.device import BufferSizes
from tilewright.stages import programs
from tilewright.target.gpu.webgpu import WEBGPU


@cache
def why_no_device() -> str:
    """Why nothing runs here; "" where there is a device."""
    try:
        webgpu.device()
    except tilewright.DeviceError as error:
        return str(error.what)
    return ""


@pytest.fixture
def gpu() -> None:
    if reason := why_no_device():
        pytest.skip(reason)


MODELS = {
    "elements": "g (float[3,700] x) => (float[3,700] y) { z = Exp(x) y = Mul(z, x) }",
    "softmax": "g (float[3,700] x) => (float[3,700] y) { y = Softmax(x) }",
    "norm": "g (float[3,700] x) => (float[3,700] y) { s = Constant<value=float[1]{2.0}>() "
    "y = LayerNormalization(x, s) }",
    "product": "g (float[3,700] x) => (float[3,3] y) { t = Transpose<perm=[1,0]>(x) p = MatMul(x, t) y = Relu(p) }",
    "tiles": "g (float[3,700] x) => (float[1,8,14,14] y) { s = Constant<value=int64[4]{1,8,16,16}>() "
    "a = Constant<value=int64[1]{0}>() b = Constant<value=int64[1]{2048}>() one = Constant<value=int64[1]{-1}>() "
    "f = Reshape(x, one) p = Slice(f, a, b) i = Reshape(p, s) c = Constant<value=int64[1]{576}>() "
    "q = Slice(f, a, c) t = Constant<value=int64[4]{8,8,3,3}>() w = Reshape(q, t) y = Conv(i, w) }",
    "positions": "g (float[3,700] x) => (int64[3,1] y) { y = ArgMax<axis=1>(x) }",
    "flags": "g (float[3,700] x) => (bool[3,700] y) { z = Neg(x) y = Less(x, z) }",
    "total": "g (float[3,700] x) => (float[1,1,1] y) { s = Constant<value=int64[3]{40,3,700}>() "
    "e = Expand(x, s) y = ReduceMean(e) }",
    "sorted": "g (float[3,700] x) => (float[3,5] y, int64[3,5] i) "
    "{ k = Constant<value=int64[1]{5}>() y, i = TopK(x, k) }",
}
X = np.random.default_rng(3).standard_normal((3, 700)).astype(np.float32)


def model(text: str) -> bytes:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]>\n{text}').SerializeToString()


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", MODELS)
def test_models_compute_what_they_do_on_the_cpu(name: str, gpu: None, tmp_path: Path) -> None:
    session = Session(folder=tmp_path)
    found = tilewright.compile(model(MODELS[name]), target="webgpu", session=session)(X)
    expected = tilewright.compile(model(MODELS[name]), session=session)(X)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


UNKNOWN = {
    "product": "g (float[n,m] x, float[m,k] w) => (float[n,k] y) { p = MatMul(x, w) y = Relu(p) }",
    "softmax": "g (float[n,m] x, float[m,k] w) => (float[k,m] y) { z = Transpose<perm=[1,0]>(w) y = Softmax(z) }",
    "bytes": "g (float[n,m] x, float[m,k] w) => (float16[n,m] y) { y = Cast<to=10>(x) }",
    "sizes": "g (float[n,m] x, float[m,k] w, int64[2] s) => (float[p,q] y) { y = Reshape<allowzero=1>(x, s) }",
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", UNKNOWN)
def test_sizes_may_be_others_in_each_call(name: str, gpu: None, tmp_path: Path) -> None:
    session = Session(folder=tmp_path)
    ours, host = (tilewright.compile(model(UNKNOWN[name]), target=t, session=session) for t in ("webgpu", "host"))
    for n, m, k in ((3, 5, 2), (70, 66, 33), (1, 1, 1), (0, 4, 2), (4, 0, 3), (3, 5, 2)):
        data = [np.resize(X, (n, m)), np.resize(X, (m, k))]
        if len(host.inputs) > 2:
            data.append(np.array([m, n]))
        (found,), (expected,) = ours(*data), host(*data)
        assert found.dtype == expected.dtype and found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    if name == "sizes":
        with pytest.raises(tilewright.InputError):
            ours(X, np.ones((700, 1), np.float32), np.array([7, 5]))


def test_a_slice_may_end_at_the_largest_integer(gpu: None, tmp_path: Path) -> None:
    """Kernels have sizes of 32 bits: they are told where a slice ends, not what its end was said to be."""
    text = "g (float[n,m] x, int64[1] a, int64[1] b) => (float[p,m] y) { y = Slice(x, a, b) }"
    made = tilewright.compile(model(text), target="webgpu", session=Session(folder=tmp_path))
    for begin, end in ((0, 2**63 - 1), (-(2**63), 1), (1, 2**40), (-2, 3), (2, -(2**63))):
        np.testing.assert_array_equal(made(X, np.array([begin]), np.array([end]))[0], X[begin:end])


PRODUCT = "g (float[16,6] x, float[6,16] w) => (float[16,16] y) { p = MatMul(x, w) y = Relu(p) }"


ROWS = {
    "softmax": "g (float[3,70] x) => (float[3,70] y) { y = Softmax(x) }",
    "norm": "g (float[3,70] x) => (float[3,70] y) { s = Constant<value=float[1]{2.0}>() "
    "y = LayerNormalization(x, s) }",
    "long": "g (float[2,1030] x) => (float[2,1] y) { y = ReduceMax<axes=[1]>(x) }",
    "unknown": "g (float[n,m] x) => (float[n,m] y) { y = Softmax(x) }",
}


def kernel(text: str, tmp_path: Path) -> Func:
    texts = programs(model(text), "loops", options=Options(target="webgpu"), session=Session(folder=tmp_path))
    (func,) = map(parse_kernel, texts.values())
    assert any(op.name == "alloc" and op.result.type.space == "shared" for op in func.body.walk()), "it shares memory"
    return func


def test_groups_and_threads_may_take_turns_in_any_order(tmp_path: Path) -> None:
    func = kernel(PRODUCT, tmp_path)
    x, w = X[:1, :96].reshape(16, 6), X[1:2, :96].reshape(6, 16)
    y = np.zeros((16, 16), np.float32)
    run_interleaved(func, [x, w, y], {}, random.Random(5))
    np.testing.assert_allclose(y, np.maximum(x @ w, 0), rtol=1e-5, atol=1e-5)


def test_threads_share_rows_of_any_length_in_any_order(tmp_path: Path) -> None:
    func = kernel(ROWS["unknown"], tmp_path)
    x = np.resize(X, (2, 70))
    y = np.zeros_like(x)
    run_interleaved(func, [x, y], {dim.name: n for dim, n in zip(func.dims, x.shape, strict=True)}, random.Random(7))
    np.testing.assert_allclose(y, np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("text", [PRODUCT, *ROWS.values()], ids=["product", *ROWS])
def test_each_barrier_is_needed(text: str, tmp_path: Path) -> None:
    spec = machine_spec(WEBGPU)
    count = sum(op.name == "barrier" for op in kernel(text, tmp_path).body.walk())
    assert count >= 2
    for k in range(count):
        func = kernel(text, tmp_path)
        barrier = [op for op in func.body.walk() if op.name == "barrier"][k]
        barrier.parent.ops.remove(barrier)
        with pytest.raises(VerifyError, match="may meet in"):
            verify_func(func, spec)


def test_errors_of_kernels_are_those_of_the_cpu(gpu: None, tmp_path: Path) -> None:
    text = "g (int32[4] a, int32[4] b) => (int32[4] c) { c = Div(a, b) }"
    made = tilewright.compile(model(text), target="webgpu", session=Session(folder=tmp_path))
    a = np.array([7, -7, 5, -(2**31)], np.int32)
    assert made(a, np.array([2, 2, -3, -1], np.int32))[0].tolist() == [3, -3, -1, -(2**31)]
    with pytest.raises(tilewright.ExecutionError, match="division by zero"):
        made(a, np.array([1, 0, 1, 1], np.int32))
    assert made(a, a)[0].tolist() == [1] * 4, "an error is that of one call"


def test_integers_of_64_bits_keep_all_of_them(gpu: None, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-(2**63), 2**63 - 1, (2, 40))
    b[:20] >>= 50
    b[b == 0] = 1
    for name in ("Add", "Sub", "Mul", "Div", "Mod", "Max"):
        text = f"g (int64[40] a, int64[40] b) => (int64[40] c) {{ c = {name}(a, b) }}"
        session = Session(folder=tmp_path)
        found, expected = (
            tilewright.compile(model(text), target=target, session=session)(a, b)[0] for target in ("webgpu", "host")
        )
        assert np.array_equal(found, expected), name


def test_what_it_lacks_is_refused_by_name(tmp_path: Path) -> None:
    session = Session(folder=tmp_path)
    with pytest.raises(tilewright.UnsupportedError, match="WebGPU has no f64"):
        tilewright.compile(model("g (double[4] x) => (double[4] y) { y = Exp(x) }"), target="webgpu", session=session)


@pytest.mark.parametrize("name", ["sums", "swapped", "cache"])
def test_states_are_kept_as_on_the_cpu(name: str, gpu: None, tmp_path: Path) -> None:
    graph, states, inputs, way = CASES[name]
    session = Session(folder=tmp_path)
    ours, host = (
        tilewright.compile(source(graph), target=t, states=states, session=session) for t in ("webgpu", "host")
    )
    assert way in {record.update for record in ours.report().states}
    for k in (1, 2, 3):
        given = inputs(k)
        for found, expected in zip(ours(*given), host(*given), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        if k == 2:
            ours, host = copy.copy(ours), copy.copy(host)  # a stream of its own, whose states begin as these are
    for name in states:
        np.testing.assert_allclose(ours.state(name), host.state(name), rtol=1e-5, atol=1e-6)


def test_a_model_larger_than_a_buffer_is_refused_with_the_figures(
    gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tilewright.compile(model(MODELS["elements"]), target="webgpu", session=Session(folder=tmp_path))

    class Small:
        limits = {"max-storage-buffer-binding-size": 4096, "max-buffer-size": 1 << 20}  # noqa: RUF012

    monkeypatch.setattr(webgpu, "device", cache(Small))
    with pytest.raises(tilewright.DeviceError, match=r"needs 8448 bytes for inputs, and one .* has at most 4096"):
        made(X)
    with pytest.raises(tilewright.DeviceError, match=r"needs 4097 bytes for weights, and .* at most 4096") as error:
        webgpu._check(Small.limits, BufferSizes([], [], 0, 0, 4097))
    assert "target='webgpu,memory=4096'" in str(error.value)


def test_a_call_is_one_copy_each_way_and_one_pass(
    gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights stay on the device; beside the inputs the word for errors is written."""
    text = MODELS["norm"].replace("y = Layer", "n = Layer").replace("(x, s) }", "(x, s) y = Exp(n) }")
    made = tilewright.compile(model(text), target="webgpu", session=Session(folder=tmp_path))
    made(X)
    counts: Counter[str] = Counter()
    gpu_device = webgpu.device()

    def count(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def counted(self: Any, *args: Any, **named: Any) -> Any:
            counts[name] += 1
            return original(self, *args, **named)

        monkeypatch.setattr(kind, name, counted)

    encoder = gpu_device.create_command_encoder()
    back = gpu_device.create_buffer(size=4, usage="MAP_READ|COPY_DST")
    count(type(gpu_device.queue), "write_buffer")
    count(type(encoder), "begin_compute_pass")
    count(type(back), "read_mapped")
    made(X)
    assert counts == {"write_buffer": 2, "begin_compute_pass": 1, "read_mapped": 1}


def test_a_device_that_is_lost_is_named_and_the_next_call_begins_anew(gpu: None, tmp_path: Path) -> None:
    made = tilewright.compile(model(MODELS["elements"]), target="webgpu", session=Session(folder=tmp_path))
    (expected,) = made(X)
    webgpu.device().destroy()
    with pytest.raises(tilewright.DeviceError, match="the GPU failed"):
        made(X)
    assert np.array_equal(made(X)[0], expected)


def test_a_thread_that_goes_through_very_many_iterations_is_right_or_refused(gpu: None, tmp_path: Path) -> None:
    """llvmpipe ends threads after 65,535 of them."""
    text = "g (int32[80000] x) => (int32[80000] y) { i = Constant<value=int64{0}>() y = CumSum(x, i) }"
    made = tilewright.compile(model(text), target="webgpu", session=Session(folder=tmp_path))
    x = np.arange(80000, dtype=np.int32)
    try:
        (y,) = made(x)
    except tilewright.DeviceError as error:
        assert "ends threads after" in str(error)
    else:
        assert np.array_equal(y, np.cumsum(x, dtype=np.int32))


@pytest.mark.sweep
def test_grids_may_have_more_axes_than_a_gpu(gpu: None, tmp_path: Path) -> None:
    """A convolution of which a group had gone through 8 rows of tiles, and through a padding that one thread made."""
    text = """g (float[1,128,16,16] x, float[128,128,3,3] w) => (float[1,128,8,8] y)
    { y = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w) }"""
    x, w = np.resize(X, (1, 128, 16, 16)), np.resize(X[1], (128, 128, 3, 3))
    session = Session(folder=tmp_path)
    found, expected = (tilewright.compile(model(text), target=t, session=session)(x, w)[0] for t in ("webgpu", "host"))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_threads_may_call_one_model(gpu: None, tmp_path: Path) -> None:
    made = tilewright.compile(model(UNKNOWN["product"]), target="webgpu", session=Session(folder=tmp_path))
    data = [(np.resize(X + k, (2 + k, 7)), np.resize(X, (7, 3))) for k in range(6)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda pair: made(*pair)[0], data * 2))
    for (x, w), y in zip(data * 2, found, strict=True):
        np.testing.assert_allclose(y, np.maximum(x @ w, 0), rtol=1e-5, atol=1e-5)


def test_functions_name_all_that_they_call() -> None:
    texts = definitions(["pow_f32", "atan2_f32", "sin_f32", "div_i64", "i64_from_f32", "f16_from_f32", "mod_i8"])
    names = {text.partition("fn ")[2].partition("(")[0] for text in texts}
    assert {"high_f32", "atan_f32", "far_quadrant", "divided_64", "whole_i64"} <= names
