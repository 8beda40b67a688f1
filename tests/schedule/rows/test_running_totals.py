"""Running totals: lanes over columns, several interleaved rows, whatever the axis."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.ir import dtype as dt
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.loops.edit import kind_of, loops_in
from tilewright.ops.scan import cumprod, cumsum

N = var("n", 1)
RNG = np.random.default_rng(11)


def expected(x, function, axis, exclusive, reverse):
    y = np.flip(x, axis) if reverse else x
    total = function(y.astype(np.float64), axis=axis)
    if exclusive:
        total = np.roll(total, 1, axis)
        np.moveaxis(total, axis, 0)[:1] = 0 if function is np.cumsum else 1
    return np.flip(total, axis) if reverse else total


def the_kernel(module):
    (kernel,) = [f for f in module.funcs.values() if f.level == "loops"]
    return kernel


@pytest.mark.sweep
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((5, 1100), 0), ((3, 6, 7, 5), 1), ((19, 30), 1), ((3, 4, 1), 1), ((6,), 0), ((2, 0), 0), ((2, 0), 1)],
)
@pytest.mark.parametrize("operator", [cumsum, cumprod])
def test_totals_are_those_of_numpy(shape, axis, operator, exclusive, reverse):
    x = RNG.uniform(0.7, 1.3, shape).astype(np.float32)
    module, _ = oracle.agree(
        [tensor(dt.f32, shape)],
        lambda v: operator(v, axis=axis, exclusive=exclusive, reverse=reverse),
        [x],
    )
    (got,) = oracle.run(module, [x])
    function = np.cumsum if operator is cumsum else np.cumprod
    np.testing.assert_allclose(got, expected(x, function, axis, exclusive, reverse), rtol=1e-5)


@pytest.mark.parametrize(("shape", "axis"), [((N, 30), 0), ((N, 30), 1)])
def test_dims_that_are_not_known(shape, axis):
    x = RNG.standard_normal((21, 30)).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, shape)], lambda v: cumsum(v, axis=axis), [x])
    (got,) = oracle.run(module, [x])
    np.testing.assert_allclose(got, np.cumsum(x.astype(np.float64), axis), rtol=1e-4, atol=1e-5)


def test_columns_are_summed_in_lanes():
    x = RNG.standard_normal((6, 9, 5, 8)).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, x.shape)], lambda v: cumsum(v, axis=1), [x])
    loops = list(loops_in(the_kernel(module).body))
    innermost = [o for o in loops if not any(inner.name == "for" for inner in o.blocks[0].walk())]
    assert {kind_of(o) for o in innermost} == {"vector"}
    assert kind_of(loops[0]) == "parallel"


def test_rows_are_summed_interleaved():
    x = RNG.standard_normal((16, 9)).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, x.shape)], lambda v: cumsum(v, axis=1), [x])
    kinds = [kind_of(o) for o in loops_in(the_kernel(module).body)]
    assert kinds == ["parallel", "unroll", "serial", "unroll"]  # no condition or loop is left for other rows
    assert not any(op.name == "if" for op in the_kernel(module).body.walk())


def test_short_floats_are_added_in_single_precision():
    x = np.full((3000, 2), 1.0, np.float16)
    module, _ = oracle.agree([tensor(dt.f16, x.shape)], lambda v: cumsum(v, axis=0), [x], tolerance=0)
    (got,) = oracle.run(module, [x])
    assert got[2047, 0] == 2048
    assert got[-1, 1] == 3000  # adding ones in half precision ends at 2048
