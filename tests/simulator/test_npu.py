"""Models on the NPU: values to the bit where they are whole numbers, and the time that the report tells."""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.loops.interleave import run_interleaved
from tests.machines.test_toy import EXPECTED, X, model
from tilewright.ir.core import Func
from tilewright.ir.diag import UnsupportedError
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.machine.check_facts import check_machine
from tilewright.machines import PRESETS
from tilewright.options import Options
from tilewright.plugins import Plugin
from tilewright.session import Session
from tilewright.simulator import time_kernel
from tilewright.stages import programs
from tilewright.target.machine import Accelerator, Memory, TargetError

NPU = PRESETS["npu16"]
RNG = np.random.default_rng(5)


def told(made: tilewright.Model) -> str:
    (remark,) = [r for r in made.report().remarks if r.stage == "simulator"]
    return remark.message


@pytest.mark.parametrize("name", EXPECTED)
def test_models_run_and_their_time_is_told(name: str, tmp_path: Path) -> None:
    made = tilewright.compile(model(name), target="npu16", session=Session(tmp_path, plugins=()), verify=True)
    assert np.array_equal(made(X)[0], EXPECTED[name])
    assert " cycles, " in told(made)
    made.save(tmp_path / "model.tw")
    loaded = tilewright.load(tmp_path / "model.tw")
    assert loaded.artifact.target.kind == "accelerator" and np.array_equal(loaded(X)[0], EXPECTED[name])


def test_sizes_that_calls_choose_are_computed_and_have_no_time(tmp_path: Path) -> None:
    made = tilewright.compile(model("affine", "rows"), target="npu16", session=Session(tmp_path, plugins=()))
    assert np.array_equal(made(X)[0], EXPECTED["affine"]) and "its time is not known" in told(made)


def test_a_plugin_brings_facts_and_nothing_else(tmp_path: Path) -> None:
    plugin = Plugin("bare machine", machines=(Accelerator("bare"),))
    made = tilewright.compile(model("relu"), target="bare", session=Session(tmp_path, plugins=(plugin,)))
    assert np.array_equal(made(X)[0], EXPECTED["relu"]) and "scalar 100.0%" in told(made)


@pytest.mark.parametrize("name", PRESETS)
def test_facts_of_presets_fit_together(name: str) -> None:
    check_machine(PRESETS[name])


@pytest.mark.parametrize(("target", "change"), [("npu16,foo", "foo"), ("webgpu, foo=3", "foo=3"), ("npu8,", "")])
def test_changes_of_machines_whose_facts_are_given_are_refused_by_name(
    target: str, change: str, tmp_path: Path
) -> None:
    with pytest.raises(TargetError, match=f"unknown change '{change}' of target '{target.split(',')[0]}'"):
        tilewright.compile(model("double"), target=target, session=Session(tmp_path, plugins=()))


def test_a_model_larger_than_the_memory_of_a_machine_says_what_is_missing_and_where(tmp_path: Path) -> None:
    """[32, 16] by [16, 12] and a bias: 2,048 bytes of inputs, 1,536 of outputs, and weights."""
    made = {}
    for size in (4096, 1 << 20):
        chip = dataclasses.replace(NPU, name="own", memories=(Memory("global", size, 64), *NPU.memories[1:]))
        own = Session(tmp_path / str(size), plugins=(Plugin("own", machines=(chip,)),))
        try:
            made[size] = tilewright.compile(model("relu"), target="own", session=own)(X)[0]
        except UnsupportedError as error:
            made[size] = error.what
    assert np.array_equal(made[1 << 20], EXPECTED["relu"])
    told = re.fullmatch(
        r"the program takes ([\d,]+) bytes of memory 'global', ([\d,]+) more than its 4,096: ([\d,]+) of weights, "
        r"([\d,]+) of intermediate results, 3,584 of inputs and outputs(; .* are needed at once at node .*)?",
        made[4096],
    )
    assert told is not None, made[4096]
    taken, missing, *parts = (int(n.replace(",", "")) for n in told.groups()[:4])
    assert taken == sum(parts) + 3584 and missing == taken - 4096


SIZES = {"l1": 16, "l0a": 2, "l0b": 2, "l0c": 4, "ub": 8}
TINY = dataclasses.replace(
    NPU,
    name="tiny",
    memories=tuple(dataclasses.replace(m, bytes=SIZES[m.name] << 10) if m.name in SIZES else m for m in NPU.memories),
)
"""The same with so little memory that small products need many tiles."""


def session(folder: Path) -> Session:
    return Session(folder, plugins=(Plugin("tiny", machines=(TINY,)),))


def halves(
    rows: int, depth: int, columns: int, *, then: bool = False, batch: int = 0
) -> tuple[bytes, list[np.ndarray]]:
    """A product of float16, of data by weights (of two operands of the call where there is a batch), perhaps with a
    bias and a ReLU behind it; whole numbers, whose sums float16 has. The model, and inputs with what is right."""
    around = (batch,) if batch else ()
    x, w = (RNG.integers(-2, 3, (*around, *s)).astype(np.float16) for s in ((rows, depth), (depth, columns)))
    b = RNG.integers(-4, 5, columns).astype(np.float16)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p" if then else "y"])]
    if then:
        nodes += [helper.make_node("Add", ["p", "b"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    given = {"x": x, "w": w} if batch else {"x": x}
    known = {k: v for k, v in {"w": w, "b": b}.items() if k not in given and (k != "b" or then)}
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT16, v.shape) for k, v in given.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, None)],
        [numpy_helper.from_array(v, k) for k, v in known.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    y = (x.astype(np.float32) @ w.astype(np.float32)).astype(np.float16)
    right = np.maximum(y + b, 0) if then else y
    return onnx.shape_inference.infer_shapes(made).SerializeToString(), [*given.values(), right]


CASES: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "one tile": ((40, 64, 24), {}),
    "no whole tiles": ((41, 48, 30), {"then": True}),
    "steps that fill no tile": ((50, 33, 70), {}),
    "batches": ((20, 32, 40), {"batch": 3}),
}


@pytest.mark.parametrize("case", CASES)
def test_products_run_on_the_cube(case: str, tmp_path: Path) -> None:
    sizes, what = CASES[case]
    data, (*inputs, right) = halves(*sizes, **what)
    made = tilewright.compile(data, target="tiny", session=session(tmp_path), verify=True)
    assert np.array_equal(made(*inputs)[0], right)
    assert "cube" in told(made) and "vector" in told(made)


def test_one_product_is_a_kernel_of_the_scalar_unit(tmp_path: Path) -> None:
    data, (x, right) = halves(1, 1, 1)
    assert np.array_equal(tilewright.compile(data, target="tiny", session=session(tmp_path), verify=True)(x)[0], right)


def product_kernel(sizes: tuple[int, int, int], tmp_path: Path, target: str = "tiny") -> tuple[Func, list[np.ndarray]]:
    data, (x, right) = halves(*sizes)
    (text,) = programs(data, "loops", options=Options(target=target), session=session(tmp_path)).values()
    w = numpy_helper.to_array(onnx.load_from_string(data).graph.initializer[0])
    return parse_kernel(text), [x, w, right]


def test_any_order_of_queues_gives_the_same(tmp_path: Path) -> None:
    func, (x, w, right) = product_kernel((48, 96, 64), tmp_path)
    y = np.zeros_like(right)
    run_interleaved(func, [x, w, y], {}, random.Random(7))
    assert np.array_equal(y, right)


def test_a_product_keeps_the_cube_busy(tmp_path: Path) -> None:
    """Cycles follow from facts, and not from a clock: of this product the cube works in 95 of 100."""
    func, _ = product_kernel((512, 512, 512), tmp_path, "npu16")
    timed = time_kernel(func, NPU)
    assert timed.bound == timed.busy["cube"] and timed.busy["cube"] >= 32 * 32 * 32
    assert timed.cycles <= timed.bound / 0.95


def conv(sizes: tuple[int, int, int, int], kernel: int, stride: int, pads: int) -> tuple[bytes, np.ndarray, np.ndarray]:
    """A convolution of [n, c, h, w] with 6 filters, behind it a ReLU; a model, data, and the result in float64."""
    x = RNG.integers(-2, 3, sizes).astype(np.float32)
    w = RNG.integers(-2, 3, (6, sizes[1], kernel, kernel)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["p"], strides=[stride] * 2, pads=[pads] * 4),
        helper.make_node("Relu", ["p"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pads, pads), (pads, pads)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(2, 3))[:, :, ::stride, ::stride]
    right = np.maximum(np.einsum("nchwij,ocij->nohw", windows, w), 0)
    return onnx.shape_inference.infer_shapes(made).SerializeToString(), x, right


@pytest.mark.parametrize("case", [((2, 5, 6, 7), 1, 1, 0), ((1, 3, 9, 8), 3, 2, 1)])
def test_convolutions_run_on_the_cube_where_users_allow_float16(
    case: tuple[tuple[int, int, int, int], int, int, int], tmp_path: Path
) -> None:
    data, x, right = conv(*case)
    made = tilewright.compile(data, target="npu16", session=session(tmp_path), numerics="fast", verify=True)
    assert np.array_equal(made(x)[0], right) and "cube" in told(made)
    assert all(r.kind != "missed" for r in made.report().remarks if r.stage in ("schedule", "tiling"))


def test_depthwise_convolutions_run_on_the_vector_unit(tmp_path: Path) -> None:
    x, w = (RNG.integers(-2, 3, s).astype(np.float32) for s in ((1, 4, 9, 8), (4, 1, 3, 3)))
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=4, pads=[1] * 4, strides=[2, 2])
    graph = helper.make_graph(
        [node],
        "depthwise",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    data = onnx.shape_inference.infer_shapes(made).SerializeToString()
    ran = tilewright.compile(data, target="npu16", session=session(tmp_path), verify=True)
    assert np.array_equal(ran(x)[0], np.einsum("nchwij,cij->nchw", windows, w[:, 0]))
    assert {r.message for r in ran.report().remarks if r.stage == "strategy"} == {"vector_unit"}


def test_products_of_float32_stay_exact_by_default(tmp_path: Path) -> None:
    data, x, right = conv((1, 3, 4, 4), 1, 1, 0)
    x = x + np.float32(2**-20)
    made = tilewright.compile(data, target="npu16", session=session(tmp_path))
    assert "vector" in told(made) and "cube" not in told(made)
    assert not np.array_equal(made(x)[0], right)


def test_products_that_no_unit_multiplies_run_on_the_scalar_unit_and_say_so(tmp_path: Path) -> None:
    data, x, right = conv((1, 3, 4, 4), 1, 1, 0)
    bare = Session(tmp_path, plugins=(Plugin("bare", machines=(dataclasses.replace(NPU, name="bare", units=()),)),))
    made = tilewright.compile(data, target="bare", session=bare)
    assert "no unit of machine 'bare' multiplies f32 by f32 into f32" in str(made.report().remarks)
    assert np.array_equal(made(x)[0], right) and "scalar 100.0%" in told(made)


VECTORS = {
    "a transpose": ("Transpose", [3, 50, 33], {"perm": [2, 0, 1]}, lambda x: x.transpose(2, 0, 1)),
    "blocks that fill no whole number": ("Relu", [70001], {}, lambda x: np.maximum(x, 0)),
    "one element": ("Neg", [1], {}, np.negative),
    "sums of rows": ("ReduceMax", [41, 300], {"axes": [1]}, lambda x: x.max(axis=1, keepdims=True)),
}


@pytest.mark.parametrize("case", VECTORS)
def test_the_vector_unit_and_copies_do_the_rest(case: str, tmp_path: Path) -> None:
    name, shape, attrs, right = VECTORS[case]
    graph = helper.make_graph(
        [helper.make_node(name, ["x"], ["y"], **attrs)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x = RNG.normal(size=shape).astype(np.float32)
    data = onnx.shape_inference.infer_shapes(made).SerializeToString()
    ran = tilewright.compile(data, target="npu16", session=session(tmp_path), verify=True)
    assert np.array_equal(ran(x)[0], right(x))
    assert [r.message for r in ran.report().remarks if r.stage == "strategy"] == ["vector_unit"]


def test_the_machine_of_the_page_is_one_that_products_run_on(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "machines.md").read_text()
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    data, (x, right) = halves(70, 64, 40, then=True)
    own = Session(tmp_path, plugins=(names["PLUGIN"],))
    made = tilewright.compile(data, target="mine", session=own, verify=True)
    assert np.array_equal(made(x)[0], right) and "array" in told(made) and "simd" in told(made)
