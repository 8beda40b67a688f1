"""Products of bytes in the dtypes that a machine multiplies in groups: exact, whatever the zero points."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.programs import program
from tilewright.graph.pipeline import default_passes
from tilewright.graph.quantised.integer_products import IntegerProducts
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.dtype import from_numpy
from tilewright.ir.sym import sym, var
from tilewright.ir.types import TensorType, tensor
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.quant import conv_integer, matmul_integer
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.target.named import parse_target

RNG = np.random.default_rng(11)
MACHINES = ("zen3", "x86-64-v4", "cascadelake", "neoverse-n1", "aarch64-neon")
BYTES = {"u8": np.uint8, "i8": np.int8}
ZEROS = {
    "none": (0, 0),
    "of the rows": (77, 0),
    "of both": (77, 5),
    "extremes": (127, 127),
    "of each row and column": (RNG.integers(0, 128, (6, 1)), RNG.integers(0, 128, (10,))),
}


def integers(dtype, *shape):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def product(a, b, a_zero, b_zero) -> Module:
    return program(
        lambda x: matmul_integer(x, constant(b), constant(a_zero), constant(b_zero)),
        tensor(from_numpy(a.dtype), a.shape),
    )


def lowered(module: Module, machine: str) -> PassContext:
    target = parse_target(machine)
    ctx = PassContext(target, Options())
    run_passes(module, default_passes(Options()), ctx)
    return ctx


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("right", BYTES)
@pytest.mark.parametrize("left", BYTES)
def test_sums_are_exact(left, right, zeros, machine):
    a, b = integers(BYTES[left], 6, 16), integers(BYTES[right], 16, 10)
    a[0], b[:, 0] = np.iinfo(a.dtype).max, np.iinfo(b.dtype).min
    a_zero, b_zero = (np.asarray(z).astype(x.dtype) for z, x in zip(ZEROS[zeros], (a, b), strict=True))
    module = product(a, b, a_zero, b_zero)
    lowered(module, machine)
    names = [op.name for op in module.main.body.ops]
    assert ("matmul_widening" in names) == (machine != "aarch64-neon")  # which multiplies no groups
    (found,) = evaluate_func(module.main, module, [a])
    wide = [x.astype(np.int64) for x in (a, a_zero, b, b_zero)]
    np.testing.assert_array_equal(found, (wide[0] - wide[1]) @ (wide[2] - wide[3]))


def test_centred_weights_that_fit_a_byte_need_no_sums_of_rows():
    a, b = integers(np.uint8, 6, 16), RNG.integers(70, 190, (16, 10)).astype(np.uint8)
    module = product(a, b, np.uint8(0), np.uint8(128))
    lowered(module, "cascadelake")
    assert [op.name for op in module.main.body.ops if op.name not in ("constant", "return")] == ["matmul_widening"]


@pytest.mark.parametrize(
    ("machine", "depth", "known", "reason"),
    [
        ("aarch64-neon", 16, True, "multiplies no groups"),
        ("cascadelake", 18, True, "18 products are no multiple of the groups of 4"),
        ("x86-64-v4", 16, False, "multiplies no groups of bytes of the call"),
    ],
)
def test_products_that_stay_say_why(machine, depth, known, reason):
    a, b = integers(np.uint8, 6, depth), integers(np.int8, depth, 10)
    if known:
        module = product(a, b, np.uint8(3), np.int8(0))
    else:
        module = program(
            lambda x: matmul_integer(x, x, constant(np.uint8(3)), constant(np.uint8(0))),
            tensor(from_numpy(a.dtype), (16, 16)),
        )
    ctx = PassContext(parse_target(machine), Options())
    run_passes(module, [IntegerProducts()], ctx)
    assert any(reason in r.message and r.kind == "missed" for r in ctx.remarks)
    assert "matmul_integer" in [op.name for op in module.main.body.ops]


@pytest.mark.sweep
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("machine", MACHINES[:-1])
@pytest.mark.parametrize(("rows", "narrow"), [(1, True), (2, True), (64, False), (None, False)])
def test_weights_stay_bytes_where_few_rows_wait_for_them(rows, narrow, machine, fresh_seed):
    """Two MiB of weights, which no second-level cache holds. Sums are the same, whatever the zero points."""
    rng = np.random.default_rng(fresh_seed)
    b, zero = rng.integers(-128, 128, (1024, 2048)).astype(np.int8), np.uint8(93)
    given = var("rows", 1) if rows is None else sym(rows)
    module = program(
        lambda x: matmul_integer(x, constant(b), constant(zero), constant(np.int8(0))),
        TensorType(dt.u8, (given, sym(1024))),
    )
    lowered(module, machine)
    (weights,) = [a for a in module.constants.values() if a.size == b.size]
    wide = parse_target(machine).dots[0].right.storage
    assert weights.dtype == (np.int8 if narrow else wide)
    a = rng.integers(0, 256, (3 if rows is None else rows, 1024)).astype(np.uint8)
    (found,) = evaluate_func(module.main, module, [a[:2]] if rows is None else [a])
    wanted = (a[: len(found)].astype(np.int64) - int(zero)) @ b.astype(np.int64)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("machine", MACHINES)
def test_zero_points_of_unknown_number_may_repeat_filters(machine):
    """One filter less several zero points is several filters, which are no operand of the products."""
    b = integers(np.int8, 8, 10)
    x, filters, zeros = tensor(dt.u8, (1, 3, 7, 8)), tensor(dt.i8, (1, 3, 3, 3)), tensor(dt.i8, (var("n", 1), 1, 1, 1))

    def body(x: Value, w: Value, zero: Value) -> tuple[Value, Value]:
        x_zero = constant(np.array(7, np.uint8))
        product = matmul_integer(x, constant(b), x_zero, constant(np.array(0, np.int8)))
        return conv_integer(x, w, x_zero, zero), product

    module = program(body, x, filters, zeros)
    arrays = [integers(np.uint8, 1, 3, 7, 8), integers(np.int8, 1, 3, 3, 3), integers(np.int8, 1, 1, 1, 1)]
    wanted = evaluate_func(module.main, module, arrays)
    IntegerProducts().run(module, PassContext(parse_target(machine), Options()))
    for found, expected in zip(evaluate_func(module.main, module, arrays), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)
