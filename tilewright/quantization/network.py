"""An ONNX model as quantisation sees it: layers with constant weights, the tensors that they read, units of choice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, version_converter

from tilewright.frontends.onnx.file import Source, read_model
from tilewright.ir.diag import ModelError, UnsupportedError

LAYERS = ("MatMul", "Gemm", "Conv")
"""Operators whose products with constant weights may be computed in smaller types."""

LEAST_OPSET = 13
"""Of QuantizeLinear and DequantizeLinear with a scale for each channel."""

BLOCK_OPSET = 21
"""Of 4-bit integers, and of scales for blocks."""


@dataclass(frozen=True)
class Layer:
    """A product with constant weights. `channel_axis` is the axis of the weights along which outputs lie, and
    `data_axis` that of the inputs along which the products are summed."""

    node: str
    operator: str
    data: str
    weight: str
    output: str
    bias: str | None
    channel_axis: int
    data_axis: int
    groups: int = 1

    def matrix(self, weights: np.ndarray) -> np.ndarray:
        """The weights as `[inputs, outputs]`; those of a convolution have all of a window as inputs."""
        if self.operator == "Conv":
            return np.asarray(weights.reshape(weights.shape[0], -1).T)
        return weights if self.channel_axis == 1 else np.asarray(weights.T)

    def from_matrix(self, matrix: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        if self.operator == "Conv":
            return np.ascontiguousarray(matrix.T).reshape(shape)
        return matrix if self.channel_axis == 1 else np.ascontiguousarray(matrix.T)


@dataclass(frozen=True)
class LayerGroup:
    """The layers that read one tensor: it is quantised once for all of them, so they are chosen together."""

    name: str
    data: str
    layers: tuple[Layer, ...]

    @property
    def data_axis(self) -> int:
        return self.layers[0].data_axis


class Network:
    """A model whose constants are initializers, with its layers; nodes have names that are unique."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model

    @classmethod
    def of(cls, model: onnx.ModelProto, opset: int) -> Network:
        """A copy of a model, at least of this opset. UnsupportedError where it cannot be converted to that."""
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        if version_of(copy) < opset:
            try:
                copy = version_converter.convert_version(copy, opset)
            except (
                Exception
            ) as error:  # the converter raises RuntimeError, and ValueError for what it does not know
                first, *_ = str(error).splitlines() or [""]
                raise UnsupportedError(
                    f"the model has opset {version_of(model)}, and cannot be converted to {opset}: {first}",
                    hint=f"export it again for opset {opset} or newer",
                ) from error
        _name_nodes(copy.graph)
        _constants_as_initializers(copy.graph)
        _fold_moves_of_weights(copy.graph)
        _fold_batch_normalization(copy.graph)
        return cls(copy)

    @property
    def graph(self) -> onnx.GraphProto:
        return self.model.graph

    def copy(self) -> Network:
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        return Network(model)

    @cached_property
    def initializers(self) -> dict[str, TensorProto]:
        return {tensor.name: tensor for tensor in self.graph.initializer}

    @cached_property
    def readers(self) -> Mapping[str, list[onnx.NodeProto]]:
        return readers_of(self.graph)

    @cached_property
    def producers(self) -> Mapping[str, onnx.NodeProto]:
        return {name: node for node in self.graph.node for name in node.output if name}

    @cached_property
    def outputs(self) -> frozenset[str]:
        return frozenset(output.name for output in self.graph.output)

    def array(self, name: str) -> np.ndarray:
        return np.asarray(numpy_helper.to_array(self.initializers[name]))

    def set_array(self, name: str, array: np.ndarray) -> None:
        """Give an initializer other elements."""
        self.initializers[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), name))

    @cached_property
    def units(self) -> tuple[LayerGroup, ...]:
        """In the order of the graph."""
        groups: dict[tuple[str, int], list[Layer]] = defaultdict(list)
        for layer in self._layers():
            groups[layer.data, layer.data_axis].append(layer)
        return tuple(LayerGroup(layers[0].node, data, tuple(layers)) for (data, _), layers in groups.items())

    @cached_property
    def left_alone(self) -> dict[str, str]:
        """Why nodes that multiply are no layers, by name."""
        known = {layer.node for layer in self._layers()}
        return {
            node.name: self._why_not(node) or "its form is not supported"
            for node in self.graph.node
            if node.op_type in _MULTIPLY and node.domain in _DEFAULT and node.name not in known
        }

    def _layers(self) -> Iterator[Layer]:
        for node in self.graph.node:
            if node.op_type in LAYERS and node.domain in _DEFAULT and not self._why_not(node):
                yield self._layer(node)

    def _why_not(self, node: onnx.NodeProto) -> str:
        if node.op_type not in LAYERS:
            return f"{node.op_type} is no kind of layer that is quantised"
        weight = self.initializers.get(node.input[1])
        if weight is None:
            if node.input[0] in self.initializers:
                return "the constant operand is the left one"
            return "its weights are not constant"
        if node.input[0] in self.initializers:
            return "both operands are constant"
        if weight.data_type != TensorProto.FLOAT:
            return f"its weights are {TensorProto.DataType.Name(weight.data_type).lower()}"
        if len(weight.dims) != 2 and node.op_type != "Conv":
            return "its weights are no matrix"
        if attribute(node, "transA", 0):
            return "its left operand is transposed"
        if node.op_type == "Gemm" and attribute(node, "alpha", 1.0) != 1.0:
            return "its products are scaled"
        if not all(weight.dims):
            return "it has no weights"
        if not np.isfinite(self.array(weight.name)).all():
            return "its weights are not finite"
        return ""

    def _layer(self, node: onnx.NodeProto) -> Layer:
        data, weight = node.input[:2]
        bias = node.input[2] if len(node.input) > 2 and node.input[2] in self.initializers else None
        if node.op_type == "MatMul":
            bias = self._added(node.output[0], self.initializers[weight].dims[1])
        is_conv = node.op_type == "Conv"
        turned = node.op_type == "Gemm" and bool(attribute(node, "transB", 0))
        return Layer(
            node.name,
            node.op_type,
            data,
            weight,
            node.output[0],
            bias,
            0 if is_conv or turned else 1,
            1 if is_conv else -1,
            int(attribute(node, "group", 1)) if is_conv else 1,
        )

    def _added(self, product: str, channels: int) -> str | None:
        """The constant that is all that is done to a product but for what follows its sum."""
        readers = self.readers.get(product, [])
        if len(readers) != 1 or readers[0].op_type != "Add" or product in self.outputs:
            return None
        other = next((name for name in readers[0].input if name != product), None)
        tensor = None if other is None else self.initializers.get(other)
        is_bias = (
            tensor is not None and list(tensor.dims) == [channels] and tensor.data_type == TensorProto.FLOAT
        )
        return other if is_bias else None


_DEFAULT = ("", "ai.onnx")
_MULTIPLY = (*LAYERS, "ConvTranspose", "LSTM", "GRU", "RNN", "Einsum", "Attention")


def version_of(model: onnx.ModelProto) -> int:
    """Of the default operator set."""
    return max((o.version for o in model.opset_import if o.domain in _DEFAULT), default=1)


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def outer_names(node: onnx.NodeProto) -> Iterator[str]:
    """Names of values that a node reads, also in its subgraphs (some of which these define themselves)."""
    yield from (name for name in node.input if name)
    for a in node.attribute:
        for graph in ([a.g] if a.HasField("g") else []) + list(a.graphs):
            yield from (output.name for output in graph.output)
            for inner in graph.node:
                yield from outer_names(inner)


def names_of(graph: onnx.GraphProto) -> set[str]:
    """All names of values, so that new ones can differ."""
    found = {v.name for v in (*graph.input, *graph.output, *graph.initializer)}
    for node in graph.node:
        found.update((*node.output, *outer_names(node)))
    return found


def readers_of(graph: onnx.GraphProto) -> Mapping[str, list[onnx.NodeProto]]:
    """The nodes that read each tensor, those whose bodies read it included, in order."""
    found: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in dict.fromkeys(outer_names(node)):
            found[name].append(node)
    return found


def whole_model(source: Source) -> onnx.ModelProto:
    """A model of one's own, with the weights that lie in files beside it. ModelError where these cannot be read."""
    model, folder = read_model(source)
    if isinstance(source, onnx.ModelProto):
        model = onnx.ModelProto()
        model.CopyFrom(source)
    try:
        if folder is not None:
            onnx.load_external_data_for_model(model, str(folder))
    except Exception as error:
        raise ModelError(f"the model's external data cannot be read: {error}", where=str(folder)) from error
    return model


def _name_nodes(graph: onnx.GraphProto) -> None:
    taken: set[str] = set()
    for index, node in enumerate(graph.node):
        name = node.name or (node.output[0] if node.output else "") or f"{node.op_type}_{index}"
        base, count = name, 1
        while name in taken:
            count += 1
            name = f"{base}:{count}"
        node.name = name
        taken.add(name)


def _constants_as_initializers(graph: onnx.GraphProto) -> None:
    """Constant nodes of tensors; default values of inputs are no constants."""
    given = {value.name for value in graph.input}
    names = {i.name for i in graph.initializer if i.name in given}
    for value in [v for v in graph.input if v.name in names]:
        graph.input.remove(
            value
        )  # nobody gives a weight with a call; a model that says so was exported long ago
    for node in [n for n in graph.node if n.op_type == "Constant" and n.domain in _DEFAULT]:
        value = attribute(node, "value", None)
        if isinstance(value, TensorProto):
            tensor = graph.initializer.add()
            tensor.CopyFrom(value)
            tensor.name = node.output[0]
            graph.node.remove(node)


def _fold_moves_of_weights(graph: onnx.GraphProto) -> None:
    """Transposed and renamed constants become constants."""
    arrays = {tensor.name: tensor for tensor in graph.initializer}
    for node in [n for n in graph.node if n.op_type in ("Identity", "Transpose")]:
        tensor = arrays.get(node.input[0]) if node.input else None
        if tensor is None or tensor.data_type != TensorProto.FLOAT:
            continue
        if node.output[0] in {o.name for o in graph.output}:
            continue
        array = numpy_helper.to_array(tensor)
        if node.op_type == "Transpose":
            array = np.ascontiguousarray(array.transpose(attribute(node, "perm", None)))
        graph.node.remove(node)
        arrays[node.output[0]] = graph.initializer.add()
        arrays[node.output[0]].CopyFrom(numpy_helper.from_array(array, node.output[0]))


def _fold_batch_normalization(graph: onnx.GraphProto) -> None:
    """A normalisation by constants after a convolution goes into its weights and bias."""
    network = Network(_model_of(graph))
    for node in [n for n in graph.node if n.op_type == "BatchNormalization"]:
        conv = network.producers.get(node.input[0])
        if (
            conv is None
            or conv.op_type != "Conv"
            or len(node.output) != 1
            or node.input[0] in network.outputs
        ):
            continue
        constants = [*node.input[1:5], *conv.input[1:]]
        is_alone = len(network.readers[node.input[0]]) == 1 and len(network.readers[conv.input[1]]) == 1
        if not is_alone or any(name not in network.initializers for name in constants):
            continue
        scale, shift, mean, variance = (network.array(name).astype(np.float64) for name in node.input[1:5])
        factor = scale / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
        weights = network.array(conv.input[1]).astype(np.float64)
        bias = (
            network.array(conv.input[2]).astype(np.float64) if len(conv.input) > 2 and conv.input[2] else 0.0
        )
        folded = weights * factor.reshape(-1, *[1] * (weights.ndim - 1))
        network.set_array(conv.input[1], folded.astype(np.float32))
        name = f"{conv.name}:folded bias"
        graph.initializer.append(
            numpy_helper.from_array(((bias - mean) * factor + shift).astype(np.float32), name)
        )
        del conv.input[2:]
        conv.input.append(name)
        conv.output[0] = node.output[0]
        graph.node.remove(node)


class _Holder:
    """A graph in place, as a model: messages of protobuf copy what is put into them."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph


def _model_of(graph: onnx.GraphProto) -> Any:
    return _Holder(graph)
