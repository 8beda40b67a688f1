"""ONNX graphs as JAX functions, for the operators that the single-operator models and plain networks have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax import lax
from onnx import helper, numpy_helper

Array = Any
Attributes = Mapping[str, Any]


def function_of(model: onnx.ModelProto) -> Callable[..., list[Array]]:
    """A function of the graph's inputs in order; ValueError names the operators that are missing here."""
    graph = model.graph
    missing = sorted({node.op_type for node in graph.node} - RULES.keys())
    if missing:
        raise ValueError(f"no JAX expression for {', '.join(missing)}")
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    names = [value.name for value in graph.input if value.name not in weights]

    def call(*inputs: Array) -> list[Array]:
        values: dict[str, Any] = {"": None, **weights, **dict(zip(names, inputs, strict=True))}
        for node in graph.node:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            result = RULES[node.op_type]([values[name] for name in node.input], attributes)
            values[node.output[0]] = result
        return [values[output.name] for output in graph.output]

    return call


def _conv(x: Sequence[Array], a: Attributes) -> Array:
    rank = x[1].ndim - 2
    pads = a.get("pads", [0] * 2 * rank)
    if a.get("auto_pad", b"NOTSET") != b"NOTSET":
        raise ValueError("no JAX expression for Conv with auto_pad")
    made = lax.conv_general_dilated(
        x[0],
        x[1],
        a.get("strides", [1] * rank),
        list(zip(pads[:rank], pads[rank:], strict=True)),
        rhs_dilation=a.get("dilations", [1] * rank),
        feature_group_count=a.get("group", 1),
    )
    return made + x[2].reshape(-1, *[1] * rank) if len(x) > 2 else made


def _gemm(x: Sequence[Array], a: Attributes) -> Array:
    left = x[0].T if a.get("transA", 0) else x[0]
    right = x[1].T if a.get("transB", 0) else x[1]
    product = a.get("alpha", 1.0) * (left @ right)
    return product + a.get("beta", 1.0) * x[2] if len(x) > 2 else product


def _layer_norm(x: Sequence[Array], a: Attributes) -> Array:
    axes = tuple(range(a.get("axis", -1) % x[0].ndim, x[0].ndim))
    centred = x[0] - x[0].mean(axes, keepdims=True)
    root = lax.rsqrt((centred * centred).mean(axes, keepdims=True) + a.get("epsilon", 1e-5))
    scaled = centred * root * x[1]
    return scaled + x[2] if len(x) > 2 else scaled


def _mean(x: Sequence[Array], a: Attributes) -> Array:
    axes = a.get("axes") if len(x) < 2 else np.asarray(x[1]).tolist()
    return jnp.mean(x[0], tuple(axes) if axes else None, keepdims=bool(a.get("keepdims", 1)))


def _max_pool(x: Sequence[Array], a: Attributes) -> Array:
    kernel, rank = a["kernel_shape"], len(a["kernel_shape"])
    pads = a.get("pads", [0] * 2 * rank)
    around = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
    steps = (1, 1, *a.get("strides", [1] * rank))
    return lax.reduce_window(x[0], -jnp.inf, lax.max, (1, 1, *kernel), steps, around)


def _constant(x: Sequence[Array], a: Attributes) -> Array:
    return numpy_helper.to_array(a["value"])


def _flatten(x: Sequence[Array], a: Attributes) -> Array:
    axis = a.get("axis", 1)
    return x[0].reshape(int(np.prod(x[0].shape[:axis])), -1)


RULES: dict[str, Callable[[Sequence[Array], Attributes], Array]] = {
    "Abs": lambda x, a: jnp.abs(x[0]),
    "Add": lambda x, a: x[0] + x[1],
    "Constant": _constant,
    "Conv": _conv,
    "Div": lambda x, a: x[0] / x[1],
    "Erf": lambda x, a: lax.erf(x[0]),
    "Flatten": _flatten,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda x, a: x[0].mean(tuple(range(2, x[0].ndim)), keepdims=True),
    "Identity": lambda x, a: x[0],
    "LayerNormalization": _layer_norm,
    "MatMul": lambda x, a: x[0] @ x[1],
    "MaxPool": _max_pool,
    "Mul": lambda x, a: x[0] * x[1],
    "Pow": lambda x, a: x[0] ** x[1],
    "Reciprocal": lambda x, a: 1.0 / x[0],
    "ReduceMean": _mean,
    "Relu": lambda x, a: jax.nn.relu(x[0]),
    "Sigmoid": lambda x, a: jax.nn.sigmoid(x[0]),
    "Softmax": lambda x, a: jax.nn.softmax(x[0], a.get("axis", -1)),
    "Sqrt": lambda x, a: jnp.sqrt(x[0]),
    "Sub": lambda x, a: x[0] - x[1],
    "Tanh": lambda x, a: jnp.tanh(x[0]),
    "Transpose": lambda x, a: jnp.transpose(x[0], a.get("perm")),
}
