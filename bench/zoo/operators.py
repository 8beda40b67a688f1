"""Models of a single operator, or of a few that belong together."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from bench.zoo import OPERATORS
from bench.zoo.blueprint import Blueprint
from bench.zoo.language import RmsNorm

CONV = re.compile(
    r"conv(?P<kernel>\d+)x\d+_(?P<inputs>\d+)_(?P<outputs>\d+)(?:_s(?P<stride>\d))?_(?P<size>\d+)"
)


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


class Product(nn.Module):
    """With a constant matrix."""

    def __init__(self, inner: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inner, columns) / math.sqrt(inner))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def elementwise(x: torch.Tensor) -> torch.Tensor:
    """Ten operations on each element."""
    y = torch.relu(1.5 * x + 0.25)
    return torch.tanh(torch.sqrt(torch.abs(y * x - 0.5) + 1.0)) + x


def _layer_norm(width: int) -> nn.LayerNorm:
    norm = nn.LayerNorm(width)
    nn.init.uniform_(norm.weight, 0.75, 1.25)
    nn.init.uniform_(norm.bias, -0.25, 0.25)
    return norm


def _one(module: nn.Module, *shapes: tuple[int, ...]) -> Blueprint:
    inputs = {f"x{number}": torch.randn(shape) for number, shape in enumerate(shapes)}
    return Blueprint(module.eval(), inputs, ["y"])


def convolution(name: str) -> Blueprint:
    """From a name such as conv3x3_64_128_s2_56: kernel, channels, stride, size of the image."""
    found = CONV.fullmatch(name)
    assert found is not None, name
    kernel, inputs, outputs, stride, size = (int(found[k] or 1) for k in CONV.groupindex)
    module = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2)
    return _one(module, (1, inputs, size, size))


MODELS: dict[str, Callable[[], Blueprint]] = {
    "matmul_1024": lambda: _one(Product(1024, 1024), (1024, 1024)),
    "matmul_1024_dyn": lambda: _one(Call(torch.matmul), (1024, 1024), (1024, 1024)),
    "mlp_gelu_128x768x3072": lambda: _one(nn.Sequential(nn.Linear(768, 3072), nn.GELU()), (128, 768)),
    "layernorm_512x1024": lambda: _one(_layer_norm(1024), (512, 1024)),
    "rmsnorm_512x1024": lambda: _one(RmsNorm(1024), (512, 1024)),
    "softmax_12x384x384": lambda: _one(Call(lambda x: functional.softmax(x, -1)), (1, 12, 384, 384)),
    "eltwise10_4M": lambda: _one(Call(elementwise), (4, 1024, 1024)),
    **{name: (lambda name=name: convolution(name)) for name in OPERATORS if CONV.fullmatch(name)},
}
