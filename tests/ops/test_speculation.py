"""What can be run before it is known whether it is needed: derived from the bodies of operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Value
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.define.speculation import speculative_steps
from tilewright.ops.define.symbolic import Values
from tilewright.ops.index import gather, scatter_nd
from tilewright.ops.norm import softmax
from tilewright.ops.sort import topk
from tilewright.ops.source import full, sym_tensor
from tilewright.ops.view import reshape, slice_

N = var("n", 0)


def steps(write: Callable[[Value, Value], object], size: object = 8, limit: int = 10**6) -> int | None:
    """Of what is written for x: f32[size] and i: i64[2]."""
    module = Module()
    block = Block([tensor(dt.f32, [size]), tensor(dt.i64, [2])])
    with Builder(block, module):
        write(*block.args)
    values = Values(module)

    def constant_of(value: Value) -> np.ndarray | None:
        known = values.of(value)
        return known.elements if known is not None and known.is_number else None

    found = speculative_steps(block.ops, constant_of, limit)
    return found if isinstance(found, int) else None


def test_work_grows_with_positions() -> None:
    one, four = (steps(lambda x, i: ew.exp(x), n) for n in (100, 400))
    assert one is not None and four == 4 * one
    assert steps(lambda x, i: softmax(x)) is not None
    assert steps(lambda x, i: softmax(x), limit=20) is None
    assert steps(lambda x, i: topk(x, k=3, axis=0)) is not None


@pytest.mark.parametrize(
    "write",
    [
        lambda x, i: ew.div(i, i),
        lambda x, i: ew.mod(i, constant(np.array([3, 0]))),
        lambda x, i: gather(x, i, axis=0),
        lambda x, i: gather(x, constant(np.array(8)), axis=0),
        lambda x, i: scatter_nd(x, reshape(i, shape=(2, 1)), ew.cast(i, dtype=dt.f32)),
    ],
)
def test_what_may_fail(write: Callable[[Value, Value], object]) -> None:
    assert steps(write) is None


@pytest.mark.parametrize(
    "write",
    [
        lambda x, i: ew.div(x, x),
        lambda x, i: ew.div(i, full(value=2, dtype=dt.i64, shape=())),
        lambda x, i: ew.mod(i, constant(np.array([3, -1]))),
        lambda x, i: gather(x, constant(np.array([0, -8, 7])), axis=0),
        lambda x, i: sym_tensor(values=(N, N)),
    ],
)
def test_what_cannot_fail(write: Callable[[Value, Value], object]) -> None:
    assert steps(write) is not None


def test_what_relies_on_dims_of_the_call() -> None:
    assert steps(lambda x, i: ew.exp(x), N) is None
    assert steps(lambda x, i: slice_(x, starts=(N,), sizes=(2,), steps=(1,))) is None
