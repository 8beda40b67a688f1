"""Weights that stay narrow until a matrix product reads them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graph import programs
from tests.graph.programs import conv, find, inputs, kernels, ops, program
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.pipeline import default_passes
from tilewright.graph.quantised.weight_only import WeightOnly, _centred, separate_weights
from tilewright.graph.rewrites.expand import Expand
from tilewright.graph.rewrites.fold import Fold
from tilewright.graph.rewrites.horizontal_fusion import HorizontalFusion
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.ir.verify import verify_func
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops import quant
from tilewright.ops import view as vw
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.define.spec import graph_spec
from tilewright.ops.index import gather
from tilewright.options import Options
from tilewright.passes import Pass, PassContext, run_passes
from tilewright.schedule.strategies import STRATEGIES
from tilewright.target.named import parse_target

N = var("n", 1)
SMALL_CACHE = "x86-64-v3,l2=65536"


def elements(*shape: int, dtype: type = np.int8, seed: int = 0) -> Value:
    numbers = np.random.default_rng(seed).integers(-127, 128, shape)
    return constant(numbers.astype(dtype), "q")


def scales(*shape: int, seed: int = 1) -> Value:
    return constant((np.random.default_rng(seed).random(shape) * 0.01).astype(np.float32), "scale")


def weights(rows: int, columns: int, seed: int = 0) -> Value:
    return ew.mul(ew.cast(elements(rows, columns, seed=seed), dtype=dt.f32), scales(1, columns, seed=seed))


def after(module: Module, *passes: Pass, target: str = SMALL_CACHE) -> PassContext:
    """Run passes for a target; the program stays legal and computes the same bits."""
    arrays = inputs(module)
    wanted = evaluate_func(module.main, module, arrays)
    ctx = PassContext(parse_target(target), Options())
    run_passes(module, passes, ctx, verify=lambda m: verify_func(m.main, graph_spec(m)))
    for a, b in zip(wanted, evaluate_func(module.main, module, arrays), strict=True):
        np.testing.assert_array_equal(b, a)
    return ctx


def test_the_weights_of_a_product_are_not_made_wide() -> None:
    module = program(lambda x: ct.matmul(x, weights(128, 160)), (2, 128))
    after(module, Fold())
    assert ops(module) == ["cast", "mul", "matmul"]
    assert {a.dtype.name for a in module.constants.values()} == {"int8", "float32"}


@pytest.mark.parametrize("dtype", [dt.f16, dt.bf16, dt.u8, dt.i16])
def test_every_narrow_dtype_stays(dtype: dt.DType) -> None:
    numbers = np.random.default_rng(2).integers(0, 100, (128, 160)).astype(dtype.storage)
    module = program(lambda x: ct.matmul(x, ew.cast(constant(numbers, "q"), dtype=dt.f32)), (2, 128))
    after(module, Fold())
    assert ops(module) == ["cast", "matmul"]


def test_weights_that_fit_the_cache_are_folded() -> None:
    module = program(lambda x: ct.matmul(x, weights(128, 160)), (2, 128))
    ctx = after(module, Fold(), target="x86-64-v3,l2=1048576")
    assert ops(module) == ["matmul"]
    assert any("fit L2" in r.message for r in ctx.remarks)


def test_weights_of_convolutions_are_folded() -> None:
    def body(x: Value) -> Value:
        filters = ew.mul(ew.cast(elements(64, 32, 3, 3), dtype=dt.f32), scales(64, 1, 1, 1))
        return ct.conv(x, filters, pads_begin=(1, 1), pads_end=(1, 1))

    module = program(body, (1, 32, 6, 6))
    ctx = after(module, Fold())
    assert ops(module) == ["conv"]
    assert any("conv reads it" in r.message for r in ctx.remarks)


@pytest.mark.parametrize(
    ("shape", "body", "reason"),
    [
        (
            (128, 160),
            lambda x: ew.add(x, ew.cast(elements(128, 160), dtype=dt.f32)),
            "add joins it with data",
        ),
        ((128, 160), lambda x: ct.matmul(ew.cast(elements(160, 128), dtype=dt.f32), x), "matmul reads it"),
        (
            (2, 160),
            lambda x: ew.add(ct.matmul(programs.weights(2, 128), weights(128, 160)), x),
            "matmul reads it",
        ),
    ],
)
def test_what_else_reads_it_makes_it_wide(
    shape: tuple[int, int], body: Callable[[Value], Value], reason: str
) -> None:
    module = program(body, shape)
    ctx = after(module, Fold())
    assert "cast" not in ops(module)
    assert any(reason in r.message for r in ctx.remarks)


def test_zero_points_and_scales_of_rows_stay_too() -> None:
    def body(x: Value) -> Value:
        zero = constant(np.arange(160, dtype=np.uint8), "zero")
        q = elements(128, 160, dtype=np.uint8)
        return ct.matmul(x, quant.dequantize_linear(q, scales(128, 1), zero, dtype=dt.f32))

    module = program(body, (2, 128))
    after(module, Expand(), Fold(), Fuse(STRATEGIES))
    assert len(kernels(module)) == 1


@pytest.mark.parametrize("attribute", [False, True])
def test_transposed_weights_are_transposed_when_compiling(attribute: bool) -> None:
    def body(x: Value) -> Value:
        w = ew.mul(ew.cast(elements(160, 128), dtype=dt.f32), scales(160, 1))
        return ct.matmul(x, w, transpose_b=True) if attribute else ct.matmul(x, vw.transpose(w, perm=(1, 0)))

    module = program(body, (2, 128))
    after(module, Fold(), WeightOnly())
    assert ops(module) == ["cast", "mul", "matmul"]
    assert not find(module, "matmul").attrs["transpose_b"]
    assert {a.shape for a in module.constants.values()} == {(128, 160), (1, 160)}


@pytest.mark.parametrize("depth", [128, 120])
def test_scales_of_blocks_lie_by_columns_of_the_product(depth: int) -> None:
    """As four-bit weights come: 160 columns, one scale for each 32 elements of a column, 120 of which are used."""

    def body(x: Value) -> Value:
        blocks = vw.expand(vw.reshape(scales(160, 4), shape=(160, 4, 1)), shape=(160, 4, 32))
        scale = vw.reshape(blocks, shape=(160, 128))
        if depth < 128:
            scale = vw.slice_(scale, starts=(0, 0), sizes=(160, depth), steps=(1, 1))
        w = ew.mul(ew.cast(elements(160, depth), dtype=dt.f32), scale)
        return ct.matmul(x, w, transpose_b=True)

    module = program(body, (2, depth))
    after(module, Fold(), WeightOnly(), Fuse(STRATEGIES))
    assert len(kernels(module)) == 1 and "transpose" not in kernels(module)[0]
    assert {a.shape for a in module.constants.values()} == {(depth, 160), (4, 1, 160)}


@pytest.mark.parametrize("dtype, zero, stored", [(np.uint8, 128, "int8"), (np.int8, -128, "uint8")])
def test_zero_points_are_taken_off_when_compiling(dtype: type, zero: int, stored: str) -> None:
    info = np.iinfo(dtype)
    q = np.random.default_rng(3).integers(info.min, info.max + 1, (128, 160)).astype(dtype)

    def body(x: Value) -> Value:
        scale, zeros = constant(np.float32(0.1), "scale"), constant(np.array(zero, dtype), "zero")
        return ct.matmul(x, quant.dequantize_linear(constant(q, "q"), scale, zeros, dtype=dt.f32))

    module = program(body, (2, 128))
    after(module, Expand(), Fold(), WeightOnly())
    assert {a.dtype.name for a in module.constants.values() if a.ndim == 2} == {stored}
    assert "sub" not in ops(module)


def test_scales_are_read_by_the_kernel_of_the_product() -> None:
    module = program(lambda x: ew.max_(ct.matmul(x, weights(128, 160)), 0.0), (N, 128))
    after(module, Fold(), Fuse(STRATEGIES))
    assert kernels(module) == [["cast", "mul", "matmul", "max"]]


def test_a_matrix_that_two_products_and_a_table_share() -> None:
    """As the words of a language model: rows are looked up, and all are multiplied, without a wide copy."""

    def body(x: Value, rows: Value) -> tuple[Value, Value, Value]:
        w = weights(128, 160)
        return ct.matmul(x, w), ct.matmul(ew.exp(x), w), gather(w, rows, axis=0)

    module = program(body, (2, 128), tensor(dt.i64, (3,)))
    ctx = PassContext(parse_target(SMALL_CACHE), Options())
    run_passes(module, [Fold(), Fuse(STRATEGIES)], ctx, verify=lambda m: verify_func(m.main, graph_spec(m)))
    largest = max(v.type.size.value for op in module.main.body.ops if op.name == "fused" for v in op.results)  # type: ignore[union-attr]
    assert largest < 128 * 160
    assert [a.dtype.name for a in module.constants.values()].count("int8") == 1


@pytest.mark.parametrize("shape", [(1, 40), (1, 1), ()])
def test_concatenated_products_join_bytes_and_scales(shape: tuple[int, ...]) -> None:
    def body(x: Value) -> list[Value]:
        products = []
        for seed in range(3):
            q = ew.cast(elements(512, 40, seed=seed), dtype=dt.f32)
            y = ct.matmul(x, ew.mul(q, scales(*shape, seed=seed)))
            products.append(vw.reshape(ew.add(y, scales(40, seed=7 + seed)), shape=(3, 5, 8)))
        return products

    module = program(body, (3, 512))
    ctx = PassContext(parse_target("x86-64-v3,l2=65536"), Options())
    arrays = inputs(module)
    wanted = evaluate_func(module.main, module, arrays)
    run_passes(module, [Fold(), HorizontalFusion()], ctx)
    assert ops(module).count("matmul") == 1
    assert {a.dtype.name for a in module.constants.values() if a.size > 1000} == {"int8"}
    for a, b in zip(wanted, evaluate_func(module.main, module, arrays), strict=True):
        np.testing.assert_array_equal(b, a)


def test_matrices_of_different_forms_stay_apart() -> None:
    def body(x: Value) -> list[Value]:
        wide = constant(np.ones((512, 40), np.float32), "w")
        narrow = ew.cast(elements(512, 40), dtype=dt.f32)
        return [vw.reshape(ct.matmul(x, w), shape=(3, 5, 8)) for w in (wide, narrow)]

    module = program(body, (3, 512))
    after(module, Fold(), HorizontalFusion(), target="x86-64-v3,l2=65536")
    assert ops(module).count("matmul") == 2


def test_a_convolutional_network_has_its_wide_weights_after_all_passes() -> None:
    def body(x: Value) -> Value:
        q = ew.cast(elements(32, 32, 3, 3), dtype=dt.f32)
        y = ct.conv(conv(x, 32, 3), ew.mul(q, scales(32, 1, 1, 1)), pads_begin=(1, 1), pads_end=(1, 1))
        return ew.max_(y, 0.0)

    module = program(body, (1, 32, 8, 8))
    target = parse_target("x86-64-v3,l2=1024")
    run_passes(module, default_passes(Options()), PassContext(target, Options()))
    assert all(a.dtype == np.float32 for a in module.constants.values())


@pytest.mark.parametrize("zero", [0, 8, 128, 0.5, -100])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_one_number_is_taken_off_by_bytes_as_many_are(dtype: type, zero: float) -> None:
    weights = np.random.default_rng(3).integers(-20, 20, (20, 30)).astype(dtype)
    one, many = (_centred(weights, np.full(shape, zero, np.float32), (dt.i8, dt.u8)) for shape in ((1, 1), (20, 30)))
    assert (one is None) == (many is None)
    if one is not None and many is not None:
        assert one.dtype == many.dtype
        np.testing.assert_array_equal(one, many)


# What picks rows of weights


def looked_up(module: Module) -> list[tuple[int, ...]]:
    """Shapes of the weights that are stored."""
    return sorted(a.shape for a in module.constants.values() if a.dtype == np.int8)


def tied(rows: int, *others: Callable[[Value], Value]) -> Module:
    """So many rows of a matrix of 400 x 48 bytes that are picked, and a product with its transpose."""
    at = np.random.default_rng(5).integers(0, 400, rows)

    def body(x: Value) -> tuple[Value, ...]:
        scale = constant(np.linspace(0.5, 1, 400, dtype=np.float32).reshape(-1, 1), "scale")
        w = ew.mul(ew.cast(elements(400, 48), dtype=dt.f32), scale)
        picked = gather(w, constant(at, "at"), axis=0)
        return ct.matmul(x, vw.transpose(w, perm=(1, 0))), picked, *(f(w) for f in others)

    return program(body, (3, 48))


def test_few_rows_are_picked_of_the_transposed_matrix() -> None:
    module = tied(5)
    after(module, WeightOnly())
    assert looked_up(module) == [(48, 400)]


def test_many_rows_are_picked_of_a_copy() -> None:
    module = tied(50)
    after(module, WeightOnly())
    assert looked_up(module) == [(48, 400), (400, 48)]


def test_who_else_reads_the_matrix_has_a_copy() -> None:
    module = tied(5, lambda w: vw.slice_(w, starts=(3, 0), sizes=(300, 48)))
    after(module, WeightOnly())
    assert looked_up(module) == [(48, 400), (400, 48)]


def test_readers_of_one_matrix_have_views_of_their_own() -> None:
    """Factors of groups are spread by views, which belong to the map of each reader."""
    groups = (48, 2, 200)

    def body(x: Value) -> tuple[Value, Value]:
        scale = vw.reshape(vw.expand(vw.reshape(scales(48, 2), shape=(48, 2, 1)), shape=groups), shape=(48, 400))
        w = ew.mul(ew.cast(elements(48, 400), dtype=dt.f32), scale)
        return ct.matmul(x, w), ct.matmul(ew.max_(x, 0.0), w)

    module = program(body, (3, 48))
    separate_weights(module)
    assert [ops(module).count(name) for name in ("mul", "cast", "expand", "reshape")] == [2, 2, 2, 4]
