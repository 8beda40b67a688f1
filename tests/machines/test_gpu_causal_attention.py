"""Attention on GPUs whose mask follows from positions: blocks of keys that no row of a block sees are left out."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright
from tests.loops.interleave import run_interleaved
from tests.machines.fake_cuda import FakeCuda
from tests.machines.test_cuda import TARGET, driver, fake
from tests.machines.test_gpu_attention import model
from tests.machines.test_webgpu import gpu
from tests.schedule import scheduling as oracle
from tests.schedule.gemm.test_causal_attention import S, T, causal, ends, reference
from tests.schedule.test_defaults import f32
from tilewright import Session
from tilewright.compilation import Compilation, Setting
from tilewright.compiler import compile_module
from tilewright.ir.core import Module
from tilewright.options import Options
from tilewright.runtime import Model
from tilewright.stages import programs
from tilewright.target.gpu.webgpu import WEBGPU

__all__ = ["driver", "fake", "gpu"]


@pytest.fixture(autouse=True)
def _in_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.schedule.gpu.attention.is_worth_one_kernel", lambda *_: True)


def built(depth: int, heads: int = 2) -> Module:
    return oracle.build([f32(1, heads, n, depth) for n in (S, T, T)], causal)


def data(rows: int, keys: int, depth: int) -> list[np.ndarray]:
    rng = np.random.default_rng(rows + keys)
    return [rng.standard_normal((1, 2, n, depth)).astype(np.float32) for n in (rows, keys, keys)]


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("rows", "keys"), [(64, 64), (33, 70), (1, 1), (40, 20)])
def test_results_are_those_of_numpy(rows: int, keys: int, gpu: None) -> None:
    """Rows that see nothing are NaN, as they are without a mask of positions."""
    ours = Model(compile_module(built(16), Options(target="webgpu"), WEBGPU), 1)
    given = data(rows, keys, 16)
    with np.errstate(all="ignore"):
        expected = reference(*(x.astype(np.float64) for x in given))
    np.testing.assert_allclose(ours(*given)[0], expected, rtol=2e-5, atol=2e-6)


def test_hidden_blocks_are_not_read(gpu: None) -> None:
    """What is not a number there would make all sums so, as masked weights are 0 and are multiplied."""
    ours = Model(compile_module(built(16), Options(target="webgpu"), WEBGPU), 1)
    q, k, v = data(64, 64, 16)
    expected = ours(q, k, v)[0]
    k[:, :, 32:], v[:, :, 32:] = np.nan, np.nan
    found = ours(q, k, v)[0]
    np.testing.assert_array_equal(found[:, :, :32], expected[:, :, :32])
    assert np.isnan(found[:, :, 33:]).all()


def test_threads_may_take_turns_in_any_order() -> None:
    small = replace(WEBGPU, tile=4, own=2, alone=4)
    compilation = Compilation(built(2, 1), Setting.of(Options(target="webgpu"), small)).run("scheduled")
    assert compilation.module is not None
    (func,) = [f for name, f in compilation.module.funcs.items() if name.endswith("attention")]
    assert len(ends(compilation.module)) == 1
    given, found = [x[:, :1] for x in data(7, 7, 2)], np.zeros((1, 1, 7, 2), np.float32)
    run_interleaved(func, [*given, found], {dim.name: 7 for dim in func.dims}, random.Random(5))
    expected = reference(*(x.astype(np.float64) for x in given))
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


ON_CORES = """g (float16[1,1,t,16] q, float16[1,1,u,16] k, float16[1,1,u,16] v, float16 none) => (float16[1,1,t,16] y) {
  z = Constant<value=int64{0}>() i = Constant<value=int64{1}>() o = Constant<value=int64[1]{1}>()
  sq = Shape<start=2,end=3>(q) rows = Squeeze(sq) sk = Shape<start=2,end=3>(k) keys = Squeeze(sk)
  r = Range(z, rows, i) c = Range(z, keys, i) column = Unsqueeze(r, o) seen = GreaterOrEqual(column, c)
  h = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, h) a = Where(seen, s, none) p = Softmax(a) y = MatMul(p, v)
}"""


@pytest.mark.sweep(1)
def test_tensor_cores_leave_hidden_blocks_out(fake: FakeCuda, tmp_path: Path) -> None:
    """The number of masked scores is an initialiser of the model."""
    proto = onnx.load_model_from_string(model(ON_CORES))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(-np.inf, np.float16), "none"))
    text, session = proto.SerializeToString(), Session(folder=tmp_path)
    fake.kernels(programs(text, "llvm", options=Options(target=TARGET), session=session))
    ours = tilewright.compile(text, target=TARGET, session=session)
    q, k, v = (x[:, :1].astype(np.float16) for x in data(70, 70, 16))
    expected = reference(4 * q.astype(np.float64), k.astype(np.float64), v.astype(np.float64))  # unscaled scores
    np.testing.assert_allclose(ours(q, k, v)[0].astype(np.float64), expected, rtol=2.0**-10, atol=2.0**-9)
    k[:, :, 64:], v[:, :, 64:] = np.nan, np.nan
    found = ours(q, k, v)[0]
    np.testing.assert_allclose(found[:, :, :64].astype(np.float64), expected[:, :, :64], rtol=2.0**-10, atol=2.0**-9)
    assert fake.fault == ""
