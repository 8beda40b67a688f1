"""Models as the fuzzer of the loader found them (`python -m tests.fuzz loader`): an error of the package each."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.frontends.helpers import info, model_of
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.diag import ModelError, TypeRuleError, UnsupportedError


def test_computed_axes_of_a_tensor_of_many() -> None:
    node = helper.make_node("Unsqueeze", ["x", "axes"], ["y"])
    model = model_of([node], [info("x", [3, 4]), info("axes", [60], TensorProto.INT64)], ["y"])
    with pytest.raises(UnsupportedError, match="computed axes of a tensor of rank 62"):
        load_onnx(model)


ONE = np.ones((), np.float32)


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        ("Split", [ONE], {"num_outputs": 2}),
        ("TopK", [ONE, np.array([1])], {"axis": 0}),
        ("GroupNormalization", [np.ones((1, 1, 2), np.float32), ONE, ONE], {"num_groups": 1}),
        ("QuantizeLinear", [ONE, ONE, np.zeros(3, np.int8)], {"axis": 0}),
    ],
)
def test_operands_with_too_few_axes(op: str, operands: list[np.ndarray], attributes: dict[str, int]) -> None:
    names = [f"x{k}" for k in range(len(operands))]
    outputs = {"Split": ["y", "z"], "TopK": ["y", "z"]}.get(op, ["y"])
    given = [info(n, a.shape, helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in zip(names, operands, strict=True)]
    known = dict(list(zip(names, operands, strict=True))[1:])
    model = model_of([helper.make_node(op, names, outputs, **attributes)], given[:1], outputs, known)
    with pytest.raises(TypeRuleError, match=rf"^{op}\(f32"):
        load_onnx(model)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "opset", "reason"),
    [
        ("GridSample", ["x"], {}, 9, "GridSample takes 2 inputs, not 1"),
        ("ConstantOfShape", ["x"], {"value": [1, 2]}, 7, "'value' of ConstantOfShape must be of type TENSOR"),
        ("StringConcat", ["x", "x"], {}, 17, "'X' of StringConcat cannot be of the element type f32"),
    ],
)
def test_operators_of_later_opsets(
    op: str, inputs: list[str], attributes: dict[str, list[int]], opset: int, reason: str
) -> None:
    """They are checked against their first version."""
    model = model_of([helper.make_node(op, inputs, ["y"], **attributes)], [info("x", [1])], ["y"], opset=opset)
    with pytest.raises(ModelError, match=reason):
        load_onnx(model)


def test_a_body_that_the_specification_cannot_make() -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["a"], ["c"])], "body", [info("a", [2]), info("b", [2]), info("d", [2])], []
    )
    body.output.add().name = "c"
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2])
    model = model_of([helper.make_node("SequenceMap", ["s"], ["y"], body=body)], [sequence], ["y"], opset=17)
    with pytest.raises(ModelError, match="SequenceMap has attributes or operands that do not fit"):
        load_onnx(model)
