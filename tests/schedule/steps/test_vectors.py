"""Widths of vector loops, and the order in which machine code writes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.codegen.cpu.assemble import assembly
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Value
from tilewright.ir.types import tensor
from tilewright.loops.edit import extent_of, kind_of, loops_in
from tilewright.ops import elementwise as ew
from tilewright.target.named import parse_target

RNG = np.random.default_rng(4)
Body = Callable[[Value], Value]


def map_kernel(body: Body, size: int, target: str) -> Func:
    x = RNG.standard_normal(size).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, (size,))], body, [x], target)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


def lanes(kernel: Func) -> list[int]:
    return [extent_of(o).value for o in loops_in(kernel.body) if kind_of(o) == "vector"]


@pytest.mark.parametrize(("target", "wanted"), [("zen3", 32), ("cascadelake", 64), ("aarch64-neon", 16)])
def test_polynomials_run_in_four_interleaved_registers(target: str, wanted: int) -> None:
    assert lanes(map_kernel(ew.tanh, 16384, target)) == [wanted]
    assert lanes(map_kernel(ew.neg, 16384, target)) == [16]


@pytest.mark.parametrize("target", ["zen3", "cascadelake", "aarch64-neon"])
@pytest.mark.parametrize("size", [1, 31, 65, 100, 4100, 9001, 16384 + 88])
def test_what_polynomials_leave_over_is_computed(size: int, target: str) -> None:
    map_kernel(ew.exp, size, target)  # which compares with the graph


@pytest.mark.parametrize(
    ("op", "size", "wanted"),
    [
        (ew.exp, 3, [4]), (ew.exp, 7, [8]), (ew.exp, 8, [8]), (ew.exp, 10, [16]), (ew.neg, 7, [8]),
        (ew.neg, 10, [8, 2]), (ew.neg, 13, [16]),
    ],
)  # fmt: skip
def test_short_lines_of_many_pieces_are_one_masked_vector(op: Any, size: int, wanted: list[int]) -> None:
    def body(x: Value, y: Value) -> Value:
        return op(ew.sub(x, y))

    shapes = [(2, 40, size), (2, 1, size)]
    arrays = [RNG.standard_normal(shape).astype(np.float32) for shape in shapes]
    module, _ = oracle.agree([tensor(dt.f32, shape) for shape in shapes], body, arrays, "cascadelake")
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    assert lanes(kernel) == wanted


@pytest.mark.parametrize("body", [ew.neg, ew.exp, ew.sqrt], ids=["neg", "exp", "sqrt"])
def test_stores_go_up_through_memory(body: Body) -> None:
    machine = parse_target("zen3")
    text = assembly(kernel_ir(map_kernel(body, 16384, "zen3"), machine).text, machine)
    found = re.findall(r"vmovu?p[sd]\s+%ymm\d+, (-?\d*)\((?!%rsp)", text[: text.index(".task:")])
    offsets = [int(offset or 0) for offset in found]
    assert len(offsets) >= 2
    assert offsets == sorted(offsets)
