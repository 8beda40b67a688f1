"""What reports say of the types in which kernels and layers are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.frontends.microsoft.test_recurrent import lstm as dynamic_lstm
from tilewright.accounts.kernels import products_of_kernels
from tilewright.accounts.reports import report_of_parts
from tilewright.api import compile_artifact
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.ir.core import Module
from tilewright.loops.counts import cost
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.products import added_products, types_of
from tilewright.loops.storage.pack import pack_argument
from tilewright.loops.storage.packing import Packing
from tilewright.options import Options
from tilewright.runtime.report.records import (
    ProductCount,
    ProductForm,
    ProgramReport,
    TypesOfKernel,
    TypesOfLayer,
)
from tilewright.target.named import parse_target

RNG = np.random.default_rng(0)
FMA = "f32 x f32 by fused multiply-adds"
VNNI = "u8 x i8 in i32 by vpdpbusd"
MADD = "i16 x i16 in i32 by vpmaddwd"
EXACT = "both operands are quantised: the sums are of integers, which is exact"


class Graph:
    """A model that is written node by node."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def __call__(self, op: str, inputs: Sequence[str], name: str = "", output: str = "", **attrs: Any) -> str:
        result = output or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [result], name, **attrs))
        return result

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(array, name))
        return name

    def floats(self, *shape: int) -> str:
        return self.constant(RNG.standard_normal(shape).astype(np.float32))

    def rounded(self, x: str) -> str:
        parameters = self.constant(np.asarray(0.05, np.float32)), self.constant(np.asarray(128, np.uint8))
        return self("DequantizeLinear", [self("QuantizeLinear", [x, *parameters]), *parameters])

    def weights(self, *shape: int, axis: int) -> str:
        q = self.constant(RNG.integers(-127, 128, shape).astype(np.int8))
        scale = self.constant(RNG.uniform(0.01, 0.02, shape[axis]).astype(np.float32))
        return self("DequantizeLinear", [q, scale, self.constant(np.zeros(shape[axis], np.int8))], axis=axis)

    def report(self, shape: Sequence[int | str], result: str, target: str = "zen4", **options: Any) -> ProgramReport:
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", 1, shape)],
            [helper.make_tensor_value_info(result, 1, None)],
            self.tensors,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        fields = {"target": target, "threads": 1, "cache": False, **options}
        return compile_artifact(model.SerializeToString(), options=Options.of(None, **fields)).report


def layers(report: ProgramReport) -> dict[str, TypesOfLayer]:
    return {layer.layer: layer for layer in report.layers}


def channels(layer: TypesOfLayer) -> dict[str, str]:
    return {str(count.form): count.channels for count in layer.channels}


@pytest.mark.parametrize(("target", "form"), [("zen3", MADD), ("zen4", VNNI)])
@pytest.mark.parametrize("columns", [10, 32])
def test_quantised_products_say_by_which_instruction(target: str, form: str, columns: int) -> None:
    g = Graph()
    y = g("MatMul", [g.rounded("x"), g.weights(64, columns, axis=1)], "dense")
    report = g.report([8, 64], y, target)
    (layer,) = report.layers
    assert channels(layer) == {form: str(columns)} and layer.why == EXACT
    assert (layer.layer, layer.operator) == ("dense", "MatMul")
    (product,) = report.products
    assert str(product.form) == form and int(product.count) >= 8 * 64 * columns
    kernel = next(t for t in report.types if t.products)
    assert (kernel.kernel,) == layer.kernels and kernel.stores == ("f32",)


def test_convolutions_of_bytes_that_stay_in_floats_say_why() -> None:
    g = Graph()
    conv = g("Conv", [g.rounded("x"), g.weights(16, 16, 3, 3, axis=0)], "conv", pads=[1, 1, 1, 1])
    report = g.report([1, 16, 8, 8], g("Relu", [conv]), "zen3")
    assert channels(layers(report)["conv"]) == {FMA: "16"}
    assert layers(report)["conv"].why == "the machine multiplies no more integers than floats in a cycle"


def test_layers_that_became_one_have_its_reason() -> None:
    g = Graph()
    data, weights = g.rounded("x"), g.weights(16, 16, 3, 3, axis=0)
    both = [g("Conv", [data, weights], name, pads=[1, 1, 1, 1]) for name in ("one", "two")]
    report = g.report([1, 16, 8, 8], g("Add", both), "zen3")
    reason = "the machine multiplies no more integers than floats in a cycle"
    assert {name: layer.why for name, layer in layers(report).items()} == {"one": reason, "two": reason}


def test_strict_numerics_are_a_reason() -> None:
    g = Graph()
    y = g("MatMul", [g.rounded("x"), g.weights(64, 16, axis=1)], "dense")
    (layer,) = g.report([8, 64], y, numerics="strict").layers
    assert "these options" in layer.why and list(channels(layer)) == [FMA]


def test_products_of_two_computed_operands_say_why_they_are_of_floats() -> None:
    g = Graph()
    read = g.rounded("x")
    y = g("MatMul", [read, g("Transpose", [read], perm=[1, 0])], "scores")
    (layer,) = g.report([32, 64], y).layers
    assert layer.why == "the right operand is not known when compiling" and channels(layer) == {FMA: "32"}


def test_layers_of_floats_say_so() -> None:
    g = Graph()
    (layer,) = g.report([4, 64], g("MatMul", ["x", g.floats(64, 16)], "dense")).layers
    assert layer.why == "the model has floats"
    g = Graph()
    (layer,) = g.report([4, 64], g("MatMul", ["x", g.weights(64, 16, axis=1)], "dense")).layers
    assert layer.why == "the model has floats, and quantises the weights alone"


def test_products_are_counted_for_a_call_also_over_symbolic_dims() -> None:
    g = Graph()
    report = g.report(["n", 64], g("MatMul", ["x", g.floats(64, 16)], "dense"))
    assert [str(product) for product in report.products] == [f"1024*n {FMA}"]


def test_products_in_a_loop_that_a_kernel_shares_among_threads_say_by_which_instruction() -> None:
    """A function of its own, which the kernel calls through the pool."""
    kernel = parse_kernel("""
kernel @k(a: &u8[n, 64], b: &i8[64, 16], y: &i32[n, 16]) dims(n) with {outputs=1} {
  for t in 0..1 {
    for i in 0..n parallel {
      alloc sums: reg i32[16]
      for j in 0..16 vector { sums[j] = 0 }
      for k in 0..16 {
        for j in 0..16 vector {
          for g in 0..4 dot {
            sums[j] += i32(a[i, 4*k + g]) * i32(b[4*k + g, j])
          }
        }
      }
      for j in 0..16 vector { y[i, j] = sums[j] }
    }
  }
  return
}
""")
    target = parse_target("zen4")
    text = kernel_ir(kernel, target)
    assert text.forks
    module = Module({kernel.name: kernel})
    (products,) = products_of_kernels(module, {kernel.name: text}, target).values()
    assert {str(form): str(count) for form, count in products.items()} == {VNNI: "1024*n"}


def test_a_factor_that_goes_into_weights_leaves_the_layer_its_name() -> None:
    g = Graph()
    conv = g("Conv", [g.rounded("x"), g.weights(16, 16, 3, 3, axis=0)], "conv", pads=[1, 1, 1, 1])
    scaled = g("Mul", [conv, g.constant(np.asarray(0.5, np.float32))], "factor")
    report = g.report([1, 16, 8, 8], g("Relu", [scaled], "relu"), "zen3")
    assert set(layers(report)) == {"conv"} and layers(report)["conv"].kernels
    assert any(call.node == "conv" for call in report.calls)


def test_products_that_become_one_are_all_listed() -> None:
    g = Graph()
    views = []
    for name in ("query", "key", "value"):
        product = g("MatMul", ["x", g.floats(64, 64)], name)
        shape = g.constant(np.asarray([8, 4, 16], np.int64))
        views.append(g("Transpose", [g("Reshape", [product, shape])], perm=[1, 0, 2]))
    report = g.report([8, 64], g("Concat", views, axis=0))
    found = layers(report)
    assert set(found) == {"query", "key", "value"}
    assert len({layer.kernels for layer in found.values()}) == 1
    assert all(channels(layer) == {FMA: "64"} for layer in found.values())


def test_equal_products_are_all_listed() -> None:
    g = Graph()
    w = g.floats(64, 16)
    report = g.report([8, 64], g("Add", [g("MatMul", ["x", w], "one"), g("MatMul", ["x", w], "two")]))
    assert {name: bool(layer.kernels) for name, layer in layers(report).items()} == {"one": True, "two": True}


def test_nodes_without_names_are_told_apart_by_what_they_give() -> None:
    g = Graph()
    first = g("MatMul", ["x", g.floats(64, 16)], output="hidden")
    report = g.report([8, 64], g("MatMul", [g("Relu", [first]), g.floats(16, 8)], output="logits"))
    assert set(layers(report)) == {"hidden", "logits"}


def test_layers_that_are_known_when_compiling_say_so() -> None:
    g = Graph()
    known = g("MatMul", [g.floats(8, 64), g.floats(64, 64)], "known")
    report = g.report([8, 64], g("Add", ["x", known]))
    assert "known when compiling" in layers(report)["known"].why


def test_reports_of_parts_are_added_up() -> None:
    floats, integers = ProductForm("f32", "f32", "f32"), ProductForm("u8", "i8", "i32", "vpdpbusd")
    layer = TypesOfLayer("dense", "MatMul", (), "", ())
    kernel = TypesOfKernel("k0", 1, (), (), (), ())

    def part(first: str, second: str, **more: Any) -> ProgramReport:
        counts = ProductCount(floats, first), ProductCount(integers, second)
        return ProgramReport(kernels=2, arena="64", compile_ms={"graph": 1.5}, products=counts, **more)

    parts = [part("10", "2*n", types=(kernel,), layers=(layer,)), part("5", "7", types=(kernel,)), ProgramReport()]
    found = report_of_parts(parts, nodes=5, numerics="strict")
    assert found.products == (ProductCount(floats, "15"), ProductCount(integers, "2*n + 7"))
    assert (found.types, found.layers, found.parts, found.nodes, found.kernels) == ((kernel, kernel), (layer,), 3, 5, 4)
    assert found.arena == "64 and 64 and 0" and found.compile_ms == {"graph": 3.0}
    assert found.numerics.startswith("strict: ")


def test_products_of_a_kernel_are_those_that_are_added_to_sums() -> None:
    kernel = parse_kernel("""
kernel @k(a: &u8[8, 64], b: &i8[64, 16], s: &f32[16], y: &f32[8, 16]) dims() with {outputs=1} {
  for i in 0..8 {
    alloc sums: reg i32[16]
    for j in 0..16 vector {
      sums[j] = 0
    }
    for k in 0..16 {
      for j in 0..16 vector {
        for g in 0..4 dot {
          sums[j] += i32(a[i, 4*k + g]) * i32(b[4*k + g, j])
        }
      }
    }
    for j in 0..16 vector {
      y[i, j] = f32(sums[j]) * s[j]
    }
  }
  return
}
""")
    (found,) = added_products(kernel)
    assert (str(found.left), str(found.right), str(found.dtype)) == ("u8", "i8", "i32")
    assert found.count == 8 * 64 * 16 and found.lanes == 16 and found.dot is not None
    types = types_of(kernel)
    assert list(map(str, types.reads)) == ["u8", "i8", "f32"] and list(map(str, types.stores)) == ["f32"]
    assert list(map(str, types.computes)) == ["i32", "f32"] and not types.looks_up


def test_halves_of_bytes_are_read_as_their_elements() -> None:
    kernel = parse_kernel("""
kernel @k(a: &f32[8, 64], b: &i4[64, 16], y: &f32[8, 16]) dims() with {outputs=1, constants=(1,)} {
  for i in 0..8 {
    for j in 0..16 {
      y[i, j] = 0.0
      for k in 0..64 {
        y[i, j] += a[i, k] * f32(b[k, j])
      }
    }
  }
  return
}
""")
    pack_argument(kernel, kernel.args[1], Packing(((2,), ()), (0, 2, 1), fields=4))
    (found,) = added_products(kernel)
    assert (str(found.left), str(found.right)) == ("f32", "i4")
    types = types_of(kernel)
    assert list(map(str, types.reads)) == ["f32", "i4"] and list(map(str, types.computes)) == ["f32"]
    assert cost(kernel).traffic[kernel.args[1]].distinct == 64 * 16 // 2


def test_states_of_quantised_recurrent_layers_are_products_of_integers() -> None:
    model = dynamic_lstm(16, 1, 1).model().SerializeToString()
    options = Options.of(None, target="zen4", threads=1, cache=False)
    (layer,) = compile_artifact(model, options=options).report.layers
    assert layer.operator == "DynamicQuantizeLSTM"
    assert VNNI in channels(layer)
