"""Models with symbolic dims, for tests of frequent sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto as T
from onnx import helper as h

import tilewright
from tests.staging.models import model_of

W = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)


def data(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype(np.float32)


def products() -> Any:
    """Two products of x[batch, length, 64] with W."""
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["a"]),
        h.make_node("Relu", ["a"], ["b"]),
        h.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    return model_of(nodes, [("x", T.FLOAT, ["batch", "length", 64])], ["y"], {"w": W})


def of_products(x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ W, 0) @ W


def staged() -> Any:
    """The rows of x[batch, 64] with a large element of x W, times W: the host finds how many there are."""
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["a"]),
        h.make_node("ReduceMax", ["a", "axes"], ["most"], keepdims=0),
        h.make_node("Greater", ["most", "limit"], ["keep"]),
        h.make_node("Compress", ["a", "keep"], ["kept"], axis=0),
        h.make_node("MatMul", ["kept", "w"], ["y"]),
    ]
    weights = {"w": W, "limit": np.array(20, np.float32), "axes": np.array([1])}
    return model_of(nodes, [("x", T.FLOAT, ["batch", 64])], ["y"], weights)


def of_staged(x: np.ndarray) -> np.ndarray:
    a = x @ W
    return a[a.max(axis=1) > 20] @ W


def ran(model: tilewright.Model) -> str:
    """The sizes that the program of the last call was compiled for, "" for the general one."""
    program = model._contexts[-1].current.linked.artifact
    return next((v.text for v in model.artifact.variants if v.artifact is program), "")


def assert_close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)
