"""Forms of units: everything that a kind of type needs, for the probe (floats) and for writing (integers)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from tilewright.quantization.methods import bias, rounding, smooth
from tilewright.quantization.methods.histogram import Observer
from tilewright.quantization.methods.integers import TYPES, QParameters, affine
from tilewright.quantization.methods.moments import Moments
from tilewright.quantization.methods.ranges import channel_parameters, tensor_parameters
from tilewright.quantization.network import Layer, LayerGroup, Network
from tilewright.quantization.probe import LayerForm, UnitForm, data_channels
from tilewright.quantization.qdq import WEIGHT_BLOCK, QuantizedWeights, UnitCode

KINDS = ("int8", "bf16", "w8", "w4")
"""int8: activations and weights of 8 bits; bf16: both bfloat16; w8, w4: weights alone, of 8 and of 4 bits."""


@dataclass(frozen=True)
class Recipe:
    """How a unit is quantised: `method` finds the range of what it reads, `smooth` is the share of its outliers that
    goes into the weights (0: none), `reconstruct` rounds by what the outputs are, `correct` corrects biases.
    `per_channel` gives weights a scale for each output."""

    kind: str
    method: str = "min-max"
    smooth: float = 0.0
    reconstruct: bool = False
    correct: bool = False
    per_channel: bool = True

    @property
    def text(self) -> str:
        parts = [self.method] if self.kind == "int8" else []
        parts += [f"smoothed {self.smooth:g}"] if self.smooth else []
        parts += ["reconstructed"] if self.reconstruct else []
        parts += ["bias corrected"] if self.correct else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Form:
    """A unit in a form: for the probe, and as it is written."""

    recipe: Recipe
    probed: UnitForm
    written: UnitCode


def why_not(network: Network, unit: LayerGroup, kind: str) -> str:
    """Why a unit cannot have a kind; "" where it can."""
    for layer in unit.layers:
        shape = tuple(network.initializers[layer.weight].dims)
        if kind == "w4":
            inputs = shape[1 - layer.channel_axis] if layer.operator != "Conv" else 0
            if layer.operator == "Conv":
                return "weights of 4 bits are for matrices"
            if inputs % WEIGHT_BLOCK:
                return f"{inputs} inputs are no multiple of the blocks of {WEIGHT_BLOCK} that share a scale"
        if kind == "bf16" and layer.operator == "Conv":
            return "convolutions have no form of bfloat16"
        if kind == "bf16":
            node = next(n for n in network.graph.node if n.name == layer.node)
            if any(name not in network.initializers for name in node.input[1:]):
                return "an operand that is added is computed, and float32"
    return ""


class Former:
    """Makes forms of the units of a network from what was observed."""

    def __init__(self, network: Network, observers: Mapping[str, Observer]) -> None:
        self.network = network
        self.observers = observers
        self.moments: dict[str, Moments] = {}

    def activation(self, unit: LayerGroup, recipe: Recipe) -> tuple[QParameters | None, np.ndarray | None]:
        """Parameters of what a unit reads, and what its channels are divided by before."""
        if recipe.kind != "int8":
            return None, None
        observer = self.observers[unit.name]
        if not recipe.smooth:
            return tensor_parameters(observer.histogram, TYPES["uint8"], recipe.method), None
        seen = observer.channels
        assert seen is not None
        weights = np.max([_input_extents(self.network, layer) for layer in unit.layers], axis=0)
        divisor = smooth.factors(seen.extent, weights, recipe.smooth)
        low, high = float((seen.low / divisor).min()), float((seen.high / divisor).max())
        return affine(low, high if high > low else low + 1.0, TYPES["uint8"]), divisor

    def moments_for(self, unit: LayerGroup, recipe: Recipe) -> Moments:
        """Where to count what is needed for `reconstruct` and `correct`."""
        activation, divisor = self.activation(unit, recipe)
        return Moments.of(
            self.network, unit.layers[0], data_channels(self.network, unit), activation, divisor
        )

    def form(self, unit: LayerGroup, recipe: Recipe) -> Form:
        if recipe.kind == "bf16":
            return self._short(unit, recipe)
        activation, divisor = self.activation(unit, recipe)
        floats: dict[str, LayerForm] = {}
        weights: dict[str, QuantizedWeights] = {}
        shifts: dict[str, np.ndarray] = {}
        for layer in unit.layers:
            original = self.network.array(layer.weight)
            matrix = layer.matrix(original)
            if divisor is not None:
                matrix = matrix * np.repeat(divisor, len(matrix) // len(divisor))[:, None]
            integers, parameters, short = self._rounded(unit, layer, matrix, recipe)
            found = layer.from_matrix(short, original.shape)
            weights[layer.node] = _stored(layer, integers, parameters, original.shape)
            shift = self._shift(unit, layer, matrix, found, original.shape) if recipe.correct else None
            if shift is not None:
                shifts[layer.node] = shift
            floats[layer.node] = LayerForm(found, shift)
        factor = None if divisor is None else (1 / divisor).astype(np.float32)
        probed = UnitForm(recipe.kind, floats, activation, factor)
        return Form(recipe, probed, UnitCode(recipe.kind, weights, shifts, activation, factor))

    def _rounded(
        self, unit: LayerGroup, layer: Layer, matrix: np.ndarray, recipe: Recipe
    ) -> tuple[np.ndarray, QParameters, np.ndarray]:
        """Integers `[inputs, outputs]`, parameters, and the floats that they stand for."""
        if recipe.kind == "w4":
            blocks = (
                matrix.reshape(-1, WEIGHT_BLOCK, matrix.shape[1]).transpose(0, 2, 1).reshape(-1, WEIGHT_BLOCK)
            )
            flat = channel_parameters(blocks, 0, TYPES["int4"], "mse")
            shape = (len(matrix) // WEIGHT_BLOCK, matrix.shape[1])
            parameters = replace(
                flat, scale=flat.scale.reshape(shape), zero_point=flat.zero_point.reshape(shape)
            )
            scales = np.repeat(parameters.scale, WEIGHT_BLOCK, axis=0)
            zeros = np.zeros((), np.int64)
        else:
            parameters = channel_parameters(
                matrix, 1 if recipe.per_channel else None, TYPES["uint8"], "min-max"
            )
            scales, zeros = parameters.scale, parameters.zero_point
        square = self.moments[unit.name].smoothed_square() if recipe.reconstruct else None
        if square is not None:
            integers = rounding.reconstructed(matrix, square, scales, zeros, parameters.type)
        else:
            integers = rounding.nearest(matrix, scales, zeros, parameters.type)
        return integers, parameters, ((integers - zeros) * scales).astype(np.float32)

    def _shift(
        self, unit: LayerGroup, layer: Layer, matrix: np.ndarray, found: np.ndarray, shape: tuple[int, ...]
    ) -> np.ndarray:
        moments = self.moments[unit.name]
        count = max(moments.elements, 1)
        wide = layer.from_matrix(matrix, shape)
        return bias.correction(layer, wide, found, moments.mean / count, moments.rounded_mean / count)

    def _short(self, unit: LayerGroup, recipe: Recipe) -> Form:
        weights = {layer.node: self.network.array(layer.weight) for layer in unit.layers}
        short = {name: w.astype(ml_dtypes.bfloat16).astype(np.float32) for name, w in weights.items()}
        probed = UnitForm("bf16", {name: LayerForm(w) for name, w in short.items()})
        return Form(recipe, probed, UnitCode("bf16", {}, {}, bf16=weights))


def _input_extents(network: Network, layer: Layer) -> np.ndarray:
    """The largest weight that each input meets."""
    weights = np.abs(network.array(layer.weight))
    if layer.operator != "Conv":
        return np.asarray(layer.matrix(weights).max(axis=1))
    outputs, depth = weights.shape[:2]
    by_group = weights.reshape(layer.groups, outputs // layer.groups, depth, -1)
    return np.asarray(by_group.max(axis=(1, 3)).reshape(-1))


def _stored(
    layer: Layer, integers: np.ndarray, parameters: QParameters, shape: tuple[int, ...]
) -> QuantizedWeights:
    laid = layer.from_matrix(integers, shape)
    if parameters.scale.ndim < 2:
        return QuantizedWeights(laid, parameters)
    if layer.channel_axis == 0:
        scale, zero = np.ascontiguousarray(parameters.scale.T), np.ascontiguousarray(parameters.zero_point.T)
        parameters = replace(parameters, scale=scale, zero_point=zero)
    return QuantizedWeights(laid, parameters, WEIGHT_BLOCK)
