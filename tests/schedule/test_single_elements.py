"""Kernels with few loops left, or none: results of one element, sums over nothing, axes of extent 1 and 0."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.schedule.scheduling import agree
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.types import tensor
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as rd
from tilewright.ops import view as vw

Body = Callable[..., Value | tuple[Value, ...]]


def scalar(x: Value) -> Value:
    return vw.reshape(x, shape=())


def conv(x: Value, w: Value) -> Value:
    none = (0,) * (len(x.type.shape) - 2)
    ones = (1,) * len(none)
    return ct.conv(x, w, groups=1, strides=ones, pads_begin=none, pads_end=none, dilations=ones)


def both(x: Value, w: Value) -> tuple[Value, Value]:
    """A product that leaves the kernel both as it is and as a scalar."""
    product = ct.matmul(x, w)
    return ew.exp(product), ew.mul(scalar(product), 2.0)


def both_shapes(x: Value, w: Value) -> tuple[Value, Value]:
    """A product whose two readers have axes of different numbers."""
    product = ct.matmul(x, w)
    rows, columns = (d.value for d in product.type.shape)
    return ew.exp(product), ew.mul(vw.reshape(product, shape=(rows * columns,)), 2.0)


def attention(q: Value, k: Value, v: Value) -> Value:
    scores = ct.matmul(q, k, transpose_b=True)
    powers = ew.exp(ew.sub(scores, rd.reduce_max(scores, axes=(-1,))))
    weights = ew.div(powers, rd.reduce_sum(powers, axes=(-1,)))
    return ew.mul(scalar(ct.matmul(weights, v)), 2.0)


DEPTHS = (1, 2, 17, 500)
CASES: list[tuple[str, list[tuple[int, ...]], Body]] = [
    case
    for k in DEPTHS
    for case in (
        ("product and sum", [(1, k), (k, 1), ()], lambda x, w, c: ew.add(scalar(ct.matmul(x, w)), c)),
        ("product and exp", [(1, k), (k, 1)], lambda x, w: ew.exp(scalar(ct.matmul(x, w)))),
        ("product twice", [(1, k), (k, 1)], both),
        ("product in two shapes", [(2, k), (k, 3)], both_shapes),
        ("line", [(1, k, 3), (1, k, 3)], lambda x, w: ew.mul(scalar(conv(x, w)), 2.0)),
        ("image", [(1, k, 2, 2), (1, k, 2, 2)], lambda x, w: ew.mul(scalar(conv(x, w)), 2.0)),
        ("row sum", [(1, k)], lambda x: ew.exp(scalar(rd.reduce_sum(x, axes=(0, 1))))),
        ("column sum", [(k, 1)], lambda x: ew.exp(scalar(rd.reduce_sum(x, axes=(0,))))),
        ("columns as a row", [(k, 3)], lambda x: ew.exp(vw.reshape(rd.reduce_sum(x, axes=(0,)), shape=(3,)))),
        ("sum over no axis", [(k,)], lambda x: ew.mul(rd.reduce_sum(x, axes=(), keepdims=False), 2.0)),
        ("attention", [(1, k), (k, k), (k, 1)], attention),
    )
]


CASES += [
    (
        "edges of two rows joined",
        [(1, 8)],
        lambda x: vw.pad(vw.concat(x, x, axis=0), mode="edge", before=(1, 0), after=(1, 2)),
    ),
    ("empty product", [(0, 8), (8, 24)], lambda x, w: ew.exp(ct.matmul(x, w))),
    ("product without columns", [(5, 8), (8, 0)], lambda x, w: ew.exp(ct.matmul(x, w))),
    ("product over nothing", [(5, 0), (0, 24)], lambda x, w: ew.exp(ct.matmul(x, w))),
    ("sums without lanes", [(2, 5, 20, 0)], lambda x: rd.reduce_sum(x, axes=(1,))),
    ("sums over nothing", [(2, 0, 20)], lambda x: rd.reduce_sum(x, axes=(1,))),
    ("greatest of rows without elements left", [(0, 20)], lambda x: rd.reduce_max(x, axes=(1,))),
]


@pytest.mark.parametrize(("name", "shapes", "body"), CASES, ids=[f"{c[0]}, {c[1]}" for c in CASES])
def test_schedule_agrees(name: str, shapes: list[tuple[int, ...]], body: Body) -> None:
    rng = np.random.default_rng(len(name))
    arrays = [rng.standard_normal(s).astype(np.float32) / 8 for s in shapes]
    agree([tensor(dt.f32, s) for s in shapes], body, arrays)
