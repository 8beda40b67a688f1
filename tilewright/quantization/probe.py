"""One compiled model for all quantised forms: what is rounded, and how, comes with the call.

To judge a hundred forms of a model one would have to compile a hundred models. In the probe the weights of the layers
are inputs, and so are the parameters by which what they read is rounded; any form is a call with other values.
Rounding, clipping and scales are those of quantisation, and products are summed in floats: the same numbers as those of
integers, but for the rounding of float32 sums.

    x * smooth -> / scale -> round -> clip -> * scale -> (where on) -> product with given weights -> + shift
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tilewright.api import compile as compile_model
from tilewright.graph.editing import add_input, build_after, build_before, replace_in, set_outputs
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.types import tensor
from tilewright.ops.define.binding import bound_dims
from tilewright.ops.elementwise import add, cast, div, max_, min_, mul, round_, select
from tilewright.quantization.methods.integers import QParameters
from tilewright.quantization.network import LayerGroup, Network
from tilewright.runtime import Model

Outputs = tuple[np.ndarray, ...]
Given = Callable[[str, np.ndarray], Value]


@dataclass(frozen=True)
class LayerForm:
    """What becomes of a layer: its weights as float32 (rounded, and times `UnitForm.smooth`), and what is added to its
    outputs, for each channel."""

    weights: np.ndarray
    shift: np.ndarray | None = None


@dataclass(frozen=True)
class UnitForm:
    """What becomes of the layers that read a value: which kind of type they have, the parameters by which the value is
    rounded (None: it is not), and factors of its channels before that."""

    kind: str
    layers: Mapping[str, LayerForm] = field(repr=False)
    activation: QParameters | None = None
    smooth: np.ndarray | None = None
    """Factors of the channels of what is read; the weights have their reciprocals."""


class Probe:
    """The compiled probe of a network."""

    def __init__(self, network: Network, threads: int | None) -> None:
        self._network = network
        module, self._defaults = _built(network)
        self._model = compile_model(module, threads=threads, cache=False)
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
            found[f"q:{number}:smooth"] = unit.layers[0].along_channels(np.asarray(form.smooth, np.float32))
        for index, layer in enumerate(unit.layers):
            made = form.layers[layer.node]
            found[f"q:{number}:{index}:w"] = np.asarray(made.weights, np.float32)
            if made.shift is not None:
                found[f"q:{number}:{index}:b"] = layer.along_channels(np.asarray(made.shift, np.float32))
        return found


def _built(network: Network) -> tuple[Module, dict[str, np.ndarray]]:
    own: dict[Value, Value] = {}
    module = network.module.copy(own)
    defaults: dict[str, np.ndarray] = {}

    def given(name: str, value: np.ndarray) -> Value:
        defaults[name] = value
        return add_input(module, name, tensor(dt.bool_ if value.dtype == np.bool_ else dt.f32, value.shape))

    for number, unit in enumerate(network.units):
        first = own[unit.layers[0].op.result].op
        assert first is not None
        read = build_before(first, module, partial(_rounded, own[unit.data], unit, f"q:{number}", given))
        for index, layer in enumerate(unit.layers):
            result = own[layer.op.result]
            assert result.op is not None
            weights = given(f"q:{number}:{index}:w", network.array(layer.weight))
            shift = given(f"q:{number}:{index}:b", layer.along_channels(np.zeros(layer.channels, np.float32)))
            result.op.set_operands([read, weights])
            users = list(result.users)
            replace_in(users, result, build_after(result, module, partial(add, result, shift)))
    drop_dead(module)
    return module, defaults


def _rounded(x: Value, unit: LayerGroup, key: str, given: Given) -> Value:
    """What the layers of a unit read, in the form that comes with the call."""
    layer = unit.layers[0]
    x = mul(x, given(f"{key}:smooth", layer.along_channels(np.ones(layer.inputs, np.float32))))
    scale = given(f"{key}:scale", np.asarray(1, np.float32))
    above = max_(round_(div(x, scale)), given(f"{key}:low", np.asarray(-1, np.float32)))
    integers = mul(min_(above, given(f"{key}:high", np.asarray(1, np.float32))), scale)
    either = select(given(f"{key}:on", np.asarray(False)), integers, x)
    short = cast(cast(either, dtype=dt.bf16), dtype=dt.f32)
    return select(given(f"{key}:bf16", np.asarray(False)), short, either)


class Tap:
    """A compiled model that also gives what its layers read."""

    def __init__(self, network: Network, threads: int | None) -> None:
        own: dict[Value, Value] = {}
        module = network.module.copy(own)
        self._main = module.main
        values = list(dict.fromkeys(unit.data for unit in network.units))
        self._places = {unit.name: values.index(unit.data) for unit in network.units}
        set_outputs(module, {f"{place}:{value.name}": own[value] for place, value in enumerate(values)})
        drop_dead(module)
        self.model: Model = compile_model(module, threads=threads, cache=False)

    def __call__(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What the layers of units read, by the names of these."""
        found = self.model(*[feed[info.name] for info in self.model.inputs])
        return {name: found[place] for name, place in self._places.items()}

    def dims(self, feed: Mapping[str, np.ndarray]) -> dict[str, int]:
        """The sizes of a call, by the names of dims."""
        return bound_dims(self._main.args, [feed[name] for name in self._main.attrs["inputs"]])
