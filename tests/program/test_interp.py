"""The interpreter of programs: what native code, the host and the graph compute."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import parser

import tilewright
from tests import models
from tests.staging.models import model_of
from tilewright.back_end import CPU
from tilewright.compilation import Compilation, Output, Setting
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.core import Module
from tilewright.ir.text import parse_module
from tilewright.link import Weights
from tilewright.ops.define.interp import evaluate_func
from tilewright.options import Options
from tilewright.program.interp import run_program
from tilewright.program.spec import LEVEL
from tilewright.runtime import Model
from tilewright.target.host import host_target

SETTING = Setting.of(Options(verify=True), host_target())
RNG = np.random.default_rng(5)
X = RNG.standard_normal(6).astype(np.float32)

LOOP = """g (float[n] x, int64 trips) => (float[n] y, float[k, n] rows) {
    y, rows = Loop (trips, , x) <body = trip (int64 i, bool go, float[n] a) => (bool on, float[n] b, float[n] row) {
        half = Constant <value_float = 0.5> ()
        s = ReduceSum <keepdims = 0> (a)
        on = Less (s, half)
        t = Tanh (a)
        b = Add (t, x)
        row = Mul (b, b)
    }>
}"""
BRANCH = """g (float[n] x) => (y) {
    zero = Constant <value_float = 0.0> ()
    s = ReduceSum <keepdims = 0> (x)
    c = Greater (s, zero)
    y = If (c) <then_branch = one () => (float[a, b] p) { q = NonZero (x)  r = Cast <to = 1> (q)  p = Add (r, r) },
                else_branch = other () => (float[e, f] p) {
                    k = Constant <value_ints = [1, -1]> ()  p = Reshape (x, k)
                }>
}"""
POSITIONS = [
    h.make_node("Relu", ["x"], ["e"]),
    h.make_node("NonZero", ["e"], ["p"]),
    h.make_node("Add", ["p", "p"], ["y"]),
]
SEQUENCE = [
    h.make_node("SequenceConstruct", ["x", "x"], ["q"]),
    h.make_node("ConcatFromSequence", ["q"], ["y"], axis=0),
    h.make_node("Identity", ["q"], ["z"]),
]


def parsed(graph: str) -> bytes:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{graph}').SerializeToString()


CASES = {
    "loop": (parsed(LOOP), [X / 9, np.array(5)]),
    "no trip": (parsed(LOOP), [X / 9, np.array(0)]),
    "then": (parsed(BRANCH), [abs(X)]),
    "else": (parsed(BRANCH), [-abs(X)]),
    "sizes of data": (model_of(POSITIONS, [("x", T.FLOAT, ["n"])], ["y"], {}).SerializeToString(), [X]),
    "sequence": (model_of(SEQUENCE, [("x", T.FLOAT, ["n"])], ["y", "z"], {}).SerializeToString(), [X]),
}


def graph_of(source: bytes) -> Module:
    return load_onnx(source)


@pytest.mark.sweep(5)
@pytest.mark.parametrize("stage", ["parts", "fused", "planned"])
@pytest.mark.parametrize("source, inputs", CASES.values(), ids=CASES.keys())
def test_a_split_graph_computes_what_native_code_and_the_host_do(source: bytes, inputs: list, stage: str) -> None:
    """Whatever its parts have become, all of it is one text, from which it goes on."""
    ran = Compilation(graph_of(source), Setting.of(Options(verify=True), host_target())).run(stage)
    assert ran.module.main.level == LEVEL and ran.parts is not None
    text, arrays = ran.text(), {name: np.array(array) for name, array in ran.whole().constants.items()}
    again = Compilation.resumed(text, SETTING, arrays)
    assert again.text() == text and again.stage == stage
    expected = tilewright.compile(source, cache=False, threads=1)(*inputs)
    with CPU.code(host_target(), Options()) as code:
        output = Output(code, Weights())
        artifact = Compilation.resumed(text, SETTING, arrays, output=output).run("program").artifact
        assert artifact is not None
        compiled = Model(artifact.sharing(code.image(code.objects()), (), *output.weights.blocks()), 1)
    for results in (run_program(again.whole(), inputs), compiled(*inputs)):
        for found, wanted in zip(results, expected, strict=True):
            for a, b in zip(found, wanted, strict=True) if isinstance(wanted, list) else [(found, wanted)]:
                assert a.shape == b.shape and a.dtype == b.dtype
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stage", ["scheduled", "planned"])
def test_kernels_in_their_places_compute_what_the_graph_does(stage: str) -> None:
    x = RNG.standard_normal((3, 64)).astype(np.float32)
    module = graph_of(models.mlp())
    expected = evaluate_func(module.main, module, [x])
    ran = Compilation(module, SETTING).run(stage)
    np.testing.assert_allclose(run_program(ran.module, [x]), expected, rtol=1e-5)


def test_states_are_kept_from_call_to_call() -> None:
    module = parse_module(
        """
    func @step(x: f32[2], h: f32[2]) -> (f32[2]) {
      y = add(x, h) : f32[2]
      return y
    }
    program @main(x: f32[2], p: i64[]) -> (f32[2], f32[4]) {
      total = state() {name="total"} : state f32[2]
      seen = state() {name="seen"} : state f32[4]
      measure(p) {variables=[val_p]}
      before = read(total) : f32[2]
      y = call(x, before) {part="step", sizes=()} : f32[2]
      update(total, y)
      update(seen, x) {at=[val_p]}
      all = read(seen) : f32[4]
      return y, all
    }"""
    )
    states: dict[str, np.ndarray] = {}
    ones = np.ones(2, np.float32)
    run_program(module, [ones, np.array(2)], states)
    y, seen = run_program(module, [3 * ones, np.array(1)], states)
    assert y.tolist() == [4, 4] and seen.tolist() == [0, 3, 3, 1]
    assert states["total"].tolist() == [4, 4]
