"""Architectures of decoders, each a function from a config and weights to logits. Importing them fills the table."""

from tilewright.frontends.decoders.architectures import gemma as gemma
from tilewright.frontends.decoders.architectures import gpt2 as gpt2
from tilewright.frontends.decoders.architectures import gpt_neox as gpt_neox
from tilewright.frontends.decoders.architectures import granite as granite
from tilewright.frontends.decoders.architectures import llama as llama
from tilewright.frontends.decoders.architectures import mamba as mamba
from tilewright.frontends.decoders.architectures import mixtures as mixtures
from tilewright.frontends.decoders.architectures import olmo as olmo
from tilewright.frontends.decoders.architectures import phi3 as phi3
from tilewright.frontends.decoders.architectures import qwen as qwen
from tilewright.frontends.decoders.architectures import smollm3 as smollm3
from tilewright.frontends.decoders.architectures import stablelm as stablelm
