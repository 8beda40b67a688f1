"""Architectures with an encoder, each a function from a config and weights to logits. Importing fills the table."""

from tilewright.frontends.decoders.encoder_decoders import bart as bart
from tilewright.frontends.decoders.encoder_decoders import t5 as t5
from tilewright.frontends.decoders.encoder_decoders import whisper as whisper
