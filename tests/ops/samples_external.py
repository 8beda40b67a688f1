"""Samples of operators that are computed by kernels from outside: their loops mean what the operators mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.ops.sampling import Sample, normal, sample, wide
from tilewright.ops.define import OPERATORS


def external() -> Iterator[Sample]:
    def of(name: str, inputs: list[np.ndarray], expected: Any, **attrs: Any) -> Sample:
        attributes = tuple(sorted((OPERATORS[name].defaults | attrs).items()))
        return sample("external_kernel", inputs, expected, f"of {name}", 4, kernel="k", of=name, attributes=attributes)

    for dtype in (np.float32, np.float16):
        for shape in ((), (3, 0), (2, 5)):
            x = normal(shape, dtype)
            yield of("neg", [x], lambda x=x: -wide(x))
    x, w = normal((2, 4, 5), np.float32), normal((2, 5, 3), np.float32)
    yield of("matmul", [x, w], lambda: wide(x) @ wide(w))
    yield of("reduce_sum", [x], lambda: wide(x).sum((0, 2)), axes=(0, 2), keepdims=False)
    powers = np.exp(wide(x))
    yield of("softmax", [x], lambda: powers / powers.sum(1, keepdims=True), axis=1)
    order = np.argsort(-wide(x), 2, kind="stable")[..., :2]
    yield of("topk", [x], lambda: (np.take_along_axis(wide(x), order, 2), order), k=2, axis=2, largest=True)
