"""Blocks that decoders share: attention with a cache, gated layers, experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tilewright.frontends.decoders.building import Building, Lane, WeightGroup, joined
from tilewright.frontends.decoders.caches import attended, kept
from tilewright.frontends.decoders.config import MAX_PARTS, Config
from tilewright.frontends.decoders.rotary import Turn
from tilewright.ir.core import Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.sym import Sym, maximum, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.activation import gelu, relu, silu
from tilewright.ops.composites.attention import from_heads, to_heads
from tilewright.ops.composites.experts import mixed_experts
from tilewright.ops.contract import matmul
from tilewright.ops.index import gather
from tilewright.ops.norm import softmax
from tilewright.ops.reduce import reduce_sum
from tilewright.ops.sort import topk
from tilewright.ops.source import dim_value, iota, number_like
from tilewright.ops.view import reshape, shape_of

Activation = Callable[[Value], Value]
ACTIVATIONS: dict[str, Activation] = {
    "silu": silu, "swish": silu, "relu": relu, "gelu": gelu, "gelu_new": partial(gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(gelu, approximate="tanh"), "gelu_fast": partial(gelu, approximate="tanh"),
}  # fmt: skip


def activation(config: Config, name: str = "hidden_act", default: str = "silu") -> Activation:
    """The function that a field names."""
    found = config.text(name, default)
    if found not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise UnsupportedError(
            f"the activation '{found}' is not supported", where=f"'{name}' of {config.where}", hint=f"known: {known}"
        )
    return ACTIVATIONS[found]


@dataclass(frozen=True)
class Heads:
    """Heads of queries, the groups of them that share keys and values, and how many elements each has."""

    count: int
    groups: int
    size: int

    @classmethod
    def of(cls, config: Config) -> Heads:
        count = config.count("num_attention_heads", most=MAX_PARTS)
        groups = config.count("num_key_value_heads", count)
        width = config.count("hidden_size")
        if count % groups:
            raise config.error(
                f"'num_attention_heads' {count} cannot share 'num_key_value_heads' {groups}",
                hint="the one must be a multiple of the other",
            )
        if "head_dim" not in config and width % count:
            raise config.error(f"'hidden_size' {width} is no multiple of 'num_attention_heads' {count}")
        return cls(count, groups, config.count("head_dim", width // count, most=MAX_PARTS))

    @classmethod
    def counted(cls, config: Config, name: str) -> Heads:
        """Heads of their own keys and values, as many as a field says, which are the whole width."""
        count, width = config.count(name, most=MAX_PARTS), config.count("hidden_size")
        if width % count:
            raise config.error(f"{config.named('hidden_size')} {width} is no multiple of {config.named(name)} {count}")
        return cls(count, count, width // count)

    def projected(self, part: WeightGroup, x: Value, *, bias: bool = False) -> tuple[Value, Value, Value]:
        """Queries, keys and values of x by three matrices: [1, steps, heads * size] each."""
        rows = (self.count * self.size, self.groups * self.size, self.groups * self.size)
        q, k, v = (part.dense(x, f"{n}_proj", r, bias=bias) for n, r in zip("qkv", rows, strict=True))
        return q, k, v

    def apart(self, q: Value, k: Value, v: Value) -> tuple[Value, Value, Value]:
        """[1, heads, steps, size] of each."""
        return to_heads(q, self.count), to_heads(k, self.groups), to_heads(v, self.groups)


def cached_attention(
    building: Building,
    layer: int,
    q: Value,
    k: Value,
    v: Value,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    bias: Value | None = None,
) -> Value:
    """[1, steps, heads * size]: attention of the new queries [1, heads, steps, size] over all keys up to their own, the
    new ones [1, groups, steps, size] put behind those in the cache. A `bias` [heads, steps, past + steps] is added to
    the scores, where there is one sequence and no window.

    With a `window` a query sees that many keys at most, its own among them; with a `softcap` scores are
    softcap * tanh(score / softcap).
    """
    found = []
    for lane in building.lanes:
        new = (_of_lane(lane, x) for x in (q, k, v))
        found.append(_attended(lane, layer, *new, scale=scale, window=window, softcap=softcap, bias=bias))
    return joined(found, 1)


def _of_lane(lane: Lane, x: Value) -> Value:
    """Of heads [1, heads, steps, size] those of the rows of a lane. They are cut where rows are whole, so that nothing
    is copied, and what is done with them is the same for each lane."""
    _, heads, steps, _ = shape_of(x)
    return x if steps == lane.steps else to_heads(lane.rows(from_heads(x), 1), heads.value)


def _attended(
    lane: Lane,
    layer: int,
    q: Value,
    k: Value,
    v: Value,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    bias: Value | None,
) -> Value:
    """[1, steps, heads * size] of one sequence."""
    first = sym(0) if window is None else maximum(lane.before - (window - 1), 0)
    keys, values = (kept(lane, f"{name}.{layer}", new, first) for name, new in (("keys", k), ("values", v)))
    _, heads, steps, size = shape_of(q)
    _, groups, total, _ = shape_of(keys.rows)
    wide = reshape(q, shape=(1, groups, heads // groups, steps, size))
    mask = None if window is None else _in_window(lane, window, first)
    if bias is not None:
        mask = reshape(bias, shape=(groups, heads // groups, steps, total))
    found = attended(
        wide, keys.of_groups(), values.of_groups(), scale=scale, mask=mask, softcap=softcap,
        causal_offset=lane.before - first,
    )  # fmt: skip
    return from_heads(reshape(found, shape=(1, heads, steps, shape_of(values.rows)[3])))


def _positions_from(first: Sym, count: Sym) -> Value:
    """i64[count]: those of the keys that are read."""
    positions = iota(shape=(count,), axis=0)
    return positions if first == 0 else ew.add(positions, dim_value(first))


def _own_positions(lane: Lane) -> Value:
    """i64[steps, 1]: those of the queries, from a dim, so that kernels know which keys these see."""
    return ew.add(iota(shape=(lane.steps, 1), axis=0), dim_value(lane.before))


def _in_window(lane: Lane, window: int, first: Sym) -> Value:
    """[steps, past + steps - first] of bool: is a key among the last `window` up to the query?"""
    keys = _positions_from(first, lane.before + lane.steps - first)
    return ew.gt(keys, ew.sub(_own_positions(lane), window))


def self_attention(
    building: Building,
    part: WeightGroup,
    layer: int,
    x: Value,
    heads: Heads,
    turn: Turn | None,
    *,
    bias: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    out: str = "o_proj",
    out_bias: bool = False,
    normed: Callable[[Value, Value], tuple[Value, Value]] | None = None,
) -> Value:
    """Projections, turned by their positions, attention, and a projection back to the width of x. `normed` is applied
    to heads of queries and keys before they are turned."""
    width = shape_of(x)[-1].value
    q, k, v = heads.apart(*heads.projected(part, x, bias=bias))
    if normed is not None:
        q, k = normed(q, k)
    if turn is not None:
        q, k = turn(q), turn(k)
    scale = heads.size**-0.5 if scale is None else scale
    with part.at("attention", "Attention"):
        found = cached_attention(building, layer, q, k, v, scale=scale, window=window, softcap=softcap)
    return part.dense(found, out, width, bias=out_bias)


def gated(part: WeightGroup, x: Value, inner: int, act: Activation, *, bias: bool = False) -> Value:
    """down(act(gate(x)) * up(x)) (Shazeer, 2020)."""
    hidden = ew.mul(act(part.dense(x, "gate_proj", inner, bias=bias)), part.dense(x, "up_proj", inner, bias=bias))
    return part.dense(hidden, "down_proj", shape_of(x)[-1].value, bias=bias)


def head_norms(
    part: WeightGroup, epsilon: float, *, offset: float = 0.0
) -> Callable[[Value, Value], tuple[Value, Value]]:
    """Norms of the heads of queries and of keys, each with weights for the elements of a head."""

    def normed(q: Value, k: Value) -> tuple[Value, Value]:
        return part.rms(q, "q_norm", epsilon, offset=offset), part.rms(k, "k_norm", epsilon, offset=offset)

    return normed


def scaled(x: Value, factor: float) -> Value:
    return x if factor == 1 else ew.mul(x, number_like(factor, x))


def capped(x: Value, cap: float | None) -> Value:
    """cap * tanh(x / cap)."""
    return x if cap is None else ew.mul(ew.tanh(ew.mul(x, number_like(1 / cap, x))), number_like(cap, x))


def windows(config: Config, slides: Callable[[int], bool] | None = None) -> list[int | None]:
    """For each layer how many keys a query sees at most, None for all. Which layers have a window is said by
    `layer_types`; where there are none, by `slides` (None: no layer has one)."""
    count = config.count("num_hidden_layers")
    if "layer_types" in config:
        kinds = config.listed("layer_types", count)
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention"):
                raise config.error(f"'layer_types' has {kind!r:.40}, which is not known")
        sliding = [kind == "sliding_attention" for kind in kinds]
    else:
        sliding = [slides is not None and slides(k) for k in range(count)]
    if not config.flag("use_sliding_window", True) or not any(sliding):
        return [None] * count
    window = config.count("sliding_window", least=0) or None  # 0 is none
    return [window if has else None for has in sliding]


def everywhere(config: Config) -> Callable[[int], bool]:
    """All layers have a window, if the config has one."""
    return lambda layer: "sliding_window" in config


def but_every(pattern: int) -> Callable[[int], bool]:
    """Layers have a window but for every `pattern`-th."""
    return lambda layer: (layer + 1) % pattern != 0


@dataclass(frozen=True)
class Routes:
    """The experts that each token takes, i64[tokens, each], and what these weigh, f32[tokens, each]."""

    chosen: Value
    weights: Value
    experts: int


def routed(scores: Value, count: int, *, normalised: bool) -> Routes:
    """The `count` experts with the best scores [1, tokens, experts]. Weights are softmax of all scores; `normalised`
    ones are divided by the sum of those that are taken."""
    _, tokens, experts = shape_of(scores)
    best, places = topk(softmax(reshape(scores, shape=(tokens, experts)), axis=-1), k=count, axis=1)
    if normalised:
        best = ew.div(best, reduce_sum(best, axes=(-1,), keepdims=True))
    return Routes(places, best, experts.value)


def experts(
    part: WeightGroup, x: Value, routes: Routes, inner: int, act: Activation, names: tuple[str, str, str]
) -> Value:
    """The sum of what the experts that a token takes give, each times its weight. `names` are those of their matrices:
    for gates, for values, and back."""
    gate, up, down = names
    _, tokens, width = shape_of(x)

    def layers(rows: Value, at: Value) -> Value:
        def dense(x: Value, name: str, out: int) -> Value:
            stack = part.stack(routes.experts, f"{name}.weight", out, shape_of(x)[-1].value)
            return matmul(x, gather(stack, at, axis=0, in_range=True), transpose_b=True)

        return dense(ew.mul(act(dense(rows, gate, inner)), dense(rows, up, inner)), down, width.value)

    flat = reshape(x, shape=(tokens, width))
    found = mixed_experts(flat, routes.chosen, routes.weights, routes.experts, layers)
    return reshape(found, shape=(1, tokens, width))
