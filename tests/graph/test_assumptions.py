"""What graphs take for granted about dims: found in the graph, and checked when a model is called."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

import tilewright
from tests.graph.programs import program, weights
from tilewright.graph.assumptions import Assumption, assumptions, same_dims, worded
from tilewright.ir.diag import Loc, TypeRuleError
from tilewright.ir.sym import Sym, eq, ge, logical_and, logical_or, maximum, minimum, select, var
from tilewright.ops import contract, norm, reduce, sort, view
from tilewright.ops import elementwise as ew
from tilewright.runtime.errors import InputError, TilewrightError

A, B, K = var("a", 0), var("b", 0), var("k", 0)


def found(body, *shapes) -> list[str]:
    return [str(made.holds) for made in assumptions(program(body, *shapes))]


@pytest.mark.parametrize(("other", "wanted"), [(A + 1, "a == 0 or a == 1"), (2 * A + 3, "a == 1")])
def test_dims_that_are_never_equal_fit_where_one_of_them_is_1(other: Sym, wanted: str) -> None:
    assert found(ew.add, (A, 3), (other, 3)) == [wanted]
    assert found(ew.add, (A,), (1,)) == []


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (eq(A % 2, 0), "a % 2 == 0"),
        (1 - eq(A, 5), "a != 5"),
        (minimum(A, 1), "a >= 1"),
        (logical_and(ge(A, 1), ge(B, 3)), "a >= 1 and b >= 3"),
        (logical_or(logical_and(ge(A, 1), ge(B, 3)), eq(A % 2, 0)), "a % 2 == 0 or (a >= 1 and b >= 3)"),
        (2 * A - 3, "2*a - 3 >= 1"),
    ],
)
def test_conditions_in_words(condition: Sym, words: str) -> None:
    assert worded(condition) == words


def test_bounds_of_dims_are_assumed_first() -> None:
    bounded = var("t", 3, 9)
    assert found(ew.add, (bounded, A), (bounded, B)) == ["t >= 3", "t < 10", "a == b"]
    assert found(ew.neg, (A, 2)) == []


def test_dims_that_never_fit_are_refused() -> None:
    with pytest.raises(TypeRuleError, match=r"dims a \+ 2 and a \+ 3 neither are equal nor is one of them 1"):
        program(ew.add, (A + 2, 3), (A + 3, 3))


def test_dims_that_must_be_equal_are_the_same() -> None:
    made = program(lambda x, y, z: ew.add(view.concat(x, y, axis=1), z), (A, B), (K, 3), (5, var("c", 0)))
    same = dict(same_dims(made.main, assumptions(made)))
    assert {str(dim.subs(same)) for dim in (A, K)} == {"5"}
    assert B not in same, "it is an expression of others, and no dim"
    assert same_dims(program(ew.neg, (A, 2)).main, ()) == ()
    torn = program(lambda x, y, z: ew.add(ew.add(x, y), z), (A, 5), (3, 5), (B, 5))
    granted = [Assumption(eq(A, 3), "", Loc()), Assumption(eq(A, 1), "", Loc())]
    assert same_dims(torn.main, granted) == ()


LAST = maximum(0, A - minimum(A, maximum(0, A - 1)))
"""The size of `x[-1:]`."""


@pytest.mark.parametrize("part", [minimum(A, 1), minimum(1, A), LAST, 1 - select(eq(A, 0), 1, 0)])
def test_a_dim_that_is_1_wherever_it_is_read_needs_nothing(part: Sym) -> None:
    assert found(ew.sub, (A, 3), (part, 3)) == []
    assert found(ew.sub, (part, 3), (A, 3)) == []
    assert found(lambda x: view.expand(x, shape=(A,)), (part,)) == []


def test_a_part_of_another_dim_must_fit() -> None:
    """If b is 0, it is no dim to be broadcast to others than 0 and 1."""
    assert found(ew.sub, (A,), (minimum(B, 1),)) == ["a == min(b, 1)"]


@pytest.mark.parametrize(
    ("body", "shapes", "wanted"),
    [
        (ew.add, ((A,), (B,)), ["a == b"]),
        (ew.add, ((A, 4), (1, B)), ["b == 4"]),
        (ew.add, ((A, K), (A, K)), []),
        (ew.add, ((A, K), (1, K)), []),
        (contract.matmul, ((2, A), (B, 3)), ["a == b"]),
        (lambda x: contract.matmul(x, weights(8, 3)), ((B, A),), ["a == 8"]),
        (lambda x, y: view.concat(x, y, axis=0), ((A, K), (B, 5)), ["k == 5"]),
        (lambda x: view.reshape(x, shape=(B,)), ((A, 2),), ["2*a == b"]),
        (lambda x: view.slice_(x, starts=(0,), sizes=(3,), steps=(1,)), ((A,),), ["a >= 3"]),
        (lambda x, s, b: norm.layer_norm(x, s, b, axis=-1, epsilon=1e-5), ((A, K), (B,), (B,)), ["b == k"]),
        (ew.add, ((3, 4), (4,)), []),
        (lambda x: reduce.argmax(x, axis=1), ((3, A),), ["a >= 1"]),
        (lambda x: reduce.argmin(x, axis=0), ((A, 3),), ["a >= 1"]),
        (lambda x: reduce.argmax(x, axis=0), ((3, A),), []),
        (lambda x: sort.topk(x, k=4, axis=1)[0], ((3, A),), ["a >= 4"]),
        (lambda x: sort.topk(x, k=K, axis=1)[0], ((3, 9),), ["k < 10"]),
    ],
)
def test_assumptions_of_a_graph(body, shapes: tuple[tuple[Sym | int, ...], ...], wanted: list[str]) -> None:
    assert found(body, *shapes) == wanted


@pytest.mark.parametrize("part", [minimum(A, 1), LAST])
def test_the_inner_dims_of_products_are_not_broadcast(part: Sym) -> None:
    assert found(contract.matmul, (2, part), (K, 4)) == [str(eq(part, K))]


def test_alike_ops_assume_once() -> None:
    assert found(lambda x, y: ew.add(ew.mul(x, y), ew.add(x, y)), (A,), (B,)) == ["a == b"]


def two_inputs(op: str, shapes: tuple[list[str | int], list[str | int]], **attrs: int) -> ModelProto:
    info = helper.make_tensor_value_info
    ins = [info(name, TensorProto.FLOAT, shape) for name, shape in zip("xy", shapes, strict=True)]
    node = helper.make_node(op, ["x", "y"], ["z"], name="the_node", **attrs)
    out = info("z", TensorProto.FLOAT, [f"r{k}" for k in range(len(shapes[0]))])
    graph = helper.make_graph([node], "g", ins, [out])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("op", "attrs", "dims", "good", "bad"),
    [
        ("Add", {}, (["a"], ["b"]), ((50,), (50,)), ((50,), (7,))),
        ("Add", {}, (["a"], ["b"]), ((50,), (50,)), ((7,), (50,))),
        ("MatMul", {}, (["m", "k"], ["l", "n"]), ((2, 3), (3, 4)), ((2, 3), (5, 4))),
        ("Concat", {"axis": 0}, (["m", "k"], ["n", "l"]), ((2, 3), (5, 3)), ((2, 3), (5, 4))),
    ],
)
def test_calls_that_break_an_assumption_are_refused(op, attrs, dims, good, bad) -> None:
    model = tilewright.compile(two_inputs(op, dims, **attrs), cache=False, threads=1)
    (result,) = model(*[np.ones(s, np.float32) for s in good])
    assert result.size
    with pytest.raises(InputError, match=r"it must be that .* == .*the_node"):
        model(*[np.ones(s, np.float32) for s in bad])


@pytest.mark.parametrize(
    ("op", "attrs", "size", "said"),
    [
        ("ArgMax", {"axis": 1}, 0, "no greatest or least of no elements"),
        ("ArgMin", {"axis": 1}, 0, "no greatest or least of no elements"),
        ("TopK", {"axis": 1, "k": 3}, 2, "the 3 greatest or least of n elements"),
    ],
)
@pytest.mark.parametrize("is_symbolic", [True, False])
def test_too_few_elements_to_choose_from_are_refused(
    op: str, attrs: dict[str, int], size: int, said: str, is_symbolic: bool
) -> None:
    dims = ["m", "n"] if is_symbolic else [2, size]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
    outputs = ["values", "y"] if op == "TopK" else ["y"]
    node = helper.make_node(op, ["x"], outputs, name="the_node", **attrs)
    graph = helper.make_graph([node], "g", [x], [ValueInfoProto(name="y")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=8)
    if not is_symbolic:
        with pytest.raises(TilewrightError, match="the_node"):
            tilewright.compile(proto, cache=False)
        return
    model = tilewright.compile(proto, cache=False, threads=1)
    assert model(np.ones((2, 5), np.float32))[0].shape == (2, attrs.get("k", 1))
    with pytest.raises(InputError, match=f"{said}.*the_node"):
        model(np.ones((2, size), np.float32))
