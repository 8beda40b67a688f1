"""Loops whose products one instruction adds: what they may hold, and that they mean what they meant before."""

from __future__ import annotations

import numpy as np
import pytest

from tests.loops.kernel_texts import DOUBLE, GROUPS, SUM, read
from tilewright.ir.diag import ScheduleError
from tilewright.ir.text import print_func
from tilewright.ir.verify import verify_func
from tilewright.loops.edit import find_loop
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.lanes.dot import dot
from tilewright.loops.lanes.unroll import unroll
from tilewright.loops.lanes.vectorize import vectorize
from tilewright.loops.order.split import split
from tilewright.loops.spec import LOOPS_SPEC
from tilewright.ops.define.loop_programs import run_kernel

REFUSED = {
    "a sum of what is no product": (SUM, "k", "does not add products in i32 or f32"),
    "no sum": (DOUBLE, "i", "does not add to one sum"),
    "a sum that moves": (GROUPS.replace("0..4", "0..4").replace("y[j] +=", "y[g] +="), "g", "one sum"),
    "products in another dtype": (
        GROUPS.replace("i32[16]", "i64[16]").replace("i32(", "i64("), "g", "does not add products in i32 or f32",
    ),
    "differences": (GROUPS.replace("* i32", "- i32"), "g", "does not add products in i32 or f32"),
    "factors that are computed": (
        GROUPS.replace("i32(a[g])", "(i32(a[g]) + 1)"), "g", "not narrow numbers that are loaded",
    ),
    "greatest products": (
        GROUPS.replace("y[j] += i32(a[g]) * i32(b[j, g])", "y[j] = max(y[j], i32(a[g]) * i32(b[j, g]))"), "g",
        "does not add to one sum",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_other_loops_are_refused(what: str) -> None:
    text, loop, reason = REFUSED[what]
    func = read(text)
    with pytest.raises(ScheduleError, match=reason):
        dot(func, find_loop(func, loop))


def test_a_group_has_a_known_number_of_products() -> None:
    func = read(GROUPS.replace("dims()", "dims(n)").replace("0..4", "0..n"))
    with pytest.raises(ScheduleError, match="its extent is not a constant"):
        dot(func, find_loop(func, "g"))


def test_a_loop_is_of_one_kind() -> None:
    func = read(GROUPS)
    loop = dot(func, find_loop(func, "g"))
    for step in (dot, unroll, lambda f, o: split(f, o, 2)):
        with pytest.raises(ScheduleError, match="dot"):
            step(func, loop)


def test_the_numbers_and_the_text_stay() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.integers(0, 256, 4).astype(np.uint8), rng.integers(-128, 128, (16, 4)).astype(np.int8)
    func = read(GROUPS)
    dot(func, find_loop(func, "g"))
    vectorize(func, find_loop(func, "j"))
    verify_func(func, LOOPS_SPEC)
    text = print_func(func)
    assert print_func(parse_kernel(text)) == text
    y = np.zeros(16, np.int32)
    run_kernel(func, [a, b, y])
    np.testing.assert_array_equal(y, b.astype(np.int64) @ a.astype(np.int64))
