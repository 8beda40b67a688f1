"""The cases of the onnx package, without what takes long and nobody reads."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from onnx.backend.test.case import base
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase
from onnx.reference.ops import op_pool_common

_pool = op_pool_common.pool


@contextmanager
def collected_quickly() -> Iterator[None]:
    """The package computes what its cases give when they are collected, one window of a pool after the other: three
    quarters of the time are 268,119 windows of three cases, which are computed together here. Source texts of the
    cases are left out."""
    with (
        warnings.catch_warnings(action="ignore"),  # infinities are among what is computed
        patch.object(base, "process_snippet", return_value=("", "")),
        patch.object(op_pool_common, "pool", pool),
    ):
        yield


def cases_of_nodes() -> Sequence[TestCase]:
    """Those of single operators."""
    with collected_quickly():
        return collect_testcases(None)  # type: ignore[arg-type]


def pool(
    padded: np.ndarray, x_shape: Sequence[int], kernel: Sequence[int], strides: Sequence[int], out_shape: Sequence[int],
    pooling_type: str, *others: Any, p: int = 1, **more: Any,
) -> np.ndarray:  # fmt: skip
    """What the package's function of this name gives; at once where windows are whole."""
    if others or more:
        return _pool(padded, x_shape, kernel, strides, out_shape, pooling_type, *others, p=p, **more)
    space = range(2, padded.ndim)
    views = np.lib.stride_tricks.sliding_window_view(padded, tuple(kernel), tuple(space))
    windows = views[(..., *(slice(None, None, step) for step in strides), *(slice(None) for _ in kernel))]
    axes = tuple(range(-len(kernel), 0))
    match pooling_type:
        case "AVG":
            return np.average(windows, axis=axes)
        case "MAX":
            return np.max(windows, axis=axes)
    return (np.sum(np.abs(windows) ** p, axis=axes) ** (1.0 / p)).astype(padded.dtype)
