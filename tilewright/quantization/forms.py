"""Forms of units: everything that a kind of type needs, for the probe (floats) and for writing (integers)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.quantization.methods import bias, rounding, smooth
from tilewright.quantization.methods.histogram import Observer
from tilewright.quantization.methods.inputs import UnitInputs, products
from tilewright.quantization.methods.integers import TYPES, QParameters, affine, rounded
from tilewright.quantization.methods.ranges import channel_parameters, tensor_parameters
from tilewright.quantization.network import Layer, LayerGroup, Network
from tilewright.quantization.probe import LayerForm, UnitForm
from tilewright.quantization.written import WEIGHT_BLOCK, QuantizedWeights, UnitCode

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
    """A unit in a form: how it was made, and as it is written."""

    recipe: Recipe
    code: UnitCode

    def probed(self, network: Network, unit: LayerGroup) -> UnitForm:
        """The same as floats, for the probe."""
        code, found = self.code, dict[str, LayerForm]()
        for layer in unit.layers:
            if code.kind == "bf16":
                weights = network.array(layer.weight).astype(ml_dtypes.bfloat16).astype(np.float32)
            else:
                weights = code.weights[layer.node].floats(layer.channel_axis)
            found[layer.node] = LayerForm(weights, code.shifts.get(layer.node))
        return UnitForm(code.kind, found, code.activation, code.smooth)

    def record(self, unit: LayerGroup) -> dict[str, Any]:
        """Arrays and numbers that `restored` takes."""
        layers = [self.code.weights.get(layer.node) for layer in unit.layers]
        shifts = [self.code.shifts.get(layer.node) for layer in unit.layers]
        return {
            "recipe": asdict(self.recipe),
            "weights": [w and [w.integers, *_parameters(w.parameters), w.block] for w in layers],
            "shifts": shifts,
            "activation": self.code.activation and _parameters(self.code.activation),
            "smooth": self.code.smooth,
        }

    @classmethod
    def restored(cls, unit: LayerGroup, record: dict[str, Any]) -> Form:
        recipe = Recipe(**record["recipe"])
        weights, shifts = dict[str, QuantizedWeights](), dict[str, np.ndarray]()
        for layer, found, shift in zip(unit.layers, record["weights"], record["shifts"], strict=True):
            if found is not None:
                weights[layer.node] = QuantizedWeights(found[0], _restored(found[1:4]), int(found[4]))
            if shift is not None:
                shifts[layer.node] = shift
        activation = record["activation"] and _restored(record["activation"])
        return cls(recipe, UnitCode(recipe.kind, weights, shifts, activation, record["smooth"]))


def _parameters(found: QParameters) -> list[Any]:
    return [np.asarray(found.scale), np.asarray(found.zero_point), found.type.name]


def _restored(record: Sequence[Any]) -> QParameters:
    return QParameters(record[0], record[1], TYPES[record[2]])


def why_not(unit: LayerGroup, kind: str) -> str:
    """Why a unit cannot have a kind; "" where it can."""
    for layer in unit.layers:
        if kind == "w4":
            if layer.windows is not None:
                return "weights of 4 bits are for matrices"
            if layer.inputs % WEIGHT_BLOCK:
                return f"{layer.inputs} inputs are no multiple of the blocks of {WEIGHT_BLOCK} that share a scale"
        if kind == "bf16" and layer.windows is not None:
            return "convolutions have no form of bfloat16"
    return ""


class Former:
    """Makes forms of the units of a network from what was observed. What several forms of a unit need is made once and
    kept until `release`."""

    def __init__(self, network: Network, observers: Mapping[str, Observer]) -> None:
        self.network = network
        self.observers = observers
        self.inputs: dict[str, UnitInputs] = {}
        """What layers meet: of units whose forms are reconstructed, corrected or compared."""
        self._made: dict[Any, Any] = {}

    def release(self) -> None:
        """Forget the inputs of units, and what was made of them."""
        self.inputs, self._made = {}, {}

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

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

    def form(self, unit: LayerGroup, recipe: Recipe) -> Form:
        """The unit by this recipe; `reconstruct` and `correct` need its inputs."""
        if recipe.kind == "bf16":
            return Form(recipe, UnitCode("bf16"))
        activation, divisor = self._activation(unit, recipe)
        weights: dict[str, QuantizedWeights] = {}
        shifts: dict[str, np.ndarray] = {}
        for layer in unit.layers:
            weights[layer.node] = self._weights(unit, layer, recipe)
            if recipe.correct:
                floats = layer.matrix(weights[layer.node].floats(layer.channel_axis))
                met = self.inputs[unit.name].of(layer)
                plain, read = self._read(unit, layer, recipe, "fit")
                shifts[layer.node] = bias.correction(
                    plain, self._matrix(layer, divisor), read, floats, met.groups
                )
        factor = None if divisor is None else (1 / divisor).astype(np.float32)
        return Form(recipe, UnitCode(recipe.kind, weights, shifts, activation, factor))

    def error(self, unit: LayerGroup, form: Form) -> float:
        """How far the outputs of the unit's layers are off where only they are in this form: mean squares relative to
        those of the outputs, on the rows that forms are compared with."""
        found = 0.0
        for layer in unit.layers:
            plain, read = self._read(unit, layer, form.recipe, "check")
            met = self.inputs[unit.name].of(layer)
            matrix = self._matrix(layer, self._activation(unit, form.recipe)[1])
            wanted = self._once(
                ("outputs", layer.node, form.recipe.smooth), partial(products, plain, matrix, met.groups)
            )
            floats = layer.matrix(form.code.weights[layer.node].floats(layer.channel_axis))
            left = products(read, floats, met.groups) - wanted
            left += form.code.shifts.get(layer.node, np.float32(0))
            found += _mean_square(left) / max(_mean_square(wanted), _LEAST)
        return found

    def _activation(self, unit: LayerGroup, recipe: Recipe) -> tuple[QParameters | None, np.ndarray | None]:
        key = "activation", unit.name, recipe.kind, recipe.method, recipe.smooth
        found: tuple[QParameters | None, np.ndarray | None] = self._once(
            key, partial(self.activation, unit, recipe)
        )
        return found

    def _read(
        self, unit: LayerGroup, layer: Layer, recipe: Recipe, part: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows of what a layer meets, and what is left of them when they are rounded; both smoothed."""
        met = self.inputs[unit.name].of(layer)
        rows = met.fit.array if part == "fit" else met.check.array
        activation, divisor = self._activation(unit, recipe)
        key = part, unit.name, id(met), recipe.smooth
        if divisor is not None:
            rows = self._once(key, lambda: rows / np.repeat(divisor, rows.shape[1] // len(divisor)))
        if activation is None:
            return rows, rows
        return rows, self._once((*key, recipe.method), lambda: rounded(rows, activation))

    def _matrix(self, layer: Layer, divisor: np.ndarray | None) -> np.ndarray:
        matrix = layer.matrix(self.network.array(layer.weight))
        if divisor is None:
            return matrix
        return np.asarray(matrix * np.repeat(divisor, len(matrix) // len(divisor))[:, None])

    def _weights(self, unit: LayerGroup, layer: Layer, recipe: Recipe) -> QuantizedWeights:
        kind = "int4" if recipe.kind == "w4" else "uint8"
        is_reconstructed = recipe.reconstruct and self.inputs[unit.name].of(layer).square is not None
        key = layer.node, kind, recipe.smooth, recipe.per_channel, is_reconstructed
        found: QuantizedWeights = self._once(
            key, partial(self._rounded, unit, layer, recipe, is_reconstructed)
        )
        return found

    def _rounded(
        self, unit: LayerGroup, layer: Layer, recipe: Recipe, is_reconstructed: bool
    ) -> QuantizedWeights:
        divisor = self._activation(unit, recipe)[1]
        matrix = self._matrix(layer, divisor)
        parameters = self._once(
            ("weights", layer.node, recipe.kind == "w4", recipe.smooth, recipe.per_channel),
            partial(_weight_parameters, matrix, recipe),
        )
        scales, zeros = parameters.scale, parameters.zero_point
        if scales.ndim == 2:
            scales, zeros = np.repeat(scales, WEIGHT_BLOCK, axis=0), np.zeros((), np.int64)
        if is_reconstructed:
            corrections = self._corrections(unit, layer, recipe.smooth, divisor)
            integers = rounding.reconstructed(matrix, corrections, scales, zeros, parameters.type)
        else:
            integers = rounding.nearest(matrix, scales, zeros, parameters.type)
        return _stored(layer, integers, parameters)

    def _corrections(
        self, unit: LayerGroup, layer: Layer, share: float, divisor: np.ndarray | None
    ) -> rounding.Corrections:
        met = self.inputs[unit.name].of(layer)

        def made() -> rounding.Corrections:
            assert met.square is not None
            square = met.square / max(met.count, 1)
            return rounding.Corrections.of(square if divisor is None else square / np.outer(divisor, divisor))

        found: rounding.Corrections = self._once(("corrections", unit.name, id(met), share), made)
        return found


def _weight_parameters(matrix: np.ndarray, recipe: Recipe) -> QParameters:
    """Of each output, of all together, or of blocks of inputs of each output: `[blocks, outputs]`."""
    if recipe.kind != "w4":
        return channel_parameters(matrix, 1 if recipe.per_channel else None, TYPES["uint8"], "min-max")
    shape = (len(matrix) // WEIGHT_BLOCK, matrix.shape[1])
    blocks = matrix.reshape(shape[0], WEIGHT_BLOCK, shape[1]).transpose(0, 2, 1).reshape(-1, WEIGHT_BLOCK)
    flat = channel_parameters(blocks, 0, TYPES["int4"], "mse")
    return replace(flat, scale=flat.scale.reshape(shape), zero_point=flat.zero_point.reshape(shape))


_LEAST = 1e-30


def _mean_square(x: np.ndarray) -> float:
    flat = x.reshape(-1)
    return float(flat @ flat) / max(flat.size, 1)


def _input_extents(network: Network, layer: Layer) -> np.ndarray:
    """The largest weight that each input meets."""
    weights = np.abs(network.array(layer.weight))
    if layer.windows is None:
        return np.asarray(layer.matrix(weights).max(axis=1))
    outputs, depth = weights.shape[:2]
    by_group = weights.reshape(layer.groups, outputs // layer.groups, depth, -1)
    return np.asarray(by_group.max(axis=(1, 3)).reshape(-1))


def _stored(layer: Layer, integers: np.ndarray, parameters: QParameters) -> QuantizedWeights:
    small = np.int8 if parameters.type.name == "int4" else np.uint8
    laid = layer.from_matrix(integers.astype(small))
    if parameters.scale.ndim < 2:
        return QuantizedWeights(laid, parameters)
    if layer.channel_axis == 0:
        scale, zero = np.ascontiguousarray(parameters.scale.T), np.ascontiguousarray(parameters.zero_point.T)
        parameters = replace(parameters, scale=scale, zero_point=zero)
    return QuantizedWeights(laid, parameters, WEIGHT_BLOCK)
