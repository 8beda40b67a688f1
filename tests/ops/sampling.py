"""What a sample of an operator is: inputs, attributes, and what an independent source says the result is.

Expected values are NumPy's (float64 where floats are concerned) or those of ONNX's reference evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

import tilewright.ops  # noqa: F401  (defines the operators)

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), BF16)
INTS = tuple(np.dtype(t) for t in (np.int8, np.uint8, np.int32, np.int64, np.uint64))
EPSILON = {
    np.dtype(np.float64): 1e-13,
    np.dtype(np.float32): 4e-7,
    np.dtype(np.float16): 1.5e-3,
    BF16: 1.2e-2,
    np.dtype(ml_dtypes.float8_e8m0fnu): 1e-13,
}
"""Error allowed in units of the expected value's own size, and of the largest one."""


@dataclass(frozen=True)
class Sample:
    """One application of operator `op`; `expected()` gives the array, or a tuple of several."""

    op: str
    inputs: Sequence[np.ndarray]
    expected: Callable[[], Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    loose: float = 1.0  # factor on the allowed error: long sums, ill-conditioned functions

    def __str__(self) -> str:
        shapes = ",".join(f"{a.dtype}{list(a.shape)}".replace(" ", "") for a in self.inputs)
        return f"{self.op}-{shapes}{'-' + self.note if self.note else ''}"


def normal(shape: Sequence[int], dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Numbers as the dtype has them: around 0 with a few larger ones, integers within -50..50 (0..50)."""
    rng = np.random.default_rng([seed, *shape])
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -50, 51, shape).astype(dtype)
    return (rng.standard_normal(shape) * 2).astype(dtype)


def wide(x: np.ndarray) -> np.ndarray:
    """x in float64 if it is of a float type."""
    return x if x.dtype.kind in "biu" else x.astype(np.float64)


def onnx_reference(op: str, inputs: Sequence[Any], opset: int = 22, outputs: int = 1, **attrs: Any) -> Any:
    """What ONNX's reference evaluator gives for a model of one node; None inputs are left out."""
    names = [f"x{k}" if x is not None else "" for k, x in enumerate(inputs)]
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op, names, results, **attrs)
    given = {n: x for n, x in zip(names, inputs, strict=True) if n}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in given.items()
    ]
    outs = [onnx.ValueInfoProto(name=n) for n in results]
    model = helper.make_model(
        helper.make_graph([node], "g", infos, outs), opset_imports=[helper.make_opsetid("", opset)]
    )
    found = ReferenceEvaluator(model).run(None, given)
    return found[0] if outputs == 1 else tuple(found)


def sample(
    op: str,
    inputs: Sequence[Any],
    expected: Callable[[], Any],
    note: str = "",
    loose: float = 1.0,
    **attrs: Any,
) -> Sample:
    return Sample(op, [np.asarray(x) for x in inputs], expected, attrs, note, loose)
