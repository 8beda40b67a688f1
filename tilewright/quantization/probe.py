"""One compiled model for all quantised forms: what is rounded, and how, comes with the call.

To judge a hundred forms of a model one would have to compile a hundred models. In the probe the weights of the layers
are inputs, and so are the parameters by which what they read is rounded; any form is a call with other values.
Rounding, clipping and scales are those of QuantizeLinear and DequantizeLinear, and products are summed in floats: the
same numbers as those of integers, but for the rounding of float32 sums.

    x * smooth -> / scale -> round -> clip -> * scale -> (where on) -> product with given weights -> + shift
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper

from tilewright.api import compile as compile_model
from tilewright.quantization.methods.integers import QParameters
from tilewright.quantization.network import Layer, LayerGroup, Network
from tilewright.runtime import Model

Outputs = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class LayerForm:
    """What becomes of a layer: its weights as float32 (rounded, and times `UnitForm.smooth`), and what is added to its
    outputs, for each channel."""

    weights: np.ndarray
    shift: np.ndarray | None = None


@dataclass(frozen=True)
class UnitForm:
    """What becomes of the layers that read a tensor: which kind of type they have, the parameters by which the tensor
    is rounded (None: it is not), and factors of its channels before that."""

    kind: str
    layers: Mapping[str, LayerForm] = field(repr=False)
    activation: QParameters | None = None
    smooth: np.ndarray | None = None
    """Factors of the channels of what is read; the weights have their reciprocals."""


class Probe:
    """The compiled probe of a network."""

    def __init__(self, network: Network, threads: int | None) -> None:
        self._network = network
        model, self._defaults = _built(network)
        self._model = compile_model(model, threads=threads, cache=False)
        self._numbers = {unit.name: i for i, unit in enumerate(network.units)}

    def runner(self, forms: Mapping[str, UnitForm]) -> Callable[[Mapping[str, np.ndarray]], Outputs]:
        """The model with these units in these forms and all others in float32, to be called with feeds."""
        values = dict(self._defaults)
        for unit in self._network.units:
            if unit.name in forms:
                values.update(self._values(unit, forms[unit.name]))
        names = [info.name for info in self._model.inputs]

        def run(feed: Mapping[str, np.ndarray]) -> Outputs:
            return self._model(*[values[n] if n in values else feed[n] for n in names])

        return run

    def _values(self, unit: LayerGroup, form: UnitForm) -> dict[str, np.ndarray]:
        number = self._numbers[unit.name]
        found: dict[str, np.ndarray] = {}
        if form.activation is not None:
            zero, kind = int(form.activation.zero_point), form.activation.type
            found[f"q:{number}:on"] = np.asarray(True)
            found[f"q:{number}:scale"] = np.asarray(form.activation.scale, np.float32)
            found[f"q:{number}:low"] = np.asarray(kind.low - zero, np.float32)
            found[f"q:{number}:high"] = np.asarray(kind.high - zero, np.float32)
        if form.kind == "bf16":
            found[f"q:{number}:bf16"] = np.asarray(True)
        if form.smooth is not None:
            found[f"q:{number}:smooth"] = _along(form.smooth, unit.data_axis, self._defaults, number)
        for index, layer in enumerate(unit.layers):
            made = form.layers[layer.node]
            found[f"q:{number}:{index}:w"] = np.asarray(made.weights, np.float32)
            if made.shift is not None:
                shape = self._defaults[f"q:{number}:{index}:b"].shape
                found[f"q:{number}:{index}:b"] = np.asarray(made.shift, np.float32).reshape(shape)
        return found


def _along(factors: np.ndarray, axis: int, defaults: Mapping[str, np.ndarray], number: int) -> np.ndarray:
    return np.asarray(factors, np.float32).reshape(defaults[f"q:{number}:smooth"].shape)


def data_channels(network: Network, unit: LayerGroup) -> int:
    """Channels of what a unit reads, along `data_axis`."""
    layer = unit.layers[0]
    shape = network.initializers[layer.weight].dims
    return int(shape[1] * layer.groups if layer.operator == "Conv" else shape[1 - layer.channel_axis])


def _built(network: Network) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    copy = network.copy()
    graph, defaults = copy.graph, dict[str, np.ndarray]()
    nodes = {node.name: node for node in graph.node}
    before: dict[str, list[onnx.NodeProto]] = {}
    after: dict[str, list[onnx.NodeProto]] = {}

    def given(name: str, value: np.ndarray) -> str:
        defaults[name] = value
        kind = TensorProto.BOOL if value.dtype == np.bool_ else TensorProto.FLOAT
        graph.input.append(helper.make_tensor_value_info(name, kind, list(value.shape)))
        return name

    for number, unit in enumerate(network.units):
        key = f"q:{number}"
        channels = data_channels(network, unit)
        is_conv = unit.layers[0].operator == "Conv"
        space = len(network.initializers[unit.layers[0].weight].dims) - 2
        smooth = given(
            f"{key}:smooth", np.ones((channels, *[1] * space) if is_conv else (channels,), np.float32)
        )
        steps = [
            ("Mul", [unit.data, smooth], "x"),
            ("Div", [f"{key}.x", given(f"{key}:scale", np.asarray(1, np.float32))], "steps"),
            ("Round", [f"{key}.steps"], "rounded"),
            ("Max", [f"{key}.rounded", given(f"{key}:low", np.asarray(-1, np.float32))], "above"),
            ("Min", [f"{key}.above", given(f"{key}:high", np.asarray(1, np.float32))], "clipped"),
            ("Mul", [f"{key}.clipped", f"{key}:scale"], "integers"),
            ("Where", [given(f"{key}:on", np.asarray(False)), f"{key}.integers", f"{key}.x"], "either"),
            ("Cast", [f"{key}.either"], "short"),
            ("Cast", [f"{key}.short"], "long"),
            ("Where", [given(f"{key}:bf16", np.asarray(False)), f"{key}.long", f"{key}.either"], "read"),
        ]
        made = [helper.make_node(op, names, [f"{key}.{to}"], f"{key}.{to}") for op, names, to in steps]
        made[7].attribute.append(helper.make_attribute("to", TensorProto.BFLOAT16))
        made[8].attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
        before[unit.layers[0].node] = made
        for index, layer in enumerate(unit.layers):
            node = nodes[layer.node]
            node.input[0] = f"{key}.read"
            node.input[1] = given(f"{key}:{index}:w", network.array(layer.weight))
            count = channels_of(network, layer)
            shift = given(
                f"{key}:{index}:b", np.zeros((count, *[1] * space) if is_conv else (count,), np.float32)
            )
            node.output[0] = f"{key}.{index}.sum"
            after[layer.node] = [
                helper.make_node("Add", [node.output[0], shift], [layer.output], f"{key}.{index}.shifted")
            ]
    ordered = [
        n for node in graph.node for n in (*before.get(node.name, ()), node, *after.get(node.name, ()))
    ]
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered]
    del graph.node[:]
    graph.node.extend(kept)
    _drop_unread(graph)
    return copy.model, defaults


def channels_of(network: Network, layer: Layer) -> int:
    return int(network.initializers[layer.weight].dims[layer.channel_axis])


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Initializers that nothing reads any more."""
    read = {name for node in graph.node for name in _all_inputs(node)} | {o.name for o in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    if len(kept) < len(graph.initializer):
        copies = [onnx.TensorProto.FromString(t.SerializeToString()) for t in kept]
        del graph.initializer[:]
        graph.initializer.extend(copies)


def _all_inputs(node: onnx.NodeProto) -> Iterable[str]:
    yield from node.input
    for a in node.attribute:
        for graph in ([a.g] if a.HasField("g") else []) + list(a.graphs):
            yield from (output.name for output in graph.output)
            for inner in graph.node:
                yield from _all_inputs(inner)


class Tap:
    """A compiled model that also gives what its layers read."""

    def __init__(self, network: Network, threads: int | None) -> None:
        copy = network.copy()
        given = {value.name for value in copy.graph.input}
        self._own = len(copy.graph.output)
        present = {output.name for output in copy.graph.output}
        self.taps = list(dict.fromkeys(u.data for u in network.units if u.data not in given | present))
        for name in self.taps:
            copy.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        self._outputs = [output.name for output in copy.graph.output]
        self.model: Model = compile_model(copy.model, threads=threads, cache=False)

    def __call__(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Tensors by name: inputs, outputs, and what layers read."""
        found = self.model(*[feed[info.name] for info in self.model.inputs])
        return {**feed, **dict(zip(self._outputs, found, strict=True))}
