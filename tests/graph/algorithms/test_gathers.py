"""Gathers whose indices are known: slices, and runs of elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.graph.programs import find, ops, program, run
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import TilewrightError
from tilewright.ir.types import tensor
from tilewright.ops import elementwise as ew
from tilewright.ops import index as ix
from tilewright.ops import view as vw
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.passes import PassContext


def strided(sizes: Sequence[int], strides: Sequence[int], first: int = 0, dtype: type = np.int64) -> Value:
    """Indices of PyTorch's as_strided: a sum of one constant for each axis."""
    found: Value | None = None
    for k, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        own: np.ndarray = (first * (k == 0) + stride * np.arange(size)).astype(dtype)
        term = constant(own.reshape(*[1] * k, size, *[1] * (len(sizes) - k - 1)))
        found = term if found is None else ew.add(found, term)
    assert found is not None
    return found


def windows(x: Value) -> Value:
    return ix.gather(vw.reshape(x, shape=(96,)), strided((3, 4, 8), (16, 8, 1)), axis=0)


def from_the_end(x: Value) -> Value:
    return ix.gather(vw.reshape(x, shape=(96,)), strided((3, 8), (16, 1), -64), axis=0)


def of_32_bits(x: Value) -> Value:
    return ix.gather(vw.reshape(x, shape=(96,)), strided((3, 8), (16, 1), 4, np.int32), axis=0)


def behind_rows(x: Value) -> Value:
    return ix.gather(vw.reshape(x, shape=(2, 48)), strided((3, 12), (12, 1)), axis=1)


def one_constant(x: Value) -> Value:
    table = np.array([[8, 9, 10, 11, 12, 13, 14, 15], [0, 1, 2, 3, 4, 5, 6, 7]])
    return ix.gather(vw.reshape(x, shape=(96,)), constant(table), axis=0)


@pytest.mark.parametrize(
    "body", [windows, from_the_end, of_32_bits, behind_rows, one_constant], ids=lambda b: b.__name__
)
def test_elements_beside_one_another_have_one_index(body: Callable[[Value], Value]) -> None:
    module = program(body, (8, 12))
    run(module, Canonicalize())
    gather = find(module, "gather")
    assert gather.attrs["in_range"]
    assert gather.operands[0].tensor.shape[-1].value >= 4
    assert gather.operands[1].tensor.size.value * 4 <= gather.result.tensor.size.value
    assert "add" not in ops(module)


def backwards(x: Value) -> Value:
    return ix.gather(vw.reshape(x, shape=(96,)), strided((3, 8), (16, -1), 40), axis=0)


def every_other(x: Value) -> Value:
    return ix.gather(vw.reshape(x, shape=(96,)), strided((3, 8), (16, 2)), axis=0)


def odd_places(x: Value) -> Value:
    return ix.gather(vw.reshape(x, shape=(96,)), strided((3, 8), (17, 1)), axis=0)


def short(x: Value) -> Value:
    return ix.gather(vw.reshape(x, shape=(96,)), strided((8, 2), (8, 1)), axis=0)


@pytest.mark.parametrize("body", [backwards, every_other, odd_places, short], ids=lambda b: b.__name__)
def test_others_keep_their_indices(body: Callable[[Value], Value]) -> None:
    module = program(body, (8, 12))
    run(module, Canonicalize())
    assert not find(module, "gather").attrs["in_range"]


@pytest.mark.parametrize("first", [92, -97, 200])
def test_indices_out_of_range_fail_as_before(first: int) -> None:
    module = program(
        lambda x: ix.gather(vw.reshape(x, shape=(96,)), strided((1, 8), (1, 1), first), axis=0), (8, 12)
    )
    Canonicalize().run(module, PassContext())
    assert not find(module, "gather").attrs["in_range"]
    with pytest.raises(TilewrightError, match="out of range"):
        evaluate_func(module.main, module, [np.zeros((8, 12), np.float32)])


@pytest.mark.parametrize("indices", [[0, 1, 2], [3, 5, 7], [-4, -3]])
def test_a_range_of_indices_is_a_slice(indices: list[int]) -> None:
    module = program(lambda x: ix.gather(x, constant(np.array(indices)), axis=1), (3, 8, 5))
    run(module, Canonicalize())
    assert ops(module) == ["slice"]


@pytest.mark.parametrize("indices", [[2, 1, 0], [0, 0, 0], [0, 1, 3], [-1, 0, 1], [5], []])
def test_other_indices_are_no_slice(indices: list[int]) -> None:
    module = program(lambda x: ix.gather(x, constant(np.array(indices, np.int64)), axis=1), (3, 8, 5))
    run(module, Canonicalize())
    assert ops(module) == ["gather"]


def test_indices_of_the_call_are_looked_at_in_the_call() -> None:
    module = program(lambda x, i: ix.gather(x, ew.add(i, i), axis=0), (96,), tensor(dt.i64, (3, 8)))
    Canonicalize().run(module, PassContext())
    assert ops(module) == ["add", "gather"]
