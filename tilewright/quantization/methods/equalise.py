"""Equalising weights across two layers (Nagel et al., 2019).

Where only a function f with f(s x) = s f(x) stands between two layers, a channel may be divided by any positive number
in the first and multiplied by it in the second. The number sqrt(r1 * r2) / r2, of the largest weights r1 and r2 of the
channel on both sides, makes the ranges of both the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.quantization.network import Layer, Network

HOMOGENEOUS = {
    "Relu",
    "LeakyRelu",
    "MaxPool",
    "AveragePool",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "Identity",
    "Dropout",
}
"""Operators on each channel by itself that a positive factor passes through."""

LIMIT = 1e3
"""Factors are between its reciprocal and this."""


@dataclass(frozen=True)
class Pair:
    """Two layers between which channels can be scaled, and the constant that is added between them, if any."""

    first: Layer
    second: Layer
    bias: str | None


def pairs(network: Network) -> tuple[Pair, ...]:
    """All pairs whose tensors in between have no other reader, and whose weights are theirs alone."""
    by_data: dict[str, list[Layer]] = {}
    for unit in network.units:
        by_data.setdefault(unit.data, []).extend(unit.layers)
    found = []
    for unit in network.units:
        for layer in unit.layers:
            second = _second(network, layer, by_data)
            if second is not None and _is_alone(network, layer) and _is_alone(network, second):
                found.append(Pair(layer, second, layer.bias))
    return tuple(found)


def _second(network: Network, layer: Layer, by_data: dict[str, list[Layer]]) -> Layer | None:
    value = layer.output
    for _ in range(8):
        readers = network.readers.get(value, [])
        if len(readers) != 1 or value in network.outputs:
            return None
        if value in by_data:
            (node,) = readers
            found = next((x for x in by_data[value] if x.node == node.name), None)
            both = None if found is None else {layer.operator == "Conv", found.operator == "Conv"}
            return found if both is not None and len(both) == 1 else None
        (node,) = readers
        is_bias = node.op_type == "Add" and layer.bias is not None and layer.bias in node.input
        if node.op_type not in HOMOGENEOUS and not is_bias:
            return None
        value = node.output[0]
    return None


def _is_alone(network: Network, layer: Layer) -> bool:
    constants = [layer.weight] + ([layer.bias] if layer.bias else [])
    node = next(n for n in network.graph.node if n.name == layer.node)
    has_other_bias = len(node.input) > 2 and node.input[2] != "" and node.input[2] != layer.bias
    return not has_other_bias and all(len(network.readers[name]) == 1 for name in constants)


def factors(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """What each channel of the first layer is divided by, from the largest weights on both sides."""
    both = (first > 0) & (second > 0)
    a, b = np.where(both, first, 1.0).astype(np.float64), np.where(both, second, 1.0).astype(np.float64)
    return np.asarray(np.where(both, np.clip(np.sqrt(a * b) / b, 1 / LIMIT, LIMIT), 1.0), np.float32)


def equalised(network: Network, rounds: int = 2) -> tuple[Network, tuple[Pair, ...]]:
    """A copy with all pairs equalised, each in its turn, and which they were."""
    copy = network.copy()
    found = pairs(copy)
    for _ in range(rounds):
        for pair in found:
            _equalise(copy, pair)
    return copy, found


def _equalise(network: Network, pair: Pair) -> None:
    first, second = network.array(pair.first.weight), network.array(pair.second.weight)
    outputs = np.moveaxis(first, pair.first.channel_axis, 0).reshape(first.shape[pair.first.channel_axis], -1)
    groups = pair.second.groups
    if pair.second.operator == "Conv":
        inputs = second.reshape(groups, second.shape[0] // groups, second.shape[1], -1)
        largest = np.abs(inputs).max(axis=(1, 3)).reshape(-1)
    else:
        largest = np.abs(pair.second.matrix(second)).max(axis=1)
    if len(largest) != len(outputs):
        return
    scale = factors(np.abs(outputs).max(axis=1), largest)
    shape = [1] * first.ndim
    shape[pair.first.channel_axis] = -1
    network.set_array(pair.first.weight, first / scale.reshape(shape))
    if pair.bias is not None:
        network.set_array(pair.bias, network.array(pair.bias) / scale)
    if pair.second.operator == "Conv":
        space = [1] * (second.ndim - 2)
        by_group = scale.reshape(groups, 1, second.shape[1], *space)
        scaled = second.reshape(groups, -1, *second.shape[1:]) * by_group
        network.set_array(pair.second.weight, scaled.reshape(second.shape))
    else:
        matrix = pair.second.matrix(second) * scale[:, None]
        network.set_array(pair.second.weight, pair.second.from_matrix(matrix, second.shape))
