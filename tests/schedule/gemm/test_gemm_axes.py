"""Which loops of a contraction play which part."""

from __future__ import annotations

import numpy as np

from tests.schedule import scheduling as oracle
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.types import tensor
from tilewright.loops.edit import enclosing_loops, kind_of, loop_var
from tilewright.ops.contract import matmul
from tilewright.ops.view import transpose
from tilewright.schedule.steps.access import loads_in

RNG = np.random.default_rng(3)


def test_an_axis_of_the_batch_that_comes_after_the_rows_is_no_row() -> None:
    """Heads behind positions, in the result as in the columns: rows of one head share its columns."""
    a = RNG.standard_normal((1, 4, 30, 24)).astype(np.float32)
    b = RNG.standard_normal((1, 24, 4, 32)).astype(np.float32)

    def body(x: Value, y: Value) -> Value:
        return transpose(matmul(x, transpose(y, perm=(0, 2, 1, 3))), perm=(0, 2, 1, 3))

    module, _ = oracle.agree([tensor(dt.f32, a.shape), tensor(dt.f32, b.shape)], body, [a, b], "x86-64-v4")
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    (columns,) = (v for v in kernel.args if tuple(d.value for d in v.type.shape) == b.shape)  # type: ignore[union-attr]
    loads = [o for op in kernel.body.ops for o in loads_in(op) if o.operands[0] is columns]
    assert loads
    for load in loads:
        tile = {loop_var(o) for o in enclosing_loops(load) if kind_of(o) == "unroll"}
        assert not load.attrs["idx"][2].vars & tile
