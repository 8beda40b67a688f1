"""Whole models: names, dims that calls choose, branches and loops, constants of all kinds, layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright
from tests.frontends.tflite.models import Graph, Node, Tensor, constant, run, written
from tilewright.frontends.tflite import TfliteFrontEnd
from tilewright.frontends.tflite.load import load_tflite
from tilewright.frontends.tflite.sparse import SparseLevel, Sparsity, dense
from tilewright.frontends.tflite.variables import first_states
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.pipeline import default_passes
from tilewright.ir.diag import ModelError
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.schedule.strategies import STRATEGIES
from tilewright.target.named import parse_target

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_a_file_is_compiled_by_suffix_and_by_its_first_bytes(tmp_path: Path) -> None:
    x = Tensor("x", (2, 3), np.float32, signature=(-1, 3))
    graph = Graph([x, Tensor("y", (2, 3))], [Node("TANH", ["x"], ["y"])], ["x"], ["y"])
    data = written(graph, names={"x": "a", "y": "b"})
    path = tmp_path / "m.tflite"
    path.write_bytes(data)
    assert TfliteFrontEnd().accepts(path) and TfliteFrontEnd().accepts(data)
    assert not TfliteFrontEnd().accepts(b"\x08\x07\x12\x0b backend")
    model = tilewright.compile(path, cache=False)
    assert [i.name for i in model.inputs] == ["a"] and [o.name for o in model.outputs] == ["b"]
    for rows in (1, 4):  # a dim that calls choose
        given = normal(rows, 3)
        np.testing.assert_allclose(model(given)[0], np.tanh(given), rtol=1e-5, atol=1e-6)


def test_inputs_without_a_signature_have_the_names_of_their_tensors() -> None:
    tensors = [Tensor("x", (2,)), Tensor("", (2,)), Tensor("y", (2,)), Tensor("z", (2,))]
    nodes = [Node("ADD", ["x", ""], ["y"]), Node("NEG", ["y"], ["z"])]
    module = load_tflite(written(Graph(tensors, nodes, ["x", ""], ["y", "y", "z"])))
    assert module.main.attrs["inputs"] == ("x", "input_1") and module.main.attrs["outputs"] == ("y", "y_2", "z")
    assert module.main.attrs["nodes"] == 2


def test_shapes_and_constants_are_given() -> None:
    tensors = [Tensor("x", (1, 4), signature=(-1, 4)), Tensor("s", (2,), np.int32), Tensor("y", (2, 2))]
    data = written(Graph(tensors, [Node("RESHAPE", ["x", "s"], ["y"])], ["x", "s"], ["y"]))
    module = load_tflite(data, shapes={"x": ["n", 4]}, constants={"s": np.array([-1, 2], np.int32)})
    assert str(module.main.body.ops[-1].operands[0].type) == "f32[2*n, 2]"


def test_shapes_are_computed_from_dims() -> None:
    """SHAPE, STRIDED_SLICE, PACK and RESHAPE, as converters write a flatten of any number of rows."""
    zero, one, two = (constant(n, np.array([v], np.int32)) for n, v in (("0", 0), ("1", 1), ("2", 12)))
    flat = constant("flat", np.int32(12))
    tensors = [
        Tensor("x", (1, 3, 4), signature=(-1, 3, 4)), zero, one, two, flat, Tensor("s", (3,), np.int32),
        Tensor("n", (), np.int32), Tensor("t", (2,), np.int32), Tensor("y", (1, 12)),
    ]  # fmt: skip
    nodes = [
        Node("SHAPE", ["x"], ["s"], {"out_type": 2}),
        Node("STRIDED_SLICE", ["s", "0", "1", "1"], ["n"], {"shrink_axis_mask": 1}),
        Node("PACK", ["n", "flat"], ["t"], {"values_count": 2}),
        Node("RESHAPE", ["x", "t"], ["y"]),
    ]
    x = normal(5, 3, 4)
    np.testing.assert_array_equal(run(written(Graph(tensors, nodes, ["x"], ["y"])), x)[0], x.reshape(5, 12))


def test_branches_and_calls() -> None:
    x = Tensor("x", (3,))
    main = Graph(
        [Tensor("c", (), np.bool_), x, Tensor("y", (3,))],
        [Node("IF", ["c", "x"], ["y"], {"then_subgraph_index": 1, "else_subgraph_index": 2})], ["c", "x"], ["y"],
    )  # fmt: skip
    ways = [Graph([x, Tensor("y", (3,))], [Node(kind, ["x"], ["y"])], ["x"], ["y"]) for kind in ("NEG", "EXP")]
    data, given = written(main, *ways), normal(3)
    np.testing.assert_allclose(run(data, np.array(True), given)[0], -given, rtol=1e-6)
    np.testing.assert_allclose(run(data, np.array(False), given)[0], np.exp(given), rtol=1e-6)
    call = Graph([x, Tensor("y", (3,))], [Node("CALL", ["x"], ["y"], {"subgraph": 1})], ["x"], ["y"])
    np.testing.assert_allclose(run(written(call, ways[0]), given)[0], -given, rtol=1e-6)


def test_loops() -> None:
    """x is doubled until its first element is large."""
    state = [Tensor("i", (), np.int32), Tensor("x", (2,))]
    results = [Tensor("j", (), np.int32), Tensor("y", (2,))]
    options = {"cond_subgraph_index": 1, "body_subgraph_index": 2}
    main = Graph([*state, *results], [Node("WHILE", ["i", "x"], ["j", "y"], options)], ["i", "x"], ["j", "y"])
    zero, one = constant("zero", np.array([0], np.int32)), constant("one", np.array([1], np.int32))
    limit, single = constant("limit", np.float32(100)), constant("single", np.int32(1))
    condition = Graph(
        [*state, zero, one, limit, Tensor("first", ()), Tensor("c", (), np.bool_)],
        [Node("STRIDED_SLICE", ["x", "zero", "one", "one"], ["first"], {"shrink_axis_mask": 1}),
         Node("LESS", ["first", "limit"], ["c"])], ["i", "x"], ["c"],
    )  # fmt: skip
    body = Graph(
        [*state, *results, single],
        [Node("ADD", ["x", "x"], ["y"]), Node("ADD", ["i", "single"], ["j"])], ["i", "x"], ["j", "y"],
    )  # fmt: skip
    model = tilewright.compile(written(main, condition, body), cache=False)
    count, y = model(np.array(3, np.int32), np.array([1.5, -1], np.float32))
    assert count == 10 and list(y) == [192, -128]


def test_variables_are_inputs_and_outputs() -> None:
    """A running sum, which begins with what the subgraph assigns that TFLite runs once."""
    handle = Tensor("h", (), type_number=13)
    main = Graph(
        [Tensor("x", (3,)), handle, Tensor("old", (3,)), Tensor("y", (3,))],
        [
            Node("CALL_ONCE", [], [], {"init_subgraph_index": 1}), Node("VAR_HANDLE", [], ["h"], {"name": "sum"}),
            Node("READ_VARIABLE", ["h"], ["old"]), Node("ADD", ["x", "old"], ["y"]),
            Node("ASSIGN_VARIABLE", ["h", "y"], []),
        ],
        ["x"], ["y"],
    )  # fmt: skip
    first = np.array([1, 2, 3], np.float32)
    nodes = [Node("VAR_HANDLE", [], ["h"], {"name": "sum"}), Node("ASSIGN_VARIABLE", ["h", "first"], [])]
    data = written(main, Graph([handle, constant("first", first)], nodes, [], []))
    module, states = load_tflite(data), first_states(data)
    assert module.main.attrs["inputs"] == ("x", "sum") and module.main.attrs["outputs"] == ("y", "sum")
    np.testing.assert_array_equal(states["sum"], first)
    x = normal(3)
    for result in run(data, x, states["sum"]):
        np.testing.assert_array_equal(result, x + first)
    model = tilewright.compile(data, cache=False, states=True)
    assert [info.name for info in model.inputs] == ["x"] and [info.name for info in model.outputs] == ["y"]
    assert model.report().states[0].first == "as the model says"
    for _ in range(2):
        for times in (1, 2, 3):
            np.testing.assert_allclose(model(x)[0], first + times * x, rtol=1e-6)
        model.reset()
    again = tilewright.load(model.artifact.to_bytes())
    np.testing.assert_array_equal(again.state("sum"), first)
    with pytest.raises(ModelError, match="the first value of the variable 'sum'"):
        first_states(written(Graph(main.tensors, main.nodes[1:], ["x"], ["y"])))


def test_a_subgraph_that_calls_itself_is_refused() -> None:
    x = Tensor("x", (3,))
    call = Graph([x, Tensor("y", (3,))], [Node("CALL", ["x"], ["y"], {"subgraph": 1})], ["x"], ["y"])
    with pytest.raises(ModelError, match="nested"):
        load_tflite(written(call, call))


def test_sparse_tensors() -> None:
    """Rows that are compressed, and blocks of 1 x 2."""
    whole, starts = SparseLevel(2, None, None), np.array([0, 2, 2, 3])
    three = SparseLevel(3, None, None)
    rows = Sparsity((0, 1), (), (three, SparseLevel(0, starts, np.array([1, 3, 0]))))
    found = dense(np.array([5.0, 6.0, 7.0]), (3, 4), rows)
    np.testing.assert_array_equal(found, [[0, 5, 0, 6], [0, 0, 0, 0], [7, 0, 0, 0]])
    levels = (whole, SparseLevel(0, np.array([0, 1, 2]), np.array([1, 0])), whole)
    found = dense(np.arange(1.0, 5.0), (2, 4), Sparsity((0, 1, 2), (1,), levels))
    np.testing.assert_array_equal(found, [[0, 0, 1, 2], [3, 4, 0, 0]])
    wrong = Sparsity((0, 1), (), (three, SparseLevel(0, starts, np.array([1, 9, 0]))))
    for how in (wrong, Sparsity((0, 0), (), rows.levels), Sparsity((0, 1), (5,), rows.levels)):
        with pytest.raises(ModelError, match="sparse"):
            dense(np.array([5.0, 6.0, 7.0]), (3, 4), how)


def network(halves: bool) -> tuple[bytes, np.ndarray]:
    """Two blocks of a convolution, a depthwise one, a pad and a residual, with weights in halves or floats."""
    tensors, nodes = [Tensor("x", (1, 16, 16, 3))], []
    last = "x"

    def add(kind: str, inputs: list[str | None], name: str, channels: int, size: int, **options: int) -> str:
        tensors.append(Tensor(name, (1, size, size, channels)))
        nodes.append(Node(kind, inputs, [name], options))
        return name

    def weights(name: str, *shape: int) -> str:
        array = normal(*shape) / 4
        if not halves:
            tensors.append(constant(name, array))
            return name
        tensors.extend([constant(f"{name}.half", array.astype(np.float16)), Tensor(name, shape)])
        nodes.append(Node("DEQUANTIZE", [f"{name}.half"], [name]))
        return name

    slide = {"stride_h": 1, "stride_w": 1, "padding": 0}
    last = add("CONV_2D", [last, weights("w0", 16, 3, 3, 3), weights("b0", 16)], "c0", 16, 16, **slide, activation=1)
    for k in (1, 2):
        deep = add("DEPTHWISE_CONV_2D", [last, weights(f"d{k}", 1, 3, 3, 16), None], f"e{k}", 16, 16, **slide)
        wide = add("CONV_2D", [deep, weights(f"w{k}", 16, 1, 1, 16), weights(f"b{k}", 16)], f"f{k}", 16, 16, **slide)
        total = add("ADD", [last, wide], f"g{k}", 16, 16)
        last = add("PRELU", [total, weights(f"s{k}", 1, 1, 16)], f"h{k}", 16, 16)
    return written(Graph(tensors, nodes, ["x"], [last])), normal(1, 16, 16, 3)


@pytest.mark.parametrize("halves", [False, True])
def test_no_transposes_are_left_between_convolutions(halves: bool) -> None:
    data, x = network(halves)
    module, target = load_tflite(data), parse_target("zen3")
    run_passes(module, [*default_passes(Options()), Fuse(STRATEGIES)], PassContext(target, Options()))
    regions = [[o.name for o in op.blocks[0].ops] for op in module.main.body.ops if op.name == "fused"]
    turned = [k for k, names in enumerate(regions) if "transpose" in names]
    assert set(turned) <= {0, len(regions) - 1}
    np.testing.assert_allclose(tilewright.compile(data, cache=False)(x)[0], run(data, x)[0], rtol=1e-3, atol=1e-4)
