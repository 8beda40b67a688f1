"""The reference of `tilewright diff MODEL` is in float64 throughout."""

from __future__ import annotations

import numpy as np
import pytest

from tests.validation.planted import program
from tilewright.comparison.compiled import diff_compiled
from tilewright.ir.text import parse_module
from tilewright.options import Options, Request
from tilewright.session import Session
from tilewright.validation.cases import Case
from tilewright.validation.values import ExactValues

X = np.linspace(0.1, 3, 64, dtype=np.float32)


def exact(text: str, *arrays: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, list[str]]:
    module = parse_module(text)
    if weights is not None:
        module.constants["w"] = weights
    values = ExactValues(module, Case("given", arrays, {}), float("inf"))
    for op in module.main.body.ops[:-1]:
        assert values.compute(op)
    return values.known[module.main.returns[0]], list(values.rounded)


def test_nothing_is_rounded_between_operators() -> None:
    text = program(
        "  w = constant @w : f16[64]\n  a = cast(x) {dtype=f16} : f16[64]\n  b = mul(a, w) : f16[64]\n"
        "  c = full() {value=0.1, dtype=f16, shape=()} : f16[]\n  d = add(b, c) : f16[64]\n  e = exp(d) : f16[64]\n"
        "  y = cast(e) {dtype=bf16} : bf16[64]",
        "x: f32[64]", "bf16[64]", ["w: f16[64]"],
    )  # fmt: skip
    w = np.full(64, 1 / 3, np.float16)
    found, rounded = exact(text, X, weights=w)
    assert found.dtype == np.float64 and not rounded
    wanted = np.exp(X.astype(np.float64) * w.astype(np.float64) + float(np.float16(0.1)))
    np.testing.assert_allclose(found, wanted, rtol=1e-13)


def test_sums_and_composites() -> None:
    text = program("  y = softmax(x) {axis=-1} : f16[4, 16]", "x: f16[4, 16]", "f16[4, 16]")
    x = X.reshape(4, 16).astype(np.float16)
    powers = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(exact(text, x)[0], powers / powers.sum(axis=1, keepdims=True), rtol=1e-13)


def test_what_takes_bits_apart_is_told() -> None:
    text = program("  a = exp(x) : f32[64]\n  y = bitcast(a) {dtype=i32} : i32[64]", "x: f32[64]", "i32[64]")
    found, rounded = exact(text, X)
    assert rounded == ["bitcast"]
    assert np.array_equal(found, np.exp(X.astype(np.float64)).astype(np.float32).view(np.int32))


@pytest.mark.parametrize(("short", "least", "most"), [("f16", 3e-6, 3e-4), ("bf16", 3e-5, 2.5e-3)])
def test_the_error_of_an_output_is_that_of_all_roundings(short: str, least: float, most: float) -> None:
    """The interpreter, which rounds as kernels do, would tell of none."""
    body = f"  a = cast(x) {{dtype={short}}} : {short}[64]\n  y = cast(a) {{dtype=f32}} : f32[64]"
    request = Request.of(parse_module(program(body, "x: f32[64]", "f32[64]")), None, None)
    found = diff_compiled(request, Options(cache=False, threads=1), Session(), [{"x": X}])
    assert least < found.difference.outputs["y"].error < most
