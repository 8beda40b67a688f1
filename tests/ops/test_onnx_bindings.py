"""Operators that declare an ONNX operator of the same meaning, against ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np
import onnx
import pytest

from tests.ops.sampling import normal, onnx_reference
from tilewright.ops.define import OPERATORS, OnnxBinding
from tilewright.ops.define.interp import evaluate

BINDINGS = [
    pytest.param(name, binding, id=f"{name}-{f'{binding.domain}.{binding.name}'.lstrip('.')}")
    for name, operator in OPERATORS.items()
    for binding in operator.onnx_bindings
]
STANDS_FOR = {("", "Scatter"): "ScatterElements"}
"""Operators that the reference has under another name: since opset 11."""
REFERENCES: dict[tuple[str, str], Callable[..., np.ndarray]] = {
    ("com.microsoft", "Gelu"): lambda x: (x * (1 + np.vectorize(erf)(x / 2**0.5)) / 2).astype(x.dtype),
}
"""What an operator means that it does not have: a function of its inputs and attributes."""
ATTRS: dict[str, dict[str, Any]] = {
    "LRN": {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 1.2},
    "Elu": {"alpha": 0.7},
    "Gelu": {"approximate": "tanh"},
    "LeakyRelu": {"alpha": 0.3},
    "Celu": {"alpha": 1.3},
    "Selu": {"alpha": 1.5, "gamma": 1.1},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
    "ThresholdedRelu": {"alpha": 0.5},
    "Shrink": {"bias": 0.2, "lambd": 0.6},
    "Swish": {"alpha": 1.4},
    "Gather": {"axis": 1},
    "GatherElements": {"axis": 1},
    "Scatter": {"axis": 1},
    "ScatterElements": {"axis": 1, "reduction": "add"},
    "ScatterND": {"reduction": "add"},
    "GatherND": {"batch_dims": 1},
    "Flatten": {"axis": 2},
    "LpNormalization": {"axis": 1, "p": 1},
    "InstanceNormalization": {"epsilon": 1e-3},
    "MeanVarianceNormalization": {"axes": [0, 2]},
}


def operands(op: str) -> list[np.ndarray]:
    x, y = normal((2, 3, 4)), normal((3, 1), seed=1)
    indices = np.array([[[0, 1, 2, 1]], [[2, 2, 0, 1]]])
    match op:
        case "And" | "Or" | "Xor":
            return [normal((2, 3), bool), normal((3,), bool, 1)]
        case "Not":
            return [normal((2, 3), bool)]
        case "BitwiseAnd" | "BitwiseOr" | "BitwiseXor":
            return [normal((2, 3), np.int32), normal((3,), np.int32, 1)]
        case "BitwiseNot":
            return [normal((2, 3), np.int32)]
        case "Add" | "Sub" | "Mul" | "Div" | "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual":
            return [x, y]
        case "Where":
            return [normal((2, 1, 4), bool), x, y]
        case "PRelu":
            return [x, y]
        case "LpNormalization":
            return [np.abs(x)]  # the reference takes no absolute values for p=1
        case "Log" | "Sqrt":
            return [np.abs(x) + np.float32(0.1)]
        case "Asin" | "Acos" | "Atanh":
            return [np.tanh(x)]
        case "Acosh":
            return [np.abs(x) + np.float32(1.1)]
        case "Gather" | "GatherElements":
            return [x, indices]
        case "GatherND":
            return [x, np.array([[[0, 1]], [[2, -1]]])]
        case "Scatter" | "ScatterElements":
            return [x, indices, normal((2, 1, 4), seed=2)]
        case "ScatterND":
            return [x, np.array([[0, 1], [1, -1]]), normal((2, 4), seed=2)]
        case "InstanceNormalization":
            return [x, normal((3,), seed=1), normal((3,), seed=2)]
        case "LRN":
            return [normal((3, 3, 4, 5))]
    return [x]


def newest_opset(op: str) -> int:
    """The opset whose reference is asked."""
    return onnx.defs.onnx_opset_version() if op == "Swish" else 22


def reference(binding: OnnxBinding) -> Callable[..., np.ndarray]:
    """What a binding is compared with: a function of inputs and attributes."""
    key = binding.domain, binding.name
    if key in REFERENCES:
        return REFERENCES[key]
    name = STANDS_FOR.get(key, binding.name)
    return lambda *inputs, **attrs: onnx_reference(name, inputs, opset=newest_opset(name), **attrs)


@pytest.mark.parametrize(("name", "binding"), BINDINGS)
def test_a_bound_operator_means_what_onnx_says(name: str, binding: OnnxBinding) -> None:
    inputs = operands(binding.name)
    renamed = dict(binding.attrs)
    attrs = {k: v for k, v in ATTRS.get(binding.name, {}).items() if k in renamed}
    ours = {renamed[k]: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()}
    found = evaluate(OPERATORS[name], *inputs, **ours)
    expected = reference(binding)(*inputs, **attrs)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("name", "binding"), BINDINGS)
def test_every_attribute_that_a_binding_renames_is_tried(name: str, binding: OnnxBinding) -> None:
    given, defaults = ATTRS.get(binding.name, {}), OPERATORS[name].defaults
    for theirs, ours in binding.attrs:
        assert theirs in given, f"give {binding.name} a value of '{theirs}' in ATTRS"
        assert given[theirs] != defaults.get(ours), (
            f"'{theirs}' of {binding.name} is the default: try another"
        )


def test_bindings_name_operators_and_attributes_that_onnx_has() -> None:
    for param in BINDINGS:
        name, binding = param.values
        if binding.domain:
            continue
        schema = onnx.defs.get_schema(binding.name, onnx.defs.onnx_opset_version())
        assert set(dict(binding.attrs)) <= set(schema.attributes), name
