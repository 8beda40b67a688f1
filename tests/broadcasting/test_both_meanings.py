"""Dims that may be equal or 1: one artefact does both, and is as before where they are equal."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import tilewright
from tests.staging.models import model_of
from tilewright import onnxruntime as stand_in
from tilewright import stages
from tilewright.runtime.errors import InputError

W = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
SIZES = ((4, 4), (1, 4), (4, 1), (1, 1), (0, 1), (1, 0), (0, 0))


def data(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype(np.float32)


def sums(**names: str) -> Any:
    """(x + y) times W: the product follows what is broadcast."""
    nodes = [h.make_node("Add", ["x", "y"], ["s"], name="the_sum"), h.make_node("MatMul", ["s", "w"], ["z"])]
    ins = [("x", T.FLOAT, [names.get("a", "a"), 64]), ("y", T.FLOAT, [names.get("b", "b"), 64])]
    return model_of(nodes, ins, ["z"], {"w": W})


def of_sums(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x + y) @ W


@pytest.fixture(scope="module")
def compiled() -> tilewright.Model:
    return tilewright.compile(sums(), threads=2, verify=True)


def assert_close(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def broadcasts(model: tilewright.Model) -> bool:
    """Whether the last call ran the program for dims that are 1."""
    return model._contexts[-1].current.linked.artifact is model.artifact.broadcasting


def test_sizes_that_are_equal_run_the_program_for_equal_ones(compiled: tilewright.Model) -> None:
    for _ in range(2):
        for a, b in SIZES:
            x, y = data(a, 64), data(b, 64)
            assert_close(compiled(x, y)[0], of_sums(x, y))
            assert broadcasts(compiled) == (a != b)


def test_the_program_for_equal_sizes_is_as_it_was(compiled: tilewright.Model) -> None:
    """Its loops are those of a model that says that the dims are equal."""
    said = tilewright.compile(sums(b="a"), threads=2)
    assert said.artifact.broadcasting is None
    texts = [
        {name: text for name, text in stages.programs(model, "loops").items() if not name.startswith("broadcasting: ")}
        for model in (sums(), sums(b="a"))
    ]
    bodies = [[text.partition("{\n")[2].replace("n1", "n0") for text in each.values()] for each in texts]
    assert bodies[0] == bodies[1]


def test_weights_are_there_once(compiled: tilewright.Model) -> None:
    assert compiled.artifact.broadcasting is not None
    assert memoryview(compiled.artifact.constants).nbytes == W.nbytes
    assert compiled.artifact.broadcasting.report.added_constant_bytes == 0


@pytest.mark.parametrize(("a", "b"), [(3, 4), (4, 3), (0, 4), (2, 0)])
def test_sizes_that_contradict_are_refused(compiled: tilewright.Model, a: int, b: int) -> None:
    wanted = "add of f32[a, 64], f32[b, 64]: it must be that a == 1 or a == b or b == 1 (in node 'the_sum' (Add))"
    with pytest.raises(InputError, match=re.escape(wanted)) as caught:
        compiled(data(a, 64), data(b, 64))
    assert caught.value.where == f"called with x float32[{a}, 64], y float32[{b}, 64]"
    x = data(5, 64)
    assert_close(compiled(x, x)[0], of_sums(x, x))


def test_several_pairs_make_one_program() -> None:
    nodes = [
        h.make_node("Add", ["x", "y"], ["s"]),
        h.make_node("Where", ["m", "s", "z"], ["t"]),
        h.make_node("MatMul", ["t", "z"], ["r"]),
    ]
    ins = [("x", T.FLOAT, ["a", "b", 3, "n"]), ("y", T.FLOAT, ["c", "d", 3, "n"]), ("z", T.FLOAT, ["e", "f", 1, "n"])]
    model = tilewright.compile(model_of([*nodes[:2]], [*ins, ("m", T.BOOL, ["g", 1, 1, 1])], ["t"], {}), verify=True)
    assert len(model.artifact.programs) == 2
    for sizes in ((2, 5, 2, 5, 2, 5, 2), (1, 5, 2, 1, 2, 1, 1), (2, 1, 1, 1, 1, 5, 2), (1, 1, 1, 1, 1, 1, 2)):
        a, b, c, d, e, f, g = sizes
        x, y, z, m = data(a, b, 3, 4), data(c, d, 3, 4), data(e, f, 1, 4), data(g, 1, 1, 1) > 0
        assert_close(model(x, y, z, m)[0], np.where(m, x + y, z))
    with pytest.raises(InputError, match=r"select of .*: it must be that"):
        model(data(2, 5, 3, 4), data(2, 5, 3, 4), data(2, 4, 1, 4), data(2, 1, 1, 1) > 0)


def test_it_survives_files_pickles_and_copies(compiled: tilewright.Model, tmp_path: Path) -> None:
    compiled.save(tmp_path / "m.tw")
    x, y = data(1, 64), data(4, 64)
    for model in (
        tilewright.load(tmp_path / "m.tw"),
        tilewright.load(tmp_path / "m.tw", mmap=True),
        pickle.loads(pickle.dumps(compiled)),
        copy.copy(compiled),
    ):
        assert_close(model(x, y)[0], of_sums(x, y))
        assert broadcasts(model)
        assert repr(model) == repr(compiled)


def test_out_and_other_tensors(compiled: tilewright.Model) -> None:
    x, y, out = data(1, 64), data(4, 64), np.empty((4, 64), np.float32)
    (found,) = compiled(x, y, out=[out])
    assert found is out
    assert_close(out, of_sums(x, y))
    with pytest.raises(InputError, match=r"\[4, 64\]"):
        compiled(x, y, out=[np.empty((1, 64), np.float32)])


def test_torch_tensors(compiled: tilewright.Model) -> None:
    torch = pytest.importorskip("torch")
    x, y = data(4, 64), data(1, 64)
    (found,) = compiled.with_outputs(torch)(torch.from_numpy(x), torch.from_numpy(y))
    assert_close(found.numpy(), of_sums(x, y))


def test_frequent_sizes_go_first() -> None:
    model = tilewright.compile(sums(), frequent=[{"a": 1, "b": 4}, {"a": 8}], verify=True)
    assert len(model.artifact.programs) == 4
    for a, b in ((1, 4), (8, 8), (8, 1), (8, 2), (3, 3), (1, 3)):
        x, y = data(a, 64), data(b, 64)
        if (a, b) == (8, 2):
            with pytest.raises(InputError, match="it must be that"):
                model(x, y)
        else:
            assert_close(model(x, y)[0], of_sums(x, y))
            assert broadcasts(model) == ((a, b) in ((8, 1), (1, 3)))


def test_what_is_assumed_is_said(compiled: tilewright.Model) -> None:
    signature = "(x: float32[a, 64], y: float32[b, 64]) -> (z: float32[a, 64]) where a == b or one of them is 1"
    assert repr(compiled) == f"<tilewright model {signature}, 2 threads>"
    (note,) = tilewright.check(sums()).notes
    assert (note.kind, note.operator, note.node) == ("broadcast", "Add", "the_sum")
    assert note.message == "a == b, or one of them is 1: calls of that kind have a program of their own"


BRANCH = """<ir_version: 9, opset_import: ["" : 18]>
g (float[a] x, float[b] y, bool c, int64 n) => (float[p] z, float[q] w) {
    [pick] z = If (c) <
        then_branch = t () => (float[r] s) { s = Add (x, y) }, else_branch = e () => (float[r] s) { s = Neg (x) }
    >
    [all] w = Loop (n, c, x) <body = l (int64 i, bool going, float[k] u) => (bool next, float[k] v) {
        next = Identity (going)
        [inner] v = Add (u, y)
    }>
}"""


def test_what_only_a_branch_or_a_body_assumes_is_said_with_its_place() -> None:
    source = onnx.parser.parse_model(BRANCH)
    model = tilewright.compile(source, cache=False)
    both = "a == b or one of them is 1, in"
    assert model.artifact.assumed == (f"{both} a branch of node 'pick' (If)", f"{both} the body of node 'all' (Loop)")
    assert f" where {both} a branch of node 'pick' (If)" in repr(model)
    notes = [note for note in tilewright.check(source).notes if note.kind == "broadcast"]
    places = ["where a branch of node 'pick' (If) is run", "where the body of node 'all' (Loop) is run"]
    assert all(f"is 1, {place}: " in note.message for place, note in zip(places, notes, strict=True))
    x, y = data(2), data(3)
    for called in (model, tilewright.load(model.artifact.to_bytes())):
        assert_close(called(x, y, np.array(False), np.array(0))[0], -x)  # nothing that is run assumes anything


def test_what_a_branch_and_all_calls_assume_is_said_once() -> None:
    source = onnx.parser.parse_model(BRANCH.replace("    [pick]", "    whole = Add (x, y)\n    [pick]"))
    source.graph.output.append(onnx.ValueInfoProto(name="whole"))
    assert tilewright.compile(source, cache=False).artifact.assumed == ("a == b or one of them is 1",)


def test_profile() -> None:
    model = tilewright.compile(sums(), profile=True)
    times = model.profile({"x": data(1, 64), "y": data(4, 64)}, runs=2)
    assert model.artifact.broadcasting is not None
    assert [t.kernel for t in times] == [c.kernel for c in model.artifact.broadcasting.report.calls]


def test_the_stand_in_of_onnx_runtime() -> None:
    session = stand_in.InferenceSession(sums().SerializeToString())
    for a, b in SIZES:
        x, y = data(a, 64), data(b, 64)
        assert_close(session.run(None, {"x": x, "y": y})[0], of_sums(x, y))


def staged() -> Any:
    """The rows of x that have a positive first element, plus y: the host finds how many there are."""
    nodes = [
        h.make_node("Gather", ["x", "zero"], ["first"], axis=1),
        h.make_node("Greater", ["first", "limit"], ["keep"]),
        h.make_node("Compress", ["x", "keep"], ["kept"], axis=0),
        h.make_node("Add", ["kept", "y"], ["z"], name="the_sum"),
    ]
    constants = {"zero": np.array(0), "limit": np.float32(0)}
    return model_of(nodes, [("x", T.FLOAT, ["a", 64]), ("y", T.FLOAT, ["b", 64])], ["z"], constants)


def test_sizes_that_depend_on_data() -> None:
    model = tilewright.compile(staged(), verify=True, profile=True)
    x = np.abs(data(5, 64))
    x[1] = x[3] = -1
    for rows in (3, 1):
        y = data(rows, 64)
        for _ in range(2):
            assert_close(model(x, y)[0], x[[0, 2, 4]] + y)
    assert_close(model(x[:2], data(4, 64))[0], x[:1] + data(4, 64))
    assert_close(model(x[1:2], data(1, 64))[0], x[:0] + data(1, 64))
    with pytest.raises(InputError, match=r"it must be that .* \(in node 'the_sum' \(Add\)\)"):
        model(x, data(2, 64))
    assert model.profile({"x": x, "y": data(1, 64)}, runs=2)


@pytest.mark.parametrize("taken", [True, False])
def test_branches(taken: bool) -> None:
    """Both take dims for equal in blocks of their own."""

    def block(name: str, node: Any) -> Any:
        return h.make_graph([node, h.make_node("Exp", ["e"], [f"{name}_out"])], name, [], [
            h.make_empty_tensor_value_info(f"{name}_out")])  # fmt: skip

    then = block("then", h.make_node("Add", ["x", "y"], ["e"]))
    other = block("other", h.make_node("MatMul", ["x", "w"], ["e"]))
    nodes = [h.make_node("If", ["c"], ["z"], then_branch=then, else_branch=other)]
    ins = [("x", T.FLOAT, ["a", 64]), ("y", T.FLOAT, ["b", 64]), ("c", T.BOOL, [])]
    model = tilewright.compile(model_of(nodes, ins, ["z"], {"w": W / 64}), verify=True)
    for a, b in ((4, 4), (1, 4), (4, 1)):
        x, y = data(a, 64), data(b, 64)
        assert_close(model(x, y, np.array(taken))[0], np.exp(x + y if taken else x @ (W / 64)))


def loop() -> Any:
    """y is added to a vector of the length of x in each of `trips` trips."""
    body = h.make_graph(
        [h.make_node("Add", ["v", "y"], ["w"]), h.make_node("Identity", ["go"], ["on"])],
        "body",
        [h.make_tensor_value_info("i", T.INT64, []), h.make_tensor_value_info("go", T.BOOL, []),
         h.make_tensor_value_info("v", T.FLOAT, ["a"])],
        [h.make_tensor_value_info("on", T.BOOL, []), h.make_tensor_value_info("w", T.FLOAT, ["a"])],
    )  # fmt: skip
    nodes = [h.make_node("Loop", ["trips", "yes", "x"], ["z"], body=body)]
    ins = [("x", T.FLOAT, ["a"]), ("y", T.FLOAT, ["b"]), ("trips", T.INT64, [])]
    return model_of(nodes, ins, ["z"], {"yes": np.array(True)})


def test_loops() -> None:
    model = tilewright.compile(loop(), verify=True)
    for a, b in ((4, 4), (4, 1)):
        x, y = data(a), data(b)
        assert_close(model(x, y, np.array(3))[0], x + y + y + y)


def test_shapes_that_are_computed_are_checked() -> None:
    """The shape that x is expanded to is of no operand."""
    nodes = [h.make_node("Shape", ["y"], ["s"]), h.make_node("Expand", ["x", "s"], ["z"])]
    model = tilewright.compile(model_of(nodes, [("x", T.FLOAT, ["a"]), ("y", T.FLOAT, ["b"])], ["z"], {}), verify=True)
    for a, b in SIZES:
        assert_close(model(data(a), data(b))[0], data(a) + np.zeros(b, np.float32))
    with pytest.raises(InputError, match=r"the shapes \[a\] and \[b\] are broadcast: it must be that"):
        model(data(3), data(4))


def test_the_c_of_gemm_is_broadcast_one_way() -> None:
    nodes = [h.make_node("Gemm", ["x", "w", "c"], ["z"])]
    ins = [("x", T.FLOAT, ["a", 64]), ("c", T.FLOAT, ["b", "d"])]
    model = tilewright.compile(model_of(nodes, ins, ["z"], {"w": W}), verify=True)
    for shape in ((4, 64), (1, 64), (4, 1), (1, 1)):
        assert_close(model(data(4, 64), data(*shape))[0], data(4, 64) @ W + data(*shape))
    with pytest.raises(InputError, match=r"Gemm cannot add f32\[b, d\] to a product of \[a, 64\]"):
        model(data(1, 64), data(4, 64))


@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij,ij->i", "bij,bjk->bik"])
def test_einsum(equation: str) -> None:
    ranks = [len(term) for term in equation.partition("->")[0].split(",")]
    ins = [(name, T.FLOAT, [f"{name}_{k}x" for k in range(rank)]) for name, rank in zip("xy", ranks, strict=True)]
    node = h.make_node("Einsum", ["x", "y"], ["z"], equation=equation)
    model = tilewright.compile(model_of([node], ins, ["z"], {}), verify=True)
    for first in ((3, 4, 5)[-ranks[0] :], (1, 4, 5)[-ranks[0] :], (3, 4, 1)[-ranks[0] :]):
        x, y = data(*first), data(*((3, 5, 2)[-ranks[1] :] if "k" in equation else (4, 5)))
        assert_close(model(x, y)[0], np.einsum(equation, x, y, optimize=False))


POSITIONS = """<ir_version: 9, opset_import: ["" : 18]>
g (float[t, 64] x) => (float[p, q] z) <float[64, 64] w, int64[1] zero = {0}, int64[1] one = {1}> {
    shape = Shape <end = 1> (x)
    first = Slice (w, zero, shape, zero)
    sum = Add (x, first)
    z = Add (sum, first)
}"""


def test_dims_of_which_none_is_1_where_they_differ_need_no_program_more() -> None:
    source = onnx.parser.parse_model(POSITIONS)
    source.graph.initializer.append(onnx.numpy_helper.from_array(W, "w"))
    model = tilewright.compile(source, cache=False, verify=True)
    assert len(model.artifact.programs) == 1
    for t in (0, 1, 2, 63, 64):
        x = data(t, 64)
        assert_close(model(x)[0], x + 2 * W[:t])
    with pytest.raises(InputError, match=r"it must be that"):
        model(data(65, 64))


def test_the_first_and_the_last_row_need_no_program_more() -> None:
    for begin, end, part in ((0, 1, slice(0, 1)), (-1, 2**63 - 1, slice(-1, None))):
        names = {"s": np.array([begin]), "e": np.array([end]), "k": np.array([1])}
        nodes = [h.make_node("Slice", ["x", "s", "e", "k"], ["p"]), h.make_node("Sub", ["x", "p"], ["z"])]
        model = tilewright.compile(model_of(nodes, [("x", T.FLOAT, ["n", "t", 3])], ["z"], names), verify=True)
        assert model.artifact.broadcasting is None
        for t in (0, 1, 2, 7):
            x = data(2, t, 3)
            assert_close(model(x)[0], x - x[:, part])


@pytest.mark.parametrize("last", [(7, 40), (1, 40), (40, 1), (1, 1)])
def test_axes_that_are_stretched_or_not_are_read_in_vectors(last: tuple[int, int]) -> None:
    """One element for all lanes, or consecutive ones: a flag that all lanes share says which."""
    shapes = {"x": ["a", "b"], "y": ["c", "d"]}
    infos = [h.make_tensor_value_info(name, T.FLOAT, shape) for name, shape in shapes.items()]
    result = h.make_tensor_value_info("z", T.FLOAT, [None, None])
    graph = h.make_graph([h.make_node("Sub", ["x", "y"], ["z"])], "g", infos, [result])
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    texts = stages.programs(proto, "llvm")
    assert any("stretch" in name for name in texts)
    assert not any("gather" in text for text in texts.values())
    x, y = data(last[0], 40), data(1, last[1])
    for a, b in ((x, y), (y, x), (x[:, :1], y), (x, y[:0])):
        if 0 in b.shape and a.shape[0] != 1:
            continue
        np.testing.assert_array_equal(tilewright.compile(proto)(a, b)[0], a - b)


@pytest.mark.parametrize("last", [(40, 1, 1), (1, 40, 1), (1, 1, 40), (1, 1, 1), (40, 40, 1)])
def test_what_is_stretched_several_times_is_read_in_vectors(last: tuple[int, int, int]) -> None:
    """By the operators of a chain, each of which may stretch what the ones before gave."""
    infos = [h.make_tensor_value_info(name, T.FLOAT, ["a", name]) for name in "xyw"]
    result = h.make_tensor_value_info("z", T.FLOAT, [None, None])
    nodes = [h.make_node("Sub", ["x", "y"], ["s"]), h.make_node("Mul", ["s", "w"], ["z"])]
    graph = h.make_graph(nodes, "g", infos, [result])
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    texts = stages.programs(proto, "llvm")
    assert any("stretch" in name for name in texts)
    assert not any("gather" in text for text in texts.values())
    x, y, w = (data(3, n) for n in last)
    np.testing.assert_array_equal(tilewright.compile(proto)(x, y, w)[0], (x - y) * w)
