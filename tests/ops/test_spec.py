"""The rules of the graph level."""

import pytest

import tilewright.ops  # noqa: F401  (defines the operators)
from tilewright.ir.diag import VerifyError
from tilewright.ir.text import parse_module
from tilewright.ir.verify import verify_func
from tilewright.ops.define.spec import graph_spec

TEXT = """\
constant @w: f32[4, 2]

func @main(x: f32[n, 4]) -> (f32[n, 2]) where(1 <= n) {
  w = constant @w : f32[4, 2]
  h = matmul(x, w) {transpose_a=false, transpose_b=false} : f32[n, 2]
  y = fused(h) {name="k0", strategy="elementwise"} : f32[n, 2] (a: f32[n, 2]) {
    b = add(a, a) : f32[n, 2]
    yield b
  }
  return y
}
"""


def verify(text):
    module = parse_module(text)
    verify_func(module.main, graph_spec(module))


def test_a_legal_graph_passes():
    verify(TEXT)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "(a, a) : f32[n, 2]",
            "(a, a) : f32[n, 3]",
            r"add: results are \(f32\[n, 2\]\), not \(f32\[n, 3\]\)",
        ),
        ("add(a, a)", "add(a)", "add: "),
        ("add(a, a)", "add(a, a) {fast=true}", "add: wrong attributes: .*fast"),
        ("add(a, a)", "frob(a, a)", "frob: level 'graph' has no such op"),
        ("transpose_b=false", "transpose_b=true", "matmul: matmul"),
        (
            "w = constant @w : f32[4, 2]",
            "w = constant @w : f32[4, 3]",
            r"constant @w is f32\[4, 2\], not f32\[4, 3\]",
        ),
        ("w = constant @w", "w = constant @v", "the module has no constant @v"),
        ('strategy="elementwise"', "strategy=3", "fused: has the attributes 'name' and 'strategy', both text"),
        ("(a: f32[n, 2])", "(a: f32[n, 2], c: f32[n])", "fused: the block takes "),
        ("yield b", "yield b, b", "fused: the block yields "),
        ("    yield b\n", "", "fused: the block ends in a yield"),
        ("b = add(a, a)", 'b = fused(a) {name="x", strategy="y"}', "fused: has one block"),
    ],
)
def test_rules(old, new, message):
    assert old in TEXT
    with pytest.raises(VerifyError, match=message):
        verify(TEXT.replace(old, new))
