"""Which loops of a contraction play which part."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.programs import program
from tests.schedule import scheduling as oracle
from tilewright.compilation import Compilation, Setting
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.types import tensor
from tilewright.loops.edit import enclosing_loops, extent_of, kind_of, loop_var
from tilewright.ops.blocked import conv_blocked
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.view import transpose
from tilewright.options import Options
from tilewright.schedule.steps.access import known, loads_in
from tilewright.target.named import parse_target

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


@pytest.mark.parametrize("images", [1, 8])
def test_blocks_of_groups_are_done_for_each_image_where_all_images_of_a_group_are_too_many(images: int) -> None:
    """The blocks of filters of one group read the same channels, which stay in the second-level cache then."""

    def body(v: Value) -> Value:
        return conv_blocked(v, constant(np.ones((384, 192, 1), np.float32)), groups=2)

    setting = Setting.of(Options(), parse_target("zen5"))
    scheduled = Compilation(program(body, (images, 24, 256, 16)), setting).run("scheduled").module
    (kernel,) = (f for f in scheduled.funcs.values() if f.level == "loops")
    (first,) = (op for op in kernel.body.ops if op.name == "for")
    tiles_within = known(extent_of(first)) == images * 24  # threads share what stands around these
    assert tiles_within == (images > 1)
