"""Steps over time keep the sums of a tile in registers and read packed weights without conditions."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Op, Value
from tilewright.ir.types import tensor
from tilewright.loops.nest import body_of, buffer_type, enclosing_loops, extent_of, is_loop, kind_of, loop_var
from tilewright.ops import recurrent
from tilewright.ops.define import constant
from tilewright.target.named import parse_target

RNG = np.random.default_rng(3)
STEPS = 3
TARGETS = ["x86-64-v3", "x86-64-v4"]


def lstm_kernel(batch: int, hidden: int, target: str) -> Func:
    """The kernel of an LSTM, which is checked against the graph interpreter."""
    weights = (RNG.standard_normal((4, hidden, hidden)) * 0.2).astype(np.float32)
    peepholes = RNG.standard_normal(3 * hidden).astype(np.float32)
    shapes = [(STEPS, batch, 4 * hidden), (batch, hidden), (batch, hidden)]

    def body(gates: Value, h: Value, c: Value) -> tuple[Value, ...]:
        return recurrent.lstm(gates, constant(weights), constant(peepholes), h, c)

    arrays = [RNG.standard_normal(s).astype(np.float32) for s in shapes]
    module, _ = oracle.agree([tensor(dt.f32, s) for s in shapes], body, arrays, target)
    (kernel,) = [f for f in module.funcs.values() if f.level == "loops"]
    return kernel


def summing_loop(kernel: Func) -> Op:
    """The serial loop that holds nothing but unrolled and vector loops, around multiplications of the weights."""
    found = []
    for loop in [o for o in kernel.body.walk() if is_loop(o) and kind_of(o) == "serial"]:
        inside = [o for o in body_of(loop).walk() if is_loop(o)]
        reads = [o for o in body_of(loop).walk() if o.name == "load" and o.operands[0] is kernel.args[1]]
        if reads and all(kind_of(o) in ("unroll", "vector") for o in inside):
            found.append(loop)
    (loop,) = found
    return loop


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("batch", "hidden"), [(1, 35), (4, 35), (7, 16)])
def test_sums_stay_in_registers_and_read_packed_weights(batch: int, hidden: int, target: str) -> None:
    kernel = lstm_kernel(batch, hidden, target)
    loop = summing_loop(kernel)
    ops = list(body_of(loop).walk())
    assert not any(o.name == "if" or o.attrs.get("guard") for o in ops)
    tile = prod(extent_of(o).value for o in ops if is_loop(o))
    machine = parse_target(target)
    vectors = tile // machine.f32_lanes
    assert 4 <= vectors < machine.vector_registers
    # tiles of units, steps, gates and the units of a tile
    tiles, depth, gates, units = (d.value for d in buffer_type(kernel.args[1]).shape)
    assert (depth, gates) == (hidden, 4)
    assert units % machine.f32_lanes == 0
    assert (tiles - 1) * units < hidden <= tiles * units


@pytest.mark.parametrize(("batch", "groups"), [(1, 1), (4, 1), (5, 2), (7, 2), (12, 2), (26, 5)])
def test_entries_go_through_time_in_groups(batch: int, groups: int) -> None:
    (outer,) = [o for o in lstm_kernel(batch, 8, "x86-64-v3").body.ops if is_loop(o)]
    assert kind_of(outer) == "parallel"
    assert extent_of(outer) == groups


def test_weights_that_are_computed_are_not_packed() -> None:
    shapes = [(STEPS, 2, 12), (1, 12, 12), (2, 12)]
    types = [tensor(dt.f32, s) for s in shapes]
    arrays = [RNG.standard_normal(s).astype(np.float32) for s in shapes]
    module, ctx = oracle.agree(types, lambda g, r, h: recurrent.rnn(g, r, h)[0], arrays)
    (kernel,) = [f for f in module.funcs.values() if f.level == "loops"]
    assert "packed" not in kernel.attrs
    assert any("no product with constant weights" in str(r) for r in ctx.remarks)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("batch", [1, 4])
def test_both_products_of_a_gated_unit_read_whole_vectors_of_weights(batch: int, target: str) -> None:
    hidden = 40
    weights = (RNG.standard_normal((3, hidden, hidden)) * 0.2).astype(np.float32)
    bias = RNG.standard_normal(hidden).astype(np.float32)
    shapes = [(STEPS, batch, 3 * hidden), (batch, hidden)]
    module, _ = oracle.agree(
        [tensor(dt.f32, s) for s in shapes],
        lambda gates, h: recurrent.gru(gates, constant(weights), constant(bias), h)[0],
        [RNG.standard_normal(s).astype(np.float32) for s in shapes],
        target,
    )
    (kernel,) = [f for f in module.funcs.values() if f.level == "loops"]
    loads = [o for o in kernel.body.walk() if o.name == "load" and o.operands[0] is kernel.args[1]]
    assert len(loads) == 2
    for load in loads:
        (vector,) = [o for o in enclosing_loops(load) if kind_of(o) == "vector"]
        assert load.attrs["idx"][-1] == loop_var(vector)
        assert extent_of(vector) == buffer_type(kernel.args[1]).shape[-1]
