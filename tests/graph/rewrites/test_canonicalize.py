"""Canonicalisation: identities by example, each checked against the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graph.programs import find, ops, program, run, softmax, weights
from tilewright.graph.layout.grouped_conv import GroupedConv
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.graph.rewrites.fold import Fold
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.ir.verify import verify_func
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops import quant as qt
from tilewright.ops import reduce as rd
from tilewright.ops import view as vw
from tilewright.ops.define import constant
from tilewright.ops.define.spec import graph_spec
from tilewright.ops.source import full
from tilewright.options import Options
from tilewright.passes import PassContext


def beside_each_other(x: Value, places: tuple[int, ...]) -> Value:
    """Elements of axis 1 of [3, 4, 6], each turned, along a new last axis."""
    parts = [vw.slice_(x, starts=(0, k, 0), sizes=(3, 1, 6)) for k in places]
    turned = [vw.transpose(vw.reshape(v, shape=(3, 6)), perm=(1, 0)) for v in parts]
    return vw.concat(*(vw.reshape(v, shape=(6, 3, 1)) for v in turned), axis=2)


def sliced_and_joined(x: Value) -> Value:
    return vw.concat(x, vw.slice_(x, starts=(2, 0, 0), sizes=(2, 3, 4)), axis=0)


CASES: dict[str, tuple[Callable[[Value], Value], list[str]]] = {
    "x + 0": (lambda x: ew.add(x, 0.0), []),
    "0 + x": (lambda x: ew.add(full(value=0.0, dtype=dt.f32, shape=()), x), []),
    "x * 1": (lambda x: ew.mul(x, 1.0), []),
    "x - 0": (lambda x: ew.sub(x, 0.0), []),
    "x / 1": (lambda x: ew.div(x, 1.0), []),
    "x / 4": (lambda x: ew.div(x, 4.0), ["mul"]),
    "x / 3 stays exact": (lambda x: ew.div(x, 3.0), ["div"]),
    "x ^ 1": (lambda x: ew.pow_(x, 1.0), []),
    "x ^ 2": (lambda x: ew.pow_(x, 2.0), ["mul"]),
    "x ^ 3": (lambda x: ew.pow_(x, 3.0), ["mul", "mul"]),
    "|x| ^ 0.5": (lambda x: ew.pow_(ew.abs_(x), 0.5), ["abs", "sqrt"]),
    "1 / sqrt|x|": (lambda x: ew.div(1.0, ew.sqrt(ew.abs_(x))), ["abs", "rsqrt"]),
    "--x": (lambda x: ew.neg(ew.neg(x)), []),
    "(x + 1) + 2": (lambda x: ew.add(ew.add(x, 1.0), 2.0), ["add"]),
    "(x - 1) + 2": (lambda x: ew.add(ew.sub(x, 1.0), 2.0), ["add"]),
    "the same dtype": (lambda x: ew.cast(x, dtype=dt.f32), []),
    "widened and back": (lambda x: ew.cast(ew.cast(x, dtype=dt.f64), dtype=dt.f32), []),
    "narrowed and back": (lambda x: ew.cast(ew.cast(x, dtype=dt.f16), dtype=dt.f32), ["cast", "cast"]),
    "ones in a tensor": (lambda x: ew.mul(x, constant(np.ones((4, 6), np.float32))), []),
    "transpose twice": (lambda x: vw.transpose(vw.transpose(x, perm=(2, 0, 1)), perm=(1, 2, 0)), []),
    "transposes compose": (
        lambda x: vw.transpose(vw.transpose(x, perm=(2, 0, 1)), perm=(2, 0, 1)),
        ["transpose"],
    ),
    "reshape back": (lambda x: vw.reshape(vw.reshape(x, shape=(12, 6)), shape=(3, 4, 6)), []),
    "whole slice": (lambda x: vw.slice_(x, starts=(0, 0, 0), sizes=(3, 4, 6)), []),
    "empty pad": (lambda x: vw.pad(x, before=(0, 0, 0), after=(0, 0, 0)), []),
    "elements of an axis beside each other": (
        lambda x: beside_each_other(x, (1, 2, 3)),
        ["slice", "transpose"],
    ),
    "the same elements in another order": (
        lambda x: beside_each_other(x, (2, 1)),
        ["slice", "slice", "transpose", "transpose", "reshape", "reshape", "concat"],
    ),
    "a slice of a transpose that others read": (
        lambda x: sliced_and_joined(vw.transpose(x, perm=(2, 0, 1))),
        ["transpose", "slice", "concat"],
    ),
    "concat of one": (lambda x: vw.concat(x, axis=1), []),
    "expand before add": (
        lambda x: ew.add(x, vw.expand(vw.slice_(x, starts=(0, 0, 0), sizes=(1, 4, 6)), shape=(3, 4, 6))),
        ["slice", "add"],
    ),
    "slice of slice": (
        lambda x: vw.slice_(
            vw.slice_(x, starts=(0, 1, 0), sizes=(3, 3, 3), steps=(1, 1, 2)),
            starts=(1, 1, 1),
            sizes=(1, 2, 2),
        ),
        ["slice"],
    ),
    "split and joined": (lambda x: vw.concat(*vw.split(x, sizes=(2, 4), axis=2), axis=2), []),
    "slice of a joined part": (
        lambda x: vw.slice_(vw.concat(x, ew.neg(x), axis=1), starts=(0, 4, 0), sizes=(3, 4, 6)),
        ["neg"],
    ),
    "sum over one": (lambda x: rd.reduce_sum(vw.reshape(x, shape=(3, 1, 24)), axes=(1,)), ["reshape"]),
    "equal ops": (lambda x: ew.add(ew.exp(x), ew.exp(x)), ["exp", "add"]),
    "choice between equals": (lambda x: ew.select(ew.gt(x, 0.0), x, x), []),
    "transpose of an axis of one": (
        lambda x: vw.transpose(vw.reshape(x, shape=(3, 1, 24)), perm=(1, 0, 2)),
        ["reshape"],
    ),
    "transposes around elementwise work": (
        lambda x: vw.transpose(
            ew.max_(ew.add(vw.transpose(x, perm=(0, 2, 1)), weights(4)), 0.0), perm=(0, 2, 1)
        ),
        ["add", "max"],
    ),
    "sum over an axis that a transpose takes to the end": (
        lambda x: rd.reduce_sum(vw.transpose(x, perm=(0, 2, 1)), axes=(2,), keepdims=False),
        ["reduce_sum"],
    ),
    "rows that are summed and read stay rows": (
        lambda x: ew.sub(t := vw.transpose(x, perm=(0, 2, 1)), rd.reduce_sum(t, axes=(2,), keepdims=True)),
        ["transpose", "reduce_sum", "sub"],
    ),
    "rows of three neighbours stay rows": (
        lambda x: rd.reduce_sum(vw.transpose(vw.reshape(x, shape=(3, 8, 3)), perm=(0, 2, 1)), axes=(2,)),
        ["reshape", "transpose", "reduce_sum"],
    ),
    "transposes around a reduction": (
        lambda x: vw.transpose(rd.reduce_max(vw.transpose(x, perm=(2, 0, 1)), axes=(1,)), perm=(1, 2, 0)),
        ["reduce_max"],
    ),
    "transposes around pad": (
        lambda x: vw.transpose(
            vw.pad(vw.transpose(x, perm=(1, 2, 0)), before=(1, 0, 0), after=(0, 2, 0)), perm=(2, 0, 1)
        ),
        ["pad"],
    ),
    "transposes around concat": (
        lambda x: vw.transpose(
            vw.concat(*[vw.transpose(v, perm=(2, 0, 1)) for v in (x, ew.neg(x))], axis=0), perm=(1, 2, 0)
        ),
        ["neg", "concat"],
    ),
    "constants of axes that are merged": (
        lambda x: vw.reshape(
            ew.add(vw.reshape(x, shape=(12, 6)), constant(np.arange(12, dtype=np.float32)[:, None])),
            shape=(3, 4, 6),
        ),
        ["add"],
    ),
    "constants of a part of an axis that is split": (
        lambda x: vw.reshape(
            ew.add(vw.reshape(x, shape=(12, 3, 2)), constant(np.arange(3, dtype=np.float32)[:, None])),
            shape=(3, 4, 6),
        ),
        ["reshape", "add", "reshape"],
    ),
    "padding before a convolution": (
        lambda x: ct.conv(
            vw.pad(x, before=(0, 0, 1), after=(0, 0, 2)), weights(5, 4, 3), pads_begin=(1,), pads_end=(0,)
        ),
        ["conv"],
    ),
    "padding with channels before a convolution": (
        lambda x: ct.conv(vw.pad(x, before=(0, 1, 0), after=(0, 1, 0)), weights(5, 6, 3)),
        ["pad", "conv"],
    ),
    "filters of which one element meets the line": (
        lambda x: ct.conv(x, weights(5, 4, 9), pads_begin=(24,), pads_end=(24,), dilations=(6,)),
        ["conv"],
    ),
    "a convolution of each element": (lambda x: ct.conv(x, weights(4, 1, 1), groups=4), ["mul"]),
    "a convolution of every other element": (
        lambda x: ct.conv(x, weights(4, 1, 1), groups=4, strides=(2,)),
        ["conv"],
    ),
    "reshapes around elementwise work": (
        lambda x: vw.reshape(ew.exp(vw.reshape(x, shape=(12, 6))), shape=(3, 4, 6)),
        ["exp"],
    ),
}


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pads", "dilation", "left"),
    [
        ((1, 9), (3, 3), (1, 1), (1, 1), (1, 1), (1, 3)),  # a line
        ((1, 1), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
        ((2, 2), (7, 7), (1, 1), (3, 3), (1, 1), (3, 3)),
        ((2, 3), (7, 7), (2, 2), (3, 3), (1, 1), (2, 5)),
        ((4, 8), (3, 3), (1, 1), (6, 6), (6, 6), (1, 3)),  # dilated further than the image is high
        ((4, 4), (5, 2), (1, 1), (3, 0), (1, 1), (5, 2)),  # all are needed
        ((3, 4), (3, 1), (3, 1), (4, 0), (2, 1), (3, 1)),
        (
            (1, 5),
            (2, 1),
            (3, 1),
            (5, 0),
            (1, 1),
            (2, 1),
        ),  # the image lies between the windows: nothing is met
    ],
)
@pytest.mark.parametrize("integer", [False, True], ids=("float", "integer"))
def test_filters_have_no_elements_that_meet_padding_alone(
    size, kernel, stride, pads, dilation, left, integer
):
    attrs = {"strides": stride, "pads_begin": pads, "pads_end": pads, "dilations": dilation}

    def body(x: Value) -> Value:
        if not integer:
            return ct.conv(x, weights(4, 3, *kernel), **attrs)
        x, w = (ew.cast(ew.mul(v, 10.0), dtype=dt.i8) for v in (x, weights(4, 3, *kernel)))
        zeros = (full(value=v, dtype=dt.i8, shape=()) for v in (3, -2))
        return ew.cast(qt.conv_integer(x, w, *zeros, **attrs), dtype=dt.f32)

    module = program(body, (2, 3, *size))
    run(module, Canonicalize(), tolerance=1e-5)
    found = find(module, "conv_integer" if integer else "conv")
    assert tuple(found.operands[1].type.shape[2:]) == left
    run(module, Canonicalize())


def test_quantised_filters_stay_quantised_where_elements_are_left_out():
    def body(x: Value) -> Value:
        scale = weights(4, 1, 1, 1)
        q = ew.cast(ew.mul(weights(4, 3, 3, 3), 50.0), dtype=dt.i8)
        w = qt.dequantize_linear(q, scale, full(value=0, dtype=dt.i8, shape=()), dtype=dt.f32)
        return ct.conv(x, w, pads_begin=(1, 1), pads_end=(1, 1))

    module = program(body, (2, 3, 1, 1))
    run(module, Canonicalize())
    filters = find(module, "conv").operands[1]
    assert filters.op.name == "dequantize_linear" and filters.type.shape[2:] == (1, 1)


def test_filters_keep_their_elements_where_the_image_is_of_unknown_size():
    module = program(lambda x: ct.conv(x, weights(4, 3, 3), pads_begin=(1,), pads_end=(1,)), (2, 3, var("n")))
    Canonicalize().run(module, PassContext())
    assert find(module, "conv").operands[1].type.shape[2] == 3


@pytest.mark.parametrize("name", CASES)
def test_a_program_becomes_simpler_and_stays_the_same(name):
    body, expected = CASES[name]
    module = program(body, (3, 4, 6))
    run(module, Canonicalize(), Fold(), Canonicalize(), tolerance=2e-3 if "narrowed" in name else 1e-6)
    assert ops(module) == expected
    run(module, Canonicalize())
    assert ops(module) == expected, "a second run changes nothing"


def test_equal_constants_become_one_and_unread_ones_are_dropped():
    module = program(
        lambda x: ew.mul(ew.add(x, weights(4, seed=1)), weights(4, seed=1)) if weights(9) else x, (3, 4)
    )
    assert len(module.constants) == 3
    run(module, Canonicalize())
    assert len(module.constants) == 1


def test_zeros_of_both_signs_are_not_equal():
    module = program(lambda x: ew.atan2(ew.mul(x, 0.0), ew.mul(x, -0.0)), (3,))
    run(module, Canonicalize())
    assert ops(module) == ["mul", "mul", "atan2"]


def test_transposes_of_operands_become_flags_of_a_product():
    module = program(
        lambda a, b: ct.matmul(vw.transpose(a, perm=(0, 2, 1)), vw.transpose(b, perm=(0, 2, 1))),
        (2, 5, 3), (2, 4, 5),
    )  # fmt: skip
    run(module, Canonicalize())
    assert ops(module) == ["matmul"]
    assert find(module, "matmul").attrs == {"transpose_a": True, "transpose_b": True}


def test_keys_of_grouped_heads_are_not_repeated():
    n, tokens = var("n", 1), var("tokens", 1)

    def body(q: Value, k: Value) -> Value:
        apart = vw.reshape(k, shape=(n, 2, 1, tokens, 8))
        wide = vw.reshape(vw.expand(apart, shape=(n, 2, 3, tokens, 8)), shape=(n, 6, tokens, 8))
        return softmax(ct.matmul(q, vw.transpose(wide, perm=(0, 1, 3, 2))))

    module = program(body, (n, 6, 5, 8), (n, 2, tokens, 8))
    run(module, Canonicalize())
    assert "expand" not in ops(module)
    assert [str(d) for d in find(module, "matmul").result.type.shape] == ["n", "2", "15", "tokens"]


def test_integers_are_not_treated_as_floats():
    module = program(lambda x: ew.div(ew.div(x, 4), 2), tensor(dt.i32, (5,)))
    run(module, Canonicalize(), Fold())
    assert ops(module) == ["div", "div"]


@pytest.mark.parametrize(
    ("numerics", "left"), [("default", ["add", "max"]), ("strict", ["add", "add", "max"])]
)
def test_sums_with_constants_round_as_written_if_strict_and_bounds_always_meet(numerics, left):
    def body(x):
        return ew.max_(ew.max_(ew.add(ew.add(x, weights(5)), weights(5, seed=1)), -1.0), -0.5)

    module = program(body, (3, 5))
    Canonicalize().run(module, PassContext(options=Options(numerics=numerics)))
    Fold().run(module, PassContext())
    assert [name for name in ops(module) if name != "full"] == left


@pytest.mark.parametrize(
    ("old", "new", "own"),
    [
        ((0, 3), (0, 5), (5,)),
        ((4, 0), (0, 7, 2), (1, 1)),
        ((var("n", 1), 3 * var("n", 1)), (var("n", 1), 2 * (3 * var("n", 1) // 2)), (1,)),
    ],
    ids=["no elements", "no elements, other ranks", "sizes that only the model knows to be equal"],
)
def test_reshapes_whose_axes_do_not_pair_keep_their_constants(old, new, own):
    """Runs of axes with equal sizes cannot be told apart there; whatever is done, it is legal."""
    module = program(lambda x: ew.add(vw.reshape(x, shape=new), constant(np.ones(own, np.float32))), old)
    Canonicalize().run(module, PassContext())
    verify_func(module.main, graph_spec(module))
    assert "add" in ops(module)


def test_a_long_chain_of_joined_branches_after_groups_takes_no_time():
    """x * sigmoid(x), forty times: every way through it would be 2^40."""

    def body(x):
        y = ct.conv(x, constant(np.ones((32, 3, 3, 3), np.float32)), groups=4)
        for _ in range(40):
            y = ew.mul(y, ew.sigmoid(y))
        return y

    module = program(body, (1, 12, 9, 9))
    GroupedConv().run(module, PassContext())
    assert "conv" not in ops(module)


@pytest.mark.parametrize(
    "turn", [lambda c: vw.reshape(c, shape=(3, 2)), lambda c: vw.transpose(c, perm=(1, 0))]
)
@pytest.mark.parametrize("swapped", [False, True])
def test_views_of_constants_do_not_change_places_without_end(turn, swapped):
    def body(x):
        operands = [weights(3, 2, seed=2), turn(weights(2, 3))]
        return ew.add(x, ew.mul(*operands[:: -1 if swapped else 1]))

    module = program(body, (3, 2))
    run(module, Canonicalize(), Fold(), Canonicalize())
    assert ops(module) == ["add"]
