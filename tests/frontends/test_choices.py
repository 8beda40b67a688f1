"""Ranks that follow from dims, and declared types that the nodes contradict."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.frontends.helpers import info, model_of, run
from tests.frontends.test_control import graph
from tests.frontends.test_sizes import Graph
from tilewright.frontends import translation
from tilewright.frontends.choices import MAX_ATTEMPTS, Choices
from tilewright.frontends.onnx.load import load_onnx
from tilewright.frontends.translation import Translation
from tilewright.ir.core import Module
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import eq, ge, logical_not, ne, var
from tilewright.ir.text import parse_module, print_module
from tilewright.runtime.errors import InputError

B, N = var("b", 0), var("n", 0)
ROWS = np.arange(12, dtype=np.float32).reshape(1, 3, 4)


def squeezed(then: str | None = None, rank: int | None = None, opset: int = 18) -> onnx.ModelProto:
    """Squeeze without axes, then perhaps an operator that takes one rank only."""
    g = Graph()
    y = g("Squeeze", "x")
    if then == "Gemm":
        y = g("Gemm", y, np.ones((4, 2), np.float32))
    model = g.model({"x": ["b", 3, 4]}, y, opset=opset)
    if rank is not None:
        model.graph.output[0].CopyFrom(info(y, [None] * rank))
    return model


def shape_of(module: Module) -> str:
    return str(module.main.returns[0].type)


def assumed(module: Module) -> list[str]:
    return [str(holds) for holds, *_ in module.main.attrs.get("assumed", ())]


def test_squeeze_without_axes_keeps_dims_that_are_not_known() -> None:
    module = load_onnx(squeezed())
    assert shape_of(module) == "f32[b, 3, 4]"
    assert assumed(module) == ["b != 1"]
    assert np.array_equal(run(module, np.repeat(ROWS, 2, 0))[0], np.repeat(ROWS, 2, 0))


@pytest.mark.parametrize(("then", "rank"), [("Gemm", None), (None, 2), ("Gemm", 2)])
def test_squeeze_drops_a_dim_where_the_model_wants_that(then: str | None, rank: int | None) -> None:
    module = load_onnx(squeezed(then, rank))
    assert module.main.returns[0].type.rank == 2
    assert assumed(module)[0] == "b == 1"


def test_one_dim_is_taken_to_be_the_same_everywhere() -> None:
    g = Graph()
    y = g("Add", g("Squeeze", "x"), g("Squeeze", "y"))
    module = load_onnx(g.model({"x": ["b", 4], "y": [1, "b", 4]}, y))
    assert assumed(module) == ["b != 1"]


def test_a_call_that_wants_another_rank_is_refused() -> None:
    model = tilewright.compile(squeezed("Gemm"), cache=False)
    assert model(ROWS)[0].shape == (3, 2)
    with pytest.raises(InputError, match="known where b == 1") as caught:
        model(np.repeat(ROWS, 2, 0))
    assert "shapes={'x': [<b>, 3, 4]}" in str(caught.value)
    fixed = tilewright.compile(squeezed(), cache=False, shapes={"x": [1, 3, 4]})
    assert fixed(ROWS)[0].shape == (3, 4)


def if_one(then: str = "Squeeze") -> onnx.ModelProto:
    """What PyTorch makes of x.squeeze(0): the branches of If differ in rank."""
    g = Graph()
    condition = g("Equal", g("Gather", g("Shape", "x"), np.array(0)), np.array(1))
    g.constants["zero"] = np.array([0])
    branches = {
        "then_branch": graph([helper.make_node(then, ["x", "zero"], ["p"])], [], ["p"]),
        "else_branch": graph([helper.make_node("Identity", ["x"], ["q"])], [], ["q"]),
    }
    return g.model({"x": ["b", 3, 4]}, g("Identity", g("If", condition, **branches)))


@pytest.mark.parametrize("rank", [2, 3])
def test_if_on_a_dim_takes_the_branch_of_each_call(rank: int) -> None:
    """Whatever rank the exporter has declared, that of its example."""
    model = if_one()
    model.graph.output[0].CopyFrom(info(model.graph.output[0].name, [None] * rank))
    assert assumed(load_onnx(model)) == []
    compiled = tilewright.compile(model, cache=False)
    np.testing.assert_array_equal(compiled(ROWS)[0], ROWS[0])
    np.testing.assert_array_equal(compiled(np.repeat(ROWS, 2, 0))[0], np.repeat(ROWS, 2, 0))


@pytest.mark.parametrize("rank", [2, 3])
def test_if_on_a_dim_takes_the_branch_that_fits(rank: int) -> None:
    """What follows takes tensors of one rank."""
    model = if_one()
    result, perm = model.graph.output[0].name, [1, 0, 2][:rank]
    model.graph.node.append(helper.make_node("Transpose", [result], ["z"], perm=perm))
    model.graph.output[0].CopyFrom(helper.make_empty_tensor_value_info("z"))
    module = load_onnx(model)
    assert assumed(module) == ["b == 1" if rank == 2 else "b != 1"]
    compiled = tilewright.compile(model, cache=False)
    good, bad = (ROWS, np.repeat(ROWS, 2, 0)) if rank == 2 else (np.repeat(ROWS, 2, 0), ROWS)
    assert compiled(good)[0].ndim == rank
    with pytest.raises(InputError, match="the shape of what If gives depends on dims"):
        compiled(bad)


def test_one_dim_is_asked_for_again_and_again() -> None:
    """What is known in a way is not asked for again: each way is translated once."""
    g = Graph()
    g.constants["zero"] = np.array([0])
    y, total = "x", None
    for _ in range(6):
        condition = g("Equal", g("Gather", g("Shape", "x"), np.array(0)), np.array(1))
        branches = {
            "then_branch": graph([helper.make_node("Squeeze", [y, "zero"], ["p"])], [], ["p"]),
            "else_branch": graph([helper.make_node("Identity", [y], ["q"])], [], ["q"]),
        }
        flat = g("ReduceSum", g("If", condition, **branches), keepdims=0)
        total = flat if total is None else g("Add", total, flat)
    compiled = tilewright.compile(g.model({"x": ["b", 3, 4]}, total), cache=False)
    for rows in (ROWS, np.repeat(ROWS, 3, 0)):
        np.testing.assert_allclose(compiled(rows)[0], 6 * rows.sum(), rtol=1e-5)


def test_if_on_a_dim_whose_one_branch_cannot_be_translated() -> None:
    module = load_onnx(if_one("Frobnicate"))
    assert assumed(module) == ["b != 1"]


def test_if_on_a_known_dim_assumes_nothing() -> None:
    module = load_onnx(if_one(), shapes={"x": [1, 3, 4]})
    assert shape_of(module) == "f32[3, 4]"
    assert assumed(module) == []


def test_branches_of_one_shape_need_no_choice() -> None:
    g = Graph()
    condition = g("Equal", g("Gather", g("Shape", "x"), np.array(0)), np.array(1))
    branches = {
        "then_branch": graph([helper.make_node("Neg", ["x"], ["p"])], [], ["p"]),
        "else_branch": graph([helper.make_node("Abs", ["x"], ["q"])], [], ["q"]),
    }
    model = g.model({"x": ["b", 3, 4]}, g("If", condition, **branches))
    assert assumed(load_onnx(model)) == []
    compiled = tilewright.compile(model, cache=False)
    assert np.array_equal(compiled(ROWS)[0], -ROWS)
    assert np.array_equal(compiled(np.repeat(-ROWS, 2, 0))[0], np.repeat(ROWS, 2, 0))


def test_the_text_of_a_program_keeps_what_is_assumed() -> None:
    model = squeezed()
    model.graph.output[0].CopyFrom(info(model.graph.output[0].name, [4]))
    module = load_onnx(model)
    again = parse_module(print_module(module))
    assert again.main.attrs["assumed"] == module.main.attrs["assumed"]
    assert again.main.attrs["contradictions"] == module.main.attrs["contradictions"]


def test_all_plans_are_tried_once() -> None:
    conditions = (ne(B, 1), ge(N, 5))
    plan: tuple[bool, ...] | None = ()
    seen = []
    while plan is not None:
        choices = Choices(plan)
        seen.append(tuple(choices.decide(c) for c in conditions))
        plan = choices.other_plan()
    assert seen == [(True, True), (True, False), (False, True), (False, False)]


def test_a_condition_and_its_opposite_agree() -> None:
    choices = Choices((False,))
    assert choices.decide(eq(B, 1))
    assert not choices.decide(logical_not(eq(B, 1))) and choices.are_any
    assert Choices().other_plan() is None


def test_attempts_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a model that fits no choice comes after some tries, and not after all 256."""
    g = Graph()
    parts = [g("Squeeze", f"x{k}") for k in range(8)]
    wrong = g("MatMul", np.ones((2, 3), np.float32), np.ones((2, 3), np.float32))
    y = g("Sum", *parts, wrong)
    model = g.model({f"x{k}": [f"d{k}", 4] for k in range(8)}, y)
    tried = []
    monkeypatch.setattr(translation, "Translation", lambda *args: tried.append(args) or Translation(*args))
    with pytest.raises(tilewright.TilewrightError, match="MatMul"):
        load_onnx(model)
    assert len(tried) == MAX_ATTEMPTS


# Declarations


def declared(shape: list[int | str], elem_type: int = TensorProto.FLOAT) -> onnx.ModelProto:
    model = model_of(
        [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["y"])],
        [info("x", [2, 3])],
        ["y"],
    )
    model.graph.output[0].CopyFrom(info("y", shape, elem_type))
    return model


def test_an_output_has_the_rank_that_the_nodes_give() -> None:
    module = load_onnx(declared([2, 3, "k"]))
    assert shape_of(module) == "f32[2, 3]"
    assert module.main.attrs["contradictions"] == (
        ("graph output 'y'", "the declared shape [2, 3, k] is not taken: the nodes give f32[2, 3]"),
    )
    model = tilewright.compile(declared([6]), cache=False)
    assert model(np.ones((2, 3), np.float32))[0].shape == (2, 3)
    (remark,) = [r for r in model.report().remarks if r.stage == "import"]
    assert (remark.subject, remark.kind) == ("graph output 'y'", "analysis")
    assert remark.message == "the declared shape [6] is not taken: the nodes give f32[2, 3]"


def test_where_sizes_are_unknown_dims_that_contradict_are_noted() -> None:
    """As converters of scikit-learn's models declare them."""
    model = declared(["n", 12])
    model.graph.input[0].CopyFrom(info("x", ["n", 1]))
    module = load_onnx(model)
    assert module.main.attrs["contradictions"] == (
        ("graph output 'y'", "the declared shape [n, 12] is not taken: the nodes give f32[n, 1]"),
    )


def test_dims_and_element_types_of_outputs_that_contradict_are_errors() -> None:
    with pytest.raises(ModelError, match=r"declared with shape \[2, 7\], but the nodes give f32\[2, 3\]"):
        load_onnx(declared([2, 7]))
    with pytest.raises(ModelError, match="declared as i64, but the nodes give f32"):
        load_onnx(declared([2, 3], TensorProto.INT64))


@pytest.mark.parametrize("wrong", [info("a", [2]), info("a", [2, 3], TensorProto.INT64)])
def test_value_info_that_contradicts_is_noted(wrong: onnx.ValueInfoProto) -> None:
    model = declared([2, 3])
    model.graph.value_info.append(wrong)
    module = load_onnx(model)
    ((subject, message),) = module.main.attrs["contradictions"]
    assert subject == "value 'a'" and message.endswith("the nodes give f32[2, 3]")


def test_outputs_of_subgraphs_have_the_rank_that_their_nodes_give() -> None:
    model = if_one()
    (branch,) = (a.g for a in model.graph.node[-2].attribute if a.name == "then_branch")
    branch.output[0].CopyFrom(info(branch.output[0].name, [4]))
    module = load_onnx(model, shapes={"x": [1, 3, 4]})
    ((subject, _),) = module.main.attrs["contradictions"]
    assert subject.startswith("subgraph output")


def test_an_input_with_an_initializer_of_another_type() -> None:
    def preset(shape: list[int], elem_type: int = TensorProto.FLOAT) -> onnx.ModelProto:
        return model_of(
            [helper.make_node("Neg", ["w"], ["y"])],
            [info("w", shape, elem_type)],
            ["y"],
            {"w": np.ones((2, 3), np.float32)},
        )

    assert "contradictions" not in load_onnx(preset([2, 3])).main.attrs
    ((subject, _),) = load_onnx(preset([6])).main.attrs["contradictions"]
    assert subject == "graph input 'w'"
    with pytest.raises(ModelError, match=r"declared as i64, but the nodes give f32\[2, 3\]"):
        load_onnx(preset([2, 3], TensorProto.INT64))


def test_a_const_condition_is_no_choice() -> None:
    g = Graph()
    module = load_onnx(g.model({"x": [1, 3, 1]}, g("Squeeze", "x")))
    assert shape_of(module) == "f32[3]" and assumed(module) == []
