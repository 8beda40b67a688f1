"""StableLM (Bellagente et al., 2024): layer norms, a quarter of each head turned, blocks one after the other or both
beside each other."""

from __future__ import annotations

from tilewright.frontends.decoders.architectures.registry import architecture
from tilewright.frontends.decoders.blocks import Heads, activation, gated, self_attention
from tilewright.frontends.decoders.building import Building, WeightGroup
from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew
from tilewright.ops.norm import standardized
from tilewright.ops.view import concat, reshape


@architecture("stablelm", defaults={"partial_rotary_factor": 0.25})
def stablelm(m: Building) -> Value:
    config, heads = m.config, Heads.of(m.config)
    epsilon, inner, act = config.positive("layer_norm_eps", 1e-5), config.count("intermediate_size"), activation(config)
    bias, is_parallel = config.flag("use_qkv_bias", False), config.flag("use_parallel_residual", False)
    turn = m.turn(heads.size)
    norms = config.flag("qk_layernorm", False)
    if norms:
        m.weights.parts(config, "num_attention_heads")
    x = m.embedded("model.embed_tokens")
    for k, part in m.layers("model.layers"):
        own = part.inside("self_attn")
        normed = part.layer_norm(x, "input_layernorm", epsilon)

        def by_head(q: Value, keys: Value, own: WeightGroup = own) -> tuple[Value, Value]:
            return _normed(own, "q_layernorm", q, heads.count, epsilon), _normed(
                own, "k_layernorm", keys, heads.groups, epsilon
            )

        found = self_attention(m, own, k, normed, heads, turn, bias=bias, normed=by_head if norms else None)
        if not is_parallel:
            x = ew.add(x, found)
            normed = part.layer_norm(x, "post_attention_layernorm", epsilon)
        inside = gated(part.inside("mlp"), normed, inner, act)
        x = ew.add(ew.add(x, found), inside) if is_parallel else ew.add(x, inside)
    x = m.part("model").layer_norm(m.wanted(x), "norm", epsilon)
    return m.logits(x, "lm_head", "model.embed_tokens")


def _normed(part: WeightGroup, name: str, x: Value, count: int, epsilon: float) -> Value:
    """Heads [1, heads, steps, size], each with weights of its own."""
    size = x.tensor.shape[3].value
    scales = [reshape(part.value(f"{name}.norms.{h}.weight", size), shape=(1, 1, 1, size)) for h in range(count)]
    scale = scales[0] if count == 1 else concat(*scales, axis=1)
    return ew.mul(standardized(x, (3,), epsilon), scale)
