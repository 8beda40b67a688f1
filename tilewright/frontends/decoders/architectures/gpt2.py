"""GPT-2 (Radford et al., 2019): learned positions, layer norms, and one matrix for queries, keys and values."""

from __future__ import annotations

from tilewright.frontends.decoders.architectures.registry import architecture
from tilewright.frontends.decoders.blocks import Heads, activation, cached_attention
from tilewright.frontends.decoders.building import Building
from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew
from tilewright.ops.view import split
from tilewright.runtime.errors import OptionError


@architecture("gpt2", base="transformer.", ignored=(".attn.bias", ".attn.masked_bias"))
def gpt2(m: Building) -> Value:
    config, heads = m.config, Heads.of(m.config)
    width, epsilon = config.count("hidden_size"), config.positive("layer_norm_eps", 1e-5)
    inner, act = config.count("intermediate_size", 4 * width), activation(config, default="gelu_new")
    scale = heads.size**-0.5 if config.flag("scale_attn_weights", True) else 1.0
    by_layer = config.flag("scale_attn_by_inverse_layer_idx", False)
    turned = config.flag("transposed_weights", True)
    context = config.count("max_position_embeddings")
    if m.capacity > context:
        raise OptionError(f"capacity={m.capacity} is more than the {context} positions that the model has learned")
    x = ew.add(
        m.embedded("transformer.wte"), m.weights.rows("transformer.wpe.weight", context, width, m.positions)
    )
    for k, part in m.layers("transformer.h"):
        own, mlp = part.inside("attn"), part.inside("mlp")
        qkv = own.dense(part.layer_norm(x, "ln_1", epsilon), "c_attn", 3 * width, bias=True, transposed=turned)
        q, keys, values = heads.apart(*split(qkv, sizes=(width,) * 3, axis=2))
        found = cached_attention(m, k, q, keys, values, scale=scale / (k + 1) if by_layer else scale)
        x = ew.add(x, own.dense(found, "c_proj", width, bias=True, transposed=turned))
        hidden = act(mlp.dense(part.layer_norm(x, "ln_2", epsilon), "c_fc", inner, bias=True, transposed=turned))
        x = ew.add(x, mlp.dense(hidden, "c_proj", width, bias=True, transposed=turned))
    x = m.part("transformer").layer_norm(m.wanted(x), "ln_f", epsilon)
    return m.logits(x, "lm_head", "transformer.wte", tied=True)
