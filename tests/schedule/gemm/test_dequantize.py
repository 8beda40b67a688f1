"""Quantised weights are read as they are, and dequantised in the kernel of the product."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Op, Value
from tilewright.ir.sym import Sym, var
from tilewright.ir.types import product, tensor
from tilewright.loops.edit import buffer_type, enclosing_loops, extent_of
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops import contract, quant, view
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target

N = var("n", 0)
RNG = np.random.default_rng(5)
Array = np.ndarray


def data(*shape: int) -> Array:
    return (0.1 * RNG.standard_normal(shape)).astype(np.float32)


def bytes_(*shape: int) -> Array:
    return RNG.integers(-20, 20, shape).astype(np.int8)


def f32(value: Value) -> Value:
    return ew.cast(value, dtype=dt.f32)


DEPTH = 48
FORMS: dict[str, Callable[[int], Value]] = {
    "bytes": lambda n: f32(constant(bytes_(DEPTH, n))),
    "scales of columns": lambda n: ew.mul(f32(constant(bytes_(DEPTH, n))), constant(data(1, n))),
    "one scale": lambda n: ew.mul(f32(constant(bytes_(DEPTH, n))), constant(data())),
    "scales of rows": lambda n: ew.mul(f32(constant(bytes_(DEPTH, n))), constant(data(DEPTH, 1))),
    "zero points": lambda n: quant.dequantize_linear.expand(
        [
            constant(RNG.integers(0, 255, (DEPTH, n)).astype(np.uint8)), constant(data(1, n)),
            constant(RNG.integers(0, 255, n).astype(np.uint8)),
        ],
        {"dtype": dt.f32},
    )[0],
    "scales of blocks": lambda n: ew.mul(
        f32(constant(bytes_(DEPTH, n))),
        view.reshape(
            view.expand(view.reshape(constant(data(3, n)), shape=(3, 1, n)), shape=(3, 16, n)), shape=(DEPTH, n)
        ),
    ),
    "scales of blocks, columns apart": lambda n: view.transpose(
        ew.mul(
            f32(constant(bytes_(n, DEPTH))),
            view.reshape(view.expand(constant(data(n, 3, 1)), shape=(n, 3, 16)), shape=(n, DEPTH)),
        ),
        perm=(1, 0),
    ),
    "f16": lambda n: f32(constant(data(DEPTH, n).astype(np.float16))),
    "bf16": lambda n: f32(constant(data(DEPTH, n).astype(ml_dtypes.bfloat16))),
    "a stack": lambda n: ew.mul(f32(constant(bytes_(2, DEPTH, n))), constant(data(2, 1, n))),
}  # fmt: skip


def kernel_of(module: Module) -> Func:
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


def layer(form: Callable[[int], Value], columns: int) -> Callable[[Value], Value]:
    return lambda x: ew.max_(contract.matmul(x, form(columns)), 0.0)


@pytest.mark.sweep
@pytest.mark.parametrize(("rows", "columns"), [(1, 20), (14, 40)])
@pytest.mark.parametrize("form", FORMS)
def test_the_kernel_computes_the_product(form: str, rows: int, columns: int) -> None:
    module, _ = oracle.agree(
        [tensor(dt.f32, (2, rows, DEPTH))],
        layer(FORMS[form], columns),
        [data(2, rows, DEPTH)],
        tolerance=1e-4,
    )
    kernel = kernel_of(module)
    assert all(buffer_type(a).dtype.bits < 32 for a in kernel.args if buffer_type(a).dtype.kind == "int")
    wide = max(product(buffer_type(v).shape).value for v in wide_buffers(kernel))
    assert wide <= DEPTH * 32, "no more than a panel is wide"


def wide_buffers(kernel: Func) -> list[Value]:
    return [op.result for op in kernel.body.walk() if op.name == "alloc"]


def casts(kernel: Func) -> list[Op]:
    return [op for op in kernel.body.walk() if op.name == "cast"]


def scheduled(rows: int | Sym, columns: int, target: str = "x86-64-v3") -> Func:
    module = oracle.build([tensor(dt.f32, (rows, DEPTH))], layer(FORMS["scales of columns"], columns))
    oracle.scheduled(module, target)
    return kernel_of(module)


def test_many_rows_share_a_panel_that_is_made_once() -> None:
    (op,) = casts(scheduled(40, 96))
    iterations = [extent_of(o).value for o in enclosing_loops(op)]
    assert np.prod(iterations) == 96 * DEPTH, "each element is dequantised once"


def test_one_tile_of_rows_widens_in_registers() -> None:
    kernel = scheduled(1, 96)
    spaces = {buffer_type(v).space for v in wide_buffers(kernel)}
    assert spaces == {"reg"}


def test_bytes_are_packed_in_panels_of_columns() -> None:
    kernel = scheduled(40, 96)
    packed = kernel_info(kernel).packed
    shapes = {buffer_type(kernel.args[k]).dtype.name: buffer_type(kernel.args[k]).shape for k in packed}
    assert [int(d.value) for d in shapes["i8"]][:2] == [96 // 16, DEPTH]


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64-neon"])
def test_no_condition_is_left_where_bytes_are_read(target: str) -> None:
    for rows in (1, 40, N):
        for op in casts(scheduled(rows, 96, target)):
            loads = [o for o in enclosing_loops(op)[-1].walk() if o.name == "load"]
            assert not any(o.attrs.get("guard") for o in loads)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("form", FORMS)
def test_machine_code_for_every_number_of_rows(form: str) -> None:
    module = oracle.build([tensor(dt.f32, (2, N, DEPTH))], layer(FORMS[form], 200))
    arrays = [data(2, rows, DEPTH) for rows in (0, 1, 2, 3, 4, 7, 13, 20, 29)]
    wanted = [oracle.expected(module, [x]) for x in arrays]
    model = Model(compile_module(module, Options(), parse_target("host,l2=1024")), 1)
    for x, (y,) in zip(arrays, wanted, strict=True):
        np.testing.assert_allclose(model(x)[0], y, rtol=1e-4, atol=1e-4)


# Few rows: factors that a group shares multiply its sum


def blocks(values: Array, block: int) -> Value:
    """Numbers [blocks, n] as those of all rows."""
    count, n = values.shape
    repeated = view.expand(constant(values.reshape(count, 1, n)), shape=(count, block, n))
    return view.reshape(repeated, shape=(count * block, n))


GROUPED: dict[str, Callable[[int, int], Value]] = {
    "scales": lambda k, n: ew.mul(f32(constant(bytes_(k, n))), blocks(data(k // 16, n), 16)),
    "scales and minima": lambda k, n: ew.sub(
        ew.mul(f32(constant(bytes_(k, n))), blocks(data(k // 16, n), 16)), blocks(data(k // 16, n), 16)
    ),
    "zero points": lambda k, n: ew.mul(
        ew.sub(f32(constant(bytes_(k, n))), blocks(np.trunc(99 * data(k // 16, n)), 16)), blocks(data(k // 16, n), 16)
    ),
    "scales of two levels": lambda k, n: ew.mul(
        f32(constant(bytes_(k, n))), ew.mul(blocks(data(k // 32, n), 32), blocks(data(k // 16, n), 16))
    ),
    "columns": lambda k, n: ew.mul(f32(constant(bytes_(k, n))), constant(data(1, n))),
}  # fmt: skip


def products_in(kernel: Func) -> list[list[int]]:
    """For each multiplication, the iterations of the loops around it from the outermost on."""
    return [
        [extent_of(o).value for o in enclosing_loops(op) if extent_of(o).is_const]
        for op in kernel.body.walk()
        if op.name == "mul"
    ]


@pytest.mark.sweep
@pytest.mark.parametrize("form", GROUPED)
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_what_a_group_shares_multiplies_its_sum(form: str, rows: int) -> None:
    depth, columns = 64, 96
    module, _ = oracle.agree(
        [tensor(dt.f32, (rows, depth))],
        lambda x: contract.matmul(x, GROUPED[form](depth, columns)),
        [data(rows, depth)],
        "x86-64-v4",
        tolerance=1e-4,
    )
    kernel = kernel_of(module)
    counts = sorted(int(np.prod(iterations)) for iterations in products_in(kernel))
    assert counts[-1] == rows * depth * columns and sum(counts[:-1]) <= 3 * rows * (depth // 16) * columns


@pytest.mark.sweep
@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize("form", GROUPED)
def test_strict_numerics_round_each_product(form: str, numerics: str) -> None:
    x = data(1, 64)
    module = oracle.build([tensor(dt.f32, (1, 64))], lambda x: contract.matmul(x, GROUPED[form](64, 384)))
    (wanted,) = oracle.expected(module, [x])
    model = Model(compile_module(module, Options(numerics=numerics), parse_target("host,l2=1024")), 1)
    np.testing.assert_allclose(model(x)[0], wanted, rtol=1e-4, atol=1e-4)
    steps = [step for f in module.funcs.values() if f.level == "loops" for step in kernel_info(f).schedule]
    assert any(step.startswith("factor_out") for step in steps) == (numerics == "default")


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("depth", "columns"), [(64, 384), (80, 300), (1072, 16), (96, 1000)])
@pytest.mark.parametrize("form", GROUPED)
def test_one_copy_serves_every_number_of_rows(form: str, depth: int, columns: int) -> None:
    if form == "scales of two levels" and depth % 32:
        depth -= 16
    def body(x: Value) -> Value:
        return contract.matmul(x, GROUPED[form](depth, columns))

    module = oracle.build([tensor(dt.f32, (N, depth))], body)
    arrays = [data(rows, depth) for rows in (0, 1, 2, 3, 4, 5, 8, 9, 13, 40)]
    wanted = [oracle.expected(module, [x]) for x in arrays]
    model = Model(compile_module(module, Options(), parse_target("host,l2=1024")), 1)
    for x, (y,) in zip(arrays, wanted, strict=True):
        np.testing.assert_allclose(model(x)[0], y, rtol=1e-4, atol=1e-4)
    named = oracle.build([tensor(dt.f32, (N, depth))], body)  # tiles of some machines read panels in different orders
    oracle.scheduled(named, "zen3,l2=1024")
    (kernel,) = (f for f in named.funcs.values() if f.level == "loops")
    assert any("otherwise" in step for step in kernel_info(kernel).schedule), "kernels for few rows and for many"
    assert sum(buffer_type(a).dtype is dt.i8 for a in kernel.args) == 1


def versions(steps: Sequence[str]) -> int:
    """How many kernels for some rows there are."""
    return 1 + sum("otherwise {" in step for step in steps)


def heads_of(y: Value, rows: Sym, size: int) -> Value:
    """The columns [rows, n] of heads, one head after the other: [heads, rows, size]."""
    heads = y.tensor.shape[-1].value // size
    return view.transpose(view.reshape(y, shape=(rows, heads, size)), perm=(1, 0, 2))


def turned(y: Value, size: int) -> Value:
    """As a rotary embedding has it: the halves of each head are exchanged, one of them negated."""
    first, second = (
        view.slice_(y, starts=(0, 0, k), sizes=(*y.tensor.shape[:2], size // 2)) for k in (0, size // 2)
    )
    return view.concat(ew.neg(second), first, axis=2)


OF_HEADS: dict[str, Callable[[int, int], Value]] = {
    **GROUPED,
    "4 bits": lambda k, n: ew.mul(
        f32(constant(RNG.integers(0, 16, (k, n)).astype(np.uint8))), blocks(data(k // 32, n), 32)
    ),
    "f16": lambda k, n: f32(constant(data(k, n).astype(np.float16))),
    "bf16": lambda k, n: f32(constant(data(k, n).astype(ml_dtypes.bfloat16))),
    "f32": lambda k, n: constant(data(k, n)),
}  # fmt: skip
SIZES = [(3, 32), (1, 64), (12, 64), (3, 80), (4, 96), (2, 128), (3, 256)]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize(("heads", "size"), SIZES)
@pytest.mark.parametrize("form", OF_HEADS)
def test_one_copy_of_heads_serves_every_number_of_rows(form: str, heads: int, size: int, rotary: bool) -> None:
    """Whose columns are stored a head after the other: panels lie within heads, in all kernels alike."""
    depth = 256

    def layer(x: Value) -> tuple[Value, ...]:
        y = heads_of(contract.matmul(x, OF_HEADS[form](depth, heads * size)), N, size)
        return (y, turned(y, size)) if rotary else (y,)

    module = oracle.build([tensor(dt.f32, (N, depth))], layer)
    arrays = [data(rows, depth) for rows in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13)]
    wanted = [oracle.expected(module, [x]) for x in arrays]
    model = Model(compile_module(module, Options(), parse_target("host,l2=1024")), 1)
    for x, ys in zip(arrays, wanted, strict=True):
        for found, y in zip(model(x), ys, strict=True):
            np.testing.assert_allclose(found, y, rtol=1e-4, atol=1e-4)
    (info,) = (i for f in module.funcs.values() if f.level == "loops" and (i := kernel_info(f)).packed)
    assert versions(info.schedule) >= (3 if form == "f32" else 5)


@pytest.mark.sweep
@pytest.mark.parametrize(("heads", "size"), SIZES)
@pytest.mark.parametrize("form", ["4 bits", "scales", "bf16"])
def test_a_panel_of_heads_is_a_part_of_one(form: str, heads: int, size: int) -> None:
    module = oracle.build(
        [tensor(dt.f32, (N, 256))],
        lambda x: heads_of(contract.matmul(x, OF_HEADS[form](256, heads * size)), N, size),
    )
    remarks = oracle.scheduled(module, "x86-64-v4").remarks
    assert not [r for r in remarks if "a kernel for large dims" in str(r)]
    kernel = kernel_of(module)
    (panel,) = kernel_info(kernel).packed[0].factors[-1] or (size,)
    assert size % panel == 0 and panel >= min(size, 64)
    assert versions(kernel_info(kernel).schedule) >= 5


# Numbers that groups share stay as short as they are


def spread(x: Value, n: int, k: int, groups: int) -> Value:
    """One number for each group of a row as one for each element of [n, k]."""
    return view.reshape(
        view.expand(view.reshape(x, shape=(n, groups, 1)), shape=(n, groups, k // groups)), shape=(n, k)
    )


def halves(n: int, groups: int) -> Value:
    return f32(constant((0.01 * RNG.random((n, groups))).astype(np.float16)))


def of_two_levels(n: int, groups: int) -> Value:
    """A float of 16 bits for 8 groups, times a small integer for each, as K-quants have them."""
    each = f32(constant(RNG.integers(0, 64, (n, groups)).astype(np.uint8)))
    several = view.reshape(halves(n, groups // 8), shape=(n, groups // 8, 1))
    return view.reshape(ew.mul(several, view.reshape(each, shape=(n, groups // 8, 8))), shape=(n, groups))


def affine(n: int, k: int, q: Value, numbers: Callable[[int, int], Value]) -> Value:
    groups = k // 32
    return ew.sub(ew.mul(q, spread(numbers(n, groups), n, k, groups)), spread(numbers(n, groups), n, k, groups))


SHARED: dict[str, tuple[float, Callable[[int, int, Value], Value]]] = {
    "scales": (16 / 32, lambda n, k, q: ew.mul(q, spread(halves(n, k // 32), n, k, k // 32))),
    "scales and minima": (32 / 32, lambda n, k, q: affine(n, k, q, halves)),
    "of two levels": (2 * (8 + 2) / 32, lambda n, k, q: affine(n, k, q, of_two_levels)),
}  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.without_room_for_zones
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("form", SHARED)
def test_what_groups_share_is_stored_as_it_is(form: str, bits: int) -> None:
    n, k = 384, 512
    shared, weights = SHARED[form]
    q = RNG.integers(0, 16, (n, k)).astype(np.uint8) if bits == 4 else bytes_(n, k)
    module = oracle.build(
        [tensor(dt.f32, (N, k))],
        lambda x: contract.matmul(x, weights(n, k, f32(constant(q))), transpose_b=True),
    )
    arrays = [data(rows, k) for rows in (0, 1, 2, 3, 6, 8, 9, 40)]
    wanted = [oracle.expected(module, [x]) for x in arrays]
    artifact = compile_module(module, Options(), parse_target("x86-64-v3,l2=1024,l3=2048"))
    assert len(artifact.constants) <= (bits + shared) / 8 * n * k + 1024
    model = Model(artifact, 1)
    for x, (y,) in zip(arrays, wanted, strict=True):
        np.testing.assert_allclose(model(x)[0], y, rtol=1e-4, atol=1e-3)
