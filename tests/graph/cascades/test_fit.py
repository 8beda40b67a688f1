"""Programs that are computed by rows fit into the memory that was asked for, and give the same bits."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.compilation import Compilation, Setting, _fused
from tilewright.compiler import compile_text
from tilewright.fitting import _Search
from tilewright.frontends.onnx.load import load_onnx
from tilewright.graph.cascades.choose import FusedProgram, fitted
from tilewright.graph.cascades.fit import Cascades
from tilewright.ir.core import Module
from tilewright.ir.diag import UnsupportedError
from tilewright.ops.define.interp import evaluate_func
from tilewright.options import Options
from tilewright.runtime.errors import OptionError
from tilewright.session import Session
from tilewright.target.named import parse_target

SHAPE = (1, 3, 24, 12)


def network(batch: int | str = 1, image: tuple[int, int] = SHAPE[2:]) -> bytes:
    """Convolutions with strides, padding and filters for each channel, a residual addition, poolings, and a layer that
    reads all rows."""
    rng = np.random.default_rng(1)
    initializers: list[Any] = []

    def w(*shape: int) -> str:
        values = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        initializers.append(numpy_helper.from_array(values.astype(np.float32), f"w{len(initializers)}"))
        return str(initializers[-1].name)

    def node(op: str, *inputs: str, result: str, **attrs: Any) -> Any:
        return helper.make_node(op, inputs, [result], name=result, **attrs)

    nodes = [
        node("Conv", "x", w(32, 3, 3, 3), result="first", pads=[1, 1, 1, 1]),
        node("Relu", "first", result="r0"),
        node("Conv", "r0", w(32, 1, 3, 3), result="depthwise", pads=[1, 1, 1, 1], group=32),
        node("Conv", "depthwise", w(32, 32, 1, 1), result="pointwise"),
        node("Add", "pointwise", "r0", result="sum"),
        node("MaxPool", "sum", result="pool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Conv", "pool", w(16, 32, 3, 3), result="last", pads=[0, 1, 0, 1], strides=[2, 1]),
        node("GlobalAveragePool", "last", result="mean"),
        node("Flatten", "mean", result="flat"),
        node("MatMul", "flat", w(16, 5), result="y"),
    ]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
             for n, s in (("x", [batch, 3, *image]), ("y", [batch, 5]))]  # fmt: skip
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], initializers)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    ).SerializeToString()


@cache
def fused() -> Module:
    model = load_onnx(onnx.load_from_string(network()))
    return Compilation(model, Setting.of(Options(), parse_target("zen4"))).run("fused").module


def image() -> np.ndarray:
    return np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)


def by_rows(limit: int) -> Module:
    module = fused().copy()
    plan = fitted(FusedProgram(module.main), limit)
    assert plan is not None
    Compilation(module, Setting.of(Options(), parse_target("zen4"))).apply([Cascades(plan.cascades)])
    assert FusedProgram(module.main).need.bytes <= plan.need.bytes <= limit
    return module


@pytest.mark.parametrize("share", [0.9, 0.6, 0.3])
def test_programs_of_rows_fit_and_give_the_same_bits(share: float) -> None:
    before = FusedProgram(fused().main).need.bytes
    module = by_rows(int(share * before))
    (wanted,) = evaluate_func(fused().main, fused(), [image()])
    (found,) = evaluate_func(module.main, module, [image()])
    np.testing.assert_array_equal(found, wanted)


def test_nothing_changes_where_it_fits() -> None:
    before = FusedProgram(fused().main).need.bytes
    assert [op.name for op in by_rows(before).main.body.ops] == [op.name for op in fused().main.body.ops]


def test_models_take_what_was_allowed() -> None:
    model = network()
    whole = tilewright.compile(model, threads=1, cache=False)
    given = image().nbytes
    allowed = (whole.peak_bytes() + given) // 2
    small = tilewright.compile(model, threads=1, cache=False, max_memory=allowed)
    assert small.peak_bytes() + given <= allowed
    np.testing.assert_array_equal(small(image())[0], whole(image())[0])


def test_errors_tell_the_least_that_is_needed() -> None:
    model = network(image=(16, 8))  # of which fewer bands are tried than of larger ones

    def compiled(most: int) -> Compilation:
        options = Options(threads=1, max_memory=most)
        setting = Setting.of(options, parse_target("zen4"))
        return Compilation(load_onnx(onnx.load_from_string(model)), setting).run("fused")

    with pytest.raises(OptionError, match=r"max_memory=2,000: .* for the tensors of .* at .*node") as refused:
        compiled(2000)
    found = re.search(r"the least found is ([\d,]+) bytes", str(refused.value))
    assert found is not None
    compiled(int(found[1].replace(",", "")))


def test_texts_of_a_late_stage_are_held_to_the_limit() -> None:
    planned = Compilation(fused().copy(), Setting.of(Options(), parse_target("zen4"))).run("planned")
    constants = {name: np.asarray(array) for name, array in planned.module.constants.items()}
    with pytest.raises(OptionError, match=r"max_memory=30,000: the program takes \d+,\d+ bytes"):
        compile_text(planned.text(), Options(threads=1, max_memory=30_000), Session(), constants=constants)


def test_programs_of_parts_are_refused() -> None:
    """Each part would be held to the limit by itself."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.STRING, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(UnsupportedError, match="this one runs in parts"):
        tilewright.compile(model, cache=False, max_memory=1 << 20)


def test_unknown_sizes_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="the dims 'batch' are not known"):
        tilewright.compile(network("batch"), cache=False, max_memory=1 << 20)


@pytest.mark.parametrize("wrong", [0, -1, True, "48KB", 1.5])
def test_limits_are_numbers_of_bytes(wrong: object) -> None:
    with pytest.raises(OptionError, match=r"max_memory=.* is not allowed"):
        Options.of(None, max_memory=wrong)
    assert Options(max_memory=1000).fingerprint() != Options().fingerprint()


def winograd_network() -> bytes:
    """Convolutions of large images, and one of a small image, all of which Winograd's algorithm computes quicker."""
    rng = np.random.default_rng(3)
    filters = [rng.standard_normal((32, 32, 3, 3)).astype(np.float32) / 17 for _ in range(4)]
    nodes = [helper.make_node("Conv", [a, f"w{k}"], [b], name=b, pads=[1, 1, 1, 1])
             for k, (a, b) in enumerate((("x", "a"), ("a", "b"), ("b", "c"), ("pool", "y")))]  # fmt: skip
    pool = helper.make_node("MaxPool", ["c"], ["pool"], name="pool", kernel_shape=[4, 4], strides=[4, 4])
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 32, s, s]) for n, s in (("x", 32), ("y", 8))]
    held = [numpy_helper.from_array(w, f"w{k}") for k, w in enumerate(filters)]
    graph = helper.make_graph([*nodes[:3], pool, nodes[3]], "g", infos[:1], infos[1:], held)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    ).SerializeToString()


def test_convolutions_by_rows_are_direct_sums_and_others_keep_their_algorithm() -> None:
    def compiled(most: int | None) -> Compilation:
        setting = Setting.of(Options(threads=1, max_memory=most), parse_target("zen4"))
        return Compilation(load_onnx(onnx.load_from_string(winograd_network())), setting).run("fused")

    def layers(module: Module, name: str) -> set[str]:
        return {op.loc.node for op in module.main.body.walk() if op.name == name}

    whole = compiled(None).module
    assert layers(whole, "winograd_product") == {"a", "b", "c", "y"}
    small = compiled(400_000).module
    assert layers(small, "conv_blocked") == {"a", "b", "c"}
    assert layers(small, "winograd_product") == {"y"}
    x = np.random.default_rng(4).standard_normal((1, 32, 32, 32)).astype(np.float32)
    (wanted,), (found,) = (evaluate_func(m.main, m, [x]) for m in (whole, small))
    np.testing.assert_allclose(found, wanted, atol=1e-5 * float(np.abs(wanted).max()))


def test_loaded_models_have_as_many_threads_as_the_limit_allows() -> None:
    model = winograd_network()
    whole = tilewright.compile(model, threads=1, cache=False)
    assert whole.artifact.static_plan is not None and whole.artifact.static_plan.scratch > 0
    allowed = whole.peak_bytes() + 4 * 32 * 32 * 32
    small = tilewright.compile(model, cache=False, max_memory=allowed)
    saved = small.artifact.to_bytes()
    assert small.threads == tilewright.load(saved).threads == 1
    with pytest.raises(OptionError, match="with more than 1 a call takes more memory"):
        tilewright.load(saved, threads=2)


def test_scratch_memory_of_an_algorithm_is_known_where_another_layer_ends_its_kernel() -> None:
    """The place of a kernel is that of the activation behind the convolution."""
    made = onnx.load_from_string(winograd_network())
    made.graph.node[-1].output[0] = "c1"
    made.graph.node.append(helper.make_node("Relu", ["c1"], ["y"], name="relu"))
    setting = Setting.of(Options(threads=1, max_memory=1), parse_target("zen4"))
    graph = Compilation(load_onnx(made), setting, is_part=True).module
    search = _Search(1, replace(setting, options=Options(threads=1)), partial(_fused, graph), Compilation)
    forms = {op.loc.node: form for op, form in search.program.kernels.others.items()}
    assert forms["y"].scratch > 0
