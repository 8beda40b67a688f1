"""Transposed convolutions padded to the size of the input times the strides, by hand.

The standard says so of `auto_pad`: `output_shape[i] = input_shape[i] * strides[i]`. Where the kernel is shorter than
the stride this needs pads below 0, and the standard does not say how half of an odd one is rounded: the elements that
no tap reaches come last, as those of an explicit `output_shape` do in ONNX Runtime. ONNX Runtime itself gives fewer
elements with `auto_pad`, as it has no pads below 0; the reference evaluator of the onnx package gives as many as here.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import tilewright
from tests.frontends.helpers import info, model_of, reference

X = np.array([10, 20, 30], np.float32)

CASES = {
    "one tap": ([1], 2, {}, [10, 0, 20, 0, 30, 0]),
    "one tap, far apart": ([1], 3, {}, [10, 0, 0, 20, 0, 0, 30, 0, 0]),
    "two taps of three": ([1, 2], 3, {}, [10, 20, 0, 20, 40, 0, 30, 60, 0]),
    "one tap and more of the output": ([1], 2, {"output_padding": [1]}, [10, 0, 20, 0, 30, 0]),
    "as long as the stride": ([1, 2], 2, {}, [10, 20, 20, 40, 30, 60]),
}


@pytest.mark.sweep(5)
@pytest.mark.parametrize("size", [3, "n"], ids=str)
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("case", CASES)
def test_kernels_no_longer_than_the_stride(case: str, mode: str, size: int | str) -> None:
    taps, stride, attrs, expected = CASES[case]
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], auto_pad=mode, strides=[stride], **attrs)
    w = np.array(taps, np.float32).reshape(1, 1, -1)
    model = model_of([node], [info("x", [1, 1, size])], ["y"], {"w": w}, opset=20)
    x = X.reshape(1, 1, -1)
    (found,) = tilewright.compile(model, cache=False, threads=1)(x)
    np.testing.assert_array_equal(found.ravel(), expected)
    assert reference(model, x)[0].shape == found.shape
