"""Gemma, Gemma 2 and Gemma 3 (Gemma Team, 2024 and 2025): norms around each block, weights of norms less 1."""

from __future__ import annotations

import math

from tilewright.frontends.decoders.architectures.registry import architecture
from tilewright.frontends.decoders.blocks import (
    ACTIVATIONS,
    Activation,
    Heads,
    activation,
    but_every,
    capped,
    gated,
    head_norms,
    scaled,
    self_attention,
    windows,
)
from tilewright.frontends.decoders.building import Building, WeightGroup
from tilewright.frontends.decoders.config import Config
from tilewright.ir.core import Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ops import elementwise as ew

_BASES = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}


@architecture("gemma3_text", defaults=_BASES)
@architecture("gemma", "gemma2")
def gemma(m: Building) -> Value:
    config, heads, name = m.config, Heads.of(m.config), m.config.text("model_type")
    epsilon, inner = config.positive("rms_norm_eps", 1e-6), config.count("intermediate_size")
    offset = 0.0 if config.flag("norms_plus_one", False) else 1.0
    act, bias = _activation(config), config.flag("attention_bias", False)
    pattern = {"gemma": 1, "gemma2": 2, "gemma3_text": config.count("sliding_window_pattern", 6)}[name]
    sees = windows(config, but_every(pattern))
    kinds = ["full_attention", "sliding_attention"]
    turns = {kind: m.turn(heads.size, kind) for kind in kinds}
    if config.flag("use_bidirectional_attention", False):
        raise UnsupportedError("a model whose tokens see those behind them is no decoder", where=config.where)
    scale = heads.size**-0.5 if name == "gemma" else config.positive("query_pre_attn_scalar", heads.size) ** -0.5
    cap = config.positive("attn_logit_softcapping") if name == "gemma2" and "attn_logit_softcapping" in config else None

    def normed(part: WeightGroup, at: str, x: Value) -> Value:
        return part.rms(x, at, epsilon, offset=offset)

    x = scaled(m.embedded("model.embed_tokens"), math.sqrt(config.count("hidden_size")))
    for k, part in m.layers("model.layers"):
        own = part.inside("self_attn")
        found = self_attention(
            m, own, k, normed(part, "input_layernorm", x), heads, turns[kinds[sees[k] is not None]], bias=bias,
            out_bias=bias, scale=scale, window=sees[k], softcap=cap,
            normed=head_norms(own, epsilon, offset=offset) if name == "gemma3_text" else None,
        )  # fmt: skip
        if name == "gemma":
            x = ew.add(x, found)
            x = ew.add(x, gated(part.inside("mlp"), normed(part, "post_attention_layernorm", x), inner, act))
            continue
        x = ew.add(x, normed(part, "post_attention_layernorm", found))
        found = gated(part.inside("mlp"), normed(part, "pre_feedforward_layernorm", x), inner, act)
        x = ew.add(x, normed(part, "post_feedforward_layernorm", found))
    x = normed(m.part("model"), "norm", m.wanted(x))
    final = config.positive("final_logit_softcapping") if "final_logit_softcapping" in config else None
    return capped(m.logits(x, "lm_head", "model.embed_tokens", tied=True), final)


def _activation(config: Config) -> Activation:
    """The first configs say "gelu", and mean its approximation: the field was named anew when that was found."""
    name = "hidden_activation" if "hidden_activation" in config else "hidden_act"
    is_first = config.text("model_type") == "gemma" and config.text(name, "gelu") == "gelu"
    return ACTIVATIONS["gelu_pytorch_tanh"] if is_first else activation(config, name, "gelu_pytorch_tanh")
