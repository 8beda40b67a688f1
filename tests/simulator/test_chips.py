"""Products on machines of many kinds that are nothing but facts: they run on the unit, whatever its form, and any order
of queues that the verifier accepts gives the same."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.loops.interleave import run_interleaved
from tests.simulator.chips import CHIPS, UNIT_OF
from tilewright.cost.machine.product_tiles import ProductShape, best_tile
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.machine.check_facts import check_machine
from tilewright.machines import PRESETS
from tilewright.options import Options
from tilewright.plugins import Plugin
from tilewright.schedule.machine.facts import matrix_units
from tilewright.session import Session
from tilewright.simulator import time_kernel
from tilewright.stages import programs
from tilewright.target.machine import Level

SIZES = [(16, 32, 48), (21, 40, 33), (3, 5, 7), (70, 36, 16), (1, 64, 20)]


def session(folder: Path) -> Session:
    return Session(folder, plugins=(Plugin("chips", machines=tuple(CHIPS.values())),))


def product(chip: str, sizes: tuple[int, int, int], seed: int = 0) -> tuple[bytes, np.ndarray, np.ndarray]:
    """A product of whole numbers that a chip's unit multiplies, with a constant matrix; data, and what is right."""
    rows, depth, columns = sizes
    dtype = np.int8 if chip == "blocks" else np.float32
    rng = np.random.default_rng(seed)
    x, w = (rng.integers(-4, 5, s).astype(dtype) for s in ((rows, depth), (depth, columns)))
    op = "MatMulInteger" if chip == "blocks" else "MatMul"
    kinds = (TensorProto.INT8, TensorProto.INT32) if chip == "blocks" else (TensorProto.FLOAT, TensorProto.FLOAT)
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", kinds[0], x.shape)],
        [helper.make_tensor_value_info("y", kinds[1], [rows, columns])],
        [numpy_helper.from_array(w, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    right = x.astype(np.int32) @ w.astype(np.int32)
    return made.SerializeToString(), x, right


@pytest.mark.parametrize("chip", CHIPS)
def test_facts_of_chips_fit_together(chip: str) -> None:
    check_machine(CHIPS[chip])


@pytest.mark.sweep(6)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("chip", CHIPS)
def test_products_of_any_size_run_on_units_of_any_form(
    chip: str, sizes: tuple[int, int, int], tmp_path: Path
) -> None:
    data, x, right = product(chip, sizes)
    made = tilewright.compile(data, target=chip, session=session(tmp_path), verify=True)
    assert np.array_equal(made(x)[0], right)
    (found,) = [k for k in made.report().simulated if k.kernel.endswith("product") or "matmul" in k.kernel]
    assert found.busy.get(UNIT_OF[chip], 0) > 0


@pytest.mark.sweep(2)
@pytest.mark.parametrize("chip", CHIPS)
def test_any_order_of_queues_gives_the_same_on_each_chip(chip: str, tmp_path: Path) -> None:
    data, x, right = product(chip, (24, 32, 48))
    texts = programs(data, "loops", options=Options(target=chip), session=session(tmp_path))
    func = parse_kernel(next(text for name, text in texts.items() if "product" in name or "matmul" in name))
    w = numpy_helper.to_array(onnx.load_from_string(data).graph.initializer[0])
    if func.args[1].buffer.shape != w.shape:
        w = np.ascontiguousarray(w.T)
    for seed in range(3):
        y = np.zeros(right.shape, np.int32 if chip == "blocks" else np.float32)
        run_interleaved(func, [x, w, y], {}, random.Random(seed))
        assert np.array_equal(y, right)


def test_a_product_is_far_cheaper_on_lanes_than_on_the_scalar_unit(tmp_path: Path) -> None:
    data, _, _ = product("laned", (64, 64, 64))
    (text,) = programs(data, "loops", options=Options(target="laned"), session=session(tmp_path)).values()
    timed = time_kernel(parse_kernel(text), CHIPS["laned"])
    assert timed.busy["simd"] >= 64 * 64 * 64 / 16 * 2  # a multiplication and an addition of 16 lanes each
    assert timed.cycles < 1.5 * timed.bound


@pytest.mark.parametrize("kind", ["product", "elementwise"])
def test_cores_share_tiles_and_blocks(kind: str, tmp_path: Path) -> None:
    """Each does half of them on memories and queues of its own, in half the time, and nothing meets."""
    if kind == "product":
        data, x, right = product("cores", (64, 64, 64))
    else:
        x = np.random.default_rng(4).normal(size=(64, 512)).astype(np.float32)
        right = np.maximum(x, 0)
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name in "xy"]
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", ends[:1], ends[1:])
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        data = made.SerializeToString()
    cycles = []
    for count in (1, 2):
        chip = dataclasses.replace(CHIPS["cores"], levels=(Level("core", count),))
        own = Session(tmp_path / str(count), plugins=(Plugin("cores", machines=(chip,)),))
        ran = tilewright.compile(data, target="cores", session=own, verify=True)
        assert np.array_equal(ran(x)[0], right)
        (kernel,) = ran.report().simulated
        cycles.append(kernel.cycles)
    assert cycles[1] < 0.6 * cycles[0]


def test_tiles_of_sizes_with_many_divisors_are_as_large_as_memories_allow() -> None:
    """All divisors of 5040 that the last matrices took had a large step, and so few rows and columns."""
    npu = PRESETS["npu16"]
    shape = ProductShape(1, 5040, 5040, 5040, 2)
    tile = best_tile(shape, matrix_units(npu)[0], npu)
    assert tile is not None and tile.cycles < 1.1 * 5040**3 / 16**3
