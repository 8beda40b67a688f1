"""Steps over time keep the sums of a tile in registers and read packed weights without conditions."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Op, Value
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.ir.verify import verify_func
from tilewright.loops.edit import body_of, buffer_type, enclosing_loops, extent_of, is_loop, kind_of, loop_var
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.spec import LOOPS_SPEC
from tilewright.ops import recurrent
from tilewright.ops.define import constant
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.target.host import host_target
from tilewright.target.named import parse_target
from tilewright.validation.races import Races, races_of

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


def summing_loops(kernel: Func) -> list[Op]:
    """The serial loops that hold nothing but unrolled and vector loops, around multiplications of the weights."""
    found = []
    for loop in [o for o in kernel.body.walk() if is_loop(o) and kind_of(o) == "serial"]:
        inside = [o for o in body_of(loop).walk() if is_loop(o)]
        reads = [o for o in body_of(loop).walk() if o.name == "load" and o.operands[0] is kernel.args[1]]
        if reads and all(kind_of(o) in ("unroll", "vector") for o in inside):
            found.append(loop)
    return found


@pytest.mark.sweep(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("batch", "hidden"), [(1, 35), (4, 35), (6, 16), (7, 16), (5, 48)])
def test_sums_stay_in_registers_and_read_packed_weights(batch: int, hidden: int, target: str) -> None:
    kernel = lstm_kernel(batch, hidden, target)
    machine = parse_target(target)
    for loop in summing_loops(kernel):
        ops = list(body_of(loop).walk())
        assert not any(o.name == "if" or o.attrs.get("guard") for o in ops)
        tile = prod(extent_of(o).value for o in ops if is_loop(o))
        assert 4 <= tile // machine.f32_lanes < machine.vector_registers
    # tiles of units, steps, gates and the units of a tile
    tiles, depth, gates, units = (d.value for d in buffer_type(kernel.args[1]).shape)
    assert (depth, gates) == (hidden, 4)
    assert units % machine.f32_lanes == 0
    assert (tiles - 1) * units < hidden <= tiles * units


@pytest.mark.parametrize(("batch", "groups"), [(1, 1), (4, 1), (5, 2), (7, 2), (12, 2), (26, 5)])
def test_entries_go_through_time_in_groups(batch: int, groups: int) -> None:
    kernel = lstm_kernel(batch, 8, "x86-64-v3")
    (outer,) = [o for o in kernel.body.ops if is_loop(o)]
    assert kind_of(outer) == "parallel"
    assert extent_of(outer) == groups
    are_apart = batch % groups == 0  # else the last group begins within the one before, and writes the same
    assert races_of(kernel, {}) == (Races(proved=1) if are_apart else Races(tried=1))


@pytest.mark.parametrize(("batch", "groups"), [(12, 2), (13, 1), (24, 4), (21, 1)])
def test_entries_go_in_groups_only_where_these_fit_the_batch(batch: int, groups: int) -> None:
    kernel, _ = unit_kernel("lstm", batch, 160, "zen4,cores=2")
    extents = {extent_of(o).value for o in kernel.body.ops if is_loop(o) and kind_of(o) == "parallel"}
    assert extents == ({groups} if groups > 1 else set())


@pytest.mark.parametrize(("batch", "tiles"), [(6, [6]), (7, [3, 4]), (21, [3, 6]), (24, [6])])
def test_all_entries_go_through_time_together_where_weights_are_many(batch: int, tiles: list[int]) -> None:
    """Each step reads a weight once from where no cache of a core holds it; no entry is computed twice."""
    kernel, _ = unit_kernel("lstm", batch, 272, "zen4,cores=2")
    assert {extent_of(o) for o in kernel.body.ops if is_loop(o)} == {batch, STEPS}
    written_out = [
        [extent_of(o).value for o in body_of(loop).walk() if is_loop(o) and kind_of(o) == "unroll"]
        for loop in summing_loops(kernel)
    ]
    assert sorted(prod(extents) // 4 for extents in written_out) == tiles


def test_weights_that_are_computed_are_not_packed() -> None:
    shapes = [(STEPS, 2, 12), (1, 12, 12), (2, 12)]
    types = [tensor(dt.f32, s) for s in shapes]
    arrays = [RNG.standard_normal(s).astype(np.float32) for s in shapes]
    module, ctx = oracle.agree(types, lambda g, r, h: recurrent.rnn(g, r, h)[0], arrays)
    (kernel,) = [f for f in module.funcs.values() if f.level == "loops"]
    assert not kernel_info(kernel).packed
    assert any("no product with constant weights" in str(r) for r in ctx.remarks)


@pytest.mark.sweep(2)
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


def shared_loops(kernel: Func) -> list[Op]:
    return [o for o in kernel.body.walk() if is_loop(o) and kind_of(o) == "parallel"]


def unit_kernel(
    name: str, batch: int, hidden: int, target: str, steps: int = STEPS
) -> tuple[Func, list[str]]:
    """The kernel of a recurrent operator with constant weights, and the remarks."""
    gates = {"lstm": 4, "gru": 3, "gru linear": 3, "rnn": 1}[name]
    weights, bias = constant_array(gates, hidden, hidden), constant_array(hidden)

    def body(x: Value, h: Value) -> Value:
        match name:
            case "lstm":
                return recurrent.lstm(x, constant(weights), constant(constant_array(3 * hidden)), h, h)[0]
            case "rnn":
                return recurrent.rnn(x, constant(weights), h)[0]
        linear = name == "gru linear"
        return recurrent.gru(x, constant(weights), constant(bias), h, linear_before_reset=linear)[0]

    shapes = [(steps, batch, gates * hidden), (batch, hidden)]
    module = oracle.build([tensor(dt.f32, s) for s in shapes], body)
    remarks = [str(r) for r in oracle.scheduled(module, target).remarks]
    (kernel,) = [f for f in module.funcs.values() if f.level == "loops"]
    return kernel, remarks


def constant_array(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 0.1).astype(np.float32)


@pytest.mark.parametrize("target", ["zen3,cores=2", "cascadelake,cores=4", "neoverse-n1,cores=4"])
@pytest.mark.parametrize(
    ("name", "batch", "shared"),
    [("lstm", 1, 1), ("lstm", 13, 1), ("gru", 1, 2), ("gru linear", 3, 1), ("rnn", 1, 1)],
)
def test_threads_share_the_tiles_of_long_steps(name: str, batch: int, shared: int, target: str) -> None:
    """Once for each product of a step, with the units as what is cut."""
    kernel, _ = unit_kernel(name, batch, 512, target)
    loops = shared_loops(kernel)
    assert len(loops) == shared
    tiles, _, _, units = (d.value for d in buffer_type(kernel.args[1]).shape)
    assert tiles * units == 512
    for loop in loops:
        assert extent_of(loop) == tiles
        assert [kind_of(o) for o in enclosing_loops(loop)][-1:] == ["serial"]
    verify_func(kernel, LOOPS_SPEC)


@pytest.mark.parametrize(("batch", "groups"), [(1, 1), (6, 1), (7, 2)])
def test_short_steps_stay_on_one_thread(batch: int, groups: int) -> None:
    kernel, remarks = unit_kernel("lstm", batch, 40, "zen3,cores=2")
    (loop,) = shared_loops(kernel)
    assert loop.parent is kernel.body and extent_of(loop) == groups
    assert any("steps not shared by more threads" in r and "are too few for 2 threads" in r for r in remarks)


def test_more_threads_need_longer_steps() -> None:
    shared = {
        n: len(enclosing_loops(shared_loops(unit_kernel("lstm", 1, 256, f"zen3,cores={n}")[0])[0]))
        for n in (2, 16)
    }
    assert shared == {2: 1, 16: 0}


@pytest.mark.parametrize(("batch", "units", "groups"), [(24, 240, 4), (18, 96, 3)])
def test_threads_that_get_groups_of_entries_need_not_wait_for_each_other(
    batch: int, units: int, groups: int
) -> None:
    kernel, remarks = unit_kernel("lstm", batch, units, "zen3,cores=2")
    (loop,) = shared_loops(kernel)
    assert loop.parent is kernel.body and extent_of(loop) == groups
    assert any(f"they get {groups} groups of entries" in r for r in remarks)


def test_tiles_that_threads_cannot_share_evenly_are_said() -> None:
    _, remarks = unit_kernel("lstm", 6, 136, "zen3,cores=2")
    assert any("2 threads do not get equal shares of 17 tiles of units" in r for r in remarks)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("cores", [1, 2])
def test_weights_beyond_the_second_level_cache_are_read_there_and_back(name: str, cores: int) -> None:
    def turns(hidden: int) -> list[bool]:
        kernel, _ = unit_kernel(name, 1, hidden, f"zen3,cores={cores}")
        verify_func(kernel, LOOPS_SPEC)
        weights = kernel.args[1]
        reading = [o for o in kernel.body.walk() if o.name == "load" and o.operands[0] is weights]
        around = [o for load in reading for o in enclosing_loops(load)]
        return [
            o.attrs["boustrophedon"] == loop_var(enclosing_loops(o)[-1])
            for o in around
            if "boustrophedon" in o.attrs
        ]

    assert turns(512) and all(turns(512))
    assert not turns(64)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("steps", [1, 2])
def test_shared_steps_compute_what_their_definition_says(steps: int) -> None:
    hidden = 64
    weights, peepholes = constant_array(4, hidden, hidden), constant_array(3 * hidden)
    shapes = [(steps, 13, 4 * hidden), (13, hidden), (13, hidden)]
    module, _ = oracle.agree(
        [tensor(dt.f32, s) for s in shapes],
        lambda x, h, c: recurrent.lstm(x, constant(weights), constant(peepholes), h, c),
        [RNG.standard_normal(s).astype(np.float32) for s in shapes],
        "zen1,cores=2",
    )
    (kernel,) = [f for f in module.funcs.values() if f.level == "loops"]
    verify_func(kernel, LOOPS_SPEC)
    assert shared_loops(kernel)[0].parent is not kernel.body


INTEGERS = {
    "zen3": (dt.i16, 2),
    "x86-64-v4": (dt.i16, 2),
    "cascadelake": (dt.u8, 4),
    "neoverse-n1": (dt.i8, 4),
}
"""The dtype of states and the products that one instruction adds up."""


@pytest.mark.sweep
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize(("batch", "hidden"), [(1, 48), (3, 16), (5, 24), (7, 20)])
def test_quantised_states_are_multiplied_in_groups(
    batch: int, hidden: int, target: str, fresh_seed: int
) -> None:
    """Weights stay bytes, in the order in which tiles read them, whatever the instruction takes."""
    rng = np.random.default_rng(fresh_seed)
    weights = rng.integers(-128, 128, (4, hidden, hidden)).astype(np.int8)
    totals = weights.sum(axis=2, dtype=np.int32).reshape(-1)
    scale = rng.uniform(0.5, 1, 4 * hidden).astype(np.float32) / 2000
    peepholes = constant_array(3 * hidden)
    dtype, group = INTEGERS[target]

    def body(gates: Value, h: Value, c: Value) -> tuple[Value, ...]:
        known = map(constant, (weights, scale, totals, peepholes))
        return recurrent.lstm_quantized(gates, *known, h, c, state=dtype)

    shapes = [
        (1, batch, 4 * hidden),
        (batch, hidden),
        (batch, hidden),
    ]  # of one step: no state rounds another way
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    module, _ = oracle.agree([tensor(dt.f32, s) for s in shapes], body, arrays, target)
    (kernel,) = [f for f in module.funcs.values() if f.level == "loops"]
    verify_func(kernel, LOOPS_SPEC)
    packed = buffer_type(kernel.args[1])
    assert packed.dtype is dt.i8
    tiles, depth, gates, units, last = (d.value for d in packed.shape)
    assert (depth * last, gates, last) == (hidden, 4, group)
    assert (tiles - 1) * units < hidden <= tiles * units
    reads = [o for o in kernel.body.walk() if o.name == "load" and o.operands[0] is kernel.args[1]]
    assert reads
    for load in reads:
        assert kind_of(enclosing_loops(load)[-1]) == "dot" and "guard" not in load.attrs


def test_states_that_fill_no_groups_are_multiplied_one_by_one() -> None:
    hidden = 9
    weights = RNG.integers(-128, 128, (4, hidden, hidden)).astype(np.int8)
    totals = weights.sum(axis=2, dtype=np.int32).reshape(-1)
    known = [weights, np.full(4 * hidden, 1e-3, np.float32), totals, constant_array(3 * hidden)]
    shapes = [(1, 2, 4 * hidden), (2, hidden), (2, hidden)]
    module, _ = oracle.agree(
        [tensor(dt.f32, s) for s in shapes],
        lambda gates, h, c: recurrent.lstm_quantized(gates, *map(constant, known), h, c),
        [RNG.standard_normal(s).astype(np.float32) for s in shapes],
        "zen3",
    )
    (kernel,) = [f for f in module.funcs.values() if f.level == "loops"]
    assert not any(is_loop(o) and kind_of(o) == "dot" for o in kernel.body.walk())
    assert kernel_info(kernel).packed


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["lstm", "gru", "gru linear", "rnn"])
def test_batches_of_unknown_size_go_through_time_in_groups_where_they_can(name: str) -> None:
    """Weights that were read serve four entries at once, of fewer two; a single one goes alone."""
    hidden = 10
    gates = {"lstm": 4, "gru": 3, "gru linear": 3, "rnn": 1}[name]
    weights, bias = constant_array(gates, hidden, hidden), constant_array(hidden)
    batch = var("batch", 0)

    def body(x: Value, h: Value) -> Value:
        match name:
            case "lstm":
                return recurrent.lstm(x, constant(weights), constant(np.zeros(3 * hidden, np.float32)), h, h)[0]
            case "rnn":
                return recurrent.rnn(x, constant(weights), h)[0]
        linear = name == "gru linear"
        return recurrent.gru(x, constant(weights), constant(bias), h, linear_before_reset=linear)[0]

    types = [tensor(dt.f32, (STEPS, batch, gates * hidden)), tensor(dt.f32, (batch, hidden))]
    module, source = oracle.build(types, body), oracle.build(types, body)
    oracle.scheduled(source, "zen3")
    (kernel,) = [f for f in source.funcs.values() if f.level == "loops"]
    shapes = {tuple(d.value for d in buffer_type(o.result).shape)[:2] for o in kernel.body.walk() if o.name == "alloc"}
    assert {4, 2, 1} <= {shape[0] for shape in shapes if len(shape) == 2}
    model = Model(compile_module(oracle.build(types, body), Options(), host_target()), 2)
    for size in (0, 1, 2, 3, 4, 9):
        x, h = constant_array(STEPS, size, gates * hidden), constant_array(size, hidden)
        (wanted,) = oracle.expected(module, [x, h])
        (found,) = model(x, h)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
