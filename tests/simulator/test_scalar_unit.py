"""Kernels of an accelerator that none of its units takes: of unknown sizes, and operators with loops of their own."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper, parser

import tilewright
from tilewright.plugins import Plugin
from tilewright.session import Session
from tilewright.target.machine import Accelerator

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
CASES = {
    "a product": "m (float[n,k] x, float[k,m] w) => (float[n,m] y) { p = MatMul(x, w) y = Tanh(p) }",
    "a product of 16 bits": "m (float16[n,12] x) => (float[n,8] y) { p = MatMul(x, h) y = Cast<to=1>(p) }",
    "greatest ones": """m (float[n,k] x) => (float[n,1] y, int64[n,1] i)
        { c = Constant<value=int64[1]{1}>() y, i = TopK(x, c) }""",
    "sums so far": "m (float[n,k] x) => (float[n,k] y) { c = Constant<value=int64{1}>() y = CumSum(x, c) }",
    "sizes from data": "m (float[n,k] x) => (int64[2,q] y) { y = NonZero(x) }",
    "a recurrent layer": "m (float[n,k,5] x) => (float[n,1,k,3] y) { y = LSTM<hidden_size=3>(x, g, r) }",
}  # fmt: skip


def source(text: str) -> bytes:
    made, rng = parser.parse_model(HEAD + text), np.random.default_rng(3)
    shapes = {"h": ((12, 8), np.float16), "g": ((1, 12, 5), np.float32), "r": ((1, 12, 3), np.float32)}
    for name, (shape, dtype) in shapes.items():
        if any(name in node.input for node in made.graph.node):
            made.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(dtype), name))
    return made.SerializeToString()


@pytest.mark.parametrize("machine", ["npu16", "systolic16", "bare"])
@pytest.mark.parametrize("case", CASES)
def test_what_no_unit_takes_runs_on_the_scalar_unit(machine: str, case: str, tmp_path: Path) -> None:
    plugin = Plugin("bare machine", machines=(Accelerator("bare"),))
    session = Session(tmp_path, plugins=(plugin,))
    with warnings.catch_warnings():
        warnings.simplefilter("error", tilewright.PerformanceWarning)  # that a step failed, which asks for a report
        made = tilewright.compile(source(CASES[case]), target=machine, session=session)
        host = tilewright.compile(source(CASES[case]), session=session, threads=1)
    rng = np.random.default_rng(4)
    for sizes in ({"n": 3, "k": 7, "m": 5}, {"n": 1, "k": 1, "m": 1}, {"n": 33, "k": 9, "m": 2}):
        given = [
            rng.standard_normal([sizes.get(d, d) for d in info.shape]).astype(info.dtype) for info in host.inputs
        ]
        for found, expected in zip(made(*given), host(*given), strict=True):
            assert found.shape == expected.shape and found.dtype == expected.dtype
            # the CPU leaves out the rounding of a product to 16 bits, which is half of 2 ** -10
            np.testing.assert_allclose(found, expected, rtol=2**-10, atol=1e-4)


def test_what_has_no_room_is_told(tmp_path: Path) -> None:
    made = tilewright.compile(source(CASES["greatest ones"]), target="npu16", session=Session(tmp_path, plugins=()))
    assert any("no memory of machine 'npu16' has room for" in r.message for r in made.report().remarks)
