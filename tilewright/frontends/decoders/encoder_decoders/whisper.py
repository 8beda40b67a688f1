"""Whisper (Radford et al., 2022): an encoder of log-mel features, and a decoder of their text."""

from __future__ import annotations

from tilewright.frontends.decoders.architectures.registry import Encoder, architecture
from tilewright.frontends.decoders.blocks import Heads, activation
from tilewright.frontends.decoders.building import Building
from tilewright.frontends.decoders.config import Config
from tilewright.frontends.decoders.encoder_decoders.bart import heads_of_decoder
from tilewright.frontends.decoders.encoder_decoders.blocks import (
    EPSILON,
    Attending,
    Layers,
    crossing_caches,
    encoding_of,
    learned_positions,
)
from tilewright.frontends.inputs import Declared
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.sym import Sym
from tilewright.ops import elementwise as ew
from tilewright.ops.activation import gelu
from tilewright.ops.contract import conv
from tilewright.ops.view import reshape, section, shape_of, transpose
from tilewright.runtime.errors import OptionError

FEATURES = "features"
_NO_KEY_BIAS = (True, False, True, True)


def _room(config: Config, capacity: int) -> int:
    return config.count("max_source_positions", 1500)


def _features(config: Config) -> Declared:
    return Declared(dt.f32, (1, config.count("num_mel_bins", 80), "frames"))


def _rows(frames: Sym) -> Sym:
    """The second convolution takes two frames at a time."""
    return (frames - 1) // 2 + 1


@architecture(
    "whisper", layers=("encoder_layers", "decoder_layers"),
    states=crossing_caches(heads_of_decoder, "decoder_layers", _room),
    defaults={"max_position_embeddings": lambda config: config.count("max_target_positions", 448)},
    encoder=Encoder(FEATURES, _features, _room, _rows),
)  # fmt: skip
def whisper(m: Building) -> Value:
    config, encoding, width = m.config, encoding_of(m), m.config.count("hidden_size")
    sides = (Heads.counted(config, "encoder_attention_heads"), heads_of_decoder(config))
    attends = [Attending(heads, heads.size**-0.5, biased=_NO_KEY_BIAS) for heads in sides]
    layers = Layers(m, activation(config, default="gelu"), True, *attends)
    context = config.count("max_target_positions", 448)
    if m.capacity > context:
        raise OptionError(f"capacity={m.capacity} is more than the {context} positions that the model has learned")
    encoder, decoder = m.part("model.encoder"), m.part("model.decoder")

    x, frames = encoding.given, shape_of(encoding.given)[2]
    for name, taken, step in (("conv1", config.count("num_mel_bins", 80), 1), ("conv2", width, 2)):
        weight, bias = encoder.value(f"{name}.weight", width, taken, 3), encoder.value(f"{name}.bias", width)
        # padded by one more than needed, as the window must fit into no frames, too; what that adds is cut off
        x = conv(x, weight, strides=(step,), pads_begin=(1,), pads_end=(2,))
        x = gelu(ew.add(x, reshape(bias, shape=(width, 1))))
        x = section(x, 2, 0, frames if step == 1 else encoding.rows)
    x = transpose(x, perm=(0, 2, 1))
    x = ew.add(x, learned_positions(encoder, encoding.positions, _room(config, 0), width))
    encoded = encoder.layer_norm(layers.encoded(x), "layer_norm", EPSILON)

    x = m.embedded("model.decoder.embed_tokens")  # which transformers does not scale, whatever `scale_embedding` says
    x = ew.add(x, learned_positions(decoder, m.positions, context, width))
    x = decoder.layer_norm(m.wanted(layers.decoded(x, encoded)), "layer_norm", EPSILON)
    return m.logits(x, "proj_out", "model.decoder.embed_tokens", tied=True)
