"""Default schedules: kernels compute what the graph says, in the loop interpreter and as native code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright import link
from tilewright.back_end import CPU
from tilewright.graph.fusion.fuse import Fuse
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Value
from tilewright.ir.sym import var
from tilewright.ir.types import TensorType, tensor
from tilewright.loops.edit import kind_of, loops_in
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops import contract, reduce, view
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.options import Options
from tilewright.passes import PassContext
from tilewright.program.memory.places import annotate
from tilewright.program.memory.storage import assign_storage
from tilewright.runtime import Model
from tilewright.runtime.report.records import ProgramReport
from tilewright.schedule.sharing.kernels import schedule_regions
from tilewright.schedule.strategies import STRATEGIES
from tilewright.target.host import host_target
from tilewright.target.target import Target

N = var("n", 1)
RNG = np.random.default_rng(7)


def data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


W = data(64, 48)
BIAS = data(48)
KERNEL = data(32, 8, 3, 3)


@dataclass(frozen=True)
class Case:
    """A program: argument types, arrays, body, and the kernels it must become."""

    name: str
    types: tuple[TensorType, ...]
    arrays: tuple[np.ndarray, ...]
    body: Callable[..., Value | tuple[Value, ...]]
    kernels: int = 1


def f32(*shape: object) -> TensorType:
    return tensor(dt.f32, shape)  # type: ignore[arg-type]


def dense(x: Value) -> Value:
    return ew.max_(ew.add(contract.matmul(x, constant(W)), constant(BIAS)), 0.0)


def softmax(x: Value) -> Value:
    e = ew.exp(ew.sub(x, reduce.reduce_max(x, axes=(2,), keepdims=True)))
    return ew.div(e, reduce.reduce_sum(e, axes=(2,), keepdims=True))


def layer_norm(x: Value, scale: Value) -> Value:
    mean = ew.mul(reduce.reduce_sum(x, axes=(1,), keepdims=True), 1 / 70)
    centred = ew.sub(x, mean)
    variance = ew.mul(reduce.reduce_sum(ew.mul(centred, centred), axes=(1,), keepdims=True), 1 / 70)
    return ew.mul(ew.mul(centred, ew.rsqrt(ew.add(variance, 1e-5))), scale)


def steps(x: Value) -> tuple[Value, ...]:
    y = ew.exp(x)
    z = ew.add(y, 1.0)
    return y, z, ew.mul(z, z)


def heads(x: Value) -> Value:
    y = ew.add(contract.matmul(x, constant(W)), constant(BIAS))
    return view.transpose(view.reshape(y, shape=(2, 9, 3, 16)), perm=(0, 2, 1, 3))


CASES = (
    Case("dense", (f32(20, 64),), (data(20, 64),), dense),
    Case("dense dynamic", (f32(N, 64),), (data(33, 64),), dense),
    Case("dense one row", (f32(1, 64),), (data(1, 64),), dense),
    Case("dense no rows", (f32(0, 64),), (data(0, 64),), dense),
    Case("dense overlap", (f32(2, 37, 64),), (data(2, 37, 64),), dense),
    Case(
        "matmul alone, odd columns", (f32(3, N, 64),), (data(3, 17, 64),),
        lambda x: contract.matmul(x, constant(W[:, :37])),
    ),
    Case("costly epilogue", (f32(20, 64),), (data(20, 64),), lambda x: ew.tanh(dense(x))),
    Case("strided columns", (f32(2, 9, 32), f32(2, 21, 32)), (data(2, 9, 32), data(2, 21, 32)),
         lambda x, y: contract.matmul(x, y, transpose_b=True)),
    Case("one tensor twice", (f32(2, 9, 32),), (data(2, 9, 32),), lambda x: contract.matmul(x, x, transpose_b=True)),
    Case("heads", (f32(2, 9, 64),), (data(2, 9, 64),), heads),
    Case("conv", (f32(1, 8, 7, 7),), (data(1, 8, 7, 7),),
         lambda x: contract.conv(x, constant(KERNEL), pads_begin=(1, 1), pads_end=(1, 1))),
    Case("map", (f32(5, N, 7), f32(7)), (data(5, 3, 7), data(7)), lambda x, y: ew.tanh(ew.add(ew.mul(x, 2.0), y))),
    Case("sum of products", (f32(5, N, 70), f32(5, N, 70)), (data(5, 3, 70), data(5, 3, 70)),
         lambda x, y: reduce.reduce_sum(ew.mul(x, y), axes=(2,), keepdims=False)),
    Case("softmax", (f32(5, N, 70),), (data(5, 3, 70),), softmax),
    Case("layer norm", (f32(N, 70), f32(70)), (data(9, 70), data(70)), layer_norm),
    Case("mean over the middle", (f32(2, 4, 7, 7, 16),), (data(2, 4, 7, 7, 16),),
         lambda x: ew.mul(reduce.reduce_sum(x, axes=(2, 3), keepdims=True), 1 / 49)),
    Case("transpose", (f32(2, N, 5),), (data(2, 13, 5),), lambda x: view.transpose(x, perm=(0, 2, 1))),
    Case("all steps are results", (f32(5, N),), (data(5, 13),), steps),
    Case("concat", (f32(2, N), f32(2, 5)), (data(2, 13), data(2, 5)), lambda x, y: view.concat(x, y, axis=1)),
)  # fmt: skip
IDS = [case.name for case in CASES]


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_scheduled_kernels_agree_with_the_graph(case: Case, target: str) -> None:
    module, _ = oracle.agree(case.types, case.body, case.arrays, target)
    assert len([op for op in module.main.body.ops if op.name == "call"]) == case.kernels


@pytest.mark.sweep
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_native_code_agrees_with_the_graph(case: Case, threads: int) -> None:
    module = oracle.build(case.types, case.body)
    wanted = oracle.expected(module, case.arrays)
    found = native(module, threads)(*case.arrays)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=3e-5)


def native(module: Module, threads: int, target: Target | None = None) -> Model:
    target = target or host_target()
    Fuse(STRATEGIES).run(module, PassContext(target))
    schedule_regions(module, target, STRATEGIES, [])
    annotate(module.main, assign_storage(module.main))
    weights = link.Weights()
    constants = link.lay_out_constants(module, weights)
    with CPU.code(target, Options(compile_threads=1)) as code:
        kernels = {name: code.kernel(f) for name, f in module.funcs.items() if f.level == "loops"}
        program = link.make_program(module, constants, kernels)
        text = code.program(program)
        for part in (*kernels.values(), text):
            code.begin(part)
        image = code.image(code.objects())
    made = link.make_artifact(module, constants, program, text, CPU.target(target), ProgramReport())
    return Model(made.sharing(image, (), *weights.blocks()), threads)


def only_kernel(case: Case, target: str = "x86-64-v4") -> Func:
    module = oracle.build(case.types, case.body)
    oracle.scheduled(module, target)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


def test_a_dense_layer_is_tiled_packed_and_shared_by_threads() -> None:
    kernel = only_kernel(CASES[0])
    kinds = [kind_of(loop) for loop in loops_in(kernel.body)]
    assert kinds[0] == "parallel" and kinds.count("vector") == 3 and "unroll" in kinds
    assert list(kernel_info(kernel).packed) == [1], "the weights are packed ahead of time"
    spaces = [op.result.type.space for op in kernel.body.walk() if op.name == "alloc"]  # type: ignore[union-attr]
    assert spaces == ["reg"], "the sums never leave the registers"


def test_rows_keep_intermediates_in_scratch_of_one_row() -> None:
    kernel = only_kernel(next(c for c in CASES if c.name == "softmax"))
    sizes = [op.result.type.size for op in kernel.body.walk() if op.name == "alloc"]  # type: ignore[union-attr]
    assert sizes and all(size.is_const and size.value <= 70 for size in sizes)


def test_equal_regions_share_a_kernel() -> None:
    twice = oracle.build((f32(20, 48),), lambda v: same_layer(same_layer(v)))
    oracle.scheduled(twice)
    calls = [op.attrs["kernel"] for op in twice.main.body.ops if op.name == "call"]
    assert len(calls) == 2 and len(set(calls)) == 1


SQUARE = data(48, 48)


def same_layer(x: Value) -> Value:
    return ew.max_(ew.add(contract.matmul(x, constant(SQUARE)), constant(BIAS)), 0.0)
