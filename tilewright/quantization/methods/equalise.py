"""Equalising weights across two layers (Nagel et al., 2019).

Where only a function f with f(s x) = s f(x) stands between two layers, a channel may be divided by any positive number
in the first and multiplied by it in the second. The number sqrt(r1 * r2) / r2, of the largest weights r1 and r2 of the
channel on both sides, makes the ranges of both the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.graph.match import sole_user, uniform_number
from tilewright.ir.core import Module, Op
from tilewright.ops.traits.scaling import axis_of_factors
from tilewright.quantization.network import Layer, Network

MOST_BETWEEN = 8
"""Ops between two layers."""

LIMIT = 1e3
"""Factors are between its reciprocal and this."""


@dataclass(frozen=True)
class Pair:
    """Two layers between which channels can be scaled."""

    first: Layer
    second: Layer


def pairs(network: Network) -> tuple[Pair, ...]:
    """All pairs whose values in between have no other reader, and whose weights are theirs alone."""
    layers = {layer.op: layer for unit in network.units for layer in unit.layers}
    found = []
    for layer in layers.values():
        second = _second(network.module, layer, layers)
        if second is not None and _is_alone(layer) and _is_alone(second):
            found.append(Pair(layer, second))
    return tuple(found)


def _second(module: Module, layer: Layer, layers: Mapping[Op, Layer]) -> Layer | None:
    """The layer that reads the channels of another one through ops that leave factors of these as they are."""
    value, axis = layer.result, layer.data_axis % layer.result.tensor.rank
    for _ in range(MOST_BETWEEN):
        reader = sole_user(value)
        if reader is None or not reader.results:
            return None
        found = layers.get(reader)
        if found is not None:
            is_read_there = found.data_axis % value.tensor.rank == axis
            return found if is_read_there and (found.windows is None) == (layer.windows is None) else None
        if reader.operands[0] is not value:
            return None
        into = axis_of_factors(reader, axis, lambda v: uniform_number(v, module))
        if into is None:
            return None
        value, axis = reader.result, into
    return None


def _is_alone(layer: Layer) -> bool:
    constants = [layer.op.operands[1]]
    if layer.adder is not None:
        constants += [v for v in layer.adder.operands if v is not layer.op.result]
    return all(len(value.users) == 1 for value in constants)


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
    if pair.second.windows is not None:
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
    if pair.first.bias is not None:
        bias = network.array(pair.first.bias)
        network.set_array(pair.first.bias, bias / scale.reshape(bias.shape))
    if pair.second.windows is not None:
        space = [1] * (second.ndim - 2)
        by_group = scale.reshape(groups, 1, second.shape[1], *space)
        scaled = second.reshape(groups, -1, *second.shape[1:]) * by_group
        network.set_array(pair.second.weight, scaled.reshape(second.shape))
    else:
        matrix = pair.second.matrix(second) * scale[:, None]
        network.set_array(pair.second.weight, pair.second.from_matrix(matrix))
