"""Recurrent layers of unknown length, steps of decoding, quantised products, and tree ensembles."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from bench.dynamic.model import Dynamic, dynamic, normal


def _recurrent(rng: np.random.Generator, op: str, gates: int, length: int) -> Dynamic:
    graph = f"""layer (float[t, 1, 256] x) => (float[t, 1, 1, 256] y, float[1, 1, 256] h) {{
      y, h = {op} <hidden_size = 256> (x, w, r, b)
    }}"""
    weights = {
        "w": normal(rng, 1, gates * 256, 256, scale=1 / 16),
        "r": normal(rng, 1, gates * 256, 256, scale=1 / 16),
        "b": normal(rng, 1, 2 * gates * 256, scale=0.1),
    }
    return Dynamic(graph, {"x": normal(rng, length, 1, 256)}, weights)


@dynamic
def lstm_length_50(rng: np.random.Generator) -> Dynamic:
    return _recurrent(rng, "LSTM", 4, 50)


@dynamic
def gru_length_50(rng: np.random.Generator) -> Dynamic:
    return _recurrent(rng, "GRU", 3, 50)


@dynamic
def grouped_attention_step(rng: np.random.Generator) -> Dynamic:
    """One token with 511 before it: 16 heads that share 4 heads of keys and values."""
    graph = """step (float[1, 1, 1024] q, float[1, 1, 256] k, float[1, 1, 256] v, float[1, 4, p, 64] keys,
                   float[1, 4, p, 64] values, int32[1] last, int32[1] total)
        => (float[1, 1, 1024] y, float[1, 4, t, 64] keys2, float[1, 4, t, 64] values2) {
      y, keys2, values2 = com.microsoft.GroupQueryAttention <num_heads = 16, kv_num_heads = 4>
        (q, k, v, keys, values, last, total)
    }"""
    inputs = {
        "q": normal(rng, 1, 1, 1024),
        "k": normal(rng, 1, 1, 256),
        "v": normal(rng, 1, 1, 256),
        "keys": normal(rng, 1, 4, 511, 64),
        "values": normal(rng, 1, 4, 511, 64),
        "last": np.array([511], np.int32),
        "total": np.array([512], np.int32),
    }
    return Dynamic(graph, inputs, {})


def _four_bits(rng: np.random.Generator, rows: int) -> Dynamic:
    graph = """product (float[n, 2048] x) => (float[n, 4096] y) {
      y = com.microsoft.MatMulNBits <K = 2048, N = 4096, bits = 4, block_size = 32> (x, w, scales)
    }"""
    weights = {
        "w": rng.integers(0, 256, (4096, 64, 16), np.uint8),
        "scales": rng.uniform(0.001, 0.01, 4096 * 64).astype(np.float32),
    }
    return Dynamic(graph, {"x": normal(rng, rows, 2048)}, weights)


@dynamic
def four_bits_1_row(rng: np.random.Generator) -> Dynamic:
    return _four_bits(rng, 1)


@dynamic
def four_bits_16_rows(rng: np.random.Generator) -> Dynamic:
    return _four_bits(rng, 16)


@dynamic
def trees_1_row(rng: np.random.Generator) -> Dynamic:
    return _trees(rng, 1)


@dynamic
def trees_1000_rows(rng: np.random.Generator) -> Dynamic:
    return _trees(rng, 1000)


def _trees(
    rng: np.random.Generator, rows: int, trees: int = 100, leaves: int = 31, features: int = 30
) -> Dynamic:
    """Trees as boosting makes them: of so many leaves, and not balanced."""
    nodes: dict[str, list[Any]] = {key: [] for key in ("treeids", "nodeids", "featureids", "values", "modes",
                                                        "truenodeids", "falsenodeids")}  # fmt: skip
    target: dict[str, list[Any]] = {"treeids": [], "nodeids": [], "weights": [], "ids": []}
    for tree in range(trees):
        children: dict[int, tuple[int, int]] = {}
        ends = [0]
        for count in range(1, 2 * leaves - 1, 2):
            split = ends.pop(int(rng.integers(len(ends))))
            children[split] = (count, count + 1)
            ends += children[split]
        for node in range(2 * leaves - 1):
            yes, no = children.get(node, (0, 0))
            is_leaf = node not in children
            row = (tree, node, 0 if is_leaf else int(rng.integers(features)), float(np.float32(rng.standard_normal())),
                   "LEAF" if is_leaf else "BRANCH_LEQ", yes, no)  # fmt: skip
            for key, value in zip(nodes, row, strict=True):
                nodes[key].append(value)
            for key, value in zip(target, (tree, node, float(rng.standard_normal()), 0), strict=True):
                if is_leaf:
                    target[key].append(value)
    attributes = {f"nodes_{key}": value for key, value in nodes.items()}
    attributes |= {f"target_{key}": value for key, value in target.items()}
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, **attributes
    )
    info = helper.make_tensor_value_info
    graph = helper.make_graph([node], "trees", [info("x", TensorProto.FLOAT, ["n", features])],
                              [info("y", TensorProto.FLOAT, ["n", 1])])  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return Dynamic(model, {"x": normal(rng, rows, features)}, {})
