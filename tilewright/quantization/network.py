"""A graph as quantisation sees it: layers with constant weights, the values that they read, units of choice."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from tilewright.compilation import Compilation
from tilewright.exporters.onnx.whole import whole_composites
from tilewright.graph.match import is_constant, sole_user
from tilewright.graph.pipeline import constant_weights
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Op, Value, free_name
from tilewright.ir.diag import Loc
from tilewright.ops.quant import INTEGERS
from tilewright.ops.traits.derive import product_of, traits_of
from tilewright.ops.traits.facts import Product
from tilewright.quantization.methods.windows import Windows
from tilewright.requested import import_graph


def read_graph(model: Any) -> Module:
    """The graph of a model of any format, in the operators that other engines know, but for normalisations by
    constants, which are factors of weights."""
    return import_graph(model, whole=whole_composites() - {"batch_norm"})


@dataclass(frozen=True)
class Layer:
    """A product with constant weights: the name and the operator of its `node`, and the `op` that multiplies.
    `channel_axis` is the axis of the weights along which outputs lie, and `data_axis` that of the inputs along which
    the products are summed. `bias` is a constant that an op, the `adder`, adds to each channel of the product, and
    nobody else sees the product before. Of a convolution there are `windows`."""

    node: str
    operator: str
    op: Op
    weight: str
    shape: tuple[int, ...]
    channel_axis: int
    data_axis: int
    windows: Windows | None = None
    bias: str | None = None
    adder: Op | None = None

    @property
    def groups(self) -> int:
        return 1 if self.windows is None else self.windows.groups

    @property
    def channels(self) -> int:
        """Of the outputs."""
        return self.shape[self.channel_axis]

    @property
    def inputs(self) -> int:
        """Channels of what is read, along `data_axis`."""
        return self.shape[1 - self.channel_axis] * self.groups

    @property
    def width(self) -> int:
        """Elements that each sum reads of all groups: the length of a row."""
        return self.inputs * prod(self.shape[2:])

    @property
    def result(self) -> Value:
        """The sums, with the bias."""
        return self.op.result if self.adder is None else self.adder.result

    def along_channels(self, vector: np.ndarray) -> np.ndarray:
        """A number for each channel of what is read or given, as it broadcasts against that."""
        return vector.reshape(-1, *[1] * (len(self.shape) - 2)) if self.windows is not None else vector

    def matrix(self, weights: np.ndarray) -> np.ndarray:
        """The weights as `[inputs, outputs]`; those of a convolution have all of a window as inputs."""
        if self.windows is not None:
            return np.asarray(weights.reshape(weights.shape[0], -1).T)
        return weights if self.channel_axis == 1 else np.asarray(weights.T)

    def from_matrix(self, matrix: np.ndarray) -> np.ndarray:
        if self.windows is not None:
            return np.ascontiguousarray(matrix.T).reshape(self.shape)
        return matrix if self.channel_axis == 1 else np.ascontiguousarray(matrix.T)


@dataclass(frozen=True)
class LayerGroup:
    """The layers that read one value: it is quantised once for all of them, so they are chosen together."""

    name: str
    data: Value
    layers: tuple[Layer, ...]

    @property
    def data_axis(self) -> int:
        return self.layers[0].data_axis


class Network:
    """A graph whose weights are constants, with its layers; their nodes have names that are unique."""

    def __init__(self, module: Module) -> None:
        self.module = module

    @classmethod
    def of(cls, graph: Module) -> Network:
        """A copy of a graph, prepared."""
        prepared = Compilation.by_default(graph.copy()).apply(constant_weights())
        _name_layers(prepared.module)
        return cls(prepared.module)

    def copy(self) -> Network:
        return Network(self.module.copy())

    def array(self, name: str) -> np.ndarray:
        return self.module.constants[name]

    def set_array(self, name: str, array: np.ndarray) -> None:
        """Give a constant other elements."""
        self.module.constants[name] = np.ascontiguousarray(array)

    @cached_property
    def units(self) -> tuple[LayerGroup, ...]:
        """In the order of the graph."""
        groups: dict[tuple[Value, int], list[Layer]] = defaultdict(list)
        for op in self.module.main.body.ops:
            if traits_of(op).sums_products and not self._why_not(op):
                layer = self._layer(op)
                groups[op.operands[0], layer.data_axis].append(layer)
        return tuple(LayerGroup(layers[0].node, data, tuple(layers)) for (data, _), layers in groups.items())

    @cached_property
    def left_alone(self) -> dict[str, str]:
        """Why ops that multiply are no layers, by node."""
        known = {layer.node for unit in self.units for layer in unit.layers}
        return {
            op.loc.node: self._why_not(op)
            for op in self.module.main.body.ops
            if traits_of(op).sums_products and op.loc.node not in known
        }

    @cached_property
    def _recurrent(self) -> frozenset[Loc]:
        return _recurrent(self.module)

    def _why_not(self, op: Op) -> str:
        product = product_of(op)
        if product is None or not _is_layer(op, product) or op.loc in self._recurrent:
            return f"{op.loc.op or op.name} is no kind of layer that is quantised"
        data, weights = op.operands[product.data], op.operands[product.weights]
        if not is_constant(weights):
            return "the constant operand is the left one" if is_constant(data) else "its weights are not constant"
        if is_constant(data):
            return "both operands are constant"
        type = weights.tensor
        if type.dtype != dt.f32:
            return f"its weights are {type.dtype}"
        if type.rank != 2 and product.of_matrices:
            return "its weights are no matrix"
        if product.turns_data:
            return "its left operand is transposed"
        if not all(d != 0 for d in type.shape):
            return "it has no weights"
        array = self._stored(weights)
        if array is None:
            return "its weights are all one number"
        return "" if np.isfinite(array).all() else "its weights are not finite"

    def _stored(self, value: Value) -> np.ndarray | None:
        name = None if value.op is None else value.op.attrs.get("name")
        return None if name is None else self.module.constants[name]

    def _layer(self, op: Op) -> Layer:
        product = product_of(op)
        assert product is not None
        weights = op.operands[product.weights]
        shape = tuple(d.value for d in weights.tensor.shape)
        assert weights.op is not None
        layer = Layer(
            op.loc.node, op.loc.op or op.name, op, weights.op.attrs["name"], shape, product.kept,
            -1 if product.of_matrices else product.depth,
            None if product.of_matrices else Windows.of(op, shape[2:]),
        )  # fmt: skip
        adder = sole_user(op.result)
        bias = None if adder is None else self._bias(adder, layer)
        return layer if bias is None else replace(layer, bias=bias, adder=adder)

    def _bias(self, adder: Op, layer: Layer) -> str | None:
        """The constant that is all that is done to a product but for what follows its sum."""
        if adder.name != "add" or adder.result.type != layer.op.result.type:
            return None
        other = next((v for v in adder.operands if v is not layer.op.result), None)
        array = None if other is None else self._stored(other)
        if other is None or other.op is None or array is None:
            return None
        wanted = layer.along_channels(np.empty(layer.channels)).shape
        is_bias = array.size == layer.channels and array.shape[-len(wanted) :] == wanted
        return str(other.op.attrs["name"]) if is_bias else None


def _is_layer(op: Op, product: Product) -> bool:
    """Whether products with constant weights may be computed in smaller types."""
    return product.is_plain and (product.of_matrices or INTEGERS.of(op) is not None)


def _recurrent(module: Module) -> frozenset[Loc]:
    """The places of recurrent layers, of which products with what they read are parts."""
    return frozenset(op.loc for op in module.main.body.ops if traits_of(op).has_state)


def _name_layers(module: Module) -> None:
    """Give ops that multiply names of nodes that no other layer has."""
    taken: set[str] = set()
    recurrent = _recurrent(module)
    for op in module.main.body.ops:
        if traits_of(op).sums_products and op.loc not in recurrent:
            results = (value.name for value in op.results if value.name)
            base = op.loc.node or next(results, op.loc.value or op.loc.op or op.name)
            name = free_name(base, taken)
            op.loc = replace(op.loc, node=name)
            taken.add(name)
