"""OLMo, OLMo 2 and OLMo 3 (Groeneveld et al., 2024; OLMo Team, 2024 and 2025).

The first has layer norms without weights before its blocks, the others norms behind them, and of queries and keys.
"""

from __future__ import annotations

from tilewright.frontends.decoders.architectures.registry import architecture
from tilewright.frontends.decoders.blocks import (
    Heads,
    activation,
    but_every,
    cached_attention,
    gated,
    windows,
)
from tilewright.frontends.decoders.building import Building
from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew
from tilewright.ops.activation import clip
from tilewright.ops.norm import standardized

EPSILON = 1e-5


@architecture("olmo")
def olmo(m: Building) -> Value:
    config, heads = m.config, Heads.of(m.config)
    width, inner, act = config.count("hidden_size"), config.count("intermediate_size"), activation(config)
    limit = config.positive("clip_qkv") if "clip_qkv" in config else None
    bias = config.flag("attention_bias", False)
    turn = m.turn(heads.size)
    x = m.embedded("model.embed_tokens")
    for k, part in m.layers("model.layers"):
        own = part.inside("self_attn")
        projected = heads.projected(own, standardized(x, (2,), EPSILON), bias=bias)
        if limit is not None:
            q, keys, values = (clip(p, -limit, limit) for p in projected)
            projected = q, keys, values
        q, keys, values = heads.apart(*projected)
        found = cached_attention(m, k, turn(q), turn(keys), values, scale=heads.size**-0.5)
        x = ew.add(x, own.dense(found, "o_proj", width, bias=bias))
        x = ew.add(x, gated(part.inside("mlp"), standardized(x, (2,), EPSILON), inner, act))
    return m.logits(standardized(m.wanted(x), (2,), EPSILON), "lm_head", "model.embed_tokens")


@architecture("olmo2", "olmo3")
def olmo2(m: Building) -> Value:
    config, heads = m.config, Heads.of(m.config)
    width, inner, act = config.count("hidden_size"), config.count("intermediate_size"), activation(config)
    epsilon, bias = config.positive("rms_norm_eps", 1e-5), config.flag("attention_bias", False)
    sees = windows(config, but_every(4) if config.text("model_type") == "olmo3" else None)
    kinds = ["full_attention", "sliding_attention"]
    turns = {kind: m.turn(heads.size, kind) for kind in kinds}
    x = m.embedded("model.embed_tokens")
    for k, part in m.layers("model.layers"):
        own, turn = part.inside("self_attn"), turns[kinds[sees[k] is not None]]
        q, keys, values = heads.projected(own, x, bias=bias)
        q, keys = own.rms(q, "q_norm", epsilon), own.rms(keys, "k_norm", epsilon)
        q, keys, values = heads.apart(q, keys, values)
        found = cached_attention(m, k, turn(q), turn(keys), values, scale=heads.size**-0.5, window=sees[k])
        x = ew.add(x, part.rms(own.dense(found, "o_proj", width, bias=bias), "post_attention_layernorm", epsilon))
        found = gated(part.inside("mlp"), x, inner, act)
        x = ew.add(x, part.rms(found, "post_feedforward_layernorm", epsilon))
    x = m.part("model").rms(m.wanted(x), "norm", epsilon)
    return m.logits(x, "lm_head", "model.embed_tokens")
