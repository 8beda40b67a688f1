"""One model that reads, computes and writes numbers of all widths: what a byte order, a dot instruction or a missing
conversion could break."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

NARROW = {
    "half": T.FLOAT16, "brain": T.BFLOAT16, "e4m3": T.FLOAT8E4M3FN, "e5m2": T.FLOAT8E5M2, "int4": T.INT4,
    "uint4": T.UINT4, "int16": T.INT16, "int64": T.INT64, "uint8": T.UINT8,
}  # fmt: skip
PRODUCTS = {"uu": (T.UINT8, np.uint8), "ui": (T.UINT8, np.int8), "iu": (T.INT8, np.uint8), "ii": (T.INT8, np.int8)}


def mixed() -> onnx.ModelProto:
    """x[rows, 64] becomes narrow numbers and floats again, is multiplied with weights of 8 and 4 bits and of float16,
    and goes through a table; bytes are multiplied by bytes; int64 shifts and sums."""
    rng, nodes, outputs, constants = np.random.default_rng(11), [], [], {}
    for name, dtype in NARROW.items():
        nodes.append(h.make_node("Cast", ["x"], [f"as_{name}"], to=dtype))
        nodes.append(h.make_node("Cast", [f"as_{name}"], [f"from_{name}"], to=T.FLOAT))
        outputs += [(f"from_{name}", T.FLOAT), (f"as_{name}", dtype)]
    for name, (left, right) in PRODUCTS.items():
        constants[f"w_{name}"] = _whole(rng, right, 64, 40)
        nodes.append(h.make_node("Cast", ["scaled"], [f"l_{name}"], to=left))
        nodes.append(h.make_node("MatMulInteger", [f"l_{name}", f"w_{name}"], [f"y_{name}"]))
        outputs.append((f"y_{name}", T.INT32))
    nodes.insert(0, h.make_node("Mul", ["x", "twenty"], ["scaled"]))
    constants["twenty"] = np.array(20, np.float32)
    four = rng.integers(-8, 8, (64, 48)).astype(ml_dtypes.int4)
    constants["scales"] = rng.random((2, 48)).astype(np.float32)
    constants["w_half"] = rng.standard_normal((64, 24)).astype("f2")
    nodes += [
        h.make_node("DequantizeLinear", ["four", "scales"], ["w_four"], axis=0, block_size=32),
        h.make_node("MatMul", ["x", "w_four"], ["y_four"]), h.make_node("MatMul", ["as_half", "w_half"], ["y_half"]),
        h.make_node("Erf", ["x"], ["e"]), h.make_node("Softmax", ["e"], ["p"]),
        h.make_node("Gather", ["table", "as_index"], ["y_table"]),
        h.make_node("Clip", ["x", "zero", "seven"], ["inside"]),
        h.make_node("Cast", ["inside"], ["as_index"], to=T.INT64),
        h.make_node("Mul", ["as_int64", "large"], ["y_large"]), h.make_node("Greater", ["x", "zero"], ["y_bool"]),
        h.make_node("Sin", ["as_double"], ["y_double"]), h.make_node("Cast", ["x"], ["as_double"], to=T.DOUBLE),
        h.make_node("TopK", ["x", "k"], ["y_top", "y_places"]), h.make_node("BitCast", ["x"], ["y_bits"], to=T.UINT32),
    ]  # fmt: skip
    constants |= {
        "zero": np.array(0, np.float32), "seven": np.array(7, np.float32), "k": np.array([5]),
        "table": rng.integers(-(1 << 62), 1 << 62, 8), "large": np.array(0x0123456789),
    }  # fmt: skip
    outputs += [("y_four", T.FLOAT), ("y_half", T.FLOAT16), ("p", T.FLOAT), ("y_table", T.INT64), ("y_large", T.INT64)]
    outputs += [("y_bool", T.BOOL), ("y_double", T.DOUBLE), ("y_top", T.FLOAT), ("y_places", T.INT64)]
    outputs.append(("y_bits", T.UINT32))
    given = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    given.append(h.make_tensor("four", T.INT4, four.shape, _halves(four), raw=True))
    graph = h.make_graph(
        _sorted(nodes, {"x", "four", *constants}), "mixed", [h.make_tensor_value_info("x", T.FLOAT, ["rows", 64])],
        [h.make_tensor_value_info(name, dtype, None) for name, dtype in outputs], given,
    )  # fmt: skip
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 26)], ir_version=11)


def mixed_input(rows: int = 5) -> np.ndarray:
    """Numbers within a byte, large ones, and such that need rounding."""
    return (np.random.default_rng(3).standard_normal((rows, 64)) * 3).astype(np.float32)


def _whole(rng: np.random.Generator, dtype: type, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def _halves(four: np.ndarray) -> bytes:
    pairs = four.astype(np.uint8).reshape(-1, 2) & 15
    return (pairs[:, 0] | pairs[:, 1] << 4).astype(np.uint8).tobytes()


def _sorted(nodes: list[onnx.NodeProto], known: set[str]) -> list[onnx.NodeProto]:
    """In an order in which each follows what it reads."""
    found = []
    while nodes:
        ready = [node for node in nodes if set(node.input) <= known]
        found += ready
        known |= {name for node in ready for name in node.output}
        nodes = [node for node in nodes if node not in ready]
    return found
