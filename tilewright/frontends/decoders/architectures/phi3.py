"""Phi-3 (Abdin et al., 2024): Llama with one matrix for queries, keys and values, and one for gates."""

from __future__ import annotations

from tilewright.frontends.decoders.architectures.registry import architecture
from tilewright.frontends.decoders.blocks import Heads, activation, cached_attention, everywhere, windows
from tilewright.frontends.decoders.building import Building
from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew
from tilewright.ops.view import split


@architecture("phi3")
def phi3(m: Building) -> Value:
    config, heads = m.config, Heads.of(m.config)
    epsilon, inner = config.positive("rms_norm_eps", 1e-5), config.count("intermediate_size")
    act, sees, width = activation(config), windows(config, everywhere(config)), config.count("hidden_size")
    turn = m.turn(heads.size)
    sizes = (heads.count * heads.size, heads.groups * heads.size, heads.groups * heads.size)
    x = m.embedded("model.embed_tokens")
    for k, part in m.layers("model.layers"):
        own, mlp = part.inside("self_attn"), part.inside("mlp")
        qkv = own.dense(part.rms(x, "input_layernorm", epsilon), "qkv_proj", sum(sizes))
        q, keys, values = heads.apart(*split(qkv, sizes=sizes, axis=2))
        found = cached_attention(m, k, turn(q), turn(keys), values, scale=heads.size**-0.5, window=sees[k])
        x = ew.add(x, own.dense(found, "o_proj", width))
        both = mlp.dense(part.rms(x, "post_attention_layernorm", epsilon), "gate_up_proj", 2 * inner)
        gate, up = split(both, sizes=(inner, inner), axis=2)
        x = ew.add(x, mlp.dense(ew.mul(act(gate), up), "down_proj", width))
    x = m.part("model").rms(m.wanted(x), "norm", epsilon)
    return m.logits(x, "lm_head", "model.embed_tokens")
