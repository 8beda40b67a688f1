"""Col2Im: whatever blocks overlap by, in as many dimensions, against sums one by one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "side by side": ((8, 12), (4, 3), {"strides": [4, 3]}),
    "overlapping": ((9, 10), (3, 3), {"pads": [1, 1, 1, 1]}),
    "every second": ((9, 8), (3, 2), {"strides": [2, 2], "pads": [1, 0, 1, 0]}),
    "gaps": ((11, 13), (2, 2), {"strides": [3, 4]}),
    "dilated": ((12, 11), (3, 2), {"dilations": [2, 3], "strides": [1, 2], "pads": [2, 0, 1, 1]}),
    "phases that no offset has": ((13, 9), (2, 2), {"dilations": [2, 2], "strides": [4, 2]}),
    "a line": ((17,), (5,), {"strides": [2]}),
    "a long block": ((80,), (70,), {}),
    "a volume": ((4, 5, 6), (2, 2, 3), {"strides": [2, 1, 1]}),
}


def summed(x: np.ndarray, image: tuple[int, ...], block: tuple[int, ...], attrs: dict[str, Any]) -> np.ndarray:
    count = len(image)
    strides, dilations = attrs.get("strides", [1] * count), attrs.get("dilations", [1] * count)
    pads = attrs.get("pads", [0] * 2 * count)
    padded = [image[k] + pads[k] + pads[count + k] for k in range(count)]
    cells = [(padded[k] - dilations[k] * (block[k] - 1) - 1) // strides[k] + 1 for k in range(count)]
    wide = x.astype(np.float64).reshape(x.shape[0], -1, *block, *cells)
    out = np.zeros((*wide.shape[:2], *padded))
    for offset, cell in itertools.product(np.ndindex(*block), np.ndindex(*cells)):
        at = tuple(c * s + o * d for c, s, o, d in zip(cell, strides, offset, dilations, strict=True))
        out[(..., *at)] += wide[(..., *offset, *cell)]
    return out[(..., *(slice(pads[k], pads[k] + image[k]) for k in range(count)))]


def model_of(
    shape: tuple[Any, ...], image: tuple[int, ...], block: tuple[int, ...] | None, attrs: dict[str, Any]
) -> Any:
    """A block of None comes with the call."""
    known = {"image": image} if block is None else {"image": image, "block": block}
    given = [helper.make_tensor_value_info("block", TensorProto.INT64, [len(image)])] if block is None else []
    graph = helper.make_graph(
        [helper.make_node("Col2Im", ["x", "image", "block"], ["y"], **attrs)],
        "folded",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape), *given],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(v), name) for name, v in known.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.sweep
@pytest.mark.parametrize("batch", [2, "n"])
@pytest.mark.parametrize("case", CASES)
def test_overlapping_blocks_are_added_up(case: str, batch: int | str) -> None:
    image, block, attrs = CASES[case]
    count = len(image)
    strides, dilations = attrs.get("strides", [1] * count), attrs.get("dilations", [1] * count)
    pads = attrs.get("pads", [0] * 2 * count)
    cells = [
        (image[k] + pads[k] + pads[count + k] - dilations[k] * (block[k] - 1) - 1) // strides[k] + 1
        for k in range(count)
    ]
    x = np.random.default_rng(0).standard_normal((2, 3 * int(np.prod(block)), int(np.prod(cells)))).astype(np.float32)
    model = tilewright.compile(model_of((batch, *x.shape[1:]), image, block, attrs), threads=1, cache=False)
    (y,) = model(x)
    np.testing.assert_allclose(y, summed(x, image, block, attrs), rtol=1e-5, atol=1e-5)
    if batch == 2:
        of_call = tilewright.compile(model_of(x.shape, image, None, attrs), threads=1, cache=False)
        (y,) = of_call(x, np.array(block))
        np.testing.assert_allclose(y, summed(x, image, block, attrs), rtol=1e-5, atol=1e-5)
