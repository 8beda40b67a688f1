"""Whether ONNX Runtime saturates sums of two products of bytes here: on x86 without VNNI it adds pairs of u8 * s8 in 16
bits, and advises weights of 7 bits. Tests that take its results for right keep signed bytes in these there."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

LEAST, GREATEST = -64, 63
"""Of signed bytes whose products with unsigned ones do not saturate in pairs."""


@cache
def pairs_saturate() -> bool:
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    given = [
        helper.make_tensor_value_info("a", TensorProto.UINT8, [1, 8]),
        helper.make_tensor_value_info("b", TensorProto.INT8, [8, 8]),
    ]
    graph = helper.make_graph([node], "g", given, [helper.make_tensor_value_info("y", TensorProto.INT32, [1, 8])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    a, b = np.full((1, 8), 255, np.uint8), np.full((8, 8), 127, np.int8)
    (found,) = session.run(None, {"a": a, "b": b})
    return bool((found != 8 * 255 * 127).any())


def unsaturated(array: np.ndarray) -> np.ndarray:
    """Signed bytes of matrices, of which ONNX Runtime makes right sums here; all other arrays as they are."""
    is_matrix = array.dtype == np.int8 and array.ndim >= 2
    return array // 2 if is_matrix and pairs_saturate() else array


def saturates(array: np.ndarray) -> bool:
    """Whether ONNX Runtime may make wrong sums of products with this array."""
    is_wide = array.dtype == np.int8 and array.size and (array.min() < LEAST or array.max() > GREATEST)
    return bool(is_wide and pairs_saturate())
