"""Qwen2 and Qwen3 (Yang et al., 2024 and 2025): Llama with biases of projections, or with norms of heads."""

from __future__ import annotations

from tilewright.frontends.decoders.architectures.registry import architecture
from tilewright.frontends.decoders.blocks import Heads, activation, gated, head_norms, self_attention, windows
from tilewright.frontends.decoders.building import Building
from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew


@architecture("qwen2", "qwen3", defaults={"use_sliding_window": False})
def qwen(m: Building) -> Value:
    config, heads = m.config, Heads.of(m.config)
    is_new = config.text("model_type") == "qwen3"
    epsilon, inner = config.positive("rms_norm_eps", 1e-6), config.count("intermediate_size")
    act, bias = activation(config), config.flag("attention_bias", False) if is_new else True
    first = config.count("max_window_layers", 28, least=0)
    sees = windows(config, lambda k: k >= first)
    turn = m.turn(heads.size)
    x = m.embedded("model.embed_tokens")
    for k, part in m.layers("model.layers"):
        own = part.inside("self_attn")
        found = self_attention(
            m, own, k, part.rms(x, "input_layernorm", epsilon), heads, turn, bias=bias, out_bias=bias and is_new,
            window=sees[k], normed=head_norms(own, epsilon) if is_new else None,
        )  # fmt: skip
        x = ew.add(x, found)
        x = ew.add(x, gated(part.inside("mlp"), part.rms(x, "post_attention_layernorm", epsilon), inner, act))
    x = m.part("model").rms(m.wanted(x), "norm", epsilon)
    return m.logits(x, "lm_head", "model.embed_tokens")
