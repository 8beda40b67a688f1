"""Attention in one kernel on GPUs: any lengths, masks, rows of which nothing is seen, heads that share keys."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import parser

import tilewright
from tests.llm.small_decoder import Small
from tests.loops.interleave import run_interleaved
from tests.machines.fake_cuda import FakeCuda
from tests.machines.test_cuda import TARGET, driver, fake
from tests.machines.test_webgpu import gpu
from tilewright import Session
from tilewright.compiler import compile_module
from tilewright.cost.machine.gpu_attention import Attended, blocks_for, is_worth_one_kernel
from tilewright.ir.core import Func, Op
from tilewright.ir.diag import VerifyError
from tilewright.ir.verify import verify_func
from tilewright.llm.decoder import CompiledDecoder
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.machine.rules import machine_spec
from tilewright.options import Options
from tilewright.runtime import Model
from tilewright.stages import programs
from tilewright.target.gpu.cuda import CUDA
from tilewright.target.gpu.webgpu import WEBGPU
from tilewright.target.host import host_target
from tilewright.target.machine import Machine

__all__ = ["driver", "fake", "gpu"]

MASKED = """g (float[b,4,t,6] q, float[b,2,u,6] k, float[b,2,u,5] v, bool[t,u] m) => (float[b,4,t,5] y) {
  y = Attention(q, k, v, m)
}"""
PLAIN = """g (float[1,t,6] q, float[1,u,6] k, float[1,u,5] v, float[t,u] m) => (float[1,t,5] y) {
  h = Transpose<perm=[0,2,1]>(k) s = MatMul(q, h) a = Add(s, m) p = Softmax(a) y = MatMul(p, v)
}"""
"""Unlike those of the operator, rows of which nothing is seen are NaN."""


def model(text: str) -> bytes:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": 23]>\n{text}').SerializeToString()


def data(text: str, t: int, u: int) -> list[np.ndarray]:
    rng = np.random.default_rng(t + u)
    shapes = [(2, 4, t, 6), (2, 2, u, 6), (2, 2, u, 5)] if text == MASKED else [(1, t, 6), (1, u, 6), (1, u, 5)]
    seen = rng.random((t, u)) < 0.5
    seen[-1:], seen[:1, : u // 2] = False, False
    mask = seen if text == MASKED else np.where(seen, 0, -np.inf).astype(np.float32)
    return [*(rng.standard_normal(shape).astype(np.float32) for shape in shapes), mask]


def kernels(text: str, target: str, folder: Path) -> dict[str, str]:
    return programs(model(text), "loops", options=Options(target=target), session=Session(folder=folder))


def check(ours: tilewright.Model, text: str, folder: Path) -> None:
    host = tilewright.compile(model(text), session=Session(folder=folder))
    for t, u in ((33, 40), (1, 5), (3, 0)):
        given = data(text, t, u)
        np.testing.assert_allclose(ours(*given)[0], host(*given)[0], rtol=1e-4, atol=2e-6)


NARROW = """g ({dtype}[1,2,t,16] q, {dtype}[1,2,u,16] k, {dtype}[1,2,u,16] v, {dtype}[t,u] m) =>
({dtype}[1,2,t,16] y) {{
  h = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, h) a = Add(s, m) p = Softmax(a) y = MatMul(p, v)
}}"""
KNOWN = NARROW.replace("[t,u]", "[{t},{u}]").replace(",t,", ",{t},").replace(",u,", ",{u},")


def on_webgpu(text: str, folder: Path) -> None:
    ours = tilewright.compile(model(text), target="webgpu", session=Session(folder=folder))
    assert "_attention" in str(ours.report())
    check(ours, text, folder)


def on_cuda(text: str, fake: FakeCuda, folder: Path) -> None:
    session, options = Session(folder=folder), Options(target=TARGET)
    fake.kernels(programs(model(text), "llvm", options=options, session=session))
    check(tilewright.compile(model(text), target=TARGET, session=session), text, folder)
    assert fake.fault == ""
    assert ".local" not in "".join(programs(model(text), "asm", options=options, session=session).values())


def on_tensor_cores(
    text: str, dtype: str, sizes: Sequence[tuple[int, int]], fake: FakeCuda, folder: Path
) -> None:
    session, options = Session(folder=folder), Options(target=TARGET)
    made = model(text.format(dtype=dtype, t=sizes[0][0], u=sizes[0][1]))
    exact = model(text.format(dtype="double", t=sizes[0][0], u=sizes[0][1]))
    fake.kernels(programs(made, "llvm", options=options, session=session))
    ours, host = tilewright.compile(made, target=TARGET, session=session), tilewright.compile(exact, session=session)
    narrow = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    for t, u in sizes:
        rng = np.random.default_rng(t)
        mask = np.where(rng.random((t, u)) < 0.5, 0, -np.inf)
        mask[:1, : u // 2], mask[-1:, u // 2 :] = -np.inf, 1
        data = [*(rng.standard_normal((1, 2, n, 16)) for n in (t, u, u)), mask]
        data = [x.astype(narrow) for x in data]
        (expected,) = host(*(x.astype(np.float64) for x in data))
        unit = 2.0 ** (-10 if dtype == "float16" else -7)
        np.testing.assert_allclose(ours(*data)[0].astype(np.float64), expected, rtol=unit, atol=2 * unit)
    assert fake.fault == ""
    ptx = "".join(programs(made, "asm", options=options, session=session).values())
    assert "mma.sync" in ptx and ".local" not in ptx


CASES = {
    "webgpu masked": (MASKED, "", ()), "webgpu plain": (PLAIN, "", ()),
    "cuda masked": (MASKED, "float", ()), "cuda plain": (PLAIN, "float", ()),
    "unknown lengths": (NARROW, "float16", ((33, 70), (1, 5), (3, 0))),
    "whole blocks": (KNOWN, "float16", ((32, 48),)),
    "parts of blocks": (KNOWN, "bfloat16", ((70, 100),)),
}  # fmt: skip


@pytest.mark.sweep(1)
@pytest.mark.parametrize("case", CASES)
def test_it_computes_what_it_does_on_the_cpu(
    case: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, dtype, sizes = CASES[case]
    if not dtype:
        request.getfixturevalue("gpu")
        on_webgpu(text, tmp_path)
        return
    monkeypatch.setattr("tilewright.schedule.gpu.attention.is_worth_one_kernel", lambda *_: True)
    if sizes:
        on_tensor_cores(text, dtype, sizes, request.getfixturevalue("fake"), tmp_path)
    else:
        on_cuda(text, request.getfixturevalue("fake"), tmp_path)


ON_CORES = "g (float16[32,16] q, float16[16,32] k, float16[32,16] v) => (float16[32,16] y) "
ON_CORES += "{ s = MatMul(q, k) p = Softmax(s) y = MatMul(p, v) }"


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("text", "target", "machine", "count"),
    [(PLAIN, "webgpu", WEBGPU, 6), (ON_CORES, TARGET, CUDA["sm_90"], 12)],
    ids=["webgpu", "tensor cores"],
)
def test_each_wait_and_barrier_is_needed(
    text: str, target: str, machine: Machine, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.schedule.gpu.attention.is_worth_one_kernel", lambda *_: True)
    (loops,) = kernels(text, target, tmp_path).values()
    spec = machine_spec(machine)
    verify_func(parse_kernel(loops), spec)

    def orders(func: Func) -> list[Op]:
        return [op for op in func.body.walk() if op.name in ("barrier", "wait")]

    found = len(orders(parse_kernel(loops)))
    assert found >= count
    for k in range(found):
        func = parse_kernel(loops)
        op = orders(func)[k]
        op.set_operands([])
        op.parent.ops.remove(op)
        with pytest.raises(VerifyError, match=r"may meet in|may not have ended"):
            verify_func(func, spec)


def kernel(tmp_path: Path) -> Func:
    (text,) = kernels(PLAIN, "webgpu", tmp_path).values()
    return parse_kernel(text)


@pytest.mark.sweep
def test_threads_may_take_turns_in_any_order(tmp_path: Path) -> None:
    func, given = kernel(tmp_path), data(PLAIN, 3, 19)
    found = np.zeros((1, 3, 5), np.float32)
    named = dict(zip("qkvm", given, strict=True)) | {"y": found}
    arrays = [named[arg.name] for arg in func.args]
    pairs = (zip(arg.buffer.shape, x.shape, strict=True) for arg, x in zip(func.args, arrays, strict=True))
    sizes = {dim.name: n for pair in pairs for dim, n in pair if dim.kind == "var"}
    run_interleaved(func, arrays, sizes, random.Random(3))
    (expected,) = tilewright.compile(model(PLAIN), session=Session(folder=tmp_path))(*given)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_scores_stay_in_memory_where_few_groups_would_do_all_of_the_work(tmp_path: Path) -> None:
    few = Attended(heads=4, queries=8, keys=64, depth=64, columns=64)
    many = Attended(heads=192, queries=512, keys=512, depth=64, columns=64)
    for sizes, is_one in ((few, False), (many, True)):
        block = blocks_for(sizes, CUDA["sm_90"])
        assert block is not None and is_worth_one_kernel(sizes, block.rows, CUDA["sm_90"]) is is_one
    assert blocks_for(Attended(1, 64, 64, 64, 5000), WEBGPU) is None, "one row does not fit shared memory"
    text = "g (float[4,8,64] q, float[4,64,64] k, float[4,64,64] v) => (float[4,8,64] y) { s = MatMul(q, k) "
    text += "p = Softmax(s) y = MatMul(p, v) }"
    assert len(kernels(text, TARGET, tmp_path)) > 1


@pytest.mark.sweep
def test_a_decoder_says_the_same_as_on_the_cpu(gpu: None) -> None:
    """A prompt, and tokens one by one behind it: lengths are unknown, and caches are states."""
    small = Small(seed=2)

    def said(machine: Machine) -> list[int]:
        made = compile_module(small.module(), Options(states=True, target=machine.name), machine)
        decoder, tokens = CompiledDecoder(Model(made, 1)), [3, 1, 4, 1, 5, 9, 2, 6]
        for _ in range(12):
            tokens.append(int(np.argmax(decoder.feed(tokens[decoder.length :]))))
        return tokens

    assert said(WEBGPU) == said(host_target())
