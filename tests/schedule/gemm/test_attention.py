"""The schedule of attention: kernels compute what NumPy computes in float64, and keep the scores of a block only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tests.schedule.test_defaults import data, f32, native
from tilewright.compiler import compile_module
from tilewright.cost.attention import KEYS_OF_A_PIECE
from tilewright.graph.pipeline import default_passes
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.graph.rewrites.expand import Expand
from tilewright.graph.rewrites.hoist_scales import HoistScales
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Op, Value
from tilewright.ir.sym import var
from tilewright.ir.types import TensorType, tensor
from tilewright.loops.edit import buffer_type, enclosing_loops, extent_of, kind_of, loop_var, loops_in
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops import contract, view
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.norm import softmax
from tilewright.ops.quant import dequantize_linear, quantize_linear
from tilewright.ops.source import full
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.runtime.module import Model
from tilewright.schedule.steps.access import stores_in, stride_in
from tilewright.target.named import parse_target

N = var("n", 1)
M = var("m", 1)


@dataclass(frozen=True)
class Case:
    """Attention of a form: argument types, arrays, program, and the same in NumPy."""

    name: str
    types: tuple[TensorType, ...]
    arrays: tuple[np.ndarray, ...]
    body: Callable[..., Value]
    reference: Callable[..., np.ndarray]


def weighted(scores: np.ndarray, v: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ v


def plain(q: Value, k: Value, v: Value) -> Value:
    return contract.matmul(softmax(contract.matmul(q, k, transpose_b=True)), v)


def plain_reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return weighted(q @ k.swapaxes(-1, -2), v)


def columns(q: Value, k: Value, v: Value) -> Value:
    return contract.matmul(softmax(contract.matmul(q, k)), v)


def columns_reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return weighted(q @ k, v)


def masked(q: Value, k: Value, v: Value, mask: Value) -> Value:
    scores = ew.add(ew.mul(contract.matmul(q, k, transpose_b=True), 0.125), mask)
    return contract.matmul(softmax(scores), v)


def masked_reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return weighted(q @ k.swapaxes(-1, -2) * 0.125 + mask, v)


def chosen(q: Value, k: Value, v: Value, allowed: Value) -> Value:
    scores = contract.matmul(q, k, transpose_b=True)
    return contract.matmul(softmax(ew.select(allowed, scores, full(value=-1e9, dtype=dt.f32, shape=()))), v)


def chosen_reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    return weighted(np.where(allowed, q @ k.swapaxes(-1, -2), -1e9), v)


def joined(qkv: Value) -> Value:
    """Queries, keys and values of 2 heads of 16, concatenated in one tensor; the result is joined again."""
    length = qkv.type.shape[1]  # type: ignore[union-attr]

    def part(k: int) -> Value:
        mine = view.slice_(qkv, starts=(0, 0, 32 * k), sizes=(2, length, 32), steps=(1, 1, 1))
        return view.transpose(view.reshape(mine, shape=(2, length, 2, 16)), perm=(0, 2, 1, 3))

    mixed = view.transpose(plain(part(0), part(1), part(2)), perm=(0, 2, 1, 3))
    return view.reshape(mixed, shape=(2, length, 32))


def joined_reference(qkv: np.ndarray) -> np.ndarray:
    q, k, v = (a.reshape(2, -1, 2, 16).swapaxes(1, 2) for a in np.split(qkv, 3, axis=2))
    return plain_reference(q, k, v).swapaxes(1, 2).reshape(2, -1, 32)


CAUSAL = np.tril(np.ones((20, 20), bool))

CASES = (
    Case("one head", (f32(20, 16), f32(20, 16), f32(20, 16)), (data(20, 16), data(20, 16), data(20, 16)),
         plain, plain_reference),
    Case("odd sizes", (f32(2, 13, 7), f32(2, 21, 7), f32(2, 21, 19)), (data(2, 13, 7), data(2, 21, 7), data(2, 21, 19)),
         plain, plain_reference),
    Case("many rows", (f32(2, 150, 8), f32(2, 33, 8), f32(2, 33, 16)),
         (data(2, 150, 8), data(2, 33, 8), data(2, 33, 16)), plain, plain_reference),
    Case("a mask of keys", (f32(2, 3, 20, 16), f32(2, 3, 32, 16), f32(2, 3, 32, 16), f32(2, 1, 1, 32)),
         (data(2, 3, 20, 16), data(2, 3, 32, 16), data(2, 3, 32, 16), data(2, 1, 1, 32)), masked, masked_reference),
    Case("a mask for all heads", (f32(2, 20, 16), f32(2, 37, 16), f32(2, 37, 16), f32(20, 37)),
         (data(2, 20, 16), data(2, 37, 16), data(2, 37, 16), data(20, 37)), masked, masked_reference),
    Case("causal", (f32(2, 20, 16), f32(2, 20, 16), f32(2, 20, 16), tensor(dt.bool_, (20, 20))),
         (data(2, 20, 16), data(2, 20, 16), data(2, 20, 16), CAUSAL), chosen, chosen_reference),
    Case("keys shared by heads", (f32(2, 3, 20, 16), f32(2, 1, 18, 16), f32(2, 1, 18, 16)),
         (data(2, 3, 20, 16), data(2, 1, 18, 16), data(2, 1, 18, 16)), plain, plain_reference),
    Case("one query", (f32(2, 3, 1, 40), f32(2, 3, 21, 40), f32(2, 3, 21, 40), f32(2, 1, 1, 21)),
         (data(2, 3, 1, 40), data(2, 3, 21, 40), data(2, 3, 21, 40), data(2, 1, 1, 21)), masked, masked_reference),
    Case("one query of one head", (f32(1, 16), f32(21, 16), f32(21, 16)), (data(1, 16), data(21, 16), data(21, 16)),
         plain, plain_reference),
    Case("three queries, a growing past", (f32(2, 3, 3, 16), f32(2, 3, N, 16), f32(2, 3, N, 24)),
         (data(2, 3, 3, 16), data(2, 3, 35, 16), data(2, 3, 35, 24)), plain, plain_reference),
    Case("one query, keys as columns", (f32(3, 1, 16), f32(3, 16, 37), f32(3, 37, 16)),
         (data(3, 1, 16), data(3, 16, 37), data(3, 37, 16)), columns, columns_reference),
    Case("keys as columns", (f32(3, 20, 16), f32(3, 16, 37), f32(3, 37, 16)),
         (data(3, 20, 16), data(3, 16, 37), data(3, 37, 16)), columns, columns_reference),
    Case("unknown lengths", (f32(2, 3, N, 16), f32(2, 3, M, 16), f32(2, 3, M, 16), f32(2, 1, 1, M)),
         (data(2, 3, 19, 16), data(2, 3, 35, 16), data(2, 3, 35, 16), data(2, 1, 1, 35)), masked, masked_reference),
    Case("unknown lengths, few", (f32(2, 3, N, 16), f32(2, 3, M, 16), f32(2, 3, M, 16), f32(2, 1, 1, M)),
         (data(2, 3, 1, 16), data(2, 3, 2, 16), data(2, 3, 2, 16), data(2, 1, 1, 2)), masked, masked_reference),
    Case("one tensor", (f32(2, 20, 96),), (data(2, 20, 96),), joined, joined_reference),
    Case("one tensor of unknown length", (f32(2, N, 96),), (data(2, 41, 96),), joined, joined_reference),
)  # fmt: skip
IDS = [case.name for case in CASES]


def built(case: Case) -> Module:
    module = oracle.build(case.types, case.body)
    for step in (Expand(), Canonicalize(), HoistScales(), Canonicalize()):
        step.run(module, PassContext())
    return module


def wanted(case: Case) -> np.ndarray:
    return case.reference(*(a.astype(np.float64) if a.dtype.kind == "f" else a for a in case.arrays))


@pytest.mark.sweep(4)
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_loops_compute_attention(case: Case, target: str) -> None:
    module = built(case)
    ctx = oracle.scheduled(module, target)
    assert not [r for r in ctx.remarks if r.stage == "schedule"], "it has a schedule of its own"
    calls = [op for op in module.main.body.ops if op.name == "call"]
    assert [c.attrs["kernel"] for c in calls] == ["k0_attention"]
    (found,) = oracle.run(module, case.arrays)
    np.testing.assert_allclose(found, wanted(case), rtol=2e-5, atol=2e-6)


@pytest.mark.sweep
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_native_code_computes_attention(case: Case, threads: int) -> None:
    (found,) = native(built(case), threads)(*case.arrays)
    np.testing.assert_allclose(found, wanted(case), rtol=2e-5, atol=2e-6)


def test_few_of_an_unknown_number_of_rows_are_no_block_of_many() -> None:
    """The one new token of a decoder with a past costs one row."""
    case = next(c for c in CASES if c.name == "unknown lengths")
    module = built(case)
    oracle.scheduled(module)
    kernel = module.funcs["k0_attention"]
    text = " ".join(kernel_info(kernel).schedule)
    assert "specialize(" in text and "otherwise" in text
    few = [op for op in kernel.body.ops if op.name == "if"][-1]
    sums = [buffer_type(op.result) for op in few.walk() if op.name == "alloc" and buffer_type(op.result).space == "reg"]
    assert sums and all(b.shape[-2] == 1 for b in sums if b.rank > 1), "each row is a register tile of its own"
    for rows in (1, 2, 8, 9, 17):
        q, k, v, mask = data(2, 3, rows, 16), data(2, 3, 35, 16), data(2, 3, 35, 16), data(2, 1, 1, 35)
        (found,) = oracle.run(module, (q, k, v, mask))
        wanted = masked_reference(*(a.astype(np.float64) for a in (q, k, v, mask)))
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


def test_only_the_scores_of_a_block_are_kept() -> None:
    case = next(c for c in CASES if c.name == "many rows")
    module = built(case)
    oracle.scheduled(module)
    kernel = module.funcs["k0_attention"]
    sizes = [op.result.type.size for op in kernel.body.walk() if op.name == "alloc"]  # type: ignore[union-attr]
    assert max(size.value for size in sizes) <= 75 * 33
    assert kind_of(loops_in(kernel.body)[0]) == "parallel"


def innermost(op: Op) -> Op:
    return enclosing_loops(op)[-1]


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64-neon"])
@pytest.mark.parametrize("name", ["odd sizes", "a mask for all heads", "one tensor"])
def test_no_element_of_a_row_is_computed_alone(name: str, target: str) -> None:
    module = built(next(c for c in CASES if c.name == name))
    oracle.scheduled(module, target)
    powers = [op for op in module.funcs["k0_attention"].body.walk() if op.name == "exp"]
    assert powers and all(kind_of(innermost(op)) == "vector" for op in powers)
    for op in powers:  # weights are summed as they are computed
        spaces = {buffer_type(o.operands[1]).space for o in stores_in(innermost(op))}
        assert spaces == {"reg", "scratch"}


def in_bytes(x: Value, scale: float, zero: int = 0) -> Value:
    """x as quantisers round it to bytes, and back."""
    parameters = constant(np.float32(scale)), constant(np.uint8(zero))
    return dequantize_linear(quantize_linear(x, *parameters, dtype=dt.u8), *parameters, dtype=dt.f32)


def quantised(q: Value, k: Value, v: Value) -> Value:
    scores = in_bytes(contract.matmul(q, k, transpose_b=True), 0.1, 128)
    return contract.matmul(in_bytes(softmax(scores), 1 / 255), v)


def quantised_reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    def rounded(x: np.ndarray, scale: float, zero: int) -> np.ndarray:
        return (np.clip(np.rint(x / np.float32(scale)) + zero, 0, 255) - zero) * float(np.float32(scale))

    powers = np.exp(rounded(q @ k.swapaxes(-1, -2), 0.1, 128))
    return rounded(powers / powers.sum(-1, keepdims=True), 1 / 255, 0) @ v


@pytest.mark.sweep
@pytest.mark.fresh_seeds(2)
@pytest.mark.parametrize("length", [21, N], ids=str)
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "zen4", "aarch64-neon"])
def test_weights_are_rounded_once(target: str, length: Any, fresh_seed: int) -> None:
    """Not in the sum of the second product, again for each tile of columns."""
    types = (f32(2, 13, 8), f32(2, length, 8), f32(2, length, 40))
    module = oracle.build(types, quantised)
    run_passes(module, default_passes(Options()), PassContext(parse_target(target)))
    oracle.scheduled(module, target)
    kernel = module.funcs["k0_attention"]
    rounded = [op for op in kernel.body.walk() if op.name == "round"]
    values = [innermost(op) for op in kernel.body.walk() if op.name == "load" and op.operands[0] is kernel.args[2]]
    assert rounded and values and not {innermost(op) for op in rounded} & set(values)
    rng = np.random.default_rng(fresh_seed)
    # Of whole numbers the scores are exact, and no two computations round one of them to different bytes.
    q, k = (rng.integers(-2, 3, (2, n, 8)).astype(np.float32) for n in (13, 21))
    v = rng.standard_normal((2, 21, 40), np.float32)
    (found,) = oracle.run(module, (q, k, v))
    wanted = quantised_reference(*(a.astype(np.float64) for a in (q, k, v)))
    assert_equal_but_for_halves(found, wanted, v)


def assert_equal_but_for_halves(found: np.ndarray, wanted: np.ndarray, v: np.ndarray) -> None:
    """A weight that lies at a half within float32 may be another byte, one in a row and in few rows: one of 40,000
    does, of weights that are spread evenly."""
    away = np.abs(found - wanted).max(-1) > 1e-4
    assert away.sum() <= 2 and np.abs(found - wanted).max() <= 1.01 / 255 * np.abs(v).max()


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_keys_are_transposed_in_registers(target: str) -> None:
    module = built(next(c for c in CASES if c.name == "many rows"))
    oracle.scheduled(module, target)
    kernel = module.funcs["k0_attention"]
    reads = [op for op in kernel.body.walk() if op.name == "load" and op.operands[0] is kernel.args[1]]
    assert reads
    for op in reads:
        assert kind_of(innermost(op)) == "vector" and stride_in(op, loop_var(innermost(op))) == 1


@pytest.mark.sweep(1)
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_features_of_unknown_number_leave_few_rows_their_own_kernel(target: str) -> None:
    """Keys are transposed by masked squares where they may be short, so that rows alone decide which kernel runs."""
    dims = [var(name, 1) for name in ("b", "r", "n", "d")]
    b, rows, keys, features = dims
    types = tuple(tensor(dt.f32, (b, 3, length, features)) for length in (rows, keys, keys))
    module = built(Case("features", types, (), plain, plain_reference))
    oracle.scheduled(module, target)
    kernel = module.funcs["k0_attention"]
    (narrowed,) = [step for step in kernel_info(kernel).schedule if step.startswith("specialize(")]
    assert "least=8" in narrowed
    for r, n, d in [(1, 1, 1), (1, 20, 17), (7, 5, 3), (8, 5, 15), (9, 18, 16)]:
        q, k, v = data(1, 3, r, d), data(1, 3, n, d), data(1, 3, n, d)
        (found,) = oracle.run(module, (q, k, v))
        wanted = plain_reference(*(a.astype(np.float64) for a in (q, k, v)))
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-5)


def of_shared_keys(heads: int, rows: int, width: int) -> Module:
    """Few rows of heads that share keys."""
    types = [f32(2, heads, rows, width), *[f32(2, 1, var("keys", 0), width)] * 2]
    return oracle.build(types, lambda q, k, v: plain(ew.mul(q, 0.125), k, v))


def attention_kernel(module: Module) -> Func:
    (kernel,) = [f for f in module.funcs.values() if f.level == "loops"]
    return kernel


WIDE, NARROW = "x86-64-v4", "x86-64-v3"


@pytest.mark.parametrize(("target", "heads", "at_once"), [(WIDE, 7, 7), (WIDE, 15, 5), (NARROW, 6, 3)])
def test_heads_that_share_keys_read_them_together(target: str, heads: int, at_once: int) -> None:
    """A key goes through all heads whose sums are in registers, and no key asks whether it is one."""
    module = of_shared_keys(heads, 1, 64)
    compile_module(module, Options(), parse_target(target))
    pieces = [o for o in loops_in(attention_kernel(module).body) if extent_of(o).bounds[1] == KEYS_OF_A_PIECE]
    (keys,) = [o for o in pieces if not extent_of(o).is_const]
    assert not [op for op in keys.walk() if op.name == "if"]
    assert {kind_of(o) for o in loops_in(keys) if o is not keys} <= {"unroll", "vector"}
    sums = [op for op in keys.walk() if op.name == "lanes_reduce"]
    around = [o for o in enclosing_loops(sums[0]) if kind_of(o) == "unroll"]
    assert (len(sums), len(around)) == (at_once, int(heads != at_once))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("heads", "rows", "width"), [(3, 1, 64), (7, 1, 40), (15, 3, 16)])
def test_few_rows_of_heads_that_share_keys(heads: int, rows: int, width: int, threads: int) -> None:
    module = of_shared_keys(heads, rows, width)
    model = Model(compile_module(module, Options(), parse_target("host")), threads)
    assert attention_kernel(module)
    for keys in (1, 63, 64, 65, 129):
        q, k, v = data(2, heads, rows, width), data(2, 1, keys, width), data(2, 1, keys, width)
        wanted = plain_reference(*map(np.float64, (q / 8, k, v)))
        np.testing.assert_allclose(model(q, k, v)[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("shared", [1, 2], ids=["heads of their own", "heads that share keys"])
def test_attention_to_no_keys_is_zero(rows: int, shared: int) -> None:
    """A sum of nothing, whatever the inverse of the sum of its weights would be."""
    keys = var("keys", 0)
    types = [tensor(dt.f32, (2, shared, rows, 64)), *[tensor(dt.f32, (2, 1, keys, 64))] * 2]
    module = oracle.build(types, lambda q, k, v: plain(ew.mul(q, 0.125), k, v))
    model = Model(compile_module(module, Options(), parse_target("host")), 1)
    assert len([f for f in module.funcs.values() if f.level == "loops"]) == 1
    q = data(2, shared, rows, 64)
    k, v = data(2, 1, 5, 64), data(2, 1, 5, 64)
    np.testing.assert_array_equal(model(q, k[:, :, :0], v[:, :, :0])[0], np.zeros_like(q))
    wanted = plain_reference(*map(np.float64, (q / 8, k, v)))
    np.testing.assert_allclose(model(q, k, v)[0], wanted, rtol=1e-4, atol=1e-5)
