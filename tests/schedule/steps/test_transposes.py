"""Transposes go through registers: whole vectors in and out, shuffles in between."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from tests.codegen.native import run_kernel
from tests.schedule import scheduling as oracle
from tilewright.codegen.cpu.assemble import assembly
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import sym
from tilewright.ir.types import tensor
from tilewright.loops.edit import address_of, enclosing_loops, extent_of, kind_of, loop_var, loops_in
from tilewright.ops import blocked, view
from tilewright.ops import elementwise as ew
from tilewright.ops.define.loop_programs import run_kernel as interpret
from tilewright.schedule.steps.access import stores_in
from tilewright.target.named import parse_target

RNG = np.random.default_rng(4)
Body = Callable[[Value], Value]


def transposed(*order: int) -> Body:
    return lambda x: view.transpose(x, perm=order)


def scaled(x: Value) -> Value:
    return ew.mul(view.transpose(x, perm=(0, 2, 1)), 0.5)


CASES: list[tuple[str, tuple[int, ...], Body]] = [
    ("whole squares", (32, 48), transposed(1, 0)),
    ("overlapping squares", (21, 37), transposed(1, 0)),
    ("short axes", (6, 40), transposed(1, 0)),
    ("batches, and work on them", (3, 33, 17), scaled),
    ("channels last", (2, 24, 5, 7), transposed(0, 2, 3, 1)),
    ("channels first", (2, 5, 7, 24), transposed(0, 3, 1, 2)),
    ("few channels last", (1, 3, 60, 70), transposed(0, 2, 3, 1)),
    ("few channels last, five", (2, 5, 7, 9), transposed(0, 2, 3, 1)),
    ("pairs apart", (3, 20, 40, 2), transposed(0, 3, 2, 1)),
    ("pairs together", (3, 2, 37, 20), transposed(0, 3, 2, 1)),
    ("into blocks", (1, 32, 7, 7), lambda x: blocked.block_channels(x, block=16)),
    ("into blocks with missing channels", (1, 21, 5, 7), lambda x: blocked.block_channels(x, block=16)),
    ("out of blocks", (1, 2, 7, 7, 16), lambda x: blocked.unblock_channels(x, channels=32)),
    ("out of blocks with missing channels", (1, 2, 7, 7, 16), lambda x: blocked.unblock_channels(x, channels=29)),
]  # fmt: skip
IDS = [case[0] for case in CASES]


def data(shape: tuple[int, ...], dtype: DType = dt.f32) -> np.ndarray:
    return (RNG.standard_normal(shape) * 50).astype(dtype.storage)


def kernel_for(shape: tuple[int, ...], body: Body, target: str, dtype: DType = dt.f32) -> Func:
    module = oracle.build([tensor(dtype, shape)], body)
    oracle.scheduled(module, target)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


@pytest.mark.sweep
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "aarch64-neon"])
@pytest.mark.parametrize(("shape", "body"), [c[1:] for c in CASES], ids=IDS)
def test_it_computes_what_the_graph_says(shape: tuple[int, ...], body: Body, target: str) -> None:
    oracle.agree([tensor(dt.f32, shape)], body, [data(shape)], target, tolerance=0)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [dt.f32, dt.f64, dt.f16, dt.i8, dt.i64, dt.bool_], ids=lambda d: d.name)
@pytest.mark.parametrize(("shape", "body"), [c[1:] for c in CASES], ids=IDS)
def test_native_code_agrees(shape: tuple[int, ...], body: Body, dtype: DType) -> None:
    if body is scaled and not dtype.is_float:
        pytest.skip("it scales by a fraction")
    module = oracle.build([tensor(dtype, shape)], body)
    x = data(shape, dtype)
    (wanted,) = oracle.expected(module, [x])
    oracle.scheduled(module, "host")
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    y = np.zeros(wanted.shape, wanted.dtype)
    run_kernel(kernel, [x, y])
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("target", ["zen3", "cascadelake"])
@pytest.mark.parametrize(("shape", "body"), [c[1:] for c in CASES if c[0] != "short axes" and "few" not in c[0]])
def test_no_element_is_moved_alone(shape: tuple[int, ...], body: Body, target: str) -> None:
    machine = parse_target(target)
    kernel = kernel_for(shape, body, target)
    text = assembly(kernel_ir(kernel, machine).text, machine)
    body_text = text[: text.index(".task:")]
    assert not re.findall(r"gather|scatter|insertps|extractps|pinsr|vmovss|(?:%rsp)", body_text)


@pytest.mark.parametrize("dtype", [dt.f32, dt.f64, dt.f16, dt.i8], ids=lambda d: d.name)
def test_vectors_hold_whole_turns_of_three_channels(dtype: DType) -> None:
    """Then no position is divided, and no chunk of a thread begins within a turn."""
    kernel = kernel_for((1, 3, 112, 112), transposed(0, 2, 3, 1), "cascadelake", dtype)
    vectors = [loop for loop in loops_in(kernel.body) if kind_of(loop) == "vector"]
    assert vectors and all(extent_of(loop).value % 3 == 0 for loop in vectors)
    (load,) = {address_of(op) for loop in vectors[:1] for op in loop.walk() if op.name == "load"}
    lane = loop_var(vectors[0])
    others = load.subs({lane: 0})
    assert "//" not in str(others) and "%" not in str(others)


def test_a_square_costs_as_many_shuffles_as_registers_times_their_bits() -> None:
    machine = parse_target("cascadelake")
    text = assembly(kernel_ir(kernel_for((64, 64), transposed(1, 0), "cascadelake"), machine).text, machine)
    assert len(re.findall(r"\bv(?:unpck|shuf|perm)\w*\s", text)) == 16 * 4
    assert len(re.findall(r"\bvmovu?p[sd]\s.*zmm", text)) == 16 + 16


def test_runs_that_stay_contiguous_are_copied_as_they_are() -> None:
    def body(x: Value) -> Value:
        return view.transpose(blocked.unblock_channels(x, channels=32), perm=(0, 2, 3, 1))

    kernel = kernel_for((1, 2, 6, 7, 16), body, "cascadelake")
    innermost = loops_in(kernel.body)[-1]
    assert kind_of(innermost) == "vector" and extent_of(innermost) == 16
    assert not any(op.name == "alloc" for op in kernel.body.walk())


def test_rounds_of_threads_are_long_runs() -> None:
    module = oracle.build([tensor(dt.f32, (9, 3136, 16))], lambda x: ew.add(x, 1.0))
    oracle.scheduled(module, "x86-64-v3")
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    outer = loops_in(kernel.body)[0]
    assert kind_of(outer) == "parallel" and extent_of(outer).value < 1000


def squares_of(shape: tuple[int, int], dtype: DType = dt.f32) -> tuple[Func, list[Op]]:
    """The kernel of a plain transpose and the loops around its squares, from the outermost."""
    kernel = kernel_for(shape, transposed(1, 0), "x86-64-v3", dtype)
    (square,) = (op for op in kernel.body.walk() if op.name == "alloc")
    return kernel, enclosing_loops(square)


@pytest.mark.parametrize("dtype", [dt.f32, dt.f16, dt.i8], ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(184, 4453), (1024, 512), (1024, 520), (1025, 512), (4453, 184)])
def test_squares_follow_each_other_along_the_rows_of_the_result(shape: tuple[int, int], dtype: DType) -> None:
    kernel, loops = squares_of(shape, dtype)
    (store,) = (o for o in stores_in(loops[-1]) if o.operands[-1] is kernel.args[1])
    start = {loop_var(o): 0 for o in (*loops[:-1], *loops_in(loops[-1]))}
    columns = [
        store.attrs["idx"][1].subs({**start, loop_var(loops[-1]): k}).value
        for k in range(extent_of(loops[-1]).value)
    ]
    side = columns[1]
    assert columns[:-1] == list(range(0, (len(columns) - 1) * side, side))
    most = min(shape[0], 1024)
    assert most // 2 <= columns[-1] + side <= most


def test_every_line_of_a_far_result_is_asked_for_in_the_square_before() -> None:
    kernel, loops = squares_of((400, 600))
    asked = [op for op in kernel.body.walk() if op.name == "prefetch"]
    (store,) = (o for o in stores_in(loops[-1]) if o.operands[-1] is kernel.args[1])
    ahead = {loop_var(loops[-1]): loop_var(loops[-1]) + 1, loop_var(enclosing_loops(store)[-1]): sym(0)}
    assert [address_of(op) for op in asked] == [address_of(store).subs(ahead)]
    assert enclosing_loops(asked[0]) == enclosing_loops(store)[:-1]  # once for each row of a square


def test_nothing_is_asked_for_of_a_result_that_stays_near() -> None:
    kernel, _ = squares_of((200, 100))
    assert not any(op.name == "prefetch" for op in kernel.body.walk())


@pytest.mark.sweep
@pytest.mark.parametrize("shape", [(1030, 20), (2049, 17), (1500, 8), (1024, 33)])
@pytest.mark.parametrize("dtype", [dt.f32, dt.f16, dt.i8, dt.f64], ids=lambda d: d.name)
def test_blocks_of_long_rows_agree(shape: tuple[int, int], dtype: DType) -> None:
    """As native code, and on the interpreter for other squares."""
    x = data(shape, dtype)
    for target, run in (("host", run_kernel), ("aarch64-neon", lambda f, args: interpret(f, args, {}))):
        y = np.zeros(shape[::-1], x.dtype)
        run(kernel_for(shape, transposed(1, 0), target, dtype), [x, y])
        np.testing.assert_array_equal(y, x.T)
