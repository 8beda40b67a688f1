"""Classes: their labels, and numbers for others."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontends.onnx.adapters.ml.maps import looked_up
from tilewright.frontends.onnx.adapters.ml.rows import DOMAIN
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ops import elementwise as ew
from tilewright.ops import index as ix
from tilewright.ops.define import constant
from tilewright.ops.reduce import argmax
from tilewright.ops.source import full
from tilewright.ops.view import shape_of, slice_, squeeze


class Labels:
    """The labels of a classifier: numbers, or text, which the host looks up."""

    def __init__(self, node: Node, numbers: str, text: str) -> None:
        self._node = node
        self._text: tuple[str, ...] = tuple(node.attr(text, ()))
        self._numbers: tuple[int, ...] = tuple(node.attr(numbers, ()))
        self.count = len(self._text) or len(self._numbers)
        if not self.count:
            raise ModelError(f"{node.op} needs the attribute '{numbers}' or '{text}'")

    def of(self, classes: Value) -> Value | None:
        """The label of each row's class, a position (i64); None where it is text that nobody reads."""
        if not self._text:
            return ix.gather(constant(np.array(self._numbers, np.int64), "labels"), classes, axis=0)
        if not self._node.wants(0):
            return None
        return looked_up(classes, tuple(range(self.count)), np.array(self._text, object), None)

    def of_sign(self, is_positive: Value, *, always: bool = True) -> Value | None:
        """The second of two labels where a score is positive and the first elsewhere; without two, or not `always`, 1
        and 0 (as ONNX Runtime has it)."""
        classes = ew.cast(is_positive, dtype=dt.i64)
        return self.of(classes) if (always and self.count == 2) or self._text else classes


def greatest(scores: Value) -> Value:
    """The position of the first greatest score of each row; NaN is greater than nothing, and nothing greater than a
    first one."""
    rows = shape_of(scores)[0]
    best = argmax(ew.select(ew.is_nan(scores), -np.inf, scores), axis=1, keepdims=False)
    first = squeeze(slice_(scores, starts=(0, 0), sizes=(rows, 1)), axes=(1,))
    return ew.select(ew.is_nan(first), full(value=0, dtype=dt.i64, shape=()), best)


@adapter("LabelEncoder", since=2, domain=DOMAIN, takes="all")
def label_encoder(node: Node) -> Value:
    """For each element the value of the key that it equals, or a default. NaN equals NaN from version 4 on."""
    keys, values = _listed(node, "keys"), _listed(node, "values")
    if keys.size != values.size or not keys.size:
        raise ModelError(f"LabelEncoder has {keys.size} keys for {values.size} values")
    if keys.dtype != node.dtype(0).storage:
        raise ModelError(f"LabelEncoder has keys of {keys.dtype} for {node.type(0)}")
    if keys.dtype == object or values.dtype == object:
        return looked_up(node.input(0), keys.tolist(), values, _default(node, values.dtype).item())
    default = constant(_default(node, values.dtype), "default")
    x, names = node.input(0), np.isnan(keys) if keys.dtype.kind == "f" else np.zeros(keys.shape, bool)
    sorted_keys, first = np.unique(keys[~names], return_index=True)
    found = default
    if sorted_keys.size:
        found = ix.lookup(
            x, constant(sorted_keys, "keys"), constant(values[~names][first], "values"), default
        )
    if names.any() and node.version >= 4:
        found = ew.select(ew.is_nan(x), constant(values[names][0], "value"), found)
    return found


_SUFFIXES: dict[str, Any] = {"int64s": np.int64, "floats": np.float32, "strings": object}


def _listed(node: Node, name: str) -> np.ndarray:
    """Keys or values, in whichever attribute they are."""
    if node.has(f"{name}_tensor"):
        return node.array(f"{name}_tensor").reshape(-1)
    given = [s for s in _SUFFIXES if node.has(f"{name}_{s}")]
    if not given:
        raise ModelError(
            f"LabelEncoder needs the attribute '{name}_tensor', or one of '{name}_int64s' and so on"
        )
    return np.array(node.attr(f"{name}_{given[0]}"), _SUFFIXES[given[0]])


def _default(node: Node, dtype: np.dtype) -> np.ndarray:
    if node.has("default_tensor"):
        return node.array("default_tensor").reshape(()).astype(dtype)
    name = {"f": "default_float", "O": "default_string"}.get(dtype.kind, "default_int64")
    return np.array(node.attr(name), dtype)
