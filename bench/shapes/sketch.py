"""Builds an ONNX model node by node, and computes its outputs in float64 with NumPy on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.cases import write_arrays

OPSET, IR_VERSION = 17, 9


@dataclass(frozen=True)
class Tensor:
    """A value of the model and what it is for the inputs that were drawn."""

    name: str
    value: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape


class TooLarge(Exception):
    """The sizes that were drawn make a model beyond the limits."""


@dataclass(frozen=True)
class Limits:
    """Of a model: multiplications and additions of contractions, and elements of all values together. As they are a
    model takes a tenth of a second or so."""

    flops: float = 6e9
    elements: int = 1 << 25


@dataclass
class Sketch:
    """A model in the making, with what it costs until now; TooLarge is raised before it costs more than it may."""

    rng: np.random.Generator
    limits: Limits = field(default_factory=Limits)
    flops: float = 0.0
    elements: int = 0
    inputs: list[Tensor] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def input(self, *shape: int) -> Tensor:
        """A float32 input of normal numbers."""
        self.spend(elements=math.prod(shape))
        value = self.rng.standard_normal(shape, np.float32).astype(np.float64)
        self.inputs.append(Tensor(f"x{len(self.inputs)}", value))
        return self.inputs[-1]

    def weight(self, *shape: int, scale: float = 1.0, around: float = 0.0) -> Tensor:
        """A float32 constant of normal numbers with this deviation."""
        self.spend(elements=math.prod(shape))
        value = (around + scale * self.rng.standard_normal(shape, np.float32)).astype(np.float32)
        return self.constant(value)

    def spend(self, *, elements: int = 0, flops: float = 0.0) -> None:
        """Called before anything of this size is computed."""
        self.elements += elements
        self.flops += flops
        if self.elements > self.limits.elements or self.flops > self.limits.flops:
            raise TooLarge

    def constant(self, value: np.ndarray) -> Tensor:
        """A constant of a value's dtype."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return Tensor(name, value.astype(np.float64) if value.dtype == np.float32 else value)

    def node(
        self, op: str, operands: Sequence[Tensor | None], value: np.ndarray, **attributes: Any
    ) -> Tensor:
        """A node with one output, which is `value` in float64."""
        (result,) = self.node_of_several(op, operands, [value], **attributes)
        return result

    def node_of_several(
        self, op: str, operands: Sequence[Tensor | None], values: Sequence[np.ndarray], **attributes: Any
    ) -> list[Tensor]:
        """A node with several outputs. An operand of None is left out."""
        results = [Tensor(f"v{len(self.nodes)}_{k}", value) for k, value in enumerate(values)]
        names = ["" if operand is None else operand.name for operand in operands]
        self.nodes.append(helper.make_node(op, names, [r.name for r in results], **attributes))
        return results

    def save(self, outputs: Sequence[Tensor], model: Path, arrays: Path) -> None:
        """Write the model, and its inputs and references."""
        graph = helper.make_graph(
            self.nodes,
            "sketch",
            [_info(tensor) for tensor in self.inputs],
            [_info(tensor) for tensor in outputs],
            self.weights,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        onnx.checker.check_model(made, full_check=True)
        onnx.save(made, model)
        inputs = {tensor.name: tensor.value.astype(np.float32) for tensor in self.inputs}
        write_arrays(arrays, inputs, [tensor.value for tensor in outputs])


def _info(tensor: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.shape)
