"""The front ends that the compiler brings; plugins add others. They import what they need when they load a model."""

from tilewright.frontends.front_end import FrontEnd
from tilewright.frontends.onnx import OnnxFrontEnd
from tilewright.frontends.stablehlo import StablehloFrontEnd
from tilewright.frontends.tflite import TfliteFrontEnd
from tilewright.frontends.torch import TorchFrontEnd

FRONT_ENDS: tuple[FrontEnd, ...] = (OnnxFrontEnd(), TorchFrontEnd(), TfliteFrontEnd(), StablehloFrontEnd())
