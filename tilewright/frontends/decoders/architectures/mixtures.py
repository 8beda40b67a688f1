"""Mixtures of experts: Mixtral (Jiang et al., 2024) and those of Qwen2 and Qwen3.

Weights are read of the experts that tokens take.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.frontends.decoders.architectures.registry import architecture
from tilewright.frontends.decoders.blocks import (
    Activation,
    Heads,
    activation,
    everywhere,
    experts,
    gated,
    head_norms,
    routed,
    self_attention,
    windows,
)
from tilewright.frontends.decoders.building import Building, WeightGroup
from tilewright.frontends.decoders.config import Config
from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew
from tilewright.ops.elementwise import sigmoid


@architecture("mixtral", defaults={"rope_theta": 1e6, "rms_norm_eps": 1e-5})
def mixtral(m: Building) -> Value:
    config = m.config
    inner, act, count = config.count("intermediate_size"), activation(config), _count(m)
    taken = _taken(config, 2, count)

    def feed(k: int, part: WeightGroup, x: Value) -> Value:
        own = part.inside("block_sparse_moe")
        routes = routed(own.dense(x, "gate", count), taken, normalised=True)
        return experts(own.inside("experts"), x, routes, inner, act, ("w1", "w3", "w2"))

    return _decoder(m, feed, windows(config, everywhere(config)), bias=False)


@architecture("qwen2_moe", "qwen3_moe", defaults={"use_sliding_window": False})
def qwen_moe(m: Building) -> Value:
    config, is_new = m.config, m.config.text("model_type") == "qwen3_moe"
    act, count = activation(config), _count(m)
    taken = _taken(config, 8 if is_new else 4, count)
    inner, normalised = config.count("moe_intermediate_size"), config.flag("norm_topk_prob", False)
    every = config.count("decoder_sparse_step", 1)
    plain = config.places("mlp_only_layers", config.count("num_hidden_layers"))
    names = ("gate_proj", "up_proj", "down_proj")

    def feed(k: int, part: WeightGroup, x: Value) -> Value:
        own = part.inside("mlp")
        if k in plain or (k + 1) % every:
            return gated(own, x, config.count("intermediate_size"), act)
        routes = routed(own.dense(x, "gate", count), taken, normalised=normalised)
        found = experts(own.inside("experts"), x, routes, inner, act, names)
        return found if is_new else ew.add(found, _shared(config, own, x, act))

    bias = config.flag("attention_bias", False) if is_new else config.flag("qkv_bias", True)
    last = config.count("max_window_layers", 28, least=0)
    sees = windows(config, everywhere(config) if is_new else lambda k: k % 2 == 0 and k < last)
    return _decoder(m, feed, sees, bias=bias, out_bias=bias and is_new, head_norm=is_new)


def _shared(config: Config, part: WeightGroup, x: Value, act: Activation) -> Value:
    """The expert that all tokens take, times a gate of its own."""
    found = gated(part.inside("shared_expert"), x, config.count("shared_expert_intermediate_size"), act)
    return ew.mul(sigmoid(part.dense(x, "shared_expert_gate", 1)), found)


def _decoder(
    m: Building,
    feed: Callable[[int, WeightGroup, Value], Value],
    sees: list[int | None],
    *,
    bias: bool,
    out_bias: bool = False,
    head_norm: bool = False,
) -> Value:
    config, heads = m.config, Heads.of(m.config)
    epsilon = config.positive("rms_norm_eps", 1e-6)
    turn = m.turn(heads.size)
    x = m.embedded("model.embed_tokens")
    for k, part in m.layers("model.layers"):
        normed, own = part.rms(x, "input_layernorm", epsilon), part.inside("self_attn")
        found = self_attention(
            m, own, k, normed, heads, turn, bias=bias, out_bias=out_bias, window=sees[k],
            normed=head_norms(own, epsilon) if head_norm else None,
        )  # fmt: skip
        x = ew.add(x, found)
        x = ew.add(x, feed(k, part, part.rms(x, "post_attention_layernorm", epsilon)))
    x = m.part("model").rms(m.wanted(x), "norm", epsilon)
    return m.logits(x, "lm_head", "model.embed_tokens")


def _count(m: Building) -> int:
    """Experts; the field has had two names."""
    return m.weights.parts(m.config, "num_local_experts" if "num_local_experts" in m.config else "num_experts")


def _taken(config: Config, default: int, count: int) -> int:
    """Experts of so many that a token takes."""
    taken = config.count("num_experts_per_tok", default)
    if taken > count:
        raise config.error(f"{config.named('num_experts_per_tok')} is {taken}, and there are {count} experts")
    return taken
