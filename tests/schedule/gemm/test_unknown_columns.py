"""Products with columns of unknown number: whole tiles, and what these leave in tiles of one vector."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.graph.fusion.fuse import Fuse
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.loops.edit import buffer_type
from tilewright.ops import contract as ct
from tilewright.ops.define import constant
from tilewright.options import Options
from tilewright.passes import PassContext
from tilewright.runtime.module import Model
from tilewright.schedule.sharing.kernels import schedule_regions
from tilewright.schedule.strategies import STRATEGIES
from tilewright.target.named import parse_target

LENGTHS = (1, 2, 15, 16, 17, 31, 33, 47, 48, 49, 64, 95, 96, 97, 145, 200)
SHAPES = [(64, 24), (13, 40), (512, 48), (512, 700), (1, 30)]


def weights_of(rows: int, depth: int) -> np.ndarray:
    return np.random.default_rng([rows, depth]).standard_normal((rows, depth)).astype(np.float32)


def module_of(rows: int, depth: int) -> Module:
    batch, columns = var("n", 1), var("c", 1)
    return oracle.build(
        [tensor(dt.f32, (batch, depth, columns))],
        lambda x: ct.matmul(constant(weights_of(rows, depth)), x),
    )


def kernel_of(module: Module) -> Func:
    target = parse_target("x86-64-v4")
    ctx = PassContext(target)
    Fuse(STRATEGIES).run(module, ctx)
    schedule_regions(module, target, STRATEGIES, ctx.remarks)
    assert not [r for r in ctx.remarks if r.stage == "schedule" and "failed" in r.message]
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("rows", "depth"), SHAPES)
def test_products_are_right_for_any_number(rows: int, depth: int) -> None:
    one, two = (Model(compile_module(module_of(rows, depth), Options(), parse_target("host")), n) for n in (1, 2))
    rng = np.random.default_rng(rows)
    for columns in LENGTHS:
        x = rng.standard_normal((2, depth, columns)).astype(np.float32)
        wanted = weights_of(rows, depth).astype(np.float64) @ x
        (found,), (shared,) = one(x), two(x)
        assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max() * np.sqrt(depth)
        assert np.array_equal(found, shared)


@pytest.mark.parametrize(("rows", "depth"), [(64, 24), (512, 48)])
def test_the_last_columns_have_tiles_of_one_vector(rows: int, depth: int) -> None:
    kernel = kernel_of(module_of(rows, depth))
    registers = [buffer_type(op.result) for op in kernel.body.walk() if op.name == "alloc"]
    whole, last = sorted(
        (t.shape[-1].value for t in registers if t.space == "reg"), reverse=True
    )
    assert last == 16 and whole % 16 == 0 and whole > last
