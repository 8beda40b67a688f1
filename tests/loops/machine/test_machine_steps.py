"""Scheduling steps for machines with queues and levels: pictures, refusals, and what they are together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from textwrap import dedent

import numpy as np
import pytest

from tests.loops.kernel_texts import (
    COPIED_ROWS,
    DOUBLE,
    REGISTERS_BEFORE_THREADS,
    SUM,
    TWO_STAGES,
    buffer,
    read,
)
from tests.loops.machine.machines import LOAD, MACHINE, MULTIPLY, PRODUCT, orders
from tilewright.ir.core import Func, Op
from tilewright.ir.diag import ScheduleError, VerifyError
from tilewright.ir.text import print_block, print_func
from tilewright.ir.verify import verify_func
from tilewright.loops.analysis.happens_before import Order
from tilewright.loops.edit import body_of, find_loop
from tilewright.loops.lanes.vectorize import vectorize, vectorize_reduction
from tilewright.loops.machine.async_copy import async_copy, wait
from tilewright.loops.machine.barrier import barrier
from tilewright.loops.machine.pipeline import pipeline
from tilewright.loops.machine.rules import machine_spec
from tilewright.loops.machine.tensorize import tensorize
from tilewright.loops.order.fission import fission
from tilewright.loops.order.parallel import parallel, serial
from tilewright.loops.order.reorder import reorder
from tilewright.loops.order.split import Split, split
from tilewright.loops.spec import LOOPS_SPEC
from tilewright.loops.storage.set_space import set_space
from tilewright.ops.define.loop_programs import run_kernel
from tilewright.schedule.replay import ReplayError, replay
from tilewright.schedule.text import parse_trace
from tilewright.schedule.trace import Schedule
from tilewright.target.machine import Intrinsic, Route

ROWS = Route("global", "scratch", "dma")
TWICE = Intrinsic(
    "twice",
    """
    kernel @twice(x: &f64[n] strides(r), y: &f64[n] strides(s)) dims(n, r, s) with {outputs=1} {
      for i in 0..n {
        y[i] = 2 * x[i]
      }
      return
    }
    """,
    queue="unit",
)


def loop(func: Func, name: str) -> Op:
    return find_loop(func, name)


def after(text: str, step: Callable[[Func], object]) -> str:
    func = read(text)
    step(func)
    return dedent("\n".join(print_func(func).strip().splitlines()[1:-2]))


def test_tensorize() -> None:
    assert after(DOUBLE, lambda f: tensorize(f, loop(f, "i"), TWICE)) == dedent(
        """\
        run twice on unit as v0 {
          for i in 0..10 {
            y[i] = x[i] * 2
          }
        }"""
    )


def test_async_copy_and_wait() -> None:
    def step(f: Func) -> None:
        wait(f, async_copy(f, loop(f, "j"), ROWS), loop(f, "j2"))

    assert after(COPIED_ROWS, step) == dedent(
        """\
        for i in 0..2 {
          alloc t: scratch f64[5]
          run copy on dma as v0 {
            for j in 0..5 {
              t[j] = x[i, j]
            }
          }
          wait v0
          for j2 in 0..5 {
            y[i, j2] = t[j2]
          }
        }"""
    )


def test_a_run_that_waits_for_another() -> None:
    f = read(COPIED_ROWS)
    first = async_copy(f, loop(f, "j"), ROWS)
    second = async_copy(f, loop(f, "j2"), Route("scratch", "global", "out"))
    assert wait(f, first, second) is second and second.operands == (first.result,)
    wait(f, second, second, "after")
    assert Order(f, ()).why_not() is None


def test_barrier_and_levels() -> None:
    def step(f: Func) -> None:
        parallel(f, loop(f, "j"), "thread")
        parallel(f, loop(f, "j2"), "thread")
        parallel(f, loop(f, "i"), "core")
        barrier(f, loop(f, "j"), "thread")

    assert after(COPIED_ROWS, step) == dedent(
        """\
        for i in 0..2 parallel with {level="core"} {
          alloc t: scratch f64[5]
          for j in 0..5 parallel with {level="thread"} {
            t[j] = x[i, j]
          }
          barrier thread
          for j2 in 0..5 parallel with {level="thread"} {
            y[i, j2] = t[j2]
          }
        }"""
    )


def test_serial_takes_the_level_away() -> None:
    f = read(DOUBLE)
    assert serial(f, parallel(f, loop(f, "i"), "core")).attrs.keys() == {"var", "extent", "kind"}


@pytest.mark.parametrize("step", [split, vectorize])
def test_the_tail_in_a_loop_of_a_level_has_no_level(step: Callable[..., Split]) -> None:
    f = read(DOUBLE)
    parts = step(f, parallel(f, loop(f, "i"), "core"), 4, tail="branch")
    assert parts.outer.attrs["level"] == "core"
    assert parts.tail is not None and parts.tail.attrs.keys() == {"var", "extent", "kind"}
    verify_func(f, LOOPS_SPEC)


def test_pipeline() -> None:
    def step(f: Func) -> None:
        wait(f, async_copy(f, loop(f, "j"), ROWS), loop(f, "j2"))
        pipeline(f, loop(f, "i"))

    assert after(COPIED_ROWS, step) == dedent(
        """\
        alloc t: scratch f64[2, 5]
        run copy on dma as v0 {
          for j_1 <= 4 in 0..5 {
            t[0, j_1] = x[0, j_1]
          }
        }
        wait v0
        for i in 0..1 {
          run copy on dma as v1 {
            for j in 0..5 {
              t[-(i % 2) + 1, j] = x[i + 1, j]
            }
          }
          for j2 in 0..5 {
            y[i, j2] = t[i % 2, j2]
          }
          wait v1
        }
        for j2_1 <= 4 in 0..5 {
          y[1, j2_1] = t[1, j2_1]
        }"""
    )


def product() -> Func:
    """The product in tiles for the small machine."""
    s = Schedule(read(PRODUCT))
    f = s.func
    s.async_copy(loop(f, "ai"), LOAD)
    b = s.async_copy(loop(f, "bi"), LOAD)
    s.wait(b, loop(f, "mi"))
    mma = s.tensorize(loop(f, "mi"), MULTIPLY)
    s.wait(mma, mma, "after")
    s.pipeline(loop(f, "k"))
    out = s.async_copy(loop(f, "di"), Route("acc", "global", "out", unit=4))
    s.wait(out, out, "after")
    return f


def test_a_product_in_two_buffers_is_ordered_and_right() -> None:
    f = product()
    verify_func(f, machine_spec(MACHINE))
    assert sum(op.name == "run" and op.attrs["intrinsic"] == "mma" for op in f.body.walk()) == 2
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((4, 12), (12, 4)))
    plain = np.zeros((4, 4), np.float32)
    run_kernel(f, [x, w, plain])
    assert np.array_equal(plain, x @ w)
    assert all(np.array_equal(y, x @ w) for y in orders(f, [x, w], plain))


def test_one_wait_is_enough_for_copies_of_one_queue() -> None:
    """They end in the order in which they are started."""
    s = Schedule(read(PRODUCT))
    s.async_copy(loop(s.func, "ai"), LOAD)
    b = s.async_copy(loop(s.func, "bi"), LOAD)
    s.wait(b, loop(s.func, "mi"))
    assert Order(s.func, ("core", "thread")).why_not() is None


def test_a_product_without_its_wait_is_not_legal() -> None:
    s = Schedule(read(PRODUCT))
    s.async_copy(loop(s.func, "ai"), LOAD)
    with pytest.raises(VerifyError, match="the run on queue 'dma' that writes buffer 'a'"):
        verify_func(s.func, machine_spec(MACHINE))


def refused(message: str, step: Callable[[Func], object], text: str = COPIED_ROWS) -> None:
    func = read(text)
    before = print_func(func)
    with pytest.raises(ScheduleError, match=message):
        step(func)
    assert print_func(func) == before


def test_tensorize_refuses() -> None:
    refused("is not intrinsic 'twice': .*a 'mul'", lambda f: tensorize(f, loop(f, "j"), TWICE))
    f = read(DOUBLE)
    tensorize(f, loop(f, "i"), TWICE)
    with pytest.raises(ScheduleError, match="it is in a run already"):
        tensorize(f, loop(f, "i"), TWICE)


def test_scalars_from_outside_are_refused() -> None:
    text = """
    kernel @k(x: &f64[10], y: &f64[10]) dims() with {outputs=1} {
      s: f64 = x[0]
      for i in 0..10 { y[i] = s * 2 }
      for j in 0..10 { y[j] = y[j] + s }
      return
    }
    """
    refused("it uses a f64 from outside", lambda f: tensorize(f, loop(f, "i"), _BROADCAST), text)


_BROADCAST = Intrinsic(
    "broadcast",
    """
    kernel @broadcast(x: &f64[1], y: &f64[n]) dims(n) with {outputs=1} {
      for i in 0..n { y[i] = x[0] * 2 }
      return
    }
    """,
)


def test_async_copy_refuses() -> None:
    refused("it does more than to copy", lambda f: async_copy(f, loop(f, "i"), ROWS), DOUBLE)
    refused("it copies from 'global' to 'scratch'", lambda f: async_copy(f, loop(f, "j"), LOAD))
    units = Route("global", "scratch", "dma", unit=16)
    refused("it copies 40 bytes at a time", lambda f: async_copy(f, loop(f, "j"), units))
    parallel_inside = COPIED_ROWS.replace("j in 0..5", "j in 0..5 parallel")
    refused("loop 'j' is parallel", lambda f: async_copy(f, loop(f, "j"), ROWS), parallel_inside)
    guarded = COPIED_ROWS.replace("x[i, j]", "x[i, j if j < 3 else 0]")
    refused("under a condition", lambda f: async_copy(f, loop(f, "j"), ROWS), guarded)


def test_wait_refuses() -> None:
    refused("it is no run on a queue", lambda f: wait(f, loop(f, "j"), loop(f, "j2")))
    f = read(COPIED_ROWS)
    run = async_copy(f, loop(f, "j"), ROWS)
    for anchor, place, message in (
        (loop(f, "i"), "before", "does not follow it"),
        (run, "before", "does not follow it"),
        (loop(f, "j"), "after", "does not follow it"),
        (loop(f, "j2"), "beside", "place='beside' is none of before, after"),
        (body_of(loop(f, "j2")).ops[0], "after", "is no statement that something follows"),
    ):
        with pytest.raises(ScheduleError, match=message):
            wait(f, run, anchor, place)
    vectorize(f, loop(f, "j2"), None)
    with pytest.raises(ScheduleError, match="is in a run or a vector loop"):
        wait(f, run, body_of(loop(f, "j2")).ops[0])


def test_barrier_refuses() -> None:
    refused("place='on' is none of before, after", lambda f: barrier(f, loop(f, "j"), "thread", "on"))
    refused("nothing follows it", lambda f: barrier(f, f.body.ops[-1], "thread"))
    inside = COPIED_ROWS.replace("i in 0..2", 'i in 0..2 parallel with {level="core"}')
    refused("whose iterations cannot wait for each other", lambda f: barrier(f, loop(f, "j"), "core"), inside)
    f = read(COPIED_ROWS)
    async_copy(f, loop(f, "j"), ROWS)
    with pytest.raises(ScheduleError, match="it is in a run, which one thread starts"):
        barrier(f, loop(f, "j"), "thread")


def test_parallel_refuses() -> None:
    nested = COPIED_ROWS.replace("j in 0..5", 'j in 0..5 parallel with {level="thread"}')
    refused("threads share a loop in it already", lambda f: parallel(f, loop(f, "i")), nested)
    refused("threads share a loop in it already", lambda f: parallel(f, loop(f, "i"), "thread"), nested)
    f = read(COPIED_ROWS)
    barrier(f, loop(f, "j"), "core")
    with pytest.raises(ScheduleError, match="it holds a barrier of level 'core'"):
        parallel(f, loop(f, "i"), "core")


def test_pipeline_refuses() -> None:
    refused("no run in it copies into a buffer of its own", lambda f: pipeline(f, loop(f, "i")))
    refused("depth=3: a copy has two buffers", lambda f: pipeline(f, loop(f, "i"), 3))

    def copied(f: Func) -> Op:
        return async_copy(f, loop(f, "j"), ROWS)

    f = read(COPIED_ROWS.replace("[2, 5]", "[n, 5]").replace("0..2", "0..n").replace("dims()", "dims(n)"))
    copied(f)
    with pytest.raises(ScheduleError, match="it may run no time at all"):
        pipeline(f, loop(f, "i"))
    with pytest.raises(ScheduleError, match="it is in a run"):
        pipeline(f, loop(f, "j"))
    f = read(COPIED_ROWS)
    copied(f)
    parallel(f, loop(f, "i"), "core")
    with pytest.raises(ScheduleError, match="follow each other in no fixed order: it is a parallel loop"):
        pipeline(f, loop(f, "i"))
    f = read(COPIED_ROWS.replace("y[i, j2] = t[j2]", "x[i, j2] = t[j2]"))
    copied(f)
    with pytest.raises(ScheduleError, match="which is copied, is written in the loop"):
        pipeline(f, loop(f, "i"))


CHAINED = """
kernel @k(x: &f64[2, 5], y: &f64[2, 5]) dims() with {outputs=1} {
  for i in 0..2 {
    alloc s: scratch f64[5]
    for h in 0..5 {
      s[h] = x[i, h] + 1
    }
    alloc t: scratch f64[5]
    for j in 0..5 {
      t[j] = s[j]
    }
    for j2 in 0..5 {
      y[i, j2] = t[j2]
    }
  }
  return
}
"""


def test_pipeline_refuses_what_is_computed_in_the_same_iteration() -> None:
    f = read(CHAINED)
    copied = async_copy(f, loop(f, "j"), Route("scratch", "scratch", "dma"))
    with pytest.raises(ScheduleError, match=r"buffer 's' .*, which is copied, is computed in the same iteration"):
        pipeline(f, loop(f, "i"))
    other = tensorize(f, loop(f, "j2"), _MOVE)
    wait(f, other, other, "after")
    copied.set_operands([copied.result])
    with pytest.raises(ScheduleError, match="a copy in it waits for other runs"):
        pipeline(f, loop(f, "i"))


_MOVE = Intrinsic(
    "move",
    """
    kernel @move(x: scratch f64[n], y: &f64[n]) dims(n) with {outputs=1} {
      for i in 0..n { y[i] = x[i] }
      return
    }
    """,
    queue="unit",
)


def product_schedule() -> Schedule:
    s = Schedule(read(PRODUCT))
    s.async_copy(loop(s.func, "ai"), LOAD)
    s.tensorize(loop(s.func, "mi"), MULTIPLY)
    return s


def test_traces_name_intrinsics_and_routes_of_the_machine() -> None:
    s = product_schedule()
    assert s.lines() == ('async_copy(ai, route="global -> pad")', 'tensorize(mi, intrinsic="mma")')
    again = replay(read(PRODUCT), parse_trace("\n".join(s.lines())), MACHINE)
    assert print_block(again.body) == print_block(s.func.body)


def test_a_trace_without_its_machine() -> None:
    trace = parse_trace("\n".join(product_schedule().lines()))
    with pytest.raises(ReplayError, match="there is no route 'global -> pad': no machine is given"):
        replay(read(PRODUCT), trace)
    with pytest.raises(ReplayError, match="there is no intrinsic 'mma': machine 'small' has none of this name"):
        replay(read(PRODUCT), trace, dataclasses.replace(MACHINE, intrinsics=()))


def test_set_space() -> None:
    assert after(TWO_STAGES, lambda f: set_space(f, buffer(f, "t"), "pad")).startswith("alloc t: pad f64[16]")


def test_set_space_refuses() -> None:
    def space(name: str, to: str) -> Callable[[Func], object]:
        return lambda f: set_space(f, buffer(f, name), to)

    refused("it is an argument of the kernel", space("x", "pad"), TWO_STAGES)
    refused("'global' is the memory of arguments", space("t", "global"), TWO_STAGES)
    threads = REGISTERS_BEFORE_THREADS
    refused("it uses registers from outside, 't', which other threads do not have", space("t", "reg"), threads)
    unknown = TWO_STAGES.replace("t: scratch f64[16]", "t: scratch f64[n]").replace("dims()", "dims(16 <= n)")
    refused("registers have a constant size", space("t", "reg"), unknown)
    f = read(SUM)
    vectorize_reduction(f, loop(f, "k"), 4)
    lanes = next(op.result for op in f.body.walk() if op.name == "alloc")
    with pytest.raises(ScheduleError, match="its lanes are added up, which are in registers"):
        set_space(f, lanes, "scratch")


def test_loops_around_a_run_do_not_change_places_with_those_in_it() -> None:
    text = COPIED_ROWS.replace("for j in 0..5 {", "for h in 0..1 {\n for j in 0..5 {")
    f = read(text.replace("x[i, j]\n", "x[i, j]\n }\n"))
    async_copy(f, loop(f, "j"), ROWS)
    with pytest.raises(ScheduleError, match="a run lies between the loops, which is done as a whole"):
        reorder(f, loop(f, "j"), loop(f, "h"))
    load = next(op for op in f.body.walk() if op.name == "load")
    with pytest.raises(ScheduleError, match="it is in a run, which is done as a whole"):
        fission(f, load, 2)
