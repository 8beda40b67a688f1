"""SmolLM3: Llama of which every fourth layer has no rotary positions (Yang et al., 2025)."""

from __future__ import annotations

from tilewright.frontends.decoders.architectures.registry import architecture
from tilewright.frontends.decoders.blocks import Heads, activation, gated, self_attention, windows
from tilewright.frontends.decoders.building import Building
from tilewright.frontends.decoders.config import Config
from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew


@architecture("smollm3", defaults={"rope_theta": 2e6, "use_sliding_window": False})
def smollm3(m: Building) -> Value:
    config, heads = m.config, Heads.of(m.config)
    epsilon, inner = config.positive("rms_norm_eps", 1e-6), config.count("intermediate_size")
    act, bias = activation(config), config.flag("attention_bias", False)
    turn, turned = m.turn(heads.size), _turned(config)
    sees = windows(config, lambda k: "sliding_window" in config and not turned[k])
    x = m.embedded("model.embed_tokens")
    for k, part in m.layers("model.layers"):
        normed, own = part.rms(x, "input_layernorm", epsilon), part.inside("self_attn")
        found = self_attention(
            m, own, k, normed, heads, turn if turned[k] else None, bias=bias, out_bias=bias, window=sees[k]
        )
        x = ew.add(x, found)
        normed = part.rms(x, "post_attention_layernorm", epsilon)
        x = ew.add(x, gated(part.inside("mlp"), normed, inner, act, bias=config.flag("mlp_bias", False)))
    x = m.part("model").rms(m.wanted(x), "norm", epsilon)
    return m.logits(x, "lm_head", "model.embed_tokens", tied=True)


def _turned(config: Config) -> list[bool]:
    """Which layers have rotary positions."""
    count = config.count("num_hidden_layers")
    if "no_rope_layers" in config:
        return [bool(has) for has in config.numbers("no_rope_layers", count)]
    every = config.count("no_rope_layer_interval", 4)
    return [(k + 1) % every != 0 for k in range(count)]
