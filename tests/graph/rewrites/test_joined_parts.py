"""Parts that a concat joins: convolutions that are groups of one, and elementwise work on each part."""

from __future__ import annotations

import pytest

from tests.graph.programs import batch_norm, conv, find, ops, program, relu, run, weights
from tilewright.graph.rewrites.affine import FoldAffine
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.graph.rewrites.fold import Fold
from tilewright.graph.rewrites.joined_parts import SinkIntoParts
from tilewright.ir.sym import var
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as rd
from tilewright.ops import view as vw

N, H = var("n", 1), var("h", 4)


def cut(x, *widths, start=0):
    """Slices of channels, one behind the other."""
    n, _, *space = x.type.shape
    starts = [start + sum(widths[:k]) for k in range(len(widths))]
    zeros = [0] * len(space)
    return [vw.slice_(x, starts=(0, s, *zeros), sizes=(n, w, *space)) for s, w in zip(starts, widths, strict=True)]


def joined(*parts, axis=1):
    return vw.concat(*parts, axis=axis)


def canonical(body, *shapes):
    module = program(body, *shapes)
    run(module, Canonicalize(), Fold())
    return module


# Convolutions of consecutive channels


@pytest.mark.parametrize(
    ("widths", "filters", "groups", "kernel"),
    [
        ((4, 4), (6, 6), (1, 1), 1),
        ((2, 2, 2), (1, 1, 1), (1, 1, 1), 3),
        ((4, 8), (2, 4), (2, 4), 3),
        ((3, 5), (3, 5), (3, 5), 3),
    ],
)
def test_convolutions_of_all_channels_are_groups_of_one(widths, filters, groups, kernel):
    def body(x):
        each = zip(cut(x, *widths), filters, groups, strict=True)
        return joined(*(conv(part, count, kernel, groups=g) for part, count, g in each))

    module = canonical(body, (N, sum(widths), H, 5))
    assert ops(module) == ["conv"]
    assert find(module, "conv").attrs["groups"] == sum(groups)


def test_biases_of_groups_are_one():
    def body(x):
        parts = cut(x, 4, 4)
        sums = [ew.add(conv(p, 6, 3), weights(6, 1, 1, seed=k)) for k, p in enumerate(parts)]
        return relu(joined(*sums))

    found = ops(canonical(body, (N, 8, H, 5)))
    assert found.count("conv") == found.count("add") == 1 and found[-1] == "max"


@pytest.mark.parametrize(
    "body",
    [
        lambda x: joined(*(conv(p, 4, k) for k, p in zip((1, 3), cut(x, 4, 4), strict=True))),
        lambda x: joined(*(conv(p, 4, 3, stride=s, pad=s) for s, p in zip((1, 1), cut(x, 4, 4)[::-1], strict=True))),
        lambda x: joined(*(conv(p, 4, 3) for p in cut(x, 4, 2))),
        lambda x: joined(*(conv(p, 4, 3) for p in cut(x, 3, 3))),
        lambda x: joined(*(conv(p, 4, 3) for p in cut(x, 3, 3, start=2))),
        lambda x: joined(*(conv(p, 4, 3) for p in cut(x, 4, 4)), axis=0),
        lambda x: joined(*(conv(p, w, 3) for w, p in zip((2, 4), cut(x, 4, 4), strict=True))),
        lambda x: joined(conv(cut(x, 4, 4)[0], 4, 3), ew.add(conv(cut(x, 4, 4)[1], 4, 3), weights(4, 1, 1))),
        lambda x: joined(*(ew.add(conv(p, 4, 3), weights(4, 1, 5)) for p in cut(x, 4, 4))),
    ],
    ids=("kernels", "order", "widths", "not all", "begin", "images", "filters", "one bias", "no bias of channels"),
)  # fmt: skip
def test_other_convolutions_stay_apart(body):
    assert ops(canonical(body, (2, 8, 4, 5))).count("conv") == 2


def test_a_convolution_that_others_read_stays_apart():
    def body(x):
        left, right = (conv(p, 4, 3) for p in cut(x, 4, 4))
        return joined(left, right), relu(left)

    assert ops(canonical(body, (N, 8, H, 5))).count("conv") == 2


# Elementwise work


def kernels(x, *then, count=8):
    """Convolutions of several kernels, joined, and what follows."""
    y = joined(*(conv(x, count, k) for k in (1, 3, 5)))
    for step in then:
        y = step(y)
    return y


def silu(x):
    return ew.mul(x, ew.sigmoid(x))


def sunk(body, *shapes):
    module = program(body, *shapes)
    run(module, SinkIntoParts(), Canonicalize())
    return ops(module)


@pytest.mark.parametrize("steps", [(batch_norm,), (relu,), (batch_norm, relu), (batch_norm, silu), (silu, relu)])
def test_work_on_joined_convolutions_is_done_on_each(steps):
    found = sunk(lambda x: kernels(x, *steps), (N, 8, H, 5))
    assert found[-1] == "concat" and found.count("conv") == 3
    assert len(found) % 3 == 1  # all the same for each part


def test_a_norm_behind_joined_convolutions_is_part_of_their_weights():
    module = program(lambda x: kernels(x, batch_norm, relu), (N, 8, H, 5))
    run(module, SinkIntoParts(), FoldAffine(), Canonicalize())
    assert ops(module).count("mul") == 0 and ops(module).count("add") == 3


def test_a_last_axis_of_products_is_joined_too():
    def body(x):
        y = joined(*(ct.matmul(x, weights(8, w)) for w in (3, 6)), axis=-1)
        return relu(ew.mul(y, weights(9)))

    assert sunk(body, (N, 5, 8))[-1] == "concat"


def test_what_is_read_besides_follows_the_concat():
    def body(x):
        y = kernels(x, batch_norm)
        return rd.reduce_sum(y, axes=(2, 3)), ew.mul(y, 2.0)

    found = sunk(body, (N, 8, H, 5))
    assert found[-1] == "mul" and found.count("add") == found.count("reduce_sum") == 3


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("reduce", "axes", "axis"), [
    (rd.reduce_sum, (2, 3), 1), (rd.reduce_max, (0, -1), 1), (rd.reduce_prod, (1,), 2), (rd.reduce_min, (0, 1, 2), -1),
])  # fmt: skip
def test_a_reduction_along_other_axes_is_one_of_each_part(reduce, axes, axis, keepdims):
    def body(x):
        y = joined(*(relu(conv(x, 8, k)) for k in (1, 3)), axis=axis)
        return reduce(y, axes=axes, keepdims=keepdims)

    found = sunk(body, (N, 8, H, 5))
    assert found.count(reduce.name) == 2 and found[-1] == "concat"


@pytest.mark.parametrize(
    ("join", "axes"),
    [
        (lambda x: joined(conv(x, 8, 1), conv(x, 8, 3)), (1, 2)),
        (lambda x: joined(relu(x), conv(x, 8, 3)), (2, 3)),
        (lambda x: joined(*[conv(x, 8, 1)] * 2), (2, 3)),
    ],
    ids=("the joined axis", "no product", "a part twice"),
)
def test_a_reduction_of_other_parts_stays_whole(join, axes):
    assert sunk(lambda x: rd.reduce_sum(join(x), axes=axes), (N, 8, H, 5)).count("reduce_sum") == 1


@pytest.mark.parametrize(
    "body",
    [
        lambda x: (y := kernels(x), joined(relu(y), ew.exp(y), axis=2))[1],
        lambda x: ew.add(kernels(x, count=8), joined(x, x, x)),
        lambda x: relu(joined(x, conv(x, 8, 3))),
        lambda x: (y := conv(x, 8, 3), ew.add(relu(joined(y, conv(x, 8, 1))), joined(y, y)))[1],
        lambda x: relu(kernels(ew.abs_(x), lambda y: rd.reduce_sum(y, axes=(1,)))),
    ],
    ids=("two readers", "no constant", "no product", "a part is read", "nothing elementwise"),
)
def test_work_stays_behind_the_concat(body):
    module = program(body, (2, 8, 4, 5))
    before = ops(module)
    run(module, SinkIntoParts())
    assert ops(module) == before
