"""Models as modules of JavaScript: what they say to the page, and what is none. No browser is asked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from onnx import parser

import tilewright
from tilewright import Session

KEPT = """<ir_version: 9, opset_import: ["": 17]>
g (float[4] x, float[4] s, int64[1] n) => (float[k] y, float[4] t, int64[1] m) {
  zero = Constant<value=int64[1]{0}>()
  one = Constant<value=int64[1]{1}>()
  m = Add(n, one)
  t = Add(x, s)
  y = Slice(t, zero, m, zero)
}"""
TEXT = """<ir_version: 9, opset_import: ["": 17]>
g (float[n,m] x, int64[2] s) => (float[p,q] y, float16[n,m] z, int64[n] i) {
  w = Constant<value=float[1]{0.5}>()
  a = Mul(x, w)
  b = Softmax(a)
  y = Reshape(b, s)
  z = Cast<to=10>(b)
  i = ArgMax<axis=1, keepdims=0>(x)
}"""


def test_a_module_asks_for_what_it_is_told(tmp_path: Path) -> None:
    """Each field of the program, of a call, and of a state, that its code reads is there."""
    proto = parser.parse_model(KEPT).SerializeToString()
    states = {"s": "t", "n": "m"}
    script, _ = tilewright.export(proto, tmp_path / "net.mjs", states=states, session=Session(folder=tmp_path))
    code = script.read_text()
    (line,) = re.findall(r"^const PROGRAM = (.*);$", code, re.MULTILINE)
    program = json.loads(line)
    others = code.replace(line, "")
    asked = {"PROGRAM": program.keys(), "call": program["calls"][0].keys(), "plan": program["plan"].keys()}
    asked["state"] = {*program["states"][0]}
    for name, told in asked.items():
        read = set(re.findall(rf"\b{name}\.(\w+)", others))
        assert read and read <= told, name
    assert not re.search(r"\(\{ \w+.*? \}\) =>", others), "a field that is taken out of an object is not looked at here"


def test_what_a_module_cannot_be(tmp_path: Path) -> None:
    proto = parser.parse_model(TEXT).SerializeToString()
    with pytest.raises(tilewright.OptionError, match="has its weights beside it"):
        tilewright.export(proto, tmp_path / "net.mjs", weights="inside")
    with pytest.raises(tilewright.UnsupportedError, match="runs on GPUs, and not on"):
        tilewright.export(proto, tmp_path / "net.mjs", target="host", session=Session(folder=tmp_path))
    with pytest.raises(tilewright.UnsupportedError, match="runs on GPUs, and this model in parts"):
        text = TEXT.partition("g (")[0] + "g (float[4] x) => (float[4] y, float[4] z) { d = Cast<to=11>(x) e = Exp(d) "
        text += "y = Cast<to=1>(e) z = Sin(x) }"
        cut = parser.parse_model(text).SerializeToString()
        tilewright.export(cut, tmp_path / "net.mjs", placement="device", session=Session(folder=tmp_path))
    with pytest.raises(tilewright.OptionError, match="has its weights beside it"):
        tilewright.export(proto, f"{tmp_path}/", weights="inside")
    (tmp_path / "net.mjs").write_text("export const mine = 1;")
    with pytest.raises(tilewright.ArtifactError, match="not a module of a model"):
        tilewright.export(proto, tmp_path / "net.mjs")
    (tmp_path / "index.html").write_text("<!doctype html>\n<p>mine")
    with pytest.raises(tilewright.ArtifactError, match="not a page of a model"):
        tilewright.export(proto, tmp_path)
