"""What operators say when their operands do not fit, and what evaluation reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.sampling import normal
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module
from tilewright.ir.diag import ExecutionError, TypeRuleError
from tilewright.ir.types import tensor
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.interp import evaluate

X = normal((2, 3, 4))
BLOCKS = normal((2, 2, 5, 4))  # 8 channels in blocks of 4
KEYS = np.array([1, 2])
CODES = np.zeros(3, dt.u4.storage)
INDICES = np.zeros(16, np.int32)
TREES = [X[0], INDICES, np.zeros(16, np.float32), X[0, :, :1], *[INDICES] * 4, np.zeros((16, 2), np.int32)]
FIXED = {"shift": 31, "zero_point": 0, "dtype": dt.u8}
FOREST = {"combine": "add", "count": 1, "depth": 1}
MISFITS: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("add", [X, normal((2,))], {}, "dims 4 and 2 neither are equal nor is one of them 1"),
    ("add", [X, X.astype(np.float64)], {}, "operands must have one dtype, not f32 and f64"),
    ("exp", [normal((2,), np.int32)], {}, "operands must be floats, not i32"),
    ("and", [X, X], {}, "operands must be integers or bool, not f32"),
    ("select", [X, X, X], {}, "the condition must be bool, not f32"),
    ("bitcast", [X], {"dtype": dt.i64}, "the bits of f32 are not those of i64: both must have equally many"),
    ("level", [X], {"levels": (0,) * 16, "dtype": dt.i8}, "codes of 4 bits stand for numbers, not f32 for i8"),
    ("level", [CODES], {"levels": (0, 1), "dtype": dt.i8}, "codes of 4 bits have 16 levels, not 2"),
    ("level", [CODES], {"levels": (0,) * 15 + (300,), "dtype": dt.i8}, "levels of i8 are integers that it holds"),
    ("transpose", [X], {"perm": (0, 0, 1)}, "(0, 0, 1) is not a permutation of the 3 axes"),
    ("transpose", [X], {"perm": (0, 1, 5)}, "axis 5 does not exist: the tensor has 3 axes"),
    ("reshape", [X], {"shape": (5, 5)}, "24 elements cannot take a shape of 25"),
    ("expand", [X], {"shape": (2, 3, 5)}, "dims of the tensor and of the target shape differ: 4 and 5"),
    ("expand", [X], {"shape": (4,)}, "3 axes cannot be broadcast to 1"),
    ("slice", [X], {"starts": (0, 0), "sizes": (1, 1)}, "starts must have 3 values, not 2"),
    (
        "slice",
        [X],
        {"starts": (1, 0, 0), "sizes": (2, 1, 1)},
        "position 2 is outside of an axis of 2 elements",
    ),
    ("slice", [X], {"starts": (0, 0, 0), "sizes": (1, 1, 1), "steps": (1, 0, 1)}, "a step of 0 never ends"),
    ("pad", [X], {"before": (0, 0, 0), "after": (0, 0, -5)}, "cropping leaves -1 elements"),
    ("pad", [X], {"before": (0, 0, 0), "after": (0, 0, 1), "mode": "odd"}, "mode 'odd' is none of constant"),
    ("concat", [X, X[:, :, :2]], {"axis": 0}, "dims of axis 2 differ: 2 and 4"),
    ("squeeze", [X], {"axes": (0,)}, "the dim of squeezed axis 0 and 1 differ: 2 and 1"),
    ("split", [X], {"sizes": (1, 2), "axis": 0}, "the sum of the sizes and the split dim differ: 3 and 2"),
    ("argmax", [X[:, :0]], {"axis": 1}, "there is no greatest or least of no elements"),
    ("argmin", [X[:, :0]], {"axis": 1}, "there is no greatest or least of no elements"),
    ("reduce_sum", [X], {"axes": (0, -3)}, "axes (0, -3) name an axis twice"),
    ("reduce_or", [X], {"axes": (0,)}, "reduce_or takes integers or bool, not f32"),
    ("matmul", [X, X], {}, "the inner dims differ: 4 and 3"),
    ("matmul", [X, X[0, 0]], {}, "the right operand must have 2 axes or more, not 1"),
    (
        "conv",
        [X, normal((4, 2, 3))],
        {},
        "the channels of the data and of the filters (times groups) differ: 3 and 2",
    ),
    ("conv", [X, normal((4, 3, 9))], {}, "a window of 9 does not fit into 4 elements padded by 0 and 0"),
    (
        "conv",
        [X, normal((4, 3, 1))],
        {"pads_begin": (-3,), "pads_end": (-2,)},
        "a window of 1 does not fit into 4 elements padded by -3 and -2",
    ),
    ("conv_grouped", [X, X], {}, "axes of groups, of channels and of space, not 3 and 3 axes"),
    (
        "conv_grouped",
        [normal((1, 2, 3, 5)), normal((3, 2, 3, 1))],
        {},
        "the groups of the data and of the filters",
    ),
    (
        "conv_flat",
        [normal((1, 2, 3, 20)), normal((2, 2, 3, 3, 2))],
        {"pitches": (4, 1), "count": 12},
        "12 positions read 21 elements, the data have 20",
    ),
    ("conv", [X, normal((4, 3, 1))], {"strides": (0,)}, "strides (0,) and dilations (1,) must be positive"),
    (
        "max_pool",
        [X[0]],
        {"kernel": ()},
        "the data must have a batch, a channel and a spatial axis at least, not 2",
    ),
    ("max_pool_blocked", [X], {"kernel": ()}, "a batch, a channel and a spatial axis at least, not 3 axes"),
    ("conv_blocked", [BLOCKS, normal((4, 6, 1))], {"block": 2}, "the block of the data and of the result differ"),
    ("conv_blocked", [BLOCKS, normal((4, 9, 1))], {"block": 4}, "(times groups) differ: 2 and 3"),
    ("conv_blocked", [X, normal((4, 2, 1))], {}, "(times groups) differ: 3 and 2"),
    ("conv_blocked", [X, normal((4, 3, 1, 1))], {}, "the data must have 4 axes, not 3"),
    (
        "conv_blocked",
        [BLOCKS, normal((6, 4, 1))],
        {"block": 4, "groups": 2},
        "4 channels and 3 filters a group are not whole blocks of 4",
    ),
    ("depthwise_blocked", [BLOCKS, normal((9, 1, 1))], {}, "the blocks of the data and of the filters differ"),
    ("depthwise_blocked", [BLOCKS, normal((8, 2, 1))], {}, "the channels of a filter and 1 differ"),
    ("gather", [X, X], {}, "indices must be integers, not f32"),
    ("gather", [X, np.array([0])], {"axis": 3}, "axis 3 does not exist"),
    (
        "gather_nd",
        [X, np.zeros((1, 4), np.int64)],
        {},
        "index vectors of 4 after 0 batch axes do not fit 3 axes",
    ),
    (
        "scatter_nd",
        [X, np.array([[0]]), X],
        {},
        "dims of updates and of the slices they replace differ: 2 and 1",
    ),
    ("put", [X, X[0]], {"at": (0, 0, 0)}, "both have the same dtype and rank"),
    ("put", [X, X], {"at": (0, 1, 0)}, "cannot put elements at 1 to 4 along axis 1, of 3 elements"),
    ("put", [X, X[:0]], {"at": (-1, 0, 0)}, "cannot put elements at -1 to -1 along axis 0"),
    ("group_norm", [X, X[0, :, 0], X[0, :, 0]], {"groups": 2}, "3 channels do not make 2 groups"),
    ("gelu", [X], {"approximate": "some"}, "approximate 'some' is neither none nor tanh"),
    ("coupled_probabilities", [X], {}, "must be [rows, classes, classes] of floats, not f32[2, 3, 4]"),
    ("requantize_fixed", [INDICES] * 2, FIXED | {"shift": 63}, "the shift must be 1 to 62, not 63"),
    ("requantize_fixed", [INDICES] * 2, FIXED | {"dtype": dt.i32}, "integers of up to 16 bits, not to i32"),
    ("rescale_fixed", [INDICES] * 2, {"shift": 0}, "the shift must be 1 to 62, not 0"),
    ("power_of_two_fixed", [INDICES], {"bits": 31}, "15 to 30 digits, not 31 of i32"),
    ("power_of_two_fixed", [KEYS], {"bits": 20}, "15 to 30 digits, not 20 of i64"),
    ("integer_root", [INDICES], {}, "roots are found of i64, not of i32"),
    ("table_lookup", [X, X], {}, "bytes are looked up, not f32"),
    ("table_lookup", [X.astype(np.uint8), X[0, 0]], {}, "the table of a byte has 256 elements, not f32[4]"),
    ("lookup", [KEYS, KEYS, KEYS[:1], KEYS[0]], {}, "must be vectors of one known length above 0"),
    ("lookup", [X, KEYS, KEYS, KEYS[0]], {}, "f32[2, 3, 4] among keys i64[2]"),
    ("lookup", [KEYS, KEYS, KEYS, X[0, 0, 0]], {}, "default f32[] for values i64[2]"),
    *[
        ("tree_ensemble", [a if n == k else b for n, b in enumerate(TREES)], FOREST | changes, reason)
        for k, a, changes, reason in (
            (0, X, {}, "must be floats of one dtype, the rows a matrix"),
            (1, INDICES[:1], {}, "must be vectors of one length"),
            (5, INDICES[:1], {}, "must be vectors of one length"),
            (8, INDICES, {}, "must be two of each node of i32[16]"),
            (3, X[0, :, :3], {}, "values f32[3, 3] must be a matrix of 1 column or 1"),
            (3, X[0, :, :1], {"combine": "mul"}, "combined by add, min, max, not 'mul'"),
        )
    ],
    (
        "tree_ensemble",
        [*TREES[:4], *[INDICES[:3]] * 4],
        FOREST,
        "the number of trees, 3, must be a multiple of 16",
    ),
]


@pytest.mark.parametrize(
    ("name", "inputs", "attrs", "reason"), MISFITS, ids=[f"{m[0]}-{m[3]}"[:60] for m in MISFITS]
)
def test_operands_that_do_not_fit(name: str, inputs: list[Any], attrs: dict[str, Any], reason: str) -> None:
    with pytest.raises((TypeRuleError, ValueError)) as error:
        evaluate(OPERATORS[name], *inputs, **attrs)
    assert reason in str(error.value)


def test_the_message_shows_operands_and_attributes() -> None:
    with pytest.raises(TypeRuleError) as error:
        evaluate(OPERATORS["transpose"], X, perm=(0, 0, 1))
    assert str(error.value).startswith(
        "transpose(f32[2, 3, 4]) with perm=(0, 0, 1): (0, 0, 1) is not a permutation"
    )


def test_lists_and_numpy_integers_are_attributes() -> None:
    body = Block([tensor(dt.f32, [2, 3])], ["x"])
    with Builder(body, Module()):
        transposed = OPERATORS["transpose"](body.args[0], perm=[np.int64(1), 0])
        rest = OPERATORS["split"](transposed, sizes=[1, 2], axis=0)[1]
    assert transposed.op.attrs["perm"] == (1, 0)
    assert all(type(axis) is int for axis in transposed.op.attrs["perm"])
    assert str(rest.type) == "f32[2, 2]"


@pytest.mark.parametrize("value", [{0: 1}, np.array([1, 0]), [{1}]], ids=["dict", "array", "set"])
def test_what_cannot_be_an_attribute_is_named(value: Any) -> None:
    with pytest.raises(TypeRuleError, match="transpose: attribute 'perm' cannot be a") as error:
        evaluate(OPERATORS["transpose"], X, perm=value)
    assert error.value.hint.startswith("attributes are numbers, strings")


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("gather", [X, np.array([2])]),
        ("gather", [X, np.array([-3])]),
        ("gather", [X[:0], np.array([0])]),
        ("gather_elements", [X, np.full((1, 1, 1), 9)]),
        ("gather_nd", [X, np.array([[0, 3]])]),
        ("scatter_nd", [X, np.array([[5]]), X[:1]]),
        ("scatter_elements", [X, np.full((1, 1, 1), -9), X[:1, :1, :1]]),
    ],
)
def test_an_index_out_of_range_is_reported(name: str, inputs: list[Any]) -> None:
    with pytest.raises(ExecutionError, match="an index is out of range"):
        evaluate(OPERATORS[name], *inputs)


@pytest.mark.parametrize("name", ["div", "rem", "mod"])
def test_an_integer_division_by_zero_is_reported(name: str) -> None:
    with pytest.raises(ExecutionError, match="integer division by zero"):
        evaluate(OPERATORS[name], np.array([1, 2]), np.array([1, 0]))


def test_a_degree_that_would_take_for_ever_is_reported() -> None:
    """The least integer has no predecessor: the steps of its polynomial, which is 0, are not counted down from it."""
    x, least = np.array([0.5]), np.array([-(1 << 63)])
    assert evaluate(OPERATORS["orthogonal_polynomial"], x, least, kind="laguerre_l") == 0
    with pytest.raises(ExecutionError, match="the degree of a polynomial is above 1048576"):
        evaluate(OPERATORS["orthogonal_polynomial"], x, np.array([1 << 40]), kind="laguerre_l")


def applied(name: str, *shapes: tuple[int, ...], **attrs: Any) -> Any:
    with Builder(Block([tensor(dt.f32, shape) for shape in shapes]), Module()) as builder:
        return OPERATORS[name](*builder.block.args, **attrs)


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "message"),
    [
        ("neg", [], {}, "neg: missing a required argument: 'x'\n  hint: it takes x"),
        ("add", [(2,)] * 3, {}, "add: too many positional arguments"),
        ("transpose", [(2, 3)], {"permutation": (1, 0)}, "transpose: missing a required argument: 'perm'"),
        ("squeeze", [(2, 1)], {"axes": (1,), "nope": 1}, "got an unexpected keyword argument 'nope'"),
        ("scatter_elements", [(2, 3)], {"axis": 0}, "scatter_elements: missing a required argument: 'indices'"),
        ("batch_norm", [(), *[(4,)] * 4], {"epsilon": 0.1}, "batch_norm(f32[], f32[4], f32[4], f32[4], f32[4]) with "),
        ("cast_to_power", [(4,)], {"mode": "sideways"}, "mode is one of down, nearest, up, not 'sideways'"),
    ],
)  # fmt: skip
def test_wrong_use_is_told_by_the_operator(
    name: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeRuleError, ValueError)) as error:
        applied(name, *shapes, **attrs)
    assert message in str(error.value)


def test_an_operator_outside_of_a_program() -> None:
    body = Block([tensor(dt.f32, [2, 3])], ["x"])
    with pytest.raises(TypeRuleError, match="called where no program is built\n  hint: call it in `with Builder"):
        OPERATORS["exp"](body.args[0])


def test_attention_of_no_features() -> None:
    assert str(applied("attention", (2, 0), (3, 0), (3, 4)).type) == "f32[2, 4]"
