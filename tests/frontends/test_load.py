"""Reading files: what is accepted, and what each kind of broken file is told."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.frontends.helpers import check, imported, info, model_of, node_model, run
from tilewright.frontends.inputs import SymbolicDims
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.diag import ModelError, TypeRuleError, UnsupportedError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def relu(a: str = "x", b: str = "y", **options: str) -> onnx.NodeProto:
    return helper.make_node("Relu", [a], [b], **options)


def relu_model(**options: object) -> onnx.ModelProto:
    return model_of([relu()], [info("x", [2, 3])], ["y"], **options)  # type: ignore[arg-type]


def with_weight(tensor: TensorProto) -> onnx.ModelProto:
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], [info("x", [2, 3])], ["y"])
    model.graph.initializer.append(tensor)
    return model


def refused(model: onnx.ModelProto | bytes | Path, *parts: str, kind: type[Exception] = ModelError) -> None:
    """Loading fails with an error of `kind` that says all of `parts`."""
    with pytest.raises(kind) as caught:
        load_onnx(model)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


# Files


def test_a_path_bytes_and_a_proto_give_the_same(tmp_path: Path) -> None:
    model = relu_model()
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    for source in (path, str(path), path.read_bytes(), model):
        assert np.array_equal(run(load_onnx(source), X - 3)[0], np.maximum(X - 3, 0))


def test_names_of_inputs_and_outputs_are_kept() -> None:
    main = load_onnx(relu_model()).main
    assert main.attrs == {"inputs": ("x",), "outputs": ("y",), "nodes": 1}
    assert [a.name for a in main.args] == ["x"]


def test_missing_file(tmp_path: Path) -> None:
    refused(tmp_path / "no.onnx", "does not exist", "no.onnx")


def test_folder_instead_of_a_file(tmp_path: Path) -> None:
    refused(tmp_path, "a folder without config.json, weights as .safetensors")


@pytest.mark.parametrize("data", [b"", b"hello, not a model\n", b"\x89PNG\r\n\x1a\n" + b"\0" * 64])
def test_files_of_other_kinds(data: bytes) -> None:
    refused(data)


def test_truncated_file() -> None:
    data = with_weight(numpy_helper.from_array(X, "w")).SerializeToString()
    for size in range(0, len(data), 7):
        with pytest.raises((ModelError, UnsupportedError)):
            load_onnx(data[:size])


def test_no_graph_no_opset_no_version() -> None:
    model = relu_model()
    model.ClearField("graph")
    refused(model, "no graph")
    model = relu_model()
    del model.opset_import[:]
    refused(model, "imports no operator set")
    model = relu_model()
    model.ir_version = 0
    refused(model, "ir_version 0")


@pytest.mark.parametrize("opset", [0, 999])
def test_opset_out_of_range(opset: int) -> None:
    refused(relu_model(opset=opset), f"version {opset}", "supported are 1 to", kind=UnsupportedError)


# Graphs


def test_nodes_out_of_order_are_sorted() -> None:
    model = model_of([relu("a", "y"), helper.make_node("Neg", ["x"], ["a"])], [info("x", [2, 3])], ["y"])
    assert np.array_equal(imported(model, -X)[0], X)


def test_cycle_names_its_nodes() -> None:
    nodes = [relu("b", "a", name="first"), relu("a", "b"), helper.make_node("Add", ["x", "a"], ["y"])]
    refused(model_of(nodes, [info("x", [2, 3])], ["y"]), "cycle", "'first'")


def test_undefined_value_names_the_node() -> None:
    refused(model_of([relu("ghost", "y", name="r")], [info("x", [2])], ["y"]), "'ghost'", "node 'r' (Relu)")


def test_missing_output() -> None:
    refused(model_of([relu()], [info("x", [2])], ["z"]), "no node gives this output", "'z'")


def test_duplicate_names() -> None:
    refused(
        model_of([relu(), helper.make_node("Neg", ["x"], ["y"])], [info("x", [2])], ["y"]),
        "defined twice",
        "'y'",
    )
    refused(model_of([relu()], [info("x", [2]), info("x", [2])], ["y"]), "two graph inputs are named 'x'")
    twice = with_weight(numpy_helper.from_array(X, "w"))
    twice.graph.initializer.append(numpy_helper.from_array(X, "w"))
    refused(twice, "two initializers are named 'w'")


def test_nodes_that_no_output_needs_are_left_out() -> None:
    nodes = [relu(), helper.make_node("Frobnicate", ["x"], ["unused"])]
    assert np.array_equal(imported(model_of(nodes, [info("x", [2, 3])], ["y"]), X)[0], X)


def test_all_unsupported_operators_at_once() -> None:
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["a"], name="one"),
        helper.make_node("Frobnicate", ["a"], ["b"], name="two"),
        helper.make_node("Wibble", ["x"], ["c"], name="three"),
        helper.make_node("Frobnicate", ["x"], ["d"], name="four"),
        helper.make_node("Sum", ["b", "c", "d"], ["y"]),
    ]
    model = model_of(nodes, [info("x", [2])], ["y"])
    refused(model, "Frobnicate", "'one'", "'four'", "Wibble", "'three'", kind=UnsupportedError)


def test_unknown_domain() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"], domain="evil.corp")], [info("x", [2])], ["y"])
    refused(model, "evil.corp", kind=UnsupportedError)


def test_control_characters_are_not_passed_on() -> None:
    model = model_of([helper.make_node("Nope", ["x"], ["y"], name="\x1b[2J")], [info("x", [2])], ["y"])
    with pytest.raises(UnsupportedError) as caught:
        load_onnx(model)
    assert "\x1b" not in str(caught.value)
    assert "\\x1b[2J" in str(caught.value)


def test_declared_types_of_outputs_are_checked() -> None:
    declared = [info("y", [2, 3], TensorProto.INT64)]
    refused(model_of([relu()], [info("x", [2, 3])], declared), "declared as i64", "f32[2, 3]")
    refused(model_of([relu()], [info("x", [2, 3])], [info("y", [7, 7])]), "declared with shape [7, 7]")


def test_misfits_show_types_and_node() -> None:
    w = np.ones((4, 5), np.float32)
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")], [info("x", [2, 3])], ["y"], {"w": w}
    )
    refused(model, "f32[2, 3]", "f32[4, 5]", "node 'mm' (MatMul)", kind=TypeRuleError)
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])], [info("x", [2, 3])], ["y"], {"w": np.ones(3, np.int64)}
    )
    refused(model, "f32[2, 3]", "i64[3]", "must be the same")


@pytest.mark.parametrize(
    ("node", "part"),
    [
        (helper.make_node("MatMul", ["x"], ["y"]), "takes 2 inputs"),
        (helper.make_node("MatMul", ["x", ""], ["y"]), "must be given"),
        (helper.make_node("Relu", ["x"], ["y", "z"]), "outputs"),
        (helper.make_node("Relu", ["x"], ["y"], banana=1), "no attribute 'banana'"),
        (helper.make_node("Concat", ["x", "x"], ["y"]), "'axis' of Concat must be given"),
        (helper.make_node("Concat", ["x", "x"], ["y"], axis="a"), "must be of type INT"),
        (helper.make_node("Softmax", ["x"], ["y"], axis=7), "axis 7 is out of range"),
        (helper.make_node("Transpose", ["x"], ["y"], perm=[0, 0]), "axes [0, 0] name an axis twice"),
        (helper.make_node("Cast", ["x"], ["y"], to=77), "77 is not an element type"),
        (helper.make_node("Einsum", ["x"], ["y"], equation="ij->ik"), "labels that the operands lack"),
        (helper.make_node("Einsum", ["x"], ["y"], equation="((->"), "cannot be read"),
    ],
)
def test_malformed_nodes(node: onnx.NodeProto, part: str) -> None:
    refused(model_of([node], [info("x", [2, 3])], ["y"]), part)


# Tensors


def raw(dims: list[int], data: bytes, elem_type: int = TensorProto.FLOAT) -> TensorProto:
    tensor = TensorProto(name="w", data_type=elem_type, dims=dims)
    tensor.raw_data = data
    return tensor


@pytest.mark.parametrize(
    ("tensor", "part"),
    [
        (raw([2, 3], b"\0" * 20), "takes 24 bytes, the file has 20"),
        (raw([-1, 3], b""), "is not possible"),
        (raw([2**40], b"\0" * 16), "takes"),
        (raw([2**62, 4], b""), "is not possible"),
        (raw([1] * 100, b"\0" * 4), "rank 100"),
        (raw([2, 3], b"\0" * 24, 999), "999 is not an element type"),
        (
            TensorProto(name="w", data_type=1, dims=[2, 3], float_data=[1.0] * 4),
            "does not hold the elements of f32[2, 3]",
        ),
    ],
)
def test_broken_tensors(tensor: TensorProto, part: str) -> None:
    refused(with_weight(tensor), part, "'w'")


def test_elements_in_every_field() -> None:
    """Typed fields and raw bytes give the same elements."""
    for dtype in ("float32", "float64", "int64", "int32", "uint8", "float16", "bool"):
        values = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
        elem_type = helper.np_dtype_to_tensor_dtype(values.dtype)
        typed = helper.make_tensor("w", elem_type, [2, 3], values.ravel().tolist())
        for tensor in (typed, numpy_helper.from_array(values, "w")):
            model = model_of([helper.make_node("Identity", ["w"], ["y"])], [], ["y"])
            model.graph.initializer.append(tensor)
            (got,) = imported(model)
            assert got.dtype == values.dtype
            assert np.array_equal(got, values)


def external(location: str, offset: str = "0", length: str = "24") -> onnx.ModelProto:
    tensor = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[2, 3], data_location=TensorProto.EXTERNAL
    )
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=value)
    return with_weight(tensor)


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


def test_external_data_is_read_and_may_be_cut_off_afterwards(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 8 + X.tobytes())
    module = load_onnx(saved(external("w.bin", "8"), tmp_path))
    os.truncate(tmp_path / "w.bin", 0)  # of a mapped file this would end the process at the next look
    assert np.array_equal(run(module, X)[0], X + X)


def test_external_data_that_is_cut_off_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size that was asked for is no longer there when the bytes are read."""
    (tmp_path / "w.bin").write_bytes(X.tobytes())
    path = saved(external("w.bin"), tmp_path)

    def cut_off_after_stat(self: Path) -> os.stat_result:
        found = os.stat(self)
        if self.name == "w.bin":
            os.truncate(self, 10)
        return found

    monkeypatch.setattr(Path, "stat", cut_off_after_stat)
    refused(path, "only 10 of 24 bytes", "changed while it was read")


@pytest.mark.parametrize(
    ("location", "part"),
    [
        ("../w.bin", "stay inside"),
        ("sub/../../w.bin", "stay inside"),
        ("/etc/passwd", "stay inside"),
        ("file:///etc/passwd", "stay inside"),
        ("", "is not a file name"),
        ("none.bin", "does not exist"),
        (".", "is not a regular file"),
        ("link.bin", "is a link out of"),
    ],
)
def test_external_data_outside_of_the_folder(tmp_path: Path, location: str, part: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(X.tobytes())
    os.symlink(tmp_path / "w.bin", folder / "link.bin")
    refused(saved(external(location), folder), part, "beside the model")


@pytest.mark.parametrize(("offset", "length"), [("8", "24"), ("0", "99"), ("1000", "24")])
def test_external_data_too_short(tmp_path: Path, offset: str, length: str) -> None:
    (tmp_path / "w.bin").write_bytes(X.tobytes())
    refused(saved(external("w.bin", offset, length), tmp_path), "takes 24 bytes", "truncated")


@pytest.mark.parametrize("offset", ["-8", "abc", "0x0", str(2**64)])
def test_external_data_at_no_offset(tmp_path: Path, offset: str) -> None:
    (tmp_path / "w.bin").write_bytes(X.tobytes())
    refused(saved(external("w.bin", offset), tmp_path), "not a number of bytes")


def test_external_data_without_a_folder() -> None:
    refused(external("w.bin"), "was not given as a file")


def test_sparse_initializer() -> None:
    def sparse(indices: list[int]) -> onnx.ModelProto:
        model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], [info("x", [2, 3])], ["y"])
        entry = model.graph.sparse_initializer.add(dims=[2, 3])
        entry.values.CopyFrom(numpy_helper.from_array(np.array([5, 7], np.float32), "w"))
        entry.indices.CopyFrom(numpy_helper.from_array(np.array(indices, np.int64)))
        return model

    assert np.array_equal(imported(sparse([1, 5]), X)[0], X + np.array([[0, 5, 0], [0, 0, 7]]))
    refused(sparse([1, 10**12]), "outside of [2, 3]")
    refused(sparse([-7, 1]), "outside of [2, 3]")


# Inputs, options


def test_symbolic_dims() -> None:
    model = model_of(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        [info("a", ["batch", None]), info("b", ["batch", 1])],
        ["y"],
    )
    a, b = load_onnx(model).main.args
    assert a.type.shape[0] == b.type.shape[0]  # type: ignore[attr-defined]
    assert a.type.shape[0].name == "batch"  # type: ignore[attr-defined]
    assert a.type.shape[1] not in (a.type.shape[0], 1)  # type: ignore[attr-defined]


def test_names_of_dims_become_identifiers() -> None:
    dims = SymbolicDims()
    names = [dims.named(p).name for p in ("batch", "seq len", "seq-len", "d0", "1x", "val_a", 'f("x")')]
    assert len(set(names)) == len(names)
    assert all(n.isidentifier() for n in names)
    assert dims.named("batch").name == "batch" == names[0]
    assert "d0" not in names
    assert not any(n.startswith("val_") for n in names)


def test_question_marks_are_different_dims() -> None:
    (x,) = load_onnx(model_of([relu()], [info("x", ["?", "?"])], ["y"])).main.args
    assert x.type.shape[0] != x.type.shape[1]  # type: ignore[attr-defined]


def test_shapes_option() -> None:
    model = model_of([relu()], [info("x", ["n", 3])], ["y"])
    (x,) = load_onnx(model, shapes={"x": [2, "m"]}).main.args
    assert str(x.type) == "f32[2, m]"
    with pytest.raises(ModelError, match="rank 2"):
        load_onnx(model, shapes={"x": [2]})
    with pytest.raises(ModelError, match="no input of the model"):
        load_onnx(model, shapes={"z": [2]})
    with pytest.raises(ModelError, match="the dim -4"):
        load_onnx(model, shapes={"x": [-4, 3]})


def test_inputs_that_have_initializers_are_constants() -> None:
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])], [info("x", [2, 3]), info("w", [2, 3])], ["y"], {"w": X}
    )
    assert load_onnx(model).main.attrs["inputs"] == ("x",)


def test_nodes_are_those_of_the_file() -> None:
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(X))
    identity = helper.make_node("Identity", ["x"], ["same"])
    model = model_of(
        [constant, identity, helper.make_node("Add", ["same", "c"], ["y"])], [info("x", [2, 3])], ["y"]
    )
    assert load_onnx(model).main.attrs["nodes"] == 3


def test_constants_option() -> None:
    model = node_model("ReduceSum", [X, np.array([1], np.int64)])
    module = load_onnx(model, constants={"x1": np.array([1], np.int64)})
    assert module.main.attrs["inputs"] == ("x0",)
    assert np.array_equal(run(module, X)[0], X.sum(1, keepdims=True))


def test_constants_must_fit() -> None:
    model = node_model("ReduceSum", [X, np.array([1], np.int64)])
    with pytest.raises(ModelError, match=r"int32\[1\] for an input of type i64\[1\]"):
        load_onnx(model, constants={"x1": np.array([1], np.int32)})
    with pytest.raises(ModelError, match="no input of the model"):
        load_onnx(model, constants={"axes": np.array([1])})


def test_inputs_that_are_no_tensors() -> None:
    model = relu_model()
    model.graph.input[0].ClearField("type")
    refused(model, "no type")
    model.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = 1
    refused(model, "'X' of Relu cannot be sequence")
    model.graph.input[0].CopyFrom(info("x", None))
    refused(model, "rank is unknown", "shapes=", kind=UnsupportedError)
    model.graph.input[0].CopyFrom(info("x", [2], TensorProto.STRING))
    refused(model, "'X' of Relu cannot be of the element type string")


def test_shape_arithmetic_on_symbolic_dims() -> None:
    """Shape -> Gather -> Concat -> Reshape needs no constants."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axis"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"zero": np.array(0), "axis": np.array([0]), "rest": np.array([-1, 2])}
    model = model_of(nodes, [info("x", ["n", 6])], ["y"], constants)
    module = load_onnx(model)
    assert str(module.main.returns[0].type).startswith("f32[n, 3, 2]")
    check(model, np.arange(24, dtype=np.float32).reshape(4, 6))
