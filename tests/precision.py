"""How far models are from exact results in each floating-point type: `python -m tests.precision MODEL.onnx ...`.

A model in float32 is converted, weights, constants and declared types, to float64, float16 and bfloat16. What the
compiled models give is compared with the compiled float64 model of the same weights and inputs (rounded to the type
before), and that one, of the weights as they are, with the float64 results of another program.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper, version_converter

import tilewright
from tilewright.options import Options

KEEPS_FLOAT: Mapping[str, tuple[int, ...]] = {"Resize": (1, 2), "Upsample": (1,), "Range": (0, 1, 2)}
"""Operands that are of float32 whatever the others are of."""
TYPES = {"float64": np.dtype(np.float64), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def converted(model: onnx.ModelProto, dtype: np.dtype, rounded: np.dtype | None = None) -> onnx.ModelProto:
    """The model with all float32 in `dtype`, its weights rounded to another one before."""
    made, code = onnx.ModelProto(), helper.np_dtype_to_tensor_dtype(dtype)
    made.CopyFrom(model)
    kept = {
        node.input[k] for node in made.graph.node for k in KEEPS_FLOAT.get(node.op_type, ()) if k < len(node.input)
    }

    def tensor(proto: TensorProto) -> None:
        if proto.data_type == TensorProto.FLOAT and proto.name not in kept:
            array = numpy_helper.to_array(proto)
            array = (array if rounded is None else array.astype(rounded)).astype(dtype)
            proto.CopyFrom(numpy_helper.from_array(array, proto.name))

    def graph(g: onnx.GraphProto) -> None:
        for proto in g.initializer:
            tensor(proto)
        for info in (*g.input, *g.output):
            if info.type.tensor_type.elem_type == TensorProto.FLOAT:
                info.type.tensor_type.elem_type = code
        del g.value_info[:]
        for node in g.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.TENSOR and node.output[0] not in kept:
                    tensor(attribute.t)
                elif attribute.type == onnx.AttributeProto.GRAPH:
                    graph(attribute.g)
                elif attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
                    attribute.i = code

    graph(made.graph)
    return made


def results(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    run = tilewright.compile(model.SerializeToString(), options=Options(cache=False, threads=1))
    return list(run(*[inputs[i.name] for i in run.inputs]))


def by_onnxruntime(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    """Without optimisations, which would leave out conversions."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        return list(session.run(None, dict(inputs)))
    except Exception:  # it has no kernels for that
        return None


def rounding(model: onnx.ModelProto, dtype: np.dtype) -> onnx.ModelProto:
    """The model in float32, with weights, inputs and what each node gives rounded to `dtype`: sums are of float32, and
    what is stored has the type."""
    made = converted(model, np.dtype(np.float32), dtype)
    nodes, code = [], helper.np_dtype_to_tensor_dtype(dtype)
    known = onnx.shape_inference.infer_shapes(made).graph.value_info
    floats = {v.name for v in known if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    for node in made.graph.node:
        nodes.append(node)
        for k, name in enumerate(node.output):
            if name in floats:
                node.output[k] = f"{name} exact"
                nodes.append(helper.make_node("Cast", [f"{name} exact"], [f"{name} stored"], to=code))
                nodes.append(helper.make_node("Cast", [f"{name} stored"], [name], to=TensorProto.FLOAT))
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def cast(inputs: Mapping[str, np.ndarray], dtype: np.dtype) -> dict[str, np.ndarray]:
    return {n: x.astype(dtype) if x.dtype.kind == "f" or x.dtype in TYPES.values() else x for n, x in inputs.items()}


def errors(found: list[Any] | None, exact: list[Any]) -> str:
    """The greatest and the mean difference, as shares of the greatest exact element."""
    if found is None:
        return "-"
    worst, total, count = 0.0, 0.0, 0
    for a, b in zip(found, exact, strict=True):
        scale = np.abs(b).max()
        off = np.abs(np.asarray(a).astype(np.float64) - b) / scale
        worst, total, count = max(worst, off.max()), total + off.sum(), count + off.size
    return f"{worst:.1e} / {total / count:.1e}"


def main() -> None:
    """Beside a model lies a file of arrays: its inputs as `in::NAME`, and float64 results of another program as
    `ref64::0`, ..., where there are any."""
    print("greatest / mean difference from float64, as shares of the greatest element")
    for path in sys.argv[1:]:
        model, stored = onnx.load(path), np.load(Path(path).with_suffix(".npz"))
        inputs = {i.name: np.asarray(stored[f"in::{i.name}"]) for i in model.graph.input if f"in::{i.name}" in stored}
        names = [name for name in stored if name.startswith("ref64::")]
        given = [np.asarray(stored[name]) for name in sorted(names, key=lambda n: int(n.split("::")[1]))]
        wide = TYPES["float64"]
        exact = results(converted(model, wide), cast(inputs, wide))
        print(f"{Path(path).stem}: the given float64 results {errors(given or None, exact[: len(given)])}")
        ours, theirs = results(model, inputs), by_onnxruntime(model, inputs)
        print(f"  float32: {errors(ours, exact)}; ONNX Runtime {errors(theirs, exact)}", flush=True)
        for name in ("float16", "bfloat16"):
            newer = version_converter.convert_version(model, 22) if name == "bfloat16" else model
            small = cast(inputs, TYPES[name])
            exact = results(converted(newer, wide, TYPES[name]), cast(small, wide))
            ours = results(converted(newer, TYPES[name]), small)
            theirs = by_onnxruntime(rounding(newer, TYPES[name]), cast(small, np.dtype(np.float32)))
            print(f"  {name}: {errors(ours, exact)}; each result rounded {errors(theirs, exact)}", flush=True)


if __name__ == "__main__":
    main()
