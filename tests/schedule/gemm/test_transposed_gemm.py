"""Contractions with constant rows: vectors along the constants, the result transposed on its way out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.cost.gemm.cost_model import candidates, choose, why_not_transposed
from tilewright.cost.gemm.register_tile import GemmShape
from tilewright.graph.fusion.fuse import Fuse
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Value
from tilewright.ir.types import tensor
from tilewright.loops.edit import buffer_type, extent_of, kind_of, loop_var, loops_in
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops import contract
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.options import Options
from tilewright.passes import PassContext
from tilewright.runtime.module import Model
from tilewright.schedule.gemm import gemm_plan
from tilewright.schedule.sharing.kernels import schedule_regions
from tilewright.schedule.steps.access import stride_in
from tilewright.schedule.strategies import STRATEGIES
from tilewright.target.hardware import Caches
from tilewright.target.host import host_target
from tilewright.target.named import parse_target
from tilewright.target.target import Target

SMALL = Caches(l1d=32 << 10, l2=160 << 10, l3=1 << 20)
"""So small an L2 that small matrices are cut into blocks."""

RNG = np.random.default_rng(11)
WEIGHTS = RNG.standard_normal((96, 256)).astype(np.float32)
BIAS = RNG.standard_normal((96, 1)).astype(np.float32)
UNEVEN = RNG.standard_normal((100, 256)).astype(np.float32)

Body = Callable[..., Value]


def data(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def product(x: Value) -> Value:
    return contract.matmul(constant(WEIGHTS), x)


CASES: dict[str, tuple[Body, Callable[..., np.ndarray], tuple[np.ndarray, ...]]] = {
    "as it is": (product, lambda x: WEIGHTS @ x, (data(256, 100),)),
    "bias and activation": (
        lambda x: ew.max_(ew.add(product(x), constant(BIAS)), 0.0),
        lambda x: np.maximum(WEIGHTS @ x + BIAS, 0),
        (data(256, 100),),
    ),
    "a residual": (
        lambda x, r: ew.add(product(x), r), lambda x, r: WEIGHTS @ x + r, (data(256, 60), data(96, 60)),
    ),
    "a batch": (product, lambda x: WEIGHTS @ x, (data(3, 256, 40),)),
    "points of an image": (
        lambda x: contract.conv(x, constant(WEIGHTS[:, :, None, None])),
        lambda x: np.einsum("oc,nchw->nohw", WEIGHTS.astype(np.float64), x),
        (data(1, 256, 6, 20),),
    ),
}  # fmt: skip

OTHERS: dict[str, tuple[Body, tuple[int, ...]]] = {
    "rows that are no whole vectors": (lambda x: contract.matmul(constant(UNEVEN), x), (256, 100)),
    "constant columns": (lambda x: contract.matmul(x, constant(WEIGHTS.T.copy())), (100, 256)),
    "a costly epilogue": (lambda x: ew.tanh(product(x)), (256, 100)),
}


def small(target: Target) -> Target:
    return replace(target, caches=SMALL, cores=2)


@pytest.fixture
def transposed_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transpose whatever can be: small cases are not worth it otherwise."""

    def why_not(shape: GemmShape, transposed: GemmShape, target: Target) -> str:
        return "" if candidates(transposed, target) else "there is no block"

    monkeypatch.setattr(gemm_plan, "why_not_transposed", why_not)


def module_of(body: Body, *shapes: tuple[int, ...]) -> Module:
    return oracle.build([tensor(dt.f32, shape) for shape in shapes], body)


def kernel_of(module: Module, target: Target) -> Func:
    ctx = PassContext(target)
    Fuse(STRATEGIES).run(module, ctx)
    schedule_regions(module, target, STRATEGIES, ctx.remarks)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


def is_transposed(kernel: Func) -> bool:
    return any(str(step).startswith("swap_axes") for step in kernel_info(kernel).schedule)


@pytest.mark.sweep
@pytest.mark.parametrize("narrow", [False, True], ids=["all registers", "half of them"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("transposed_wanted")
def test_transposed_results_are_the_same(name: str, threads: int, narrow: bool) -> None:
    body, exact, arrays = CASES[name]
    target = small(host_target())
    if narrow:
        bits = max(128, target.vector_bits // 2)
        target = replace(target, vector_bits=bits, vector_registers=16, embedded_broadcast=False)
    module = module_of(body, *(a.shape for a in arrays))
    (found,) = Model(compile_module(module, Options(), target), threads)(*arrays)
    wanted = exact(*(a.astype(np.float64) for a in arrays))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("transposed_wanted")
def test_constants_are_packed_ahead_and_no_lane_is_idle(name: str) -> None:
    body, _, arrays = CASES[name]
    kernel = kernel_of(module_of(body, *(a.shape for a in arrays)), small(parse_target("x86-64-v4")))
    assert is_transposed(kernel)
    assert list(kernel_info(kernel).packed) == [kernel_info(kernel).constants[0]]
    vectors = [o for o in loops_in(kernel.body) if kind_of(o) == "vector"]
    assert vectors and all(extent_of(o) == 16 for o in vectors)
    assert not any("guard" in op.attrs or op.name == "if" for op in kernel.body.walk())


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.usefixtures("transposed_wanted")
def test_what_gains_nothing_or_cannot_be_is_not_transposed(name: str) -> None:
    body, shape = OTHERS[name]
    assert not is_transposed(kernel_of(module_of(body, shape), small(parse_target("x86-64-v4"))))


def test_idle_lanes_decide() -> None:
    """49 columns fill three vectors of 16 and one lane of a fourth; 512 rows of constants fill all."""
    target = replace(parse_target("x86-64-v4"), caches=Caches(32 << 10, 1 << 20, 32 << 20), cores=1)
    plain = GemmShape(
        rows=512, columns=4, depth=2048, lanes=16, stride=8192, run=16, outer_depth=2048, packed=False
    )
    transposed = GemmShape(
        rows=49, columns=32, depth=2048, lanes=16, stride=4, outer_depth=2048, exact_columns=True,
        packed=True, transposed=True,
    )  # fmt: skip
    assert not why_not_transposed(plain, transposed, target)
    assert "predicted" in why_not_transposed(replace(plain, columns=32), replace(transposed, rows=512), target)
    assert choose(transposed, target).decision.blocks is not None


@pytest.mark.sweep(1)
@pytest.mark.parametrize("shape", [(16, 200, 256), (4, 100, 300), (64, 128, 48)], ids=str)
def test_columns_of_the_call_are_copied_by_squares(shape: tuple[int, int, int]) -> None:
    """x @ w.T of operands that are no constants: no vector of w is gathered."""
    m, k, n = shape
    x, w = data(m, k), data(n, k)
    types = [tensor(dt.f32, a.shape) for a in (x, w)]
    module, _ = oracle.agree(types, lambda x, w: contract.matmul(x, w, transpose_b=True), [x, w], tolerance=1e-4)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    vectors = [o for o in loops_in(kernel.body) if kind_of(o) == "vector"]
    loads = [(op, loop_var(o)) for o in vectors for op in o.walk() if op.name == "load"]
    far = [op for op, v in loads if buffer_type(op.operands[0]).space != "reg" and stride_in(op, v) not in (0, 1)]
    assert vectors and not far
