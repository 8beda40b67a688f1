"""Prefetching: what is prefetched, that results stay, and where it is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.codegen.native import run_kernel
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.ir.core import Func, Op
from tilewright.ir.diag import ScheduleError, VerifyError
from tilewright.ir.text import print_func
from tilewright.ir.verify import verify_func
from tilewright.loops.edit import find_loop
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.spec import LOOPS_SPEC
from tilewright.loops.storage.axes import merge_axes
from tilewright.loops.storage.pack import pack_argument
from tilewright.loops.storage.packing import Packing
from tilewright.loops.storage.prefetch import prefetch, prefetch_run
from tilewright.ops.define.loop_programs import run_kernel as interpret
from tilewright.target.named import NAMED

PANELS = """
kernel @k(x: &f32[m, 6], b: &f32[3, 6, 32], y: &f32[m, 96]) dims(m) with {outputs=1} {
  for jo in 0..3 {
    for i in 0..m {
      for k in 0..6 {
        for j in 0..32 vector {
          y[i, 32*jo + j] += x[i, k] * b[jo, k, j]
        }
      }
    }
  }
  return
}
"""


def read(rows: str) -> Func:
    text = (
        PANELS
        if rows == "m"
        else PANELS.replace("m,", f"{rows},").replace("..m", f"..{rows}").replace("(m)", "()")
    )
    return parse_kernel(text)


def load_of(func: Func, name: str) -> Op:
    return next(o for o in func.body.walk() if o.name == "load" and o.operands[0].name == name)


def asked(func: Func) -> list[str]:
    return [line.strip() for line in print_func(func).splitlines() if "prefetch" in line]


def test_each_step_asks_for_its_share_of_the_next_panel() -> None:
    func = read("2")
    prefetch(func, load_of(func, "b"), find_loop(func, "jo"))
    # 6*32 elements in 2*6 steps
    assert asked(func) == ["prefetch b[jo + 1, 0, 96*i + 16*k]"]


def test_steps_without_a_whole_line_to_ask_for_are_not_used() -> None:
    func = read("8")
    prefetch(func, load_of(func, "b"), find_loop(func, "jo"))
    # 6*32 elements in 8 steps: two lines in each
    assert asked(func) == ["prefetch b[jo + 1, 0, 24*i]", "prefetch b[jo + 1, 0, 24*i + 16]"]


def test_large_shares_take_several_requests() -> None:
    func = read("1")
    prefetch(func, load_of(func, "b"), find_loop(func, "jo"))
    assert asked(func) == ["prefetch b[jo + 1, 0, 192*i + 32*k]", "prefetch b[jo + 1, 0, 192*i + 32*k + 16]"]


def test_what_later_iterations_read_is_prefetched_at_the_start_of_an_iteration() -> None:
    func = read("8")
    prefetch(func, load_of(func, "b"), find_loop(func, "k"), distance=3)
    assert asked(func) == ["prefetch b[jo, k + 3, 0]", "prefetch b[jo, k + 3, 16]"]


def test_of_an_unknown_number_of_rows_the_first_few_ask() -> None:
    func = read("m")
    prefetch(func, load_of(func, "b"), find_loop(func, "jo"))
    # 6*32 elements in 2*6 steps
    assert asked(func) == ["prefetch b[jo + 1, 0, 96*i + 16*k]"]
    assert "if i < 2 {" in print_func(func)
    rng = np.random.default_rng(0)
    x, b = rng.standard_normal((5, 6), np.float32), rng.standard_normal((3, 6, 32), np.float32)
    y = np.zeros((5, 96), np.float32)
    interpret(func, [x, b, y], {"m": 5})
    expected = np.einsum("ik,jkn->ijn", x.astype(np.float64), b).reshape(5, 96)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_the_nearest_cache_may_be_asked() -> None:
    func = read("8")
    prefetch(func, load_of(func, "b"), find_loop(func, "jo"), nearest=True)
    assert asked(func)[0] == "prefetch b[jo + 1, 0, 24*i] with {nearest=true}"
    text = print_func(func)
    again = parse_kernel(text)
    assert print_func(again) == text
    verify_func(again, LOOPS_SPEC)
    (first, _) = (op for op in again.body.walk() if op.name == "prefetch")
    assert "i32 0, i32 3, i32 1" in kernel_ir(again, NAMED["zen3"]).text  # 3: all levels
    first.attrs["nearest"] = False
    with pytest.raises(VerifyError, match="'nearest' is true where it is given, not False"):
        verify_func(again, LOOPS_SPEC)


def test_results_stay() -> None:
    func = read("8")
    prefetch(func, load_of(func, "b"), find_loop(func, "jo"))
    rng = np.random.default_rng(0)
    x, b = rng.standard_normal((8, 6), np.float32), rng.standard_normal((3, 6, 32), np.float32)
    expected = np.einsum("ik,jkn->ijn", x.astype(np.float64), b).reshape(8, 96)
    y = np.zeros((8, 96), np.float32)
    interpret(func, [x, b, y], {})
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    y = np.zeros((8, 96), np.float32)
    run_kernel(func, [x, b, y])
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    assert "@llvm.prefetch" in kernel_ir(func, NAMED["zen3"]).text


def test_refused() -> None:
    func = read("8")
    with pytest.raises(ScheduleError, match="its iterations do not read elements of buffer 'b'"):
        prefetch(func, load_of(func, "b"), find_loop(func, "i"))
    with pytest.raises(ScheduleError, match="the number of steps within an iteration is not known"):
        inside = (
            PANELS.replace("i in 0..m", "r in 0..6").replace("k in 0..6", "i in 0..m").replace(" k", " r")
        )
        unknown = parse_kernel(inside)
        prefetch(unknown, load_of(unknown, "b"), find_loop(unknown, "jo"))
    with pytest.raises(ScheduleError, match=r"the load of buffer 'x' .* is not in it"):
        outside = read("8")
        prefetch(func, load_of(outside, "x"), find_loop(func, "jo"))


def test_a_run_of_the_next_round_is_asked_for_line_by_line() -> None:
    func = read("8")
    store = next(o for o in func.body.walk() if o.name == "store")
    prefetch_run(func, store, find_loop(func, "jo"))
    assert asked(func) == ["prefetch y[i, 32*jo + 32]", "prefetch y[i, 32*jo + 48]"]
    rng = np.random.default_rng(1)
    x, b = rng.standard_normal((8, 6), np.float32), rng.standard_normal((3, 6, 32), np.float32)
    expected = np.einsum("ik,jkn->ijn", x.astype(np.float64), b).reshape(8, 96)
    y = np.zeros((8, 96), np.float32)
    run_kernel(func, [x, b, y])
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_runs_that_are_none_are_refused() -> None:
    func = read("8")
    store = next(o for o in func.body.walk() if o.name == "store")
    with pytest.raises(ScheduleError, match=r"loop 'j' .*: it is no run of elements of buffer 'y'"):
        prefetch_run(func, store, find_loop(func, "j"))
    with pytest.raises(ScheduleError, match=r"loop 'j' .*: it is no run of elements of buffer 'x'"):
        prefetch_run(func, load_of(func, "x"), find_loop(func, "jo"))
    with pytest.raises(ScheduleError, match=r"the store of buffer 'y' .* is not in it"):
        prefetch_run(func, next(o for o in read("8").body.walk() if o.name == "store"), find_loop(func, "jo"))


ROUNDS_OF_THEIR_OWN = """
kernel @k(x: &f64[4, 8], z: &i64[4], y: &f64[40]) dims() with {outputs=1} {
  for i in 0..4 {
    alloc t: scratch f64[40]
    for j in 0..8 {
      t[8*i + j] = x[i, j]
    }
    bind at <= 3 = z[i]
    for k in 0..8 {
      y[8*at + i + k] = t[8*i + k]
    }
    for n in 0..0 {
      y[n] = x[i, n]
    }
  }
  return
}
"""


@pytest.mark.parametrize(
    ("name", "buffer", "why"),
    [
        ("load", "t", "each iteration has a buffer 't' .* of its own"),
        ("store", "t", "each iteration has a buffer 't' .* of its own"),
        ("store", "y", "its data decides the position in buffer 'y'"),
    ],
)
def test_what_is_not_known_before_the_round_is_not_asked_for(name: str, buffer: str, why: str) -> None:
    func = parse_kernel(ROUNDS_OF_THEIR_OWN)
    access = next(o for o in func.body.walk() if o.name == name and o.operands[-1].name == buffer)
    before = print_func(func)
    with pytest.raises(ScheduleError, match=why):
        prefetch_run(func, access, find_loop(func, "i"))
    if name == "load":
        with pytest.raises(ScheduleError, match=why):
            prefetch(func, access, find_loop(func, "i"))
    assert print_func(func) == before


def test_iterations_of_nothing_ask_for_nothing() -> None:
    func = parse_kernel(ROUNDS_OF_THEIR_OWN)
    load = [o for o in func.body.walk() if o.name == "load" and o.operands[0].name == "x"][-1]
    with pytest.raises(ScheduleError, match="nothing runs in its iterations"):
        prefetch(func, load, find_loop(func, "i"))


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda f: merge_axes(f, f.args[1], 0), "prefetch b[6*jo + 6, 96*i + 16*k]"),
        (
            lambda f: pack_argument(f, f.args[1], Packing(((), (), ()), (1, 2, 0))),
            "prefetch b[0, 96*i + 16*k, jo + 1]",
        ),
    ],
)
def test_a_request_follows_the_layout_of_its_buffer(step: Callable[[Func], object], expected: str) -> None:
    func = read("2")
    prefetch(func, load_of(func, "b"), find_loop(func, "jo"))
    step(func)
    assert asked(func) == [expected]
    verify_func(func, LOOPS_SPEC)
