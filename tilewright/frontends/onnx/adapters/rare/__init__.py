"""Operators that few models have: strings, sequences and optionals, which the host computes; signals and regions of
images; steps of optimisers; and what operators meant in early operator sets."""

from tilewright.frontends.onnx.adapters.rare import early as early
from tilewright.frontends.onnx.adapters.rare import images as images
from tilewright.frontends.onnx.adapters.rare import optionals as optionals
from tilewright.frontends.onnx.adapters.rare import regions as regions
from tilewright.frontends.onnx.adapters.rare import sequences as sequences
from tilewright.frontends.onnx.adapters.rare import signal as signal
from tilewright.frontends.onnx.adapters.rare import text as text
from tilewright.frontends.onnx.adapters.rare import training as training
from tilewright.frontends.onnx.adapters.rare import trial as trial
