"""Draws models: number k of a seed is always the same one, however many are drawn."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from bench.cases import Case
from bench.shapes.families import FAMILIES
from bench.shapes.sketch import Limits, Sketch, Tensor, TooLarge

KIND = "random"
ATTEMPTS = 10_000


def draw(seed: int, number: int, limits: Limits | None = None) -> tuple[str, Sketch, Sequence[Tensor]]:
    """The family, the model and its outputs. Families come in turn; sizes are drawn again until they are within the
    limits."""
    family = list(FAMILIES)[number % len(FAMILIES)]
    for attempt in range(ATTEMPTS):
        rng = random.Random(f"{seed}/{number}/{attempt}")
        net = Sketch(np.random.default_rng(rng.getrandbits(64)), limits or Limits())
        try:
            return family, net, FAMILIES[family](net, rng)
        except TooLarge:
            continue
    raise ValueError(f"no {family} of seed {seed} is within {limits}")


def make_case(seed: int, number: int, folder: Path) -> Case:
    """Write the model and its arrays into a folder."""
    family, net, outputs = draw(seed, number)
    name = f"{family}_{seed}_{number}"
    case = Case(KIND, name, folder / f"{name}.onnx", folder / f"{name}.npz", describe(net, outputs))
    net.save(outputs, case.model, case.arrays)
    return case


def describe(net: Sketch, outputs: Sequence[Tensor]) -> str:
    """Inputs, operators with the shapes of their weights, and outputs, in short."""
    weights = {w.name: "x".join(map(str, w.dims)) for w in net.weights if len(w.dims) > 1}
    steps = [
        " ".join([node.op_type, *(weights[name] for name in node.input if name in weights), *_settings(node)])
        for node in net.nodes
    ]
    shown = [*steps[:4], f"... {len(steps)} nodes"] if len(steps) > 5 else steps
    inputs = ", ".join("x".join(map(str, tensor.shape)) for tensor in net.inputs)
    result = ", ".join("x".join(map(str, tensor.shape)) for tensor in outputs)
    return f"{inputs}: {'; '.join(shown)} -> {result}"


def _settings(node: onnx.NodeProto) -> list[str]:
    """What of a node's attributes changes how fast it can be."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    stride = attributes.get("strides", [1])[0]
    dilation, groups = attributes.get("dilations", [1])[0], attributes.get("group", 1)
    usual = {"stride": (stride, 1), "dilation": (dilation, 1), "groups": (groups, 1)}
    told = [f"{name} {value}" for name, (value, default) in usual.items() if value != default]
    kernel = (
        [f"kernel {attributes['kernel_shape']}"]
        if "Pool" in node.op_type and "kernel_shape" in attributes
        else []
    )
    return told + kernel + [f"{n} {attributes[n]}" for n in ("axes", "perm") if n in attributes]
