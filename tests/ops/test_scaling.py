"""Factors that pass through operators, tried on arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.ops.samples import FAMILIES
from tests.ops.sampling import Sample, normal
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Op
from tilewright.ir.types import tensor
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.interp import evaluate
from tilewright.ops.elementwise import div, max_, mul
from tilewright.ops.traits.scaling import axis_of_factors


def application(name: str, *operands: np.ndarray, **attrs: Any) -> Op:
    """An operator of a graph in which no composite was expanded."""
    types = [tensor(dt.from_numpy(x.dtype), x.shape) for x in operands]
    given = OPERATORS[name].application(types, OPERATORS[name].defaults | attrs)
    return Op(name, Block(types).args, attrs=given.attrs)


def contradiction(sample: Sample) -> str:
    """Why a result does not have the factors that it is said to have; nothing where it has them."""
    x = np.asarray(sample.inputs[0])
    op = application(sample.op, *sample.inputs, **sample.attrs)
    for axis in range(x.ndim):
        into = axis_of_factors(op, axis, lambda v: None)
        if into is None:
            continue
        factors = np.ldexp(1.0, np.arange(x.shape[axis]) % 3 - 1).astype(x.dtype)  # powers of two change no digits
        scaled = x * factors.reshape(-1, *[1] * (x.ndim - 1 - axis))
        results = [evaluate(OPERATORS[sample.op], y, *sample.inputs[1:], **sample.attrs) for y in (x, scaled)]
        before, after = (np.asarray(r[0] if isinstance(r, tuple) else r, np.float64) for r in results)
        assert before.shape[into] == len(factors), f"{sample}: axis {axis} is not axis {into}"
        wanted = before * factors.astype(np.float64).reshape(-1, *[1] * (before.ndim - 1 - into))
        near = np.isclose(after, wanted, rtol=1e-2, atol=1e-2, equal_nan=True)
        if not near.all():
            place = tuple(map(int, np.argwhere(~near)[0]))
            return f"{sample}: with factors along axis {axis} it is {after[place]} at {place}, not {wanted[place]}"
    return ""


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_results_have_the_factors_that_pass_through(family: Callable[[], Iterator[Sample]]) -> None:
    tried: dict[str, int] = {}
    wrong = []
    with np.errstate(all="ignore"):
        for sample in family():
            if not sample.inputs or np.asarray(sample.inputs[0]).dtype not in (np.float32, np.float64):
                continue
            tried[sample.op] = tried.get(sample.op, 0) + 1
            if tried[sample.op] <= 2:
                wrong += [contradiction(sample)]
    assert [w for w in wrong if w] == []


IMAGE = normal((2, 3, 6, 6))
WINDOW = {"kernel": (2, 2), "pads_begin": (1, 1), "pads_end": (1, 1)}
PASSING: list[tuple[str, dict[str, Any], int]] = [
    ("relu", {}, 1), ("leaky_relu", {"alpha": 0.2}, 1), ("max_pool", WINDOW, 1), ("average_pool", WINDOW, 1),
    ("sum_pool", WINDOW, 1), ("reduce_mean", {"axes": (2, 3)}, 1), ("reduce_max", {"axes": (0,), "keepdims": False}, 0),
    ("transpose", {"perm": (0, 2, 3, 1)}, 3), ("pad", {"before": (0, 0, 1, 1), "after": (0, 0, 0, 0)}, 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "attrs", "into"), PASSING, ids=[p[0] for p in PASSING])
def test_what_lets_factors_of_channels_pass(name: str, attrs: dict[str, Any], into: int) -> None:
    assert axis_of_factors(application(name, IMAGE, **attrs), 1, lambda v: None) == into


STOPPING: list[tuple[str, dict[str, Any]]] = [
    ("sigmoid", {}), ("exp", {}), ("softmax", {"axis": 1}), ("reduce_sum", {"axes": (1,)}), ("elu", {}), ("floor", {}),
    ("reduce_prod", {"axes": (2,)}), ("silu", {}), ("reverse", {"axes": (1,)}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "attrs"), STOPPING, ids=[s[0] for s in STOPPING])
def test_what_does_not(name: str, attrs: dict[str, Any]) -> None:
    assert axis_of_factors(application(name, IMAGE, **attrs), 1, lambda v: None) is None


def test_a_square_has_them_twice() -> None:
    block = Block([tensor(dt.f32, (2, 3))])
    with Builder(block, Module()):
        mul(block.args[0], block.args[0])
        div(block.args[0], block.args[0])
    assert [axis_of_factors(op, 1, lambda v: None) for op in block.ops] == [None, None]


@pytest.mark.parametrize(("number", "into"), [(0, 1), (float("-inf"), 1), (1, None), (None, None)])
def test_a_bound_is_zero_or_none(number: float | None, into: int | None) -> None:
    block = Block([tensor(dt.f32, (2, 3)), tensor(dt.f32, ())])
    with Builder(block, Module()):
        max_(*block.args)
    assert axis_of_factors(block.ops[-1], 1, lambda v: number) == into
