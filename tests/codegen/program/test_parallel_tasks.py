"""Kernels whose parallel loops are inside of others, or beside them: they call the thread pool themselves."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.native import kernel, run_kernel
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.ir import dtype as dt
from tilewright.ir.sym import sym, var
from tilewright.ir.types import buffer
from tilewright.ir.verify import verify_func
from tilewright.loops.edit import body_of, holds_parallel, kind_of, loop_var
from tilewright.loops.order.boustrophedon import boustrophedon
from tilewright.loops.spec import LOOPS_SPEC, parallel_extent
from tilewright.ops.define.loop_programs import run_kernel as interpret
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder
from tilewright.target.named import NAMED

WIDTH = 96
STEPS, count = var("steps", 1), var("count", 1)


def _relaxation(t: ScalarBuilder, a: list[Array]) -> None:
    """Steps that each replace every element by a mean of three; y keeps all of them. The old elements lie in memory of
    the kernel, each new one is computed in memory of its thread."""
    x, y = a
    old = t.alloc(dt.f32, (count,))
    new = t.alloc(dt.f32, (count,))
    with t.loop(count, "i") as i:
        old.store((i,), x[i])
    with t.loop(STEPS, "s") as s:
        with t.loop(count, "i", "parallel") as i:
            own = t.alloc(dt.f32, (3,))
            with t.loop(3, "k") as k:
                own.store((k,), old[(i + k) % count] * 0.5)
            new.store((i,), (own[0] + own[1] + own[2]) * 0.5)
        with t.loop(count, "i", "parallel") as i:
            y.store((s, i), new[i])
            old.store((i,), new[i])


def relaxed(x: np.ndarray, steps: int) -> np.ndarray:
    rows = []
    for _ in range(steps):
        halves = [np.roll(x, -k) * np.float32(0.5) for k in range(3)]
        x = ((halves[0] + halves[1]) + halves[2]) * np.float32(0.5)
        rows.append(x)
    return np.stack(rows)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_each_round_of_a_serial_loop(threads: int) -> None:
    func = kernel([buffer(dt.f32, [count]), buffer(dt.f32, [STEPS, count])], _relaxation, dims=[STEPS, count])
    x = np.random.default_rng(0).standard_normal(WIDTH).astype(np.float32)
    y = np.zeros((50, WIDTH), np.float32)
    compiled, error = run_kernel(func, [x, y], [50, WIDTH], threads=threads)
    assert error == 0
    assert compiled.forks and compiled.parallel is None
    np.testing.assert_array_equal(y, relaxed(x, 50))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_iterations_that_take_turns_in_their_order_do_the_same(threads: int) -> None:
    def run(turns: bool) -> np.ndarray:
        func = kernel(
            [buffer(dt.f32, [count]), buffer(dt.f32, [STEPS, count])], _relaxation, dims=[STEPS, count]
        )
        if turns:
            (steps,) = [
                o for o in func.body.ops if o.name == "for" and kind_of(o) == "serial" and holds_parallel(o)
            ]
            for loop in [o for o in body_of(steps).ops if o.name == "for"]:
                boustrophedon(func, loop, steps)
            verify_func(func, LOOPS_SPEC)
        y = np.zeros((51, WIDTH), np.float32)
        x = np.random.default_rng(0).standard_normal(WIDTH).astype(np.float32)
        run_kernel(func, [x, y], [51, WIDTH], threads=threads)
        return y

    np.testing.assert_array_equal(run(turns=True), run(turns=False))


def test_every_other_round_runs_from_the_last_iteration() -> None:
    """Each iteration reads what the iteration before it in time has left behind."""

    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(4, "s") as s, t.loop(WIDTH, "i") as i:
            a[1].store((s, i), a[0][0])
            a[0].store((0,), a[0][0] + 1)

    func = kernel([buffer(dt.i64, [1]), buffer(dt.i64, [4, WIDTH])], body)
    (steps,) = [o for o in func.body.ops if o.name == "for"]
    (loop,) = [o for o in body_of(steps).ops if o.name == "for"]
    loop.attrs["boustrophedon"] = loop_var(
        steps
    )  # not what the step of the schedule would allow: the order shows
    x, y = np.zeros(1, np.int64), np.zeros((4, WIDTH), np.int64)
    run_kernel(func, [x, y])
    iterations = np.arange(4 * WIDTH).reshape(4, WIDTH)
    iterations[1::2] = iterations[1::2, ::-1]
    np.testing.assert_array_equal(y, iterations)
    interpreted = [np.zeros(1, np.int64), np.zeros((4, WIDTH), np.int64)]
    interpret(func, interpreted)
    np.testing.assert_array_equal(interpreted[1], iterations)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_shared_loop_beside_others_and_a_round_that_is_known(threads: int) -> None:
    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(WIDTH, "i", "parallel") as i:
            a[1].store((0, i), a[0][i] + 1)
        with t.loop(1, "s") as s, t.loop(WIDTH, "i", "parallel") as i:
            a[1].store((s + 1, i), a[1][s, WIDTH - 1 - i] * 2)

    func = kernel([buffer(dt.i64, [WIDTH]), buffer(dt.i64, [2, WIDTH])], body)
    x, y = np.arange(WIDTH), np.zeros((2, WIDTH), np.int64)
    run_kernel(func, [x, y], threads=threads)
    np.testing.assert_array_equal(y, [x + 1, (x[::-1] + 1) * 2])


@pytest.mark.parametrize("threads", [1, 2])
def test_a_check_in_a_shared_loop_is_reported(threads: int) -> None:
    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(2, "s") as s, t.loop(WIDTH, "i", "parallel") as i:
            t.check(a[0][i] < 90, "ExecutionError", "value too large")
            a[1].store((s, i), t.apply("div", a[0][i], a[0][0]))

    func = kernel([buffer(dt.i64, [WIDTH]), buffer(dt.i64, [2, WIDTH])], body)
    for first, number in ((1, 0), (95, 1), (0, 2)):
        x, y = np.full(WIDTH, 5), np.zeros((2, WIDTH), np.int64)
        x[0] = first
        compiled, error = run_kernel(func, [x, y], threads=threads)
        assert error == number
    assert [c.message for c in compiled.checks] == ["value too large", "integer division by zero"]


def test_only_a_loop_that_is_all_of_the_kernel_is_a_task_of_the_program() -> None:
    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(WIDTH, "i", "parallel") as i:
            a[1].store((i,), a[0][i])

    types = [buffer(dt.f32, [WIDTH])] * 2
    whole = kernel(types, body)
    assert parallel_extent(whole) == sym(WIDTH)
    text = kernel_ir(whole, NAMED["zen3"])
    assert not text.forks and "tw_parallel" not in text.text

    def twice(t: ScalarBuilder, a: list[Array]) -> None:
        body(t, a)
        body(t, a)

    both = kernel(types, twice)
    assert parallel_extent(both) is None
    text = kernel_ir(both, NAMED["zen3"])
    assert text.text.count("call void @tw_parallel(") == 2
    assert "ptr %scratch, i64 %stride, ptr %pool)" in text.text
