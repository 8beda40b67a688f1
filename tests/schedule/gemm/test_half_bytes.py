"""Weights of 4 bits lie two to a byte, and products read them so."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Value
from tilewright.ir.sym import Sym, var
from tilewright.ir.types import product, tensor
from tilewright.loops.edit import buffer_type, enclosing_loops, extent_of, kind_of, loop_var
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops import contract, quant, view
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target

N = var("n", 0)
DEPTH = 96
RNG = np.random.default_rng(7)
Array = np.ndarray
TARGETS = ("x86-64-v3", "x86-64-v4", "aarch64-neon")
FAR = "l2=1024,l3=2048"
"""Caches so small that weights come from memory."""


def data(*shape: int) -> Array:
    return (0.1 * RNG.standard_normal(shape)).astype(np.float32)


def short(dtype: dt.DType, *shape: int) -> Array:
    low = -8 if dtype.kind == "int" else 0
    return RNG.integers(low, low + 16, shape).astype(dtype.storage)


def f32(value: Value) -> Value:
    return ew.cast(value, dtype=dt.f32)


def blocks(scale: Array, block: int) -> Value:
    """Scales [blocks, n] as those of all rows."""
    count, n = scale.shape
    repeated = view.expand(constant(scale.reshape(count, 1, n)), shape=(count, block, n))
    return view.reshape(repeated, shape=(count * block, n))


def dequantized(q: Value, n: int, block: int) -> Value:
    zero = RNG.integers(0, 16, (DEPTH // block, n)).astype(np.float32)
    return ew.mul(ew.sub(f32(q), blocks(zero, block)), blocks(data(DEPTH // block, n), block))


BOOK = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FORMS: dict[str, Callable[[int], Value]] = {
    "one scale": lambda n: ew.mul(f32(constant(short(dt.i4, DEPTH, n))), constant(data())),
    "scales of columns": lambda n: ew.mul(f32(constant(short(dt.u4, DEPTH, n))), constant(data(1, n))),
    "scales of rows": lambda n: ew.mul(f32(constant(short(dt.i4, DEPTH, n))), constant(data(DEPTH, 1))),
    "blocks of 16": lambda n: ew.mul(f32(constant(short(dt.i4, DEPTH, n))), blocks(data(DEPTH // 16, n), 16)),
    "zero points of blocks of 32": lambda n: dequantized(constant(short(dt.u4, DEPTH, n)), n, 32),
    "zero points of columns": lambda n: quant.dequantize_linear.expand(
        [constant(short(dt.i4, DEPTH, n)), constant(data(1, n)), constant(short(dt.i4, n))], {"dtype": dt.f32}
    )[0],
    "columns apart": lambda n: view.transpose(
        ew.mul(f32(constant(short(dt.i4, n, DEPTH))), constant(data(n, 1))), perm=(1, 0)
    ),
    "levels of blocks of 16": lambda n: ew.mul(
        f32(ew.level(constant(short(dt.u4, DEPTH, n)), levels=BOOK, dtype=dt.i8)), blocks(data(DEPTH // 16, n), 16)
    ),
    "levels that are floats": lambda n: ew.mul(
        ew.level(constant(short(dt.u4, DEPTH, n)), levels=tuple(k / 7 for k in BOOK), dtype=dt.f32),
        constant(data(1, n)),
    ),
    "a stack": lambda n: ew.mul(f32(constant(short(dt.u4, 2, DEPTH, n))), constant(data(2, 1, n))),
}  # fmt: skip


def layer(form: Callable[[int], Value], columns: int) -> Callable[[Value], Value]:
    return lambda x: ew.max_(contract.matmul(x, form(columns)), 0.0)


def kernel_of(module: Module) -> Func:
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


def halves(kernel: Func) -> list[Value]:
    return [kernel.args[k] for k, packing in kernel_info(kernel).packed.items() if packing.fields and not packing.words]


@pytest.mark.sweep
@pytest.mark.parametrize(("rows", "columns"), [(1, 20), (1, 48), (14, 40)])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", TARGETS)
def test_the_kernel_computes_the_product(form: str, rows: int, columns: int, target: str) -> None:
    module, _ = oracle.agree(
        [tensor(dt.f32, (2, rows, DEPTH))],
        layer(FORMS[form], columns),
        [data(2, rows, DEPTH)],
        target,
        tolerance=1e-4,
    )
    (weights,) = halves(kernel_of(module))
    assert buffer_type(weights).dtype is dt.u8
    depth = DEPTH * (2 if form == "a stack" else 1)
    panels = {depth * padded // 2 for padded in (columns, 32, 48, 64)}
    assert product(buffer_type(weights).shape).value in panels, "two elements to a byte, of whole panels of columns"


@pytest.mark.parametrize("depth", [95, 1])
def test_columns_of_an_odd_length_are_whole_bytes(depth: int) -> None:
    def body(x: Value) -> Value:
        return contract.matmul(x, ew.mul(f32(constant(short(dt.i4, depth, 40))), constant(data(1, 40))))

    module, _ = oracle.agree([tensor(dt.f32, (3, depth))], body, [data(3, depth)], tolerance=1e-4)
    assert not halves(kernel_of(module))


def test_a_byte_is_read_once_for_two_steps_of_one_row() -> None:
    module = oracle.build([tensor(dt.f32, (1, DEPTH))], layer(FORMS["blocks of 16"], 48))
    oracle.scheduled(module, "x86-64-v4")
    kernel = kernel_of(module)
    (weights,) = halves(kernel)
    (load,) = (op for op in weights.users if op.name == "load")
    serial = [o for o in enclosing_loops(load) if kind_of(o) in ("serial", "parallel")]
    unrolled = [o for o in enclosing_loops(load) if kind_of(o) == "unroll"]
    assert [extent_of(o).value for o in serial][-2:] == [DEPTH // 16, 16 // 2], "groups, and pairs of each"
    assert 2 in [extent_of(o).value for o in unrolled]
    assert {buffer_type(op.result).space for op in kernel.body.walk() if op.name == "alloc"} == {"reg"}


@pytest.mark.parametrize("form", ["blocks of 16", "levels of blocks of 16"])
def test_what_a_row_with_wide_tiles_widens_stays_in_registers(form: str) -> None:
    """Its sums take most of them, so that each vector of columns is multiplied before the next one is widened."""
    module = oracle.build([tensor(dt.f32, (1, DEPTH))], layer(FORMS[form], 1000))
    oracle.scheduled(module, "x86-64-v4")
    accesses = [user for op in kernel_of(module).body.walk() if op.name == "alloc" for user in op.result.users]
    assert {buffer_type(access.operands[-1]).space for access in accesses} == {"reg"}
    for access in accesses:
        moving = {v for i in access.attrs["idx"] for v in i.vars}
        kinds = {kind_of(o) for o in enclosing_loops(access) if loop_var(o) in moving}
        assert kinds <= {"unroll", "vector"}


def test_a_matrix_of_several_products_is_stored_once() -> None:
    def body(x: Value, y: Value) -> tuple[Value, Value]:
        q = constant(short(dt.i4, DEPTH, 48))
        return tuple(ew.max_(contract.matmul(v, ew.mul(f32(q), constant(data(1, 48)))), 0.0) for v in (x, y))

    types = [tensor(dt.f32, (3, DEPTH))] * 2
    module, _ = oracle.agree(types, body, [data(3, DEPTH), data(3, DEPTH)], tolerance=1e-4)
    assert sum(a.nbytes for a in module.constants.values() if a.dtype.itemsize == 1) == DEPTH * 48 // 2


def runs_here(machine: str) -> bool:
    return set(parse_target(machine).features) <= set(parse_target("host").features)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("machine", ["host", "zen3", "x86-64-v4"])
@pytest.mark.parametrize("form", FORMS)
def test_machine_code_for_every_number_of_rows(form: str, machine: str) -> None:
    if not runs_here(machine):
        pytest.skip("this machine does not run it")
    module = oracle.build([tensor(dt.f32, (2, N, DEPTH))], layer(FORMS[form], 200))
    arrays = [data(2, rows, DEPTH) for rows in (0, 1, 2, 3, 4, 7, 13, 20, 29)]
    wanted = [oracle.expected(module, [x]) for x in arrays]
    model = Model(compile_module(module, Options(), parse_target(f"{machine},{FAR}")), 1)
    for x, (y,) in zip(arrays, wanted, strict=True):
        np.testing.assert_allclose(model(x)[0], y, rtol=1e-4, atol=1e-4)


def whole_sums(rows: int | Sym) -> Module:
    """A product whose sums are exact, so that they are the same in any order."""
    q, scale = RNG.integers(-8, 8, (DEPTH, 192)).astype(np.int8), 2.0 ** RNG.integers(-3, 3, (3, 192))

    def body(x: Value) -> Value:
        return contract.matmul(x, ew.mul(f32(constant(q)), blocks(scale.astype(np.float32), 32)))

    return oracle.build([tensor(dt.f32, (rows, DEPTH))], body)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rows", [1, 5, N])
def test_sums_are_exact(rows: int | Sym) -> None:
    module = whole_sums(rows)
    counts = (1, 2, 3, 8, 17) if isinstance(rows, Sym) else (rows,)
    arrays = [RNG.integers(-9, 9, (count, DEPTH)).astype(np.float32) for count in counts]
    wanted = [oracle.expected(module, [x]) for x in arrays]
    model = Model(compile_module(module, Options(), parse_target(f"host,{FAR}")), 1)
    for x, (y,) in zip(arrays, wanted, strict=True):
        np.testing.assert_array_equal(model(x)[0], y)


@pytest.mark.without_room_for_zones
def test_an_artefact_has_half_a_byte_for_a_weight() -> None:
    artifact = compile_module(whole_sums(N), Options(), parse_target(f"x86-64-v4,{FAR}"))
    assert len(artifact.constants) <= DEPTH * 192 // 2 + 3 * 192 * 4 + 256
