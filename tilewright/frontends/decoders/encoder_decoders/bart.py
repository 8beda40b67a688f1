"""BART (Lewis et al., 2020) and its kin: mBART, Marian, Pegasus and M2M-100."""

from __future__ import annotations

import math

import numpy as np

from tilewright.frontends.decoders.architectures.registry import Encoder, architecture
from tilewright.frontends.decoders.blocks import Heads, activation, scaled
from tilewright.frontends.decoders.building import Building
from tilewright.frontends.decoders.config import Config
from tilewright.frontends.decoders.encoder_decoders.blocks import (
    EPSILON,
    Attending,
    Layers,
    crossing_caches,
    encoding_of,
    learned_positions,
    sinusoids,
)
from tilewright.frontends.inputs import Declared
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew
from tilewright.runtime.errors import OptionError

_MOST_WIDTH = 1 << 20
"""Angles of positions are computed for each element."""
LEARNED, NORMS_FIRST, EMBEDDING_NORM = ("bart", "mbart"), ("mbart", "pegasus", "m2m_100"), ("bart", "mbart")


def heads_of_decoder(config: Config) -> Heads:
    return Heads.counted(config, "decoder_attention_heads")


def _room(config: Config, capacity: int) -> int:
    return config.count("max_position_embeddings")


@architecture(
    "bart", "mbart", "marian", "pegasus", "m2m_100", layers=("encoder_layers", "decoder_layers"),
    states=crossing_caches(heads_of_decoder, "decoder_layers", _room), defaults={"max_position_embeddings": 1024},
    ignored=(".embed_positions.weights", "final_logits_bias"),
    encoder=Encoder("encoder_ids", lambda config: Declared(dt.i64, (1, "rows")), _room),
)  # fmt: skip
def bart(m: Building) -> Value:
    config, name, encoding = m.config, m.config.text("model_type"), encoding_of(m)
    sides = (Heads.counted(config, "encoder_attention_heads"), heads_of_decoder(config))
    attends = [Attending(heads, heads.size**-0.5) for heads in sides]
    layers = Layers(m, activation(config, default="gelu"), name in NORMS_FIRST, *attends)
    width, context = config.count("hidden_size", most=_MOST_WIDTH), config.count("max_position_embeddings")
    if m.capacity > context:
        raise OptionError(f"capacity={m.capacity} is more than the {context} positions that the model has")
    factor = math.sqrt(width) if config.flag("scale_embedding", False) else 1.0
    tables, counts = _embeddings(m)
    first = config.count("pad_token_id", 1, least=0) + 1 if name == "m2m_100" else 0

    def begun(side: int, ids: Value, positions: Value) -> Value:
        part = m.part(("model.encoder", "model.decoder")[side])
        x = scaled(m.weights.rows(tables[side], counts[side], width, ids), factor)
        if name in LEARNED or (name != "m2m_100" and part.has("embed_positions.weight")):
            x = ew.add(x, learned_positions(part, positions, context, width, 2 if name in LEARNED else 0))
        else:
            x = ew.add(x, sinusoids(ew.add(positions, first) if first else positions, _angles(name, width)))
        return part.layer_norm(x, "layernorm_embedding", EPSILON) if name in EMBEDDING_NORM else x

    def ended(part: str, x: Value) -> Value:
        return m.part(part).layer_norm(x, "layer_norm", EPSILON) if name in NORMS_FIRST else x

    encoded = ended("model.encoder", layers.encoded(begun(0, encoding.given, encoding.positions)))
    x = ended("model.decoder", m.wanted(layers.decoded(begun(1, m.ids, m.positions), encoded)))
    head = "lm_head.weight"
    if config.flag("tie_word_embeddings", True):
        m.weights.skip(head)
        head = tables[1]
    found = m.part("").dense(x, head.removesuffix(".weight"), counts[1])
    bias = "final_logits_bias"
    return ew.add(found, m.weights.value(bias, 1, counts[1])) if bias in m.weights else found


def _embeddings(m: Building) -> tuple[tuple[str, str], tuple[int, int]]:
    """Those of encoder and decoder, and how many rows they have. Files have a shared one under any of its names."""
    count = m.config.count("vocab_size")
    names = tuple(f"model.{part}.weight" for part in ("encoder.embed_tokens", "decoder.embed_tokens"))
    if not m.config.flag("share_encoder_decoder_embeddings", True):
        return (names[0], names[1]), (count, m.config.count("decoder_vocab_size", count))
    head = ("lm_head.weight",) if m.config.flag("tie_word_embeddings", True) else ()
    shared = m.weights.shared("model.shared.weight", *names, *head)
    return (shared, shared), (count, count)


def _angles(name: str, width: int) -> np.ndarray:
    """f64[width]: what each element's position is multiplied by."""
    places = np.arange(width) // 2
    if name == "m2m_100":
        return np.exp(-places * math.log(10000.0) / max(width // 2 - 1, 1))
    return 10000.0 ** (-2 * places / width)
