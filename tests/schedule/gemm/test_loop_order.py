"""Contractions whose rows of the result lie apart: whole lines are written, where their columns stay near."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.samples_nn import convolution
from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.graph.fusion.fuse import Fuse
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module
from tilewright.ir.sym import Sym
from tilewright.ir.types import tensor
from tilewright.loops.edit import enclosing_loops, extent_of, kind_of, loop_var
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.options import Options
from tilewright.passes import PassContext
from tilewright.runtime.module import Model
from tilewright.schedule.sharing.kernels import schedule_regions
from tilewright.schedule.steps.access import stride_in
from tilewright.schedule.strategies import STRATEGIES
from tilewright.target.host import host_target
from tilewright.target.named import parse_target

RNG = np.random.default_rng(4)
PADS = {"pads_begin": (1, 1), "pads_end": (1, 1)}


def filters(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def module_of(shape: tuple[int | Sym, ...], w: np.ndarray) -> Module:
    return oracle.build([tensor(dt.f32, shape)], lambda x: ew.max_(ct.conv(x, constant(w), **PADS), 0.0))


def kernel_of(module: Module) -> tuple[Func, PassContext]:
    ctx = PassContext(parse_target("zen3"))
    Fuse(STRATEGIES).run(module, ctx)
    schedule_regions(module, ctx.target, STRATEGIES, ctx.remarks)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel, ctx


def tile_loops(kernel: Func) -> list[int]:
    """Of the loops around a register tile of the result, from the outside: by how much each moves the result."""
    store = next(o for o in kernel.body.walk() if o.name == "store" and kernel.args[-1] in o.operands)
    around = [o for o in enclosing_loops(store) if kind_of(o) in ("serial", "parallel") and extent_of(o) != 1]
    steps = [stride_in(store, loop_var(o)) for o in around]
    return [step.value for step in steps if step is not None]


def test_columns_are_inside_of_rows_that_lie_apart() -> None:
    kernel, _ = kernel_of(module_of((1, 2, 30, 400), filters(24, 2, 3, 3)))
    *_, rows, columns = tile_loops(kernel)
    assert columns < 400 and rows % (30 * 400) == 0


def test_columns_that_do_not_stay_near_are_read_for_all_rows_at_once() -> None:
    kernel, ctx = kernel_of(module_of((1, 60, 30, 400), filters(24, 60, 3, 3)))
    *_, columns, rows = tile_loops(kernel)
    assert columns < 400 and rows % (30 * 400) == 0
    assert any("whole lines: the" in str(r) for r in ctx.remarks)


@pytest.mark.sweep
@pytest.mark.parametrize("target", [host_target(), parse_target("zen3")], ids=["host", "avx2"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("shape", "count"),
    [((1, 1, 21, 452), 54), ((2, 3, 17, 131), 39), ((1, 4, 9, 67), 7), ((3, 2, 5, 333), 70)],
)
def test_all_positions_are_right(shape, count, threads, target) -> None:
    x, w = filters(*shape), filters(count, shape[1], 3, 3)
    (y,) = Model(compile_module(module_of(shape, w), Options(), target), threads)(x)
    np.testing.assert_allclose(y, np.maximum(convolution(x, w, **PADS), 0), rtol=1e-4, atol=1e-4)
