"""Reductions of leading axes and work on the columns: softmax and its like off the last axis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.sym import sym, var
from tilewright.ir.types import tensor
from tilewright.loops.edit import body_of, buffer_type, enclosing_loops, is_loop, kind_of, loops_in
from tilewright.ops import elementwise as ew
from tilewright.ops.reduce import reduce_max, reduce_sum

Body = Callable[[Value], Value | tuple[Value, ...]]


def softmax(axis: int) -> Body:
    def body(x: Value) -> Value:
        powers = ew.exp(ew.sub(x, reduce_max(x, axes=(axis,))))
        return ew.div(powers, reduce_sum(powers, axes=(axis,)))

    return body


def log_softmax(axis: int) -> Body:
    def body(x: Value) -> Value:
        shifted = ew.sub(x, reduce_max(x, axes=(axis,)))
        return ew.sub(shifted, ew.log(reduce_sum(ew.exp(shifted), axes=(axis,))))

    return body


def sums_and_what_is_summed(axis: int) -> Body:
    def body(x: Value) -> tuple[Value, ...]:
        powers = ew.exp(x)
        return reduce_sum(powers, axes=(axis,)), powers

    return body


@pytest.mark.sweep
@pytest.mark.parametrize("unknown", [None, 0, 1, 2])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("function", [softmax, log_softmax, sums_and_what_is_summed])
def test_no_element_of_a_column_is_computed_alone(
    function: Callable[[int], Body], axis: int, unknown: int | None
) -> None:
    """What is read on elsewhere is no part of the reduction, which no form of kernel could store it from."""
    shape = (6, 20, 64)
    dims = [var("n", 0) if k == unknown else sym(d) for k, d in enumerate(shape)]
    x = np.random.default_rng(axis).standard_normal(shape).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, dims)], function(axis), [x])
    for kernel in (f for f in module.funcs.values() if f.level == "loops"):
        for loop in loops_in(kernel.body):
            if any(map(is_loop, body_of(loop).ops)) or not any(op.name == "store" for op in body_of(loop).ops):
                continue
            kinds = {kind_of(o) for o in (loop, *enclosing_loops(loop))}
            assert "vector" in kinds or unknown == 2, "only the remainder of unknown columns has single elements"


SHORT = {"axis 0": (5, 6, 7, 3), "axis 1": (5, 6, 7, 3), "one column": (5, 6, 20, 1), "two columns": (2, 6, 30, 2)}


@pytest.mark.sweep
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("then", [lambda y: y, ew.exp], ids=["alone", "with work after it"])
@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("target", ["x86-64-v3", "cascadelake"])
def test_short_columns_beside_others_are_one_line(
    name: str, keepdims: bool, then: Body, known: bool, target: str
) -> None:
    """Lanes run over both axes, as these lie behind one another in memory."""
    shape = SHORT[name]
    axis = 1 - name.endswith("0")
    dims = [sym(d) if known else var(f"n{k}", 1) for k, d in enumerate(shape)]
    x = np.random.default_rng(axis).standard_normal(shape).astype(np.float32)

    def body(x: Value) -> Value | tuple[Value, ...]:
        return then(reduce_max(x, axes=(axis,), keepdims=keepdims))

    module, _ = oracle.agree([tensor(dt.f32, dims)], body, [x], target)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    assert dims[-1] == 1 or buffer_type(kernel.args[-1]).shape[-1] is not dims[-1]
