"""Granite (IBM, 2024): Llama with factors of embeddings, scores, residuals and logits."""

from __future__ import annotations

from tilewright.frontends.decoders.architectures.registry import architecture
from tilewright.frontends.decoders.blocks import Heads, activation, gated, scaled, self_attention
from tilewright.frontends.decoders.building import Building
from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew


@architecture("granite")
def granite(m: Building) -> Value:
    config, heads = m.config, Heads.of(m.config)
    epsilon, inner = config.positive("rms_norm_eps", 1e-6), config.count("intermediate_size")
    act, bias = activation(config), config.flag("attention_bias", False)
    scale, factor = config.positive("attention_multiplier", 1.0), config.positive("residual_multiplier", 1.0)
    turn = m.turn(heads.size)
    x = scaled(m.embedded("model.embed_tokens"), config.positive("embedding_multiplier", 1.0))
    for k, part in m.layers("model.layers"):
        normed, own = part.rms(x, "input_layernorm", epsilon), part.inside("self_attn")
        found = self_attention(m, own, k, normed, heads, turn, bias=bias, out_bias=bias, scale=scale)
        x = ew.add(x, scaled(found, factor))
        normed = part.rms(x, "post_attention_layernorm", epsilon)
        found = gated(part.inside("mlp"), normed, inner, act, bias=config.flag("mlp_bias", False))
        x = ew.add(x, scaled(found, factor))
    x = m.part("model").rms(m.wanted(x), "norm", epsilon)
    return scaled(m.logits(x, "lm_head", "model.embed_tokens"), 1 / config.positive("logits_scaling", 1.0))
