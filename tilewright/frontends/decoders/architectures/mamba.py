"""State-space models: Mamba (Gu and Dao, 2023), FalconMamba, and Mamba-2 (Dao and Gu, 2024).

Layers keep the last inputs of a short convolution, and a state for each channel: both are of a fixed size, however long
the text is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.frontends.decoders.architectures.registry import architecture
from tilewright.frontends.decoders.blocks import activation
from tilewright.frontends.decoders.building import Building, Lane, WeightGroup, joined
from tilewright.frontends.decoders.config import MAX_COUNT, Config, is_finite
from tilewright.frontends.inputs import Declared
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew
from tilewright.ops.activation import silu, softplus
from tilewright.ops.norm import rms_norm
from tilewright.ops.source import full, number_like
from tilewright.ops.state_space import state_space_scan
from tilewright.ops.view import concat, reshape, section, shape_of, transpose

UNLIMITED = MAX_COUNT
"""Positions of a text: no state depends on their number."""


_MOST_TAPS = 256
"""Inputs that the short convolution weighs, each of which is a product of its own."""


def _inner(config: Config) -> int:
    if "inner_size" in config:
        return config.count("inner_size")
    wide, factor = config.count("hidden_size"), config.positive("expand", 2)
    if not 1 <= factor * wide <= MAX_COUNT:
        raise config.wrong("expand", f"a number that makes 1 to {MAX_COUNT} channels of {wide}")
    return int(factor * wide)


def _taps(config: Config) -> int:
    return config.count("conv_kernel", 4, most=_MOST_TAPS)


def _states(config: Config, channels: int) -> dict[str, Declared]:
    rows, states, inner = _taps(config) - 1, config.count("state_size"), _inner(config)
    shapes = {"inputs": (rows, channels), "state": (states, inner)}
    layers = range(config.count("num_hidden_layers"))
    return {f"{name}.{k}": Declared(dt.f32, shape) for k in layers for name, shape in shapes.items()}


def _mamba_states(config: Config, capacity: int) -> dict[str, Declared]:
    return _states(config, _inner(config))


def _mamba2_states(config: Config, capacity: int) -> dict[str, Declared]:
    return _states(config, _inner(config) + 2 * config.count("n_groups") * config.count("state_size"))


def _is_converted(config: Config) -> bool:
    """Whether it is that of a file for llama.cpp."""
    return config.flag("computed_decay", False)


def _epsilon(config: Config) -> float:
    return config.positive("rms_norm_eps" if _is_converted(config) else "layer_norm_eps", 1e-5)


def _rank(config: Config) -> int:
    """Numbers from which the time steps of all channels are computed."""
    automatic = config.fields.get("time_step_rank") in (None, "auto")
    return -(-config.count("hidden_size") // 16) if automatic else config.count("time_step_rank")


_DEFAULTS = {"max_position_embeddings": UNLIMITED, "state_size": 16}


@architecture("mamba", "falcon_mamba", states=_mamba_states, base="backbone.", defaults=_DEFAULTS)
def mamba(m: Building) -> Value:
    config = m.config
    inner, states, rank = _inner(config), config.count("state_size"), _rank(config)
    falcon = config.flag("dt_b_c_rms", config.text("model_type") == "falcon_mamba")
    epsilon = config.positive("mixer_rms_eps", 1e-6)

    def normed(x: Value) -> Value:
        return rms_norm(x, full(value=1.0, dtype=dt.f32, shape=shape_of(x)[-1:]), epsilon=epsilon) if falcon else x

    def mixed(k: int, part: WeightGroup, x: Value) -> Value:
        both = part.dense(x, "in_proj", 2 * inner, bias=config.flag("use_bias", False))
        gate = section(both, 2, inner, inner)
        wide = _convolved(m, k, part, section(both, 2, 0, inner))
        found = part.dense(wide, "x_proj", rank + 2 * states)
        places = ((0, rank), (rank, states), (rank + states, states))
        step, b, c = (normed(section(found, 2, first, size)) for first, size in places)
        times = softplus(part.dense(step, "dt_proj", inner, bias=True))
        y = _scanned(m, k, part, (wide, times, b, c), (inner, states), groups=1)
        return part.dense(ew.mul(y, silu(gate)), "out_proj", shape_of(x)[2].value, bias=config.flag("use_bias", False))

    return _decoder(m, mixed, tied=True)


_DEFAULTS_2 = {**_DEFAULTS, "state_size": 128, "n_groups": 8}


@architecture("mamba2", states=_mamba2_states, base="backbone.", defaults=_DEFAULTS_2)
def mamba2(m: Building) -> Value:
    config = m.config
    inner, states, groups = _inner(config), config.count("state_size"), config.count("n_groups")
    heads = config.count("num_heads", config.count("time_step_rank") if _is_converted(config) else 128)
    if inner % heads or heads % groups:
        what = f"'num_heads' {heads} must divide {inner} channels, and be a multiple of 'n_groups' {groups}"
        raise config.error(what)
    limits = config.fields.get("time_step_limit") or (0.0, math.inf)
    epsilon = _epsilon(config)

    def mixed(k: int, part: WeightGroup, x: Value) -> Value:
        shared, use_bias = groups * states, config.flag("use_bias", False)
        both = part.dense(x, "in_proj", 2 * inner + 2 * shared + heads, bias=use_bias)
        gate, times = section(both, 2, 0, inner), section(both, 2, 2 * inner + 2 * shared, heads)
        wide = _convolved(m, k, part, section(both, 2, inner, inner + 2 * shared))
        b, c = (section(wide, 2, inner + n * shared, shared) for n in range(2))
        times = _limited(softplus(ew.add(times, part.value("dt_bias", heads))), limits, config)
        y = _scanned(m, k, part, (section(wide, 2, 0, inner), times, b, c), (heads, states), groups=groups)
        gated, rows = ew.mul(y, silu(gate)), shape_of(x)[1]
        apart = reshape(gated, shape=(1, rows, groups, inner // groups))
        one = full(value=1.0, dtype=dt.f32, shape=(inner // groups,))
        even = reshape(rms_norm(apart, one, epsilon=epsilon), shape=(1, rows, inner))
        scale = reshape(part.value("norm.weight", *_norm_shape(m, inner, groups)), shape=(inner,))
        return part.dense(ew.mul(even, scale), "out_proj", shape_of(x)[2].value, bias=use_bias)

    return _decoder(m, mixed, tied=False)


def _norm_shape(m: Building, inner: int, groups: int) -> tuple[int, ...]:
    return (groups, inner // groups) if _is_converted(m.config) else (inner,)


def _limited(times: Value, limits: object, config: Config) -> Value:
    found = [_number(x) for x in limits] if isinstance(limits, list | tuple) else []
    if len(found) != 2 or not all(is_finite(x) or x in (math.inf, -math.inf) for x in found):
        raise config.wrong("time_step_limit", "two numbers")
    low, high = map(float, found)
    times = ew.max_(times, number_like(low, times)) if low > 0 else times
    return times if math.isinf(high) else ew.min_(times, number_like(high, times))


def _number(x: Any) -> Any:
    """What JSON has no number for is written as an object."""
    named = x.get("__float__") if isinstance(x, dict) else None
    return {"Infinity": math.inf, "-Infinity": -math.inf}.get(str(named), x)


def _decoder(m: Building, mixed: Callable[[int, WeightGroup, Value], Value], *, tied: bool) -> Value:
    epsilon = _epsilon(m.config)
    x = m.embedded(m.weights.shared("backbone.embeddings.weight", "backbone.embedding.weight").removesuffix(".weight"))
    for k, part in m.layers("backbone.layers"):
        x = ew.add(x, mixed(k, part.inside("mixer"), part.rms(x, "norm", epsilon)))
    x = m.part("backbone").rms(m.wanted(x), "norm_f", epsilon)
    return m.logits(x, "lm_head", "backbone.embeddings", tied=tied)


def _convolved(m: Building, k: int, part: WeightGroup, x: Value) -> Value:
    """[1, steps, channels]: of each channel the weighted sum of its last inputs, those before the call among them."""
    config, channels = m.config, shape_of(x)[2]
    count, wide = _taps(config), channels.value
    shape = (wide, count) if _is_converted(config) else (wide, 1, count)
    weights = transpose(reshape(part.value("conv1d.weight", *shape), shape=(wide, count)), perm=(1, 0))
    total = joined([_of_lane(lane, f"inputs.{k}", lane.rows(x, 1), weights) for lane in m.lanes], 0)
    if config.flag("use_conv_bias", True):
        total = ew.add(total, part.value("conv1d.bias", wide))
    return reshape(activation(config)(total), shape=(1, m.steps, channels))


def _of_lane(lane: Lane, name: str, x: Value, weights: Value) -> Value:
    (_, rows, channels), count = shape_of(x), shape_of(weights)[0].value
    every = concat(lane.states[name], reshape(x, shape=(rows, channels)), axis=0)
    lane.updated[name] = section(every, 0, rows, count - 1)
    total = None
    for n in range(count):
        term = ew.mul(section(every, 0, n, rows), section(weights, 0, n, 1))
        total = term if total is None else ew.add(total, term)
    assert total is not None
    return total


def _scanned(
    m: Building,
    k: int,
    part: WeightGroup,
    given: tuple[Value, Value, Value, Value],
    paces: tuple[int, int],
    groups: int,
) -> Value:
    """[1, steps, channels]: what the states give, and D times the channels."""
    x, *others = given
    (_, rows, channels), (heads, states) = shape_of(x), paces
    each = channels.value == heads  # Mamba: a pace for each state
    pace = _pace(m, part, (heads, states) if each else (heads,))
    wide, found = reshape(x, shape=(rows, channels)), []
    for lane in m.lanes:
        own = [lane.rows(v, 1) for v in (x, *others)]
        shapes = [(lane.steps, channels), (lane.steps, heads), *[(lane.steps, groups, states)] * 2]
        scanned, times, b, c = (reshape(v, shape=shape) for v, shape in zip(own, shapes, strict=True))
        name = f"state.{k}"
        y, lane.updated[name] = state_space_scan(scanned, times, pace, b, c, lane.states[name])
        found.append(y)
    skip = part.value("D", *((heads, 1) if _is_converted(m.config) and not each else (heads,)))
    kept = ew.mul(reshape(wide, shape=(rows, heads, channels // heads)), reshape(skip, shape=(heads, 1)))
    return reshape(ew.add(joined(found, 0), reshape(kept, shape=(rows, channels))), shape=(1, rows, channels))


def _pace(m: Building, part: WeightGroup, shape: tuple[int, ...]) -> Value:
    """[1 or states, heads]: -exp(A_log), which files of llama.cpp have already."""
    stored = _is_converted(m.config)
    found = part.value("A_log", *shape, *([1] if stored and len(shape) == 1 else []))
    found = found if stored else ew.neg(ew.exp(found))
    return transpose(reshape(found, shape=(shape[0], shape[1] if len(shape) > 1 else 1)), perm=(1, 0))
