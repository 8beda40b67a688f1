"""Zones within what the compiler lays out: kernels that go beyond a tensor of the arena or a constant."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.zones.calls import REPORT
from tests.zones.pages import IS_AVAILABLE, PAGE
from tests.zones.test_zones import refused
from tilewright.codegen.cpu.kernel.memory import MemoryAccess
from tilewright.runtime import Model

pytestmark = pytest.mark.skipif(not IS_AVAILABLE, reason="there are zones on Linux for x86-64 only")

X = np.ones((16, 16), np.float32)


def two_products(rows: int | str) -> Model:
    """tanh(x @ a) @ b: what is between the products lies in the arena, a and b are constants."""
    rng = np.random.default_rng(0)
    nodes = [("MatMul", ["x", "a"], ["p"]), ("Tanh", ["p"], ["h"]), ("MatMul", ["h", "b"], ["y"])]
    shape = [rows, 16]
    graph = helper.make_graph(
        [helper.make_node(*node) for node in nodes],
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(rng.standard_normal((16, 16), np.float32), name) for name in "ab"],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return tilewright.compile(proto.SerializeToString(), threads=2, cache=False)


def moved(patch: pytest.MonkeyPatch, method: str, argument: str, elements: int) -> None:
    """Accesses to arguments of kernels whose pointer has this name go so many elements after where they should."""
    before: Any = getattr(MemoryAccess, method)

    def beside(self: MemoryAccess, buffer: Any, where: Any, *rest: Any) -> Any:
        is_meant = buffer.pointer == argument
        return before(self, buffer, where._replace(constant=where.constant + elements * is_meant), *rest)

    patch.setattr(MemoryAccess, method, beside)


@pytest.mark.parametrize("rows", [16, "rows"])
def test_right_kernels_run(rows: int | str) -> None:
    model = two_products(rows)
    told = model.artifact.attached[REPORT]
    assert len(told["arena"]) >= 1 and len(model.artifact.constant_table) == 2
    assert all(info.offset % PAGE == PAGE - 1024 for info in model.artifact.constant_table)
    for _ in range(3):
        model(X)
    if rows != 16:
        model(X[:5])
        model(X)


@pytest.mark.parametrize("rows", [16, "rows"])
def test_a_store_beyond_a_tensor_of_the_arena(rows: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first kernel of two writes its result to the arena."""
    moved(monkeypatch, "_store_run", "%b2", 16)
    refused(lambda: two_products(rows)(X), r"arena, 1024 bytes at 3072: a store 0 bytes after its end")


def test_a_load_beyond_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    moved(monkeypatch, "_load_run", "%b1", 16)
    refused(lambda: two_products(16)(X), r"constants, 1024 bytes at 3072: a load 0 bytes after its end")


@pytest.mark.parametrize("worker", [0, 1])
def test_a_store_beyond_the_scratch_memory_of_a_thread(worker: int) -> None:
    """Each thread's ends with a page, and another one lies before that of the next."""
    model = two_products(16)
    model(X)
    context = model._contexts[-1]
    words = (ctypes.c_void_p * 8)()

    def beyond(call: int) -> int:
        words[:] = (ctypes.c_void_p * 8).from_address(call)
        stride = context.current.needs[1]
        ctypes.memset(words[5] + worker * stride + 1024, 1, 1)
        return 0

    context._programs[0].code.native = beyond
    refused(lambda: model(X), rf"scratch memory, 1024 bytes at {3072 + worker * 8192}: a store 0 bytes after its end")


def test_a_store_before_a_tensor_of_the_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    moved(monkeypatch, "_store_run", "%b2", -16)
    refused(lambda: two_products(16)(X), r"arena, 1024 bytes at 3072: 64 bytes changed, from 1 bytes before its start")


@pytest.mark.without_room_for_zones
def test_without_room_a_model_is_laid_out_as_in_production() -> None:
    model = two_products(16)
    assert REPORT not in model.artifact.attached
    assert model.artifact.static_plan is not None and model.artifact.static_plan.arena == 1024
    assert [info.offset for info in model.artifact.constant_table] == [0, 1024]
