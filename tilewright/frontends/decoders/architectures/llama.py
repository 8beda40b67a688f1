"""Llama (Touvron et al., 2023), and those that differ from it in numbers only: Mistral, SmolLM, TinyLlama."""

from __future__ import annotations

from tilewright.frontends.decoders.architectures.registry import architecture
from tilewright.frontends.decoders.blocks import Heads, activation, everywhere, gated, self_attention, windows
from tilewright.frontends.decoders.building import Building
from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew


@architecture("llama", "mistral")
def llama(m: Building) -> Value:
    config, heads = m.config, Heads.of(m.config)
    epsilon, inner = config.positive("rms_norm_eps", 1e-6), config.count("intermediate_size")
    act, bias = activation(config), config.flag("attention_bias", False)
    sees = windows(config, everywhere(config) if config.text("model_type") == "mistral" else None)
    turn = m.turn(heads.size)
    x = m.embedded("model.embed_tokens")
    for k, part in m.layers("model.layers"):
        normed = part.rms(x, "input_layernorm", epsilon)
        own = part.inside("self_attn")
        x = ew.add(
            x, self_attention(m, own, k, normed, heads, turn, bias=bias, out_bias=bias, window=sees[k])
        )
        normed = part.rms(x, "post_attention_layernorm", epsilon)
        x = ew.add(x, gated(part.inside("mlp"), normed, inner, act, bias=config.flag("mlp_bias", False)))
    x = m.part("model").rms(m.wanted(x), "norm", epsilon)
    return m.logits(x, "lm_head", "model.embed_tokens")
