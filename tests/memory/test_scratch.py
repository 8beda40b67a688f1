"""Scratch memory of kernels lies in the arena while they run, above all tensors that are needed then."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright
from tilewright.compilation import Compilation, Setting
from tilewright.ir.core import Func, Module
from tilewright.options import Options, Request
from tilewright.program.memory.picture import alive_bytes, drawn_tensors
from tilewright.program.memory.places import SCRATCH, arena_of, broken_plan
from tilewright.requested import import_request
from tilewright.runtime import Model
from tilewright.session import Session

pytestmark = pytest.mark.without_room_for_zones


def convolutions(batch: int | str, height: int | str = 28) -> bytes:
    """Two convolutions of 3x3 with scratch memory, of different sizes, and one of 1x1 between them."""
    rng = np.random.default_rng(0)
    filters = {"a": (32, 8, 3, 3), "b": (16, 32, 1, 1), "c": (64, 16, 3, 3)}
    nodes = [
        helper.make_node("Conv", [x, w], [y], pads=[1, 1, 1, 1] if w != "b" else [0, 0, 0, 0], name=f"conv_{w}")
        for x, w, y in (("x", "a", "p"), ("p", "b", "q"), ("q", "c", "r"))
    ]
    nodes.append(helper.make_node("GlobalAveragePool", ["r"], ["y"]))
    graph = helper.make_graph(
        nodes, "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 8, height, 28])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 64, 1, 1])],
        [numpy_helper.from_array(rng.standard_normal(s, np.float32), n) for n, s in filters.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(proto.SerializeToString())


def planned(*dims: int | str) -> Module:
    request = import_request(Request.of(convolutions(*dims), None, None), Session())
    return Compilation(request, Setting.chosen(Options.of(None), Session())).run("planned").module


@pytest.fixture(scope="module")
def module() -> Module:
    return planned(2)


def worst_step(main: Func, **sizes: int) -> int:
    """The most bytes that tensors and the scratch memory of a thread take in a call of a kernel."""
    drawn = drawn_tensors(main, sizes)
    assert sum(t.name == "scratch memory" and t.size > 0 for t in drawn) >= 2
    for scratch in (t for t in drawn if t.name == "scratch memory"):
        others = [t for t in drawn if t is not scratch and t.first <= scratch.first <= t.last]
        assert all(t.offset + t.size <= scratch.offset for t in others)
    return max(alive_bytes(drawn, 1 + max(t.last for t in drawn)))


def test_a_call_takes_what_its_worst_step_needs(module: Module) -> None:
    most = worst_step(module.main)
    assert arena_of(module.main).value == most
    model = tilewright.compile(convolutions(2), threads=1, cache=False)
    plan = model.artifact.static_plan
    assert plan is not None and plan.scratch > 0 and plan.arena + plan.scratch == most
    assert model.peak_bytes() == most + 2 * 64 * 4
    assert Model(model.artifact, threads=3).peak_bytes() == model.peak_bytes() + 2 * plan.scratch


def test_so_it_does_for_sizes_that_are_not_known() -> None:
    main = planned("n", "h").main
    for n, h in ((1, 1), (1, 40), (3, 9), (2, 130)):
        most = worst_step(main, n=n, h=h)
        assert most <= arena_of(main).evaluate({"n": n, "h": h}) <= 1.05 * most


def test_threads_write_over_nothing_that_is_needed() -> None:
    data = convolutions("n", "h")
    model, reference = tilewright.compile(data, threads=1, cache=False), ReferenceEvaluator(data)
    models = [model, *(Model(model.artifact, threads=n) for n in (2, 3))]
    rng = np.random.default_rng(0)
    for n, h in ((1, 1), (2, 28), (3, 9), (1, 28)):
        x = rng.standard_normal((n, 8, h, 28), np.float32)
        wanted = reference.run(None, {"x": x})[0]
        for found in models:
            np.testing.assert_allclose(found(x)[0], wanted, atol=1e-3)


def test_scratch_memory_over_a_tensor_is_found(module: Module) -> None:
    assert broken_plan(module) is None
    call = next(op for op in module.main.body.ops if op.attrs.get(SCRATCH, (0,))[0] != 0)
    start, bytes = call.attrs[SCRATCH]
    call.attrs[SCRATCH] = (start - 64, bytes)
    found = broken_plan(module)
    call.attrs[SCRATCH] = (start, bytes)
    assert found is not None and found[1] is call and "scratch memory over" in found[0]
