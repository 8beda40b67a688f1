"""Blocks of encoder-decoders: attention of the encoder, of the decoder, and of the one to the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from tilewright.frontends.decoders.blocks import Activation, Heads, cached_attention
from tilewright.frontends.decoders.building import Building, Encoding, WeightGroup
from tilewright.frontends.decoders.caches import CachedRows, attended, kept_behind
from tilewright.frontends.decoders.config import MAX_PARTS, Config
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.activation import clip
from tilewright.ops.attention import attention
from tilewright.ops.composites.attention import from_heads, to_heads
from tilewright.ops.define import constant
from tilewright.ops.index import gather
from tilewright.ops.source import iota
from tilewright.ops.view import concat, reshape, shape_of, transpose

CROSS_KEYS, CROSS_VALUES = "cross_keys", "cross_values"
EPSILON = 1e-5


@dataclass(frozen=True)
class Attending:
    """Attention with its four projections: of queries, keys, values, and of the result."""

    heads: Heads
    scale: float
    names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "out_proj")
    biased: tuple[bool, bool, bool, bool] = (True, True, True, True)

    def encoding(self, part: WeightGroup, x: Value, bias: Value | None = None) -> Value:
        """Of all rows of x [1, rows, width] to all of them; a `bias` [heads, rows, rows] is added to the scores."""
        q, k, v = self._apart(part, (x, x, x))
        masked = () if bias is None else (reshape(bias, shape=(1, *shape_of(bias))),)
        return self._result(part, from_heads(attention(q, k, v, *masked, scale=self.scale)), x)

    def decoding(self, m: Building, part: WeightGroup, layer: int, x: Value, bias: Value | None = None) -> Value:
        """Of the new positions x [1, steps, width] to all up to their own; a `bias` is [heads, steps, past + steps]."""
        q, k, v = self._apart(part, (x, x, x))
        return self._result(part, cached_attention(m, layer, q, k, v, scale=self.scale, bias=bias), x)

    def crossing(self, m: Building, part: WeightGroup, layer: int, x: Value, encoded: Value) -> Value:
        """Of the new positions x to all that the encoder has made; `encoded` [1, rows, width] are those of this call.
        Keys and values are computed for these alone, and kept."""
        q, k, v = self._apart(part, (x, encoded, encoded))
        pairs = ((CROSS_KEYS, k), (CROSS_VALUES, v))
        before = encoding_of(m).before
        keys, values = (kept_behind(m.lane, f"{name}.{layer}", new, before, sym(0)) for name, new in pairs)
        return self._result(part, from_heads(attended(q, keys, values, scale=self.scale)), x)

    def _apart(self, part: WeightGroup, of: tuple[Value, Value, Value]) -> tuple[Value, Value, Value]:
        """[1, heads, rows, size] of each."""
        rows, count = self.heads.count * self.heads.size, self.heads.count
        named = zip(of, self.names, self.biased, strict=False)
        q, k, v = (to_heads(part.dense(x, name, rows, bias=bias), count) for x, name, bias in named)
        return q, k, v

    def _result(self, part: WeightGroup, found: Value, x: Value) -> Value:
        return part.dense(found, self.names[3], shape_of(x)[-1].value, bias=self.biased[3])


def encoding_of(m: Building) -> Encoding:
    """What the encoder of an encoder-decoder reads."""
    assert m.encoding is not None
    return m.encoding


def crossing_caches(
    heads: Callable[[Config], Heads], layers: str, room: Callable[[Config, int], int],
) -> Callable[[Config, int], Mapping[str, CachedRows]]:
    """What an encoder-decoder keeps: for each layer of the decoder keys and values of its positions, and those of the
    encoder's, for which there is `room`."""

    def states(config: Config, capacity: int) -> dict[str, CachedRows]:
        own = heads(config)
        sizes = {"keys": capacity, "values": capacity}
        sizes |= dict.fromkeys((CROSS_KEYS, CROSS_VALUES), room(config, capacity))
        return {
            f"{name}.{k}": CachedRows(own.count, size, own.size)
            for k in range(config.count(layers))
            for name, size in sizes.items()
        }

    return states


@dataclass(frozen=True)
class Buckets:
    """Distances in buckets (Raffel et al., 2020): small ones have one each, larger ones share one by their logarithm,
    and all from `most` on the last. An encoder has the same number again for what is behind."""

    count: int
    most: int
    both: bool

    @classmethod
    def of(cls, config: Config, *, both: bool) -> Buckets:
        count = config.count("relative_attention_num_buckets", 32, least=4, most=MAX_PARTS)
        most = config.count("relative_attention_max_distance", 128, most=1 << 20)
        found = cls(count, most, both)
        if most <= found._exact:
            name = config.named("relative_attention_max_distance")
            raise config.error(f"{name} is {most}, and the {found._exact} least distances have buckets of their own")
        return found

    @property
    def _exact(self) -> int:
        return (self.count // 2 if self.both else self.count) // 2

    def places(self) -> np.ndarray:
        """i64[2 * most + 1]: the bucket of each distance of a key from the query, from -most on."""
        exact, count = self._exact, self.count // 2 if self.both else self.count
        size = np.arange(self.most + 1)
        # transformers computes these in f32: what is on the border between two buckets follows from that
        shares = np.log(np.maximum(size, 1).astype(np.float32) / np.float32(exact)) / np.float32(
            math.log(self.most / exact)
        )
        large = exact + (shares * np.float32(count - exact)).astype(np.int64)
        before = np.where(size < exact, size, np.minimum(large, count - 1))
        behind = before + count if self.both else np.zeros_like(before)
        return np.concatenate([before[:0:-1], before[:1], behind[1:]])

    def bias(self, part: WeightGroup, queries: Value, keys: Sym, heads: int) -> Value:
        """[heads, queries, keys]: what is added to the scores of queries at positions i64[n] for keys from 0 on."""
        table = gather(part.value("relative_attention_bias.weight", self.count, heads), constant(self.places()), axis=0)
        own = reshape(queries, shape=(shape_of(queries)[0], 1))
        apart = ew.sub(iota(shape=(keys,), axis=0), own)
        place = ew.add(clip(apart, -self.most, self.most), self.most)
        return transpose(gather(table, place, axis=0, in_range=True), perm=(2, 0, 1))


@dataclass(frozen=True)
class Layers:
    """Layers of BART's form: attention and two products, each with a norm: `first`, or behind the sum."""

    m: Building
    act: Activation
    first: bool
    encoder: Attending
    decoder: Attending

    def encoded(self, x: Value) -> Value:
        """[1, rows, width]: what all layers of the encoder make of x."""
        inner = self.m.config.count("encoder_ffn_dim")
        for _, part in self.m.layers("model.encoder.layers", "encoder_layers"):
            own = part.inside("self_attn")
            x = self._added(part, "self_attn_layer_norm", x, partial(self.encoder.encoding, own))
            x = self._added(part, "final_layer_norm", x, partial(self._products, part, inner))
        return x

    def decoded(self, x: Value, encoded: Value) -> Value:
        """[1, steps, width]: what all layers of the decoder make of x."""
        inner = self.m.config.count("decoder_ffn_dim")
        for k, part in self.m.layers("model.decoder.layers", "decoder_layers"):
            own, cross = partial(self._own, part, k), partial(self._cross, part, k, encoded)
            x = self._added(part, "self_attn_layer_norm", x, own)
            x = self._added(part, "encoder_attn_layer_norm", x, cross)
            x = self._added(part, "final_layer_norm", x, partial(self._products, part, inner))
        return x

    def _own(self, part: WeightGroup, layer: int, x: Value) -> Value:
        return self.decoder.decoding(self.m, part.inside("self_attn"), layer, x)

    def _cross(self, part: WeightGroup, layer: int, encoded: Value, x: Value) -> Value:
        return self.decoder.crossing(self.m, part.inside("encoder_attn"), layer, x, encoded)

    def _products(self, part: WeightGroup, inner: int, x: Value) -> Value:
        hidden = self.act(part.dense(x, "fc1", inner, bias=True))
        return part.dense(hidden, "fc2", shape_of(x)[-1].value, bias=True)

    def _added(self, part: WeightGroup, norm: str, x: Value, block: Activation) -> Value:
        if self.first:
            return ew.add(x, block(part.layer_norm(x, norm, EPSILON)))
        return part.layer_norm(ew.add(x, block(x)), norm, EPSILON)


def learned_positions(part: WeightGroup, positions: Value, count: int, width: int, offset: int = 0) -> Value:
    """[n, width]: rows of a matrix for the positions i64[n], which begin at `offset`."""
    table = part.value("embed_positions.weight", count + offset, width)
    return gather(table, ew.add(positions, offset) if offset else positions, axis=0)


def sinusoids(positions: Value, angles: np.ndarray) -> Value:
    """[n, width]: sines and then cosines of positions i64[n] times angles f64[width], in turns those of each."""
    wide = reshape(ew.cast(positions, dtype=dt.f64), shape=(*shape_of(positions), 1))
    parts = [of(ew.mul(wide, constant(angles[k::2]))) for k, of in enumerate((ew.sin, ew.cos))]
    return ew.cast(concat(*parts, axis=1), dtype=dt.f32)
