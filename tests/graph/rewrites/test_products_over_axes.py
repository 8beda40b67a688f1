"""Products over an axis that programs take to the end and back (talking heads): over that axis where it is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graph.programs import program, run
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.ir.core import Module, Value
from tilewright.ir.sym import var
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops import view as vw
from tilewright.ops.define import constant

W = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
B = np.arange(6, dtype=np.float32)
N = var("n", 1)


def heads(x: Value) -> Value:
    y = ct.matmul(vw.transpose(x, perm=(0, 2, 3, 1)), constant(W))
    return vw.transpose(ew.add(y, constant(B)), perm=(0, 3, 1, 2))


def other_side(x: Value) -> Value:
    y = ct.matmul(vw.transpose(x, perm=(0, 2, 3, 1)), constant(W.T.copy()), transpose_b=True)
    return vw.transpose(ew.max_(y, 0.0), perm=(0, 3, 1, 2))


def merged(x: Value) -> Value:
    """As einsums are written."""
    b, h, i, j = x.tensor.shape
    rows = vw.reshape(vw.transpose(x, perm=(0, 2, 3, 1)), shape=(b * i * j, h))
    y = vw.reshape(ct.matmul(rows, constant(W)), shape=(b, i, j, 6))
    return vw.transpose(y, perm=(0, 3, 1, 2))


def middle(x: Value) -> Value:
    """Over the second axis, which the flag of the product takes to the end."""
    return vw.transpose(ct.matmul(x, constant(W), transpose_a=True), perm=(0, 1, 3, 2))


def stays(x: Value) -> Value:
    return ct.matmul(vw.transpose(x, perm=(0, 2, 3, 1)), constant(W))


def is_read_twice(x: Value) -> tuple[Value, Value]:
    y = ct.matmul(vw.transpose(x, perm=(0, 2, 3, 1)), constant(W))
    return vw.transpose(y, perm=(0, 3, 1, 2)), y


def goes_elsewhere(x: Value) -> Value:
    y = ct.matmul(vw.transpose(x, perm=(0, 2, 3, 1)), constant(W))
    return vw.transpose(y, perm=(0, 3, 2, 1))


def names(module: Module) -> list[str]:
    return [op.name for op in module.main.body.ops]


@pytest.mark.parametrize("rows", [5, N], ids=["known", "unknown"])
@pytest.mark.parametrize("body", [heads, other_side, merged], ids=lambda b: b.__name__)
def test_axis_stays_where_it_is(body: Callable[[Value], Value], rows: object) -> None:
    module = program(body, (2, 4, rows, 7))
    run(module, Canonicalize(), tolerance=1e-5)
    assert names(module).count("matmul") == 1
    assert "transpose" not in names(module)


def test_axis_before_the_last() -> None:
    module = program(middle, (2, 3, 4, 7))
    run(module, Canonicalize(), tolerance=1e-5)
    assert "transpose" not in names(module)


@pytest.mark.parametrize("body", [stays, is_read_twice, goes_elsewhere], ids=lambda b: b.__name__)
def test_others_stay(body: Callable[[Value], Value]) -> None:
    module = program(body, (2, 4, 5, 7))
    run(module, Canonicalize(), tolerance=1e-5)
    (product,) = (op for op in module.main.body.ops if op.name == "matmul")
    assert product.result.tensor.shape[-1] == 6
