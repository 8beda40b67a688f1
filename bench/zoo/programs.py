"""Networks written in JAX, with random weights that the functions close over."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any


@dataclass(frozen=True)
class JaxProgram:
    """A function of arrays, with examples of these."""

    function: Callable[..., Array]
    inputs: Sequence[np.ndarray]


@dataclass
class _Weights:
    """Draws weights that keep values of the order of 1, in the order in which layers are built."""

    seed: int
    _rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def __call__(self, *shape: int, fan_in: int = 0) -> Array:
        scale = (fan_in or int(np.prod(shape[:-1]))) ** -0.5
        return jnp.asarray(self._rng.standard_normal(shape).astype(np.float32) * np.float32(scale))

    def near_one(self, *shape: int) -> Array:
        return jnp.asarray(self._rng.uniform(0.75, 1.25, shape).astype(np.float32))

    def input(self, *shape: int) -> np.ndarray:
        return self._rng.standard_normal(shape).astype(np.float32)

    def tokens(self, count: int, *shape: int) -> np.ndarray:
        return self._rng.integers(0, count, shape).astype(np.int32)


Layer = Callable[[Array], Array]


def _chain(*layers: Layer) -> Layer:
    def run(x: Array) -> Array:
        for layer in layers:
            x = layer(x)
        return x

    return run


def _dense(w: _Weights, inputs: int, outputs: int) -> Layer:
    kernel, bias = w(inputs, outputs), w(outputs, fan_in=inputs)
    return lambda x: x @ kernel + bias


def _layer_norm(w: _Weights, size: int) -> Layer:
    scale, bias = w.near_one(size), w(size, fan_in=size)

    def run(x: Array) -> Array:
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(variance + 1e-6) * scale + bias

    return run


def _conv(w: _Weights, inputs: int, outputs: int, size: int, stride: int = 1) -> Layer:
    """Channels last, as JAX's libraries have them, with the scale and shift of a batch norm."""
    kernel = w(size, size, inputs, outputs)
    scale, shift = w.near_one(outputs), w(outputs, fan_in=outputs)

    def run(x: Array) -> Array:
        y = lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return y * scale + shift

    return run


def _heads(x: Array, heads: int) -> Array:
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads)


def _attention(w: _Weights, width: int, heads: int, causal: bool = False) -> Layer:
    query, key, value, out = (_dense(w, width, width) for _ in range(4))

    def run(x: Array) -> Array:
        q, k, v = (_heads(layer(x), heads) for layer in (query, key, value))
        found = jax.nn.dot_product_attention(q, k, v, is_causal=causal)
        return out(found.reshape(x.shape))

    return run


def _transformer(w: _Weights, width: int, heads: int, layers: int, causal: bool = False) -> Layer:
    """Blocks that normalise what they read."""

    def block() -> Layer:
        attend, first, second = _attention(w, width, heads, causal), _layer_norm(w, width), _layer_norm(w, width)
        up, down = _dense(w, width, 4 * width), _dense(w, 4 * width, width)

        def run(x: Array) -> Array:
            x = x + attend(first(x))
            return x + down(jax.nn.gelu(up(second(x)), approximate=False))

        return run

    return _chain(*(block() for _ in range(layers)))


def _mlp(w: _Weights) -> JaxProgram:
    layers = [_dense(w, a, b) for a, b in ((784, 2048), (2048, 2048), (2048, 10))]
    return JaxProgram(_chain(layers[0], jax.nn.relu, layers[1], jax.nn.relu, layers[2]), [w.input(64, 784)])


def _resnet50(w: _Weights) -> JaxProgram:
    def block(inputs: int, width: int, stride: int) -> Layer:
        path = _chain(
            _conv(w, inputs, width, 1), jax.nn.relu, _conv(w, width, width, 3, stride), jax.nn.relu,
            _conv(w, width, 4 * width, 1),
        )  # fmt: skip
        shortcut = _conv(w, inputs, 4 * width, 1, stride) if stride > 1 or inputs != 4 * width else lambda x: x
        return lambda x: jax.nn.relu(path(x) * 0.3 + shortcut(x))

    layers: list[Layer] = [_conv(w, 3, 64, 7, 2), jax.nn.relu, _max_pool]
    inputs = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for k in range(count):
            layers.append(block(inputs, width, stride if k == 0 else 1))
            inputs = 4 * width
    return JaxProgram(_chain(*layers, lambda x: x.mean((1, 2)), _dense(w, 2048, 1000)), [w.input(1, 224, 224, 3)])


def _max_pool(x: Array) -> Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def _vit_base(w: _Weights) -> JaxProgram:
    patches, token, places = w(16, 16, 3, 768), w(1, 1, 768, fan_in=768), w(1, 197, 768, fan_in=768)
    body, norm, head = _transformer(w, 768, 12, 12), _layer_norm(w, 768), _dense(w, 768, 1000)

    def run(x: Array) -> Array:
        y = lax.conv_general_dilated(x, patches, (16, 16), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        y = jnp.concatenate([token, y.reshape(1, 196, 768)], 1) + places
        return head(norm(body(y))[:, 0])

    return JaxProgram(run, [w.input(1, 224, 224, 3)])


def _bert_base(w: _Weights) -> JaxProgram:
    words, places, norm = w(30522, 768, fan_in=1), w(128, 768, fan_in=1), _layer_norm(w, 768)
    body = _transformer(w, 768, 12, 12)
    return JaxProgram(lambda ids: body(norm(words[ids] + places)), [w.tokens(30522, 1, 128)])


def _gpt2_prefill(w: _Weights) -> JaxProgram:
    words, places, norm = w(50257, 768, fan_in=1), w(128, 768, fan_in=1), _layer_norm(w, 768)
    body = _transformer(w, 768, 12, 12, causal=True)
    return JaxProgram(lambda ids: norm(body(words[ids] + places))[:, -1] @ words.T, [w.tokens(50257, 1, 128)])


def _lstm(w: _Weights) -> JaxProgram:
    """Two layers of 512 units, 64 steps, as a scan over time."""
    sizes = ((256, 512), (512, 512))
    layers = [(w(i, 4 * h), w(h, 4 * h), w(4 * h, fan_in=h)) for i, h in sizes]

    def layer(x: Array, weights: tuple[Array, Array, Array]) -> Array:
        of_input, of_state, bias = weights

        def step(state: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
            h, c = state
            i, f, g, o = jnp.split(x + h @ of_state, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[1], of_state.shape[0]), x.dtype)
        return lax.scan(step, (zeros, zeros), x @ of_input + bias)[1]

    def run(x: Array) -> Array:
        for weights in layers:
            x = layer(x, weights)
        return x

    return JaxProgram(run, [w.input(64, 1, 256)])


def _unet(w: _Weights) -> JaxProgram:
    """A denoising network: residual blocks with group norms and a time embedding, attention at the coarsest level."""

    def group_norm(channels: int) -> Layer:
        scale, shift = w.near_one(channels), w(channels, fan_in=channels)

        def run(x: Array) -> Array:
            groups = x.reshape(*x.shape[:3], 8, -1)
            mean, variance = groups.mean((1, 2, 4), keepdims=True), groups.var((1, 2, 4), keepdims=True)
            return ((groups - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape) * scale + shift

        return run

    def block(inputs: int, outputs: int) -> Callable[[Array, Array], Array]:
        before = _chain(group_norm(inputs), jax.nn.silu, _conv(w, inputs, outputs, 3))
        after = _chain(group_norm(outputs), jax.nn.silu, _conv(w, outputs, outputs, 3))
        time, skip = _dense(w, 128, outputs), _conv(w, inputs, outputs, 1)
        return lambda x, t: (after(before(x) + time(t)[:, None, None, :]) + skip(x)) * 0.7

    enter, leave = _conv(w, 4, 64, 3), _chain(group_norm(64), jax.nn.silu, _conv(w, 64, 4, 3))
    down1, down2, middle = block(64, 64), block(64, 128), block(128, 128)
    up2, up1, shrink1, shrink2 = block(256, 64), block(128, 64), _conv(w, 64, 64, 3, 2), _conv(w, 128, 128, 3, 2)
    norm, attend = _layer_norm(w, 128), _attention(w, 128, 4)
    embed = _chain(_dense(w, 64, 128), jax.nn.silu, _dense(w, 128, 128))

    def double(x: Array) -> Array:
        return x.repeat(2, 1).repeat(2, 2)

    def run(x: Array, time: Array) -> Array:
        angles = time[:, None] * jnp.exp(jnp.arange(32) * (-np.log(10000.0) / 32))
        t = embed(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1))
        a = down1(enter(x), t)
        b = down2(shrink1(a), t)
        c = middle(shrink2(b), t)
        flat = c.reshape(c.shape[0], -1, 128)
        c = (flat + attend(norm(flat))).reshape(c.shape)
        d = up2(jnp.concatenate([double(c), b], -1), t)
        return leave(up1(jnp.concatenate([double(d), a], -1), t))

    return JaxProgram(run, [w.input(1, 64, 64, 4), np.float32([10.0])])


def _graph_network(w: _Weights) -> JaxProgram:
    """Two rounds of messages with attention over the edges that end at a node: 2,000 nodes, 10,000 edges."""
    nodes, edges, width = 2000, 10000, 64
    layers = [(_dense(w, width, width), w(width, fan_in=width), w(width, fan_in=width)) for _ in range(2)]

    def run(x: Array, sources: Array, targets: Array) -> Array:
        for dense, of_source, of_target in layers:
            h = dense(x)
            score = jax.nn.leaky_relu((h @ of_source)[sources] + (h @ of_target)[targets], 0.2)
            most = jax.ops.segment_max(score, targets, nodes)
            share = jnp.exp(score - most[targets])
            total = jax.ops.segment_sum(share, targets, nodes)
            messages = h[sources] * (share / total[targets])[:, None]
            x = jax.nn.elu(jax.ops.segment_sum(messages, targets, nodes))
        return x

    return JaxProgram(run, [w.input(nodes, width), w.tokens(nodes, edges), w.tokens(nodes, edges)])


_BUILDERS: dict[str, Callable[[_Weights], JaxProgram]] = {
    "mlp": _mlp, "resnet50": _resnet50, "vit_base": _vit_base, "bert_base": _bert_base, "gpt2_prefill": _gpt2_prefill,
    "lstm": _lstm, "unet": _unet, "graph_network": _graph_network,
}  # fmt: skip
PROGRAMS = tuple(_BUILDERS)


def program(name: str) -> JaxProgram:
    """The program of this name; its weights and inputs are random, of a seed that is the name's."""
    return _BUILDERS[name](_Weights(zlib.crc32(name.encode())))
