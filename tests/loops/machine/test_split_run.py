"""Copies in several runs, and waits at what reads them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.ir.core import Func, Op
from tilewright.ir.diag import ScheduleError, VerifyError
from tilewright.ir.verify import verify_func
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.machine.rules import machine_spec
from tilewright.loops.machine.split_run import split_run, wait_later
from tilewright.ops.define.loop_programs import run_kernel
from tilewright.target.machine import GLOBAL, Machine, Memory, Route

MACHINE = Machine(
    "split", memories=(GLOBAL, Memory("pad", 4096)), routes=(Route("global", "pad", "dma"), Route("pad", "pad", "move"))
)
KERNEL = """
kernel @k(x: &f64[8], y: &f64[8]) dims() with {outputs=1} {
  alloc a: pad f64[8]
  alloc b: pad f64[8]
  run copy on dma as t { for i in 0..8 { a[i] = x[i] } }
  run copy on dma as u { for j in 0..8 { b[j] = x[7 - j] } }
  wait t, u
  for k in 0..3 { y[k] = a[k] + b[k] }
  for l in 0..5 { y[l + 3] = a[l + 3] + b[l + 3] }
  return
}
"""


def parts() -> tuple[Func, list[Op]]:
    """The kernel, and its ops from the first run on."""
    func = parse_kernel(KERNEL)
    return func, func.body.ops[2:]


def test_the_second_part_is_waited_for_where_it_is_read() -> None:
    func, (first, other, waiting, _, late, _) = parts()
    (loop,) = [o for o in first.walk() if o.name == "for"]
    second = split_run(func, first, loop, 3)
    assert func.body.ops.index(second) == func.body.ops.index(other) + 1
    assert [*waiting.operands] == [first.result, other.result, second.result]
    made = wait_later(func, waiting, second, late)
    verify_func(func, machine_spec(MACHINE))
    x, y = np.arange(8.0), np.zeros(8)
    run_kernel(func, [x, y], {})
    assert np.array_equal(y, np.full(8, 7.0))
    wait_later(func, made, second, func.body.ops[-1])  # too late, as the verifier says
    with pytest.raises(VerifyError, match="may not have ended"):
        verify_func(func, machine_spec(MACHINE))


REFUSED: dict[str, Callable[[Func, list[Op]], object]] = {
    "is no loop of it": lambda f, ops: split_run(f, ops[0], ops[3], 1),
    "with a position 8 inside": lambda f, ops: split_run(f, ops[0], ops[0].blocks[0].ops[0], 8),
    "it is no copy on a queue": lambda f, ops: split_run(f, ops[2], ops[3], 1),
    "use what it copies": lambda f, ops: split_run(f, reading_next(ops), ops[0].blocks[0].ops[0], 1),
    "does not wait for it": lambda f, ops: wait_later(f, ops[0], ops[1], ops[3]),
    "does not follow it": lambda f, ops: wait_later(f, ops[2], ops[1], ops[0]),
}


def reading_next(ops: list[Op]) -> Op:
    """The first run, of which the second copies the result."""
    load = next(o for o in ops[1].walk() if o.name == "load")
    load.set_operands([next(o for o in ops[0].walk() if o.name == "store").operands[1]])
    return ops[0]


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused(reason: str) -> None:
    func, ops = parts()
    with pytest.raises(ScheduleError, match=reason):
        REFUSED[reason](func, ops)
