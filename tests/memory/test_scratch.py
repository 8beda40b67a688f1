"""Scratch memory of kernels lies in the arena while they run, above all tensors that are needed then."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright
from tilewright.compilation import Compilation, Setting
from tilewright.compiler import compile_text
from tilewright.ir.core import Func, Module
from tilewright.options import Options, Request
from tilewright.program.memory.picture import alive_bytes, drawn_tensors
from tilewright.program.memory.places import SCRATCH, annotate, arena_of, broken_plan
from tilewright.program.memory.scratch import scratch_of_calls
from tilewright.program.memory.storage import assign_storage
from tilewright.requested import import_request
from tilewright.runtime import Model
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.errors import OptionError
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


def pooled() -> bytes:
    """A convolution of large tensors, and after a pooling one whose kernel has the most scratch memory."""
    rng = np.random.default_rng(0)
    filters = {"a": (32, 8, 3, 3), "c": (64, 32, 3, 3)}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["p"], pads=[1, 1, 1, 1], name="conv_a"),
        helper.make_node("MaxPool", ["p"], ["q"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Conv", ["q", "c"], ["r"], pads=[1, 1, 1, 1], name="conv_c"),
        helper.make_node("GlobalAveragePool", ["r"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "pooled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64, 1, 1])],
        [numpy_helper.from_array(rng.standard_normal(s, np.float32), n) for n, s in filters.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(proto.SerializeToString())


def compilation(*dims: int | str) -> Compilation:
    request = import_request(Request.of(convolutions(*dims), None, None), Session())
    return Compilation(request, Setting.chosen(Options.of(None), Session()))


@pytest.fixture(scope="module")
def module() -> Module:
    return compilation(2).run("planned").module


@pytest.fixture(scope="module")
def symbolic() -> tuple[Func, Artifact]:
    """The planned program for images of any height, and its code."""
    planned = compilation(2, "h").run("planned")
    constants = {name: np.asarray(array) for name, array in planned.module.constants.items()}
    return planned.module.main, compile_text(planned.text(), Options(), Session(), constants=constants)


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


def test_so_it_does_for_sizes_that_are_not_known(symbolic: tuple[Func, Artifact]) -> None:
    main, model = symbolic[0], Model(symbolic[1], threads=1)
    for h in (1, 40, 9, 130):
        most, found = worst_step(main, h=h), arena_of(main).evaluate({"h": h})
        assert most <= found <= 1.05 * most
        assert model.peak_bytes(h=h) == found + 2 * 64 * 4


def test_threads_write_over_nothing_that_is_needed(symbolic: tuple[Func, Artifact]) -> None:
    reference = ReferenceEvaluator(convolutions(2, "h"))
    models = [Model(symbolic[1], threads=n) for n in (1, 2, 3)]
    rng = np.random.default_rng(0)
    for h in (1, 28, 9):
        x = rng.standard_normal((2, 8, h, 28), np.float32)
        wanted = reference.run(None, {"x": x})[0]
        for found in models:
            np.testing.assert_allclose(found(x)[0], wanted, atol=1e-3)


def test_within_a_bound_it_lies_wherever_that_of_all_threads_fits() -> None:
    """The layer with the largest tensors needs less of it than the one with the most, which counts for each further
    thread where any number of threads may run."""
    data, x = pooled(), np.random.default_rng(0).standard_normal((1, 8, 32, 32), np.float32)
    whole = tilewright.compile(data, threads=3, cache=False)
    most = whole.peak_bytes() + x.nbytes - 64
    small = tilewright.compile(data, threads=3, cache=False, max_memory=most)
    assert small.peak_bytes() + x.nbytes <= most
    plan = small.artifact.static_plan
    assert plan is not None and plan.most_threads == 3 and plan.scratch == 0
    np.testing.assert_array_equal(small(x)[0], whole(x)[0])
    np.testing.assert_array_equal(Model(small.artifact, threads=1)(x)[0], whole(x)[0])
    with pytest.raises(OptionError, match="threads"):
        Model(small.artifact, threads=4)


def test_scratch_memory_over_a_tensor_is_found(module: Module) -> None:
    assert broken_plan(module) is None
    call = next(op for op in module.main.body.ops if op.attrs.get(SCRATCH, (0,))[0] != 0)
    start, bytes = call.attrs[SCRATCH]
    call.attrs[SCRATCH] = (start - 64, bytes)
    found = broken_plan(module)
    call.attrs[SCRATCH] = (start, bytes)
    assert found is not None and found[1] is call and "scratch memory over" in found[0]


def test_tensors_over_and_under_that_of_a_number_of_threads_are_found(module: Module) -> None:
    planned = module.copy()
    scratch = scratch_of_calls(planned)
    annotate(planned.main, assign_storage(planned.main, scratch=scratch, threads=3))
    assert broken_plan(planned) is None
    wrong = []
    for call in scratch:
        start, bytes = call.attrs[SCRATCH]
        for moved in (start - 64, start + 64):
            call.attrs[SCRATCH] = (moved, bytes)
            wrong.append(broken_plan(planned))
        call.attrs[SCRATCH] = (start, bytes)
    assert any(wrong)
