"""Operands that are broadcast to the data, to which the data are not broadcast: others are refused, when compiling or
in the call."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tilewright
from tilewright.runtime.errors import TilewrightError

HEAD = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]> g '
NODES = {
    "layer norm": "(float[a, b] x, float[c] y) => (float[m, n] z) { z = LayerNormalization (x, y) }",
    "its bias": "(float[a, b] x, float[c] y) => (float[m, n] z) <float[1] o = {1}> "
    "{ z = LayerNormalization (x, o, y) }",
    "rms norm": "(float[a, b] x, float[c] y) => (float[m, n] z) { z = RMSNormalization (x, y) }",
    "simplified": "(float[a, b] x, float[c] y) => (float[m, n] z) { z = SimplifiedLayerNormalization (x, y) }",
    "gelu": "(float[a, b] x, float[c] y) => (float[m, n] z) { z = com.microsoft.BiasGelu (x, y) }",
    "fast gelu": "(float[a, b] x, float[c] y) => (float[m, n] z) { z = com.microsoft.FastGelu (x, y) }",
    "gemm": "(float[a, b] x, float[c] y) => (float[m, n] z) { t = Transpose (x) q = MatMul (x, t) z = Gemm (q, x, y) }",
    "fused gemm": "(float[a, b] x, float[c] y) => (float[m, n] z) "
    '{ t = Transpose (x) q = MatMul (x, t) z = com.microsoft.FusedGemm <activation = "Relu"> (q, x, y) }',
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", NODES)
def test_data_are_not_stretched(name: str) -> None:
    text = HEAD + NODES[name]
    model = tilewright.compile(onnx.parser.parse_model(text), cache=False)
    for b, c in ((4, 4), (4, 1), (1, 1)):
        assert model(np.ones((2, b), np.float32), np.ones(c, np.float32))[0].shape == (2, b)
    for b, c in ((1, 4), (3, 4), (4, 3)):
        with pytest.raises(TilewrightError, match="it must be that b == c or c == 1"):
            model(np.ones((2, b), np.float32), np.ones(c, np.float32))
        fixed = text.replace("a, b] x, float[c]", f"2, {b}] x, float[{c}]")
        with pytest.raises(TilewrightError, match=r"f32\[2, |sum|product"):
            tilewright.compile(onnx.parser.parse_model(fixed), cache=False)


@pytest.mark.parametrize("operator", ["InstanceNormalization", "GroupNormalization <num_groups = 1>"])
def test_there_is_an_entry_for_each_channel(operator: str) -> None:
    text = HEAD + f"(float[1, 3, n] x, float[c] s) => (float[1, p, q] z) {{ z = {operator} (x, s, s) }}"
    model = tilewright.compile(onnx.parser.parse_model(text), cache=False)
    x = np.ones((1, 3, 5), np.float32)
    assert model(x, np.ones(3, np.float32))[0].shape == (1, 3, 5)
    for size in (1, 2):
        with pytest.raises(TilewrightError, match=r"the channels differ|it must be that c == 3"):
            model(x, np.ones(size, np.float32))
    for size, channels in ((1, 3), (3, 1)):
        fixed = text.replace("1, 3, n", f"1, {channels}, n").replace("float[c]", f"float[{size}]")
        with pytest.raises(TilewrightError, match="numbers for channels and the channels differ"):
            tilewright.compile(onnx.parser.parse_model(fixed), cache=False)
