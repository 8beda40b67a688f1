"""Small ONNX models, and what importing and interpreting them gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.core import Module
from tilewright.ops.define.interp import evaluate_func

NEWEST = 23

Shape = Sequence[int | str | None]


def info(name: str, shape: Shape | None, elem_type: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, shape)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str | onnx.ValueInfoProto],
    constants: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = NEWEST,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model; outputs given by name alone have no declared type."""
    declared = [o if isinstance(o, onnx.ValueInfoProto) else onnx.ValueInfoProto(name=o) for o in outputs]
    weights = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), declared, weights)
    imports = [helper.make_opsetid("", opset), *[helper.make_opsetid(d, 1) for d in domains]]
    model = helper.make_model(graph, opset_imports=imports, functions=list(functions))
    model.ir_version = 10
    return model


def node_model(
    op: str,
    arrays: Sequence[np.ndarray | None],
    attrs: Mapping[str, Any] | None = None,
    *,
    outputs: int = 1,
    opset: int = NEWEST,
    known: Sequence[int] = (),
    dynamic: bool = False,
) -> onnx.ModelProto:
    """A model of one node; operands at the positions `known` are initializers, the others inputs."""
    names = [f"x{k}" if a is not None else "" for k, a in enumerate(arrays)]
    inputs, constants = [], {}
    for k, (name, array) in enumerate(zip(names, arrays, strict=True)):
        if array is None:
            continue
        if k in known:
            constants[name] = array
            continue
        shape = [f"{name}_{d}" for d in range(array.ndim)] if dynamic else list(array.shape)
        inputs.append(info(name, shape, helper.np_dtype_to_tensor_dtype(array.dtype)))
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op, names, results, **(attrs or {}))
    declared = [helper.make_value_info(r, onnx.TypeProto()) for r in results]
    return model_of([node], inputs, declared, constants, opset=opset)


def run(module: Module, *arrays: np.ndarray) -> list[np.ndarray]:
    return evaluate_func(module.main, module, list(arrays))


def imported(model: onnx.ModelProto, *arrays: np.ndarray, **options: Any) -> list[np.ndarray]:
    """The outputs of the imported model, interpreted."""
    return run(load_onnx(model, **options), *arrays)


def reference(model: onnx.ModelProto, *arrays: np.ndarray) -> list[np.ndarray]:
    """The outputs by the ONNX package's own evaluator."""
    names = [i.name for i in model.graph.input]
    return ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))


def check(model: onnx.ModelProto, *arrays: np.ndarray, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Importing gives what the reference gives."""
    got, wanted = imported(model, *arrays), reference(model, *arrays)
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        expected = np.asarray(w)
        assert g.dtype == expected.dtype and g.shape == expected.shape, (
            g.dtype,
            g.shape,
            expected.dtype,
            expected.shape,
        )
        np.testing.assert_allclose(g.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol)
