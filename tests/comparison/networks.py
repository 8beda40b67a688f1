"""A residual network, and its quantised forms with a layer that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tilewright

CHANNELS = 8
BLOCKS = 2


def residual(seed: int = 0, blocks: int = BLOCKS) -> onnx.ModelProto:
    """A convolution, blocks of two convolutions with a way around them, and a product."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []

    def conv(name: str, data: str, channels: int) -> str:
        tensors[f"{name}.w"] = rng.standard_normal((CHANNELS, channels, 3, 3)) / np.sqrt(9 * channels)
        tensors[f"{name}.b"] = 0.1 * rng.standard_normal(CHANNELS)
        operands = [data, f"{name}.w", f"{name}.b"]
        nodes.append(helper.make_node("Conv", operands, [f"{name}.out"], name, pads=[1, 1, 1, 1]))
        return f"{name}.out"

    def relu(name: str, data: str) -> str:
        nodes.append(helper.make_node("Relu", [data], [f"{name}.out"], name))
        return f"{name}.out"

    x = relu("stem.relu", conv("stem", "x", 3))
    for k in range(blocks):
        inner = conv(f"block{k}.second", relu(f"block{k}.relu", conv(f"block{k}.first", x, CHANNELS)), CHANNELS)
        nodes.append(helper.make_node("Add", [x, inner], [f"block{k}.sum"], f"block{k}.add"))
        x = relu(f"block{k}.end", f"block{k}.sum")
    tensors["head.w"] = rng.standard_normal((CHANNELS, 8))
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["pooled"], "pool"))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"))
    nodes.append(helper.make_node("MatMul", ["flat", "head.w"], ["y"], "head"))
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def feeds(count: int = 3) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(7)
    return [{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


def activations(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """What the network computes of the first sample, by name."""
    return _activations(model.SerializeToString(deterministic=True))


@cache
def _activations(model: bytes) -> dict[str, np.ndarray]:
    copy = onnx.load_from_string(model)
    names = [name for node in copy.graph.node for name in node.output]
    del copy.graph.output[:]
    copy.graph.output.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names)
    feed = feeds(1)[0]
    return {**feed, **dict(zip(names, tilewright.compile(copy, cache=False, threads=1)(feed["x"]), strict=True))}


def quantised(
    model: onnx.ModelProto,
    wrong_weights: str = "",
    wrong_result: str = "",
    drop_relus: bool = False,
) -> onnx.ModelProto:
    """The network with quantised weights and inputs of its layers.

    The scale of the weights of the layer `wrong_weights`, and of the tensor `wrong_result`, is ten times too small.
    With `drop_relus` those after convolutions go: the ranges of what they gave limit it, and convolutions take the
    names of their results, as ONNX Runtime's quantiser has it.
    """
    values = activations(model)
    small = onnx.ModelProto()
    small.CopyFrom(model)
    nodes = list(model.graph.node)
    del small.graph.node[:]
    arrays = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    renamed: dict[str, str] = {}
    if drop_relus:
        producers = {name: node for node in nodes for name in node.output}
        gone = [n for n in nodes if n.op_type == "Relu" and producers[n.input[0]].op_type == "Conv"]
        renamed = {n.input[0]: n.output[0] for n in gone}
        nodes = [n for n in nodes if n.name not in {g.name for g in gone}]
    made: dict[str, str] = {}

    def constant(name: str, array: np.ndarray) -> str:
        small.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def rounded(name: str) -> str:
        """A tensor as the layers that read it see it."""
        if name not in made:
            low, high = min(values[name].min(), 0.0), max(values[name].max(), 0.0)
            scale = np.float32((high - low) / 255 / (10 if name == wrong_result else 1))
            zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
            operands = [constant(f"{name}_scale", np.asarray(scale)), constant(f"{name}_zero", np.asarray(zero))]
            q, dq = f"{name}_QuantizeLinear_Output", f"{name}_DequantizeLinear_Output"
            small.graph.node.append(helper.make_node("QuantizeLinear", [name, *operands], [q], f"{name}_q"))
            small.graph.node.append(helper.make_node("DequantizeLinear", [q, *operands], [dq], f"{name}_dq"))
            made[name] = dq
        return made[name]

    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.output[0] = renamed.get(node.output[0], node.output[0])
        if node.op_type in ("Conv", "MatMul", "Add"):
            copy.input[0] = rounded(node.input[0])
            if node.op_type == "Add":
                copy.input[1] = rounded(node.input[1])
            else:
                copy.input[1] = _weights(small, node, arrays, 10 if node.name == wrong_weights else 1)
        small.graph.node.append(copy)
    return small


def _weights(model: onnx.ModelProto, node: onnx.NodeProto, arrays: Mapping[str, np.ndarray], factor: int) -> str:
    name = node.input[1]
    w, axis = arrays[name], 0 if node.op_type == "Conv" else 1
    along = tuple(k for k in range(w.ndim) if k != axis)
    scale = (np.abs(w).max(axis=along) / 127).astype(np.float32)
    shape = [-1 if k == axis else 1 for k in range(w.ndim)]
    q = np.clip(np.rint(w / scale.reshape(shape)) + 128, 0, 255).astype(np.uint8)
    parts = ((q, "q"), (scale / np.float32(factor), "scale"), (np.full(len(scale), 128, np.uint8), "zero"))
    for array, what in parts:
        model.graph.initializer.append(numpy_helper.from_array(array, f"{name}_{what}"))
    operands = [f"{name}_{what}" for what in ("q", "scale", "zero")]
    model.graph.node.append(
        helper.make_node("DequantizeLinear", operands, [f"{name}_read"], f"{name}_dq", axis=axis)
    )
    return f"{name}_read"


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with other names of all that is computed, and of its nodes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    kept = {v.name for v in (*model.graph.input, *model.graph.output, *model.graph.initializer)}
    names: dict[str, str] = {}
    for node in copy.graph.node:
        node.name = f"n{len(names)}"
        for part in (node.input, node.output):
            for k, name in enumerate(part):
                if name and name not in kept:
                    part[k] = names.setdefault(name, f"t{len(names)}")
    return copy


def shortened(model: onnx.ModelProto, layer: str) -> onnx.ModelProto:
    """The network with one layer in float16."""
    small = onnx.ModelProto()
    small.CopyFrom(model)
    nodes = list(model.graph.node)
    del small.graph.node[:]
    for node in nodes:
        if node.name != layer:
            small.graph.node.append(node)
            continue
        short = [f"{name}.short" for name in node.input]
        for name, to in zip(node.input, short, strict=True):
            small.graph.node.append(helper.make_node("Cast", [name], [to], to=TensorProto.FLOAT16))
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        del copy.input[:]
        copy.input.extend(short)
        copy.output[0] = "sum.short"
        small.graph.node.append(copy)
        small.graph.node.append(helper.make_node("Cast", ["sum.short"], list(node.output), to=TensorProto.FLOAT))
    return small


def chains(wrong: int) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Two convolutions of floats, and by QLinearConv, where the scale of the weights of one is ten times too small."""
    rng = np.random.default_rng(0)
    shapes = ((8, 3, 3, 3), (8, 8, 3, 3))
    weights = [(rng.standard_normal(shape) / 5).astype(np.float32) for shape in shapes]
    io = (
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], "first"),
        helper.make_node("Conv", ["a", "w1"], ["y"], "second"),
    ]
    tensors = [numpy_helper.from_array(w, f"w{k}") for k, w in enumerate(weights)]
    floats = helper.make_model(
        helper.make_graph(nodes, "floats", *io, tensors),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    values = activations(floats)
    made: list[onnx.TensorProto] = []

    def parameters(name: str, factor: float = 1) -> list[str]:
        array = values[name] if name in values else weights[int(name[1:])]
        scale, kind = np.abs(array).max() / 127 / factor, np.uint8 if name in values else np.int8
        made.append(numpy_helper.from_array(np.asarray(scale, np.float32), f"{name}_scale"))
        made.append(numpy_helper.from_array(np.asarray(128 if name in values else 0, kind), f"{name}_zero"))
        return [f"{name}_scale", f"{name}_zero"]

    given = {name: parameters(name) for name in ("x", "a", "y")}
    for k, w in enumerate(weights):
        q = np.rint(w / (np.abs(w).max() / 127)).astype(np.int8)
        made.append(numpy_helper.from_array(q, f"w{k}_quantized"))
        given[f"w{k}"] = parameters(f"w{k}", 10 if k == wrong else 1)
    x, a, w0, w1 = ([f"{name}_quantized", *given[name]] for name in ("x", "a", "w0", "w1"))
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *given["x"]], ["x_quantized"], "begin"),
        helper.make_node("QLinearConv", [*x, *w0, *given["a"]], ["a_quantized"], "first"),
        helper.make_node("QLinearConv", [*a, *w1, *given["y"]], ["y_quantized"], "second"),
        helper.make_node("DequantizeLinear", ["y_quantized", *given["y"]], ["y"], "end"),
    ]
    integers = helper.make_model(
        helper.make_graph(nodes, "integers", *io, made),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    return floats, integers
