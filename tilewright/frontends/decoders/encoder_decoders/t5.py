"""T5 (Raffel et al., 2020) and its kin (mT5, Flan-T5, umT5): encoder and decoder with biases for distances."""

from __future__ import annotations

from tilewright.frontends.decoders.architectures.registry import Encoder, architecture
from tilewright.frontends.decoders.blocks import ACTIVATIONS, Activation, Heads, scaled
from tilewright.frontends.decoders.building import Building, WeightGroup
from tilewright.frontends.decoders.config import Config
from tilewright.frontends.decoders.encoder_decoders.blocks import (
    Attending,
    Buckets,
    crossing_caches,
    encoding_of,
)
from tilewright.frontends.inputs import Declared
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ops import elementwise as ew
from tilewright.ops.view import shape_of


def _room(config: Config, capacity: int) -> int:
    return max(capacity, config.count("max_position_embeddings"))


@architecture(
    "t5", "mt5", "umt5", base="",
    states=crossing_caches(Heads.of, "num_decoder_layers", _room), layers=("num_hidden_layers", "num_decoder_layers"),
    defaults={
        "max_position_embeddings": 512, "head_dim": 64, "layer_norm_eps": 1e-6,
        "num_decoder_layers": lambda config: config.count("num_hidden_layers"),
    },
    encoder=Encoder("encoder_ids", lambda config: Declared(dt.i64, (1, "rows")), _room),
)  # fmt: skip
def t5(m: Building) -> Value:
    config, heads, encoding = m.config, Heads.of(m.config), encoding_of(m)
    epsilon, of_each = config.positive("layer_norm_eps"), config.text("model_type") == "umt5"
    attends = Attending(heads, 1.0, ("q", "k", "v", "o"), (False,) * 4)
    act, is_gated = _activation(config)
    inner = config.count("intermediate_size")
    is_tied = config.flag("scale_decoder_outputs", config.flag("tie_word_embeddings", True))
    is_tied = is_tied and config.text("model_type") != "mt5"  # which has a head of its own, whatever configs say
    names = ("shared", "encoder.embed_tokens", "decoder.embed_tokens", *(("lm_head",) if is_tied else ()))
    shared = m.weights.shared(*(f"{name}.weight" for name in names)).removesuffix(".weight")

    def feed(part: WeightGroup, x: Value) -> Value:
        own, normed = part.inside("DenseReluDense"), part.rms(x, "layer_norm", epsilon)
        hidden = act(own.dense(normed, "wi_0" if is_gated else "wi", inner))
        hidden = ew.mul(hidden, own.dense(normed, "wi_1", inner)) if is_gated else hidden
        return ew.add(x, own.dense(hidden, "wo", shape_of(x)[-1].value))

    x, bias = m.embedded(shared, encoding.given), None
    for k, part in m.layers("encoder.block"):
        own = part.inside("layer.0")
        if k == 0 or of_each:
            bias = Buckets.of(config, both=True).bias(
                own.inside("SelfAttention"), encoding.positions, encoding.rows, heads.count
            )
        normed = own.rms(x, "layer_norm", epsilon)
        x = feed(part.inside("layer.1"), ew.add(x, attends.encoding(own.inside("SelfAttention"), normed, bias)))
    encoded = m.part("encoder").rms(x, "final_layer_norm", epsilon)

    x = m.embedded(shared)
    for k, part in m.layers("decoder.block", "num_decoder_layers"):
        own, cross = part.inside("layer.0"), part.inside("layer.1")
        if k == 0 or of_each:
            bias = Buckets.of(config, both=False).bias(
                own.inside("SelfAttention"), m.positions, m.lane.before + m.steps, heads.count
            )
        normed = own.rms(x, "layer_norm", epsilon)
        x = ew.add(x, attends.decoding(m, own.inside("SelfAttention"), k, normed, bias))
        normed = cross.rms(x, "layer_norm", epsilon)
        x = ew.add(x, attends.crossing(m, cross.inside("EncDecAttention"), k, normed, encoded))
        x = feed(part.inside("layer.2"), x)
    x = m.part("decoder").rms(m.wanted(x), "final_layer_norm", epsilon)
    if is_tied:
        x = scaled(x, config.count("hidden_size") ** -0.5)
    head = "lm_head" if not is_tied and m.part("").has("lm_head.weight") else shared
    return m.part("").dense(x, head, config.count("vocab_size"))


def _activation(config: Config) -> tuple[Activation, bool]:
    """What the field names, and whether layers are gated; "gated-gelu" means an approximation."""
    said = config.text("feed_forward_proj", "relu")
    gated, dash, name = said.rpartition("-")
    name = "gelu_new" if said == "gated-gelu" else name
    if name not in ACTIVATIONS or gated != ("gated" if dash else ""):
        raise UnsupportedError(
            f"the activation '{said:.80}' is not supported",
            where=f"'feed_forward_proj' of {config.where}",
            hint=f"known: {', '.join(ACTIVATIONS)}, and gated- before one",
        )
    return ACTIVATIONS[name], bool(gated)
