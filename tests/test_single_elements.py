"""Models whose dims are 1, or 0, compiled: layers of networks of which no loop is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import tilewright

RNG = np.random.default_rng(11)
X, Y = "x", "y"


@dataclass(frozen=True)
class Case:
    """A layer: its nodes read `x` and the weights, and give `y`."""

    name: str
    nodes: tuple[onnx.NodeProto, ...]
    shape: tuple[int, ...]
    weights: dict[str, tuple[int, ...]]


def node(op: str, inputs: str, outputs: str = Y, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(" "), outputs.split(" "), **attrs)


def one(name: str, shape: Sequence[int], made: onnx.NodeProto, **weights: tuple[int, ...]) -> Case:
    return Case(name, (made,), tuple(shape), weights)


def attention(*shape: int) -> Case:
    nodes = (
        node("Transpose", "k", "transposed", perm=[*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]),
        node("MatMul", "x transposed", "scores"),
        node("Softmax", "scores", "shares", axis=-1),
        node("MatMul", "shares v"),
    )
    return Case(f"attention {shape}", nodes, shape, {"k": shape, "v": shape})


IMAGE = (1, 1, 1, 1)
CASES = [
    *(
        case
        for k in (0, 1, 2, 17)
        for case in (
            one(f"matmul {k}", (1, k), node("MatMul", "x w"), w=(k, 1)),
            one(f"vectors {k}", (k,), node("MatMul", "x w"), w=(k,)),
            one(f"gemm {k}", (1, k), node("Gemm", "x w b", transB=1), w=(1, k), b=(1,)),
            one(f"einsum {k}", (1, k), node("Einsum", "x w", equation="ij,ij->"), w=(1, k)),
        )
    ),
    one("matmul without columns", (3, 4), node("MatMul", "x w"), w=(4, 0)),
    one("einsum of batches", (1, 1, 1), node("Einsum", "x w", equation="bij,bjk->kib"), w=(1, 1, 1)),
    one("conv 1x1", IMAGE, node("Conv", "x w"), w=(1, 1, 1, 1)),
    one("conv 3x3", IMAGE, node("Conv", "x w", pads=[1, 1, 1, 1]), w=(1, 1, 3, 3)),
    one("conv of channels", (1, 16, 1, 1), node("Conv", "x w", pads=[1, 1, 1, 1]), w=(16, 16, 3, 3)),
    one("conv that leaves one element", (1, 3, 4, 4), node("Conv", "x w"), w=(1, 3, 4, 4)),
    one("conv of no batch", (0, 3, 4, 4), node("Conv", "x w", pads=[1, 1, 1, 1]), w=(8, 3, 3, 3)),
    one("conv along a line", (1, 1, 1), node("Conv", "x w"), w=(1, 1, 1)),
    one("depthwise", (1, 8, 1, 1), node("Conv", "x w", group=8, pads=[1, 1, 1, 1]), w=(8, 1, 3, 3)),
    one("depthwise 1x1", (1, 8, 1, 1), node("Conv", "x w", group=8), w=(8, 1, 1, 1)),
    one("groups", (1, 8, 1, 1), node("Conv", "x w", group=2), w=(4, 4, 1, 1)),
    one("winograd", (1, 32, 1, 1), node("Conv", "x w", pads=[1, 1, 1, 1]), w=(32, 32, 3, 3)),
    one("winograd along a line", (1, 32, 1, 9), node("Conv", "x w", pads=[1, 1, 1, 1]), w=(32, 32, 3, 3)),
    one("transposed conv", IMAGE, node("ConvTranspose", "x w"), w=(1, 1, 1, 1)),
    one("transposed conv 2x2", IMAGE, node("ConvTranspose", "x w", strides=[2, 2]), w=(1, 1, 2, 2)),
    one(
        "transposed conv of no channels",
        (2, 0, 3),
        node("ConvTranspose", "x w b", strides=[3]),
        w=(0, 4, 2),
        b=(4,),
    ),
    one("max pool", IMAGE, node("MaxPool", "x", kernel_shape=[1, 1])),
    one("average pool", IMAGE, node("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1])),
    one("global pool", IMAGE, node("GlobalAveragePool", "x")),
    one("global pool of channels", (1, 16, 1, 1), node("GlobalMaxPool", "x")),
    *(
        one(f"{op} {shape} {keep}", shape, node(op, "x", keepdims=keep))
        for op in ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceL2", "ReduceLogSumExp")
        for shape in ((), (1,), (1, 1), IMAGE)
        for keep in (0, 1)
    ),
    one("sum of nothing", (0,), node("ReduceSum", "x", keepdims=0)),
    one("sum of empty rows", (2, 0), node("ReduceSum", "x axes")),
    one("softmax", (1,), node("Softmax", "x")),
    one("softmax of nothing", (0, 3), node("Softmax", "x", axis=-1)),
    one("softmax of one column", (5, 1), node("Softmax", "x", axis=-1)),
    one("norm", (1, 1), node("LayerNormalization", "x w b", axis=-1), w=(1,), b=(1,)),
    one("lstm", (1, 1, 1), node("LSTM", "x w r", hidden_size=1), w=(1, 4, 1), r=(1, 4, 1)),
    one("gru", (1, 1, 1), node("GRU", "x w r", hidden_size=1), w=(1, 3, 1), r=(1, 3, 1)),
    attention(1, 1),
    attention(1, 1, 1),
    attention(1, 1, 8),
    attention(1, 2, 1),
    attention(2, 1, 4, 1),
]  # fmt: skip


def model(case: Case, arrays: dict[str, np.ndarray], known: bool, after: str) -> onnx.ModelProto:
    """The layer, its weights constants if `known`, with another operator behind it."""
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in case.nodes]
    constants = {"axes": np.array([1], np.int64)} if any("axes" in n.input for n in nodes) else {}
    if after:
        nodes[-1].output[0] = "before"
        nodes.append(node(after, "before"))
    inputs = dict(arrays)
    if known:
        constants |= {name: inputs.pop(name) for name in case.weights}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, a.shape) for n, a in inputs.items()],
        [onnx.ValueInfoProto(name=Y)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


RUNS = [(case, known) for case in CASES for known in (True, False) if case.weights or not known]


@pytest.mark.sweep(8)
@pytest.mark.parametrize(
    ("case", "known"),
    RUNS,
    ids=[f"{case.name}, {'constants' if known else 'inputs'}" for case, known in RUNS],
)
def test_native_code_agrees_with_onnxruntime(case: Case, known: bool) -> None:
    shapes = {X: case.shape, **case.weights}
    arrays = {n: np.asarray(RNG.standard_normal(s), np.float32) for n, s in shapes.items()}
    given = {X: arrays[X]} if known else arrays
    for after in ("", "Relu", "Exp"):
        made = model(case, arrays, known, after)
        (wanted,) = ort.InferenceSession(made.SerializeToString()).run(None, given)
        (found,) = tilewright.compile(made, threads=1, cache=False, verify=True)(*given.values())
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
