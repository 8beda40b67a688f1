"""Numbers become part of a kernel where all regions that could share it have the same."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.types import tensor
from tilewright.ops import elementwise as ew
from tilewright.ops import view
from tilewright.ops.define import constant

TYPE = tensor(dt.f32, (4, 6))


def number(value: float) -> Value:
    return constant(np.array(value, np.float32), "c")


def operands(module: Module) -> list[int]:
    return [len(op.operands) for op in module.main.body.ops if op.name == "call"]


@pytest.mark.parametrize("value", [0.1, -2.0, 3e-39])
def test_a_number_of_one_kernel_is_written_out(value: float) -> None:
    def body(x: Value) -> Value:
        return ew.exp(ew.mul(x, number(value)))

    module, _ = oracle.agree([TYPE], body, [np.ones((4, 6), np.float32)])
    assert operands(module) == [1]
    assert not module.constants


@pytest.mark.parametrize(("value", "count"), [(float("nan"), 2), (float("inf"), 1), (float("-inf"), 1)])
def test_infinite_numbers_are_written_out_and_missing_ones_are_not(value: float, count: int) -> None:
    module, _ = oracle.agree([TYPE], lambda x: ew.min_(x, number(value)), [np.ones((4, 6), np.float32)])
    assert operands(module) == [count]


def steps(values: list[float]) -> Module:
    """Regions of one form, one after the other: rows of one tensor, each times a number."""

    def body(x: Value) -> tuple[Value, ...]:
        rows = [view.slice_(x, starts=(k, 0), sizes=(1, 6), steps=(1, 1)) for k in range(len(values))]
        return tuple(ew.exp(ew.mul(row, number(v))) for row, v in zip(rows, values, strict=True))

    module = oracle.build([TYPE], body)
    oracle.scheduled(module)
    return module


def test_different_numbers_leave_one_kernel_for_all() -> None:
    module = steps([1.5, 2.5, 3.5, 4.5])
    assert len([f for f in module.funcs.values() if f.level == "loops"]) == 1
    assert operands(module) == [2] * 4


def test_equal_numbers_are_written_out_in_all() -> None:
    module = steps([1.5] * 4)
    assert len([f for f in module.funcs.values() if f.level == "loops"]) == 1
    assert operands(module) == [1] * 4
