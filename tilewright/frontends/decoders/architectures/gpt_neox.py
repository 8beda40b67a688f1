"""GPT-NeoX and Pythia (Black et al., 2022): attention and layers beside each other, rows of a head together."""

from __future__ import annotations

from tilewright.frontends.decoders.architectures.registry import architecture
from tilewright.frontends.decoders.blocks import Heads, activation, cached_attention
from tilewright.frontends.decoders.building import Building, WeightGroup
from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew
from tilewright.ops.view import reshape, section, split, transpose


@architecture(
    "gpt_neox",
    base="gpt_neox.",
    defaults={"partial_rotary_factor": 0.25},
    ignored=(".attention.bias", ".attention.masked_bias"),
)
def gpt_neox(m: Building) -> Value:
    config, heads = m.config, Heads.of(m.config)
    width, epsilon = config.count("hidden_size"), config.positive("layer_norm_eps", 1e-5)
    inner, act = config.count("intermediate_size"), activation(config, default="gelu")
    bias, is_parallel = config.flag("attention_bias", True), config.flag("use_parallel_residual", True)
    turn = m.turn(heads.size)
    x = m.embedded("gpt_neox.embed_in")
    for k, part in m.layers("gpt_neox.layers"):
        own, mlp = part.inside("attention"), part.inside("mlp")
        q, keys, values = _heads(m, own, part.layer_norm(x, "input_layernorm", epsilon), heads, bias)
        found = cached_attention(m, k, turn(q), turn(keys), values, scale=heads.size**-0.5)
        found = ew.add(x, own.dense(found, "dense", width, bias=bias))
        normed = part.layer_norm(x if is_parallel else found, "post_attention_layernorm", epsilon)
        hidden = act(mlp.dense(normed, "dense_h_to_4h", inner, bias=True))
        x = ew.add(found, mlp.dense(hidden, "dense_4h_to_h", width, bias=True))
    x = m.part("gpt_neox").layer_norm(m.wanted(x), "final_layer_norm", epsilon)
    return m.logits(x, "embed_out", "gpt_neox.embed_in")


def _heads(m: Building, part: WeightGroup, x: Value, heads: Heads, bias: bool) -> tuple[Value, Value, Value]:
    """Queries, keys and values [1, heads, steps, size]."""
    width = heads.count * heads.size
    qkv = part.dense(x, "query_key_value", 3 * width, bias=bias)
    if not m.config.flag("heads_together", True):
        q, keys, values = split(qkv, sizes=(width,) * 3, axis=2)
        return heads.apart(q, keys, values)
    together = transpose(reshape(qkv, shape=(1, m.steps, heads.count, 3 * heads.size)), perm=(0, 2, 1, 3))
    q, keys, values = (section(together, 3, k * heads.size, heads.size) for k in range(3))
    return q, keys, values
