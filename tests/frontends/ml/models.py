"""Random models of the domain `ai.onnx.ml`, and what ONNX Runtime makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

import tilewright

DOMAIN = "ai.onnx.ml"
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
LEVELS = (-1.0, -0.5, 0.0, 0.5, 1.0)
"""Thresholds and features that meet."""

_OUTPUTS = {"label": TensorProto.INT64, "y": TensorProto.FLOAT}


def ml_model(
    op: str,
    attrs: Mapping[str, Any],
    x: np.ndarray,
    *,
    outputs: Sequence[str] = ("y",),
    version: int = 3,
    others: Sequence[str] = (),
    constants: Sequence[onnx.TensorProto] = (),
    rows: str | int | None = "n",
) -> onnx.ModelProto:
    """A model of one node, whose input `x` has any number of rows; outputs may have types as `_OUTPUTS` has them."""
    node = helper.make_node(op, ["x", *others], list(outputs), domain=DOMAIN, **attrs)
    shape = [rows, *x.shape[1:]] if x.ndim > 1 else list(x.shape)
    declared = [
        helper.make_tensor_value_info(o, _OUTPUTS[o], None) if o in _OUTPUTS else onnx.ValueInfoProto(name=o)
        for o in outputs
    ]
    info = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), shape)
    graph = helper.make_graph([node], "g", [info], declared, list(constants))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def agree(model: onnx.ModelProto, *inputs: np.ndarray, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Native code gives what ONNX Runtime gives, for each of the inputs `x`."""
    text = model.SerializeToString()
    ours = tilewright.compile(text, threads=1, cache=False)
    theirs = ort.InferenceSession(text, providers=["CPUExecutionProvider"])
    for x in inputs:
        for got, wanted in zip(ours(x), theirs.run(None, {"x": x}), strict=True):
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol)


def features(rng: np.random.Generator, rows: int, count: int, dtype: Any = np.float32) -> np.ndarray:
    """Numbers, many of which are thresholds; of floats also infinities and NaN."""
    x = np.where(
        rng.random((rows, count)) < 0.4,
        rng.choice(LEVELS, (rows, count)),
        rng.standard_normal((rows, count)),
    )
    if np.dtype(dtype).kind == "i":
        return np.round(2 * x).astype(dtype)
    odd = rng.choice([np.nan, np.inf, -np.inf], (rows, count))
    return np.where(rng.random((rows, count)) < 0.1, odd, x).astype(dtype)


def random_trees(
    rng: np.random.Generator, trees: int, count: int, depth: int, modes: Sequence[str], full: bool
) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """The attributes of nodes, and the tree and node of each leaf."""
    names = ("treeids", "nodeids", "featureids", "values", "truenodeids", "falsenodeids", "modes")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    leaves = []
    for tree in range(trees):
        sizes = [0]

        def grow(level: int, tree: int = tree, sizes: list[int] = sizes) -> int:
            number, place = sizes[0], len(columns["modes"])
            sizes[0] += 1
            is_leaf = level == depth or (not full and level > 0 and rng.random() < 0.3)
            threshold = rng.choice(LEVELS) if rng.random() < 0.7 else rng.standard_normal()
            mode = "LEAF" if is_leaf else str(rng.choice(modes))
            row = (tree, number, int(rng.integers(count)), float(np.float32(threshold)), 0, 0, mode)
            for name, value in zip(names, row, strict=True):
                columns[name].append(value)
            if is_leaf:
                leaves.append((tree, number))
            else:
                columns["truenodeids"][place] = grow(level + 1)
                columns["falsenodeids"][place] = grow(level + 1)
            return number

        grow(0)
    return {f"nodes_{name}": values for name, values in columns.items()}, leaves


def weights_of(
    rng: np.random.Generator,
    leaves: Sequence[tuple[int, int]],
    kind: str,
    count: int,
    style: str,
    positive: bool,
) -> dict[str, Any]:
    """Attributes with weights of leaves, for the target that is a tree's turn ("turns"), all of them ("all"), a random
    one ("any") or the last one ("last")."""
    rows = []
    for tree, node in leaves:
        chosen = {"turns": [tree % count], "all": range(count), "any": [int(rng.integers(count))]}
        for target in chosen.get(style, [count - 1]):
            weight = float(np.float32(rng.standard_normal()))
            rows.append((tree, node, target, abs(weight) if positive else weight))
    columns = zip(*rows, strict=True)
    return {
        f"{kind}_{n}": list(c) for n, c in zip(("treeids", "nodeids", "ids", "weights"), columns, strict=True)
    }
