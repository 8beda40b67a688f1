"""Values, bindings and files that do not fit are refused with a reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright.onnxruntime as ort
from tests import models
from tilewright.onnxruntime.model_file import Overrides, read_model_file, without_initializers

X = np.ones((2, 3), np.float32)
MLP: bytes = models.mlp().SerializeToString()


def binding() -> Any:
    return ort.InferenceSession(MLP).io_binding()


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a type of another size": (
        lambda: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(X, onnx.TensorProto.BFLOAT16),
        "elements of float32 cannot be taken as bfloat16",
    ),
    "an unknown type": (
        lambda: ort.OrtValue.ortvalue_from_shape_and_type([2], 99),
        "there is no type of elements 99",
    ),
    "another shape": (
        lambda: ort.OrtValue.ortvalue_from_numpy(X).update_inplace(X[0]),
        "the value is float32[2, 3], the given array is float32[3]",
    ),
    "another device": (
        lambda: binding().bind_output("y", "cuda"),
        "there is no device 'cuda'",
    ),
    "another input": (lambda: binding().bind_cpu_input("q", X), "there is no input 'q'; there are: x"),
    "another output": (lambda: binding().bind_output("q"), "there is no output 'q'; there are: y"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises((RuntimeError, ort.onnxruntime_pybind11_state.InvalidArgument), match=re.escape(message)):
        call()


def test_values_share_memory_with_arrays_and_tensors() -> None:
    value = ort.OrtValue.ortvalue_from_numpy(X)
    assert np.shares_memory(value.numpy(), X) and np.shares_memory(np.asarray(value), X)
    assert np.shares_memory(ort.OrtValue.from_dlpack(value).numpy(), X)
    assert not np.shares_memory(np.array(value, copy=True), X)
    assert ort.OrtValue.from_dlpack(np.ones(2, np.uint8), is_bool_tensor=True).data_type() == "tensor(bool)"


def test_a_feed_that_is_no_dict_is_refused_before_anything_is_compiled() -> None:
    with pytest.raises(ort.onnxruntime_pybind11_state.InvalidArgument, match="must be a dict"):
        ort.InferenceSession(MLP).run(None, [X])  # type: ignore[arg-type]


def test_names_and_shapes_are_those_that_the_onnx_package_reads() -> None:
    file = read_model_file(MLP)
    assert file is not None
    assert [(arg.name, arg.shape, arg.type) for arg in (*file.inputs, *file.outputs)] == [
        ("x", ["batch", models.FEATURES], "tensor(float)"),
        ("y", ["batch", models.CLASSES], "tensor(float)"),
    ]
    assert (file.overridable, file.shapeless, file.has_outside_data) == ((), frozenset(), False)


def test_dims_are_fixed_by_name_or_denotation() -> None:
    model = models.mlp()
    by_name = read_model_file(MLP, Overrides({"batch": 5}, {}))
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[0].denotation = "DATA_BATCH"
    by_denotation = read_model_file(model.SerializeToString(), Overrides({}, {"DATA_BATCH": 6}))
    assert by_name is not None and by_name.inputs[0].shape[0] == 5
    assert by_denotation is not None and by_denotation.inputs[0].shape[0] == 6


def test_initializers_are_left_out_and_all_else_stays() -> None:
    model = onnx.ModelProto.FromString(without_initializers(MLP, {"w"}))
    wanted = models.mlp()
    del wanted.graph.initializer[0]
    assert model == wanted


def test_sparse_initializers_are_left_out_too() -> None:
    model = models.mlp()
    sparse = model.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(onnx.numpy_helper.from_array(np.ones(1, np.float32), "s"))
    sparse.indices.CopyFrom(onnx.numpy_helper.from_array(np.array([2]), "at"))
    data = model.SerializeToString()
    assert onnx.ModelProto.FromString(without_initializers(data, {"s"})) == models.mlp()
    assert without_initializers(data, {"at"}) == data


@pytest.mark.parametrize(
    "data", [b"\x0f", b"\x08", b"\x08" + b"\xff" * 11, b"\x3a\x05\x0a", b"\x05\x00", b"\x02\x00"], ids=repr
)
def test_what_is_no_message_of_protobuf_is_refused(data: bytes) -> None:
    with pytest.raises(ort.onnxruntime_pybind11_state.InvalidProtobuf, match="it is no ONNX model"):
        ort.InferenceSession(data)


def test_a_file_that_was_cut_off_anywhere_raises_nothing_else() -> None:
    for length in range(0, len(MLP), 7):
        try:
            read_model_file(MLP[:length])
        except ValueError:
            continue
