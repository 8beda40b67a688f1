"""Operators that broadcast over dims of which one may be 1, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import tilewright
from tilewright.runtime.errors import InputError

RNG = np.random.default_rng(0)


def real(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def small(*shape: int) -> np.ndarray:
    return RNG.integers(0, 255, shape).astype(np.uint8)


class Case(NamedTuple):
    """Nodes over inputs with these dims and dtypes, and shapes of calls."""

    name: str
    nodes: Sequence[onnx.NodeProto]
    inputs: dict[str, tuple[int, list[str | int]]]
    calls: Sequence[Sequence[tuple[int, ...]]]
    constants: dict[str, Any] = {}  # noqa: RUF012
    refused: Sequence[Sequence[tuple[int, ...]]] = ()


def node(op: str, inputs: str, outputs: str = "o", domain: str = "", **attrs: Any) -> onnx.NodeProto:
    names = [name.strip("-") for name in inputs.split()]
    return h.make_node(op, names, outputs.split(), domain=domain, **attrs)


MS = "com.microsoft"
QUANTISED = {"s": np.float32(0.1), "z": np.uint8(100)}
ROWS = {"x": (T.UINT8, ["a", 8]), "y": (T.UINT8, ["b", 8])}
PAIRS = [[(4, 8), (4, 8)], [(1, 8), (4, 8)], [(4, 8), (1, 8)]]
ATTENTION = [
    node("Transpose", "k", "kt", perm=[0, 1, 3, 2]), node("MatMul", "q kt", "s1"), node("Mul", "s1 c", "s2"),
    node("Add", "s2 m", "s3"), node("Softmax", "s3", "p", axis=-1), node("MatMul", "p v"),
]  # fmt: skip
HEADS = {name: (T.FLOAT, ["b", "h", n, 16]) for name, n in (("q", "n"), ("k", "t"), ("v", "t"))}
QKV = [(2, 4, 5, 16), (2, 4, 7, 16), (2, 4, 7, 16)]

CASES = (
    Case(
        "quantised sum", [node("QLinearAdd", "x s z y s z s z", domain=MS)], ROWS, PAIRS, QUANTISED,
        [[(3, 8), (4, 8)]],
    ),
    Case(
        "sum of dequantised values",
        [node("DequantizeLinear", "x s z", "f"), node("DequantizeLinear", "y s z", "g"), node("Add", "f g", "r"),
         node("QuantizeLinear", "r s z")],
        ROWS, PAIRS, QUANTISED,
    ),
    Case(
        "products of bytes", [node("MatMulInteger", "x y")],
        {"x": (T.UINT8, ["a", 5, 8]), "y": (T.UINT8, ["b", 8, 6])},
        [[(4, 5, 8), (4, 8, 6)], [(1, 5, 8), (4, 8, 6)], [(4, 5, 8), (1, 8, 6)]],
    ),
    Case(
        "attention with a mask", ATTENTION, {**HEADS, "m": (T.FLOAT, ["mb", "mh", "mn", "mt"])},
        [[*QKV, mask] for mask in ((2, 4, 5, 7), (1, 1, 5, 7), (2, 1, 1, 7), (1, 1, 1, 1))],
        {"c": np.float32(0.25)}, [[*QKV, (2, 3, 5, 7)]],
    ),
    Case(
        "timesteps of a UNet",
        [node("Mul", "t f", "a"), node("Sin", "a", "u"), node("MatMul", "u w", "e"), node("Unsqueeze", "e ax", "e4"),
         node("Conv", "x k", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), node("Add", "y e4")],
        {"x": (T.FLOAT, ["batch", 4, "h", "w"]), "t": (T.FLOAT, ["steps", 1])},
        [[(2, 4, 8, 8), (2, 1)], [(2, 4, 8, 8), (1, 1)], [(1, 4, 8, 8), (3, 1)]],
        {"f": real(1, 32), "w": real(32, 32), "ax": np.array([2, 3]), "k": real(32, 4, 3, 3)},
        [[(2, 4, 8, 8), (3, 1)]],
    ),
    Case(
        "a norm of a sum", [node("SkipLayerNormalization", "x y g", domain=MS)],
        {"x": (T.FLOAT, ["b", "s", 16]), "y": (T.FLOAT, ["c", "s", 16])},
        [[(2, 3, 16), (2, 3, 16)], [(2, 3, 16), (1, 3, 16)]], {"g": real(16)},
    ),
    Case(
        "attention with a bias", [node("MultiHeadAttention", "q k v - - m", domain=MS, num_heads=2)],
        {"q": (T.FLOAT, ["b", "s", 16]), "k": (T.FLOAT, ["b", "t", 16]), "v": (T.FLOAT, ["b", "t", 16]),
         "m": (T.FLOAT, ["mb", "mh", "s", "t"])},
        [[(2, 3, 16), (2, 5, 16), (2, 5, 16), (*m, 3, 5)] for m in ((2, 2), (1, 2), (1, 1), (2, 1))],
    ),
    Case(
        "gathered rows", [node("Gather", "t i", "g", axis=0), node("Mul", "g y")],
        {"t": (T.FLOAT, [10, 8]), "i": (T.INT64, ["n"]), "y": (T.FLOAT, ["m", 8])},
        [[(10, 8), (n,), (m, 8)] for n, m in ((3, 3), (3, 1), (1, 3), (0, 1))],
    ),
    Case(
        "what follows a sum",
        [node("Add", "x y", "s"), node("Concat", "s x", "c", axis=1), node("Softmax", "c", axis=-1)],
        {"x": (T.FLOAT, ["n", "k"]), "y": (T.FLOAT, ["m", "l"])},
        [[(3, 8), (3, 8)], [(3, 8), (1, 8)], [(3, 8), (3, 1)], [(3, 1), (3, 5)]], refused=[[(1, 8), (3, 8)]],
    ),
    Case(
        "a bias is for its channel", [node("Conv", "x k c")],
        {"x": (T.FLOAT, ["n", 3, "w"]), "k": (T.FLOAT, ["m", 3, 2]), "c": (T.FLOAT, ["d"])},
        [[(2, 3, 8), (5, 3, 2), (5,)]], refused=[[(2, 3, 8), (5, 3, 2), (1,)]],
    ),
    Case(
        "scales are for their channels", [node("InstanceNormalization", "x g c")],
        {"x": (T.FLOAT, ["n", "c", "w"]), "g": (T.FLOAT, ["d"]), "c": (T.FLOAT, ["d"])},
        [[(2, 4, 8), (4,), (4,)]], refused=[[(2, 4, 8), (1,), (1,)]],
    ),
)  # fmt: skip


@pytest.mark.sweep(4)
@pytest.mark.with_scalar_kernels  # attention whose operands may all be stretched
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operators(case: Case) -> None:
    infos = [h.make_tensor_value_info(name, *info) for name, info in case.inputs.items()]
    constants = [onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in case.constants.items()]
    graph = h.make_graph(case.nodes, "g", infos, [h.make_empty_tensor_value_info("o")], constants)
    opsets = [h.make_opsetid("", 17), h.make_opsetid(MS, 1)]
    model = h.make_model(graph, opset_imports=opsets, ir_version=9)
    compiled, session = tilewright.compile(model, verify=True), ort.InferenceSession(model.SerializeToString())
    for shapes in case.calls:
        feeds = inputs_of(case, shapes)
        (wanted,), (found,) = session.run(None, feeds), compiled.run(feeds)
        assert found.shape == wanted.shape, shapes
        off = 1 if wanted.dtype.kind in "iu" else 1e-3
        np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=1e-3, atol=off)
    for shapes in case.refused:
        with pytest.raises(InputError, match=r"it must be that|cannot be reshaped"):
            compiled.run(inputs_of(case, shapes))


def inputs_of(case: Case, shapes: Sequence[tuple[int, ...]]) -> dict[str, np.ndarray]:
    make = {T.FLOAT: real, T.UINT8: small, T.INT64: lambda *s: np.arange(s[0]) % 10}
    return {name: make[type](*shape) for (name, (type, _)), shape in zip(case.inputs.items(), shapes, strict=True)}
