"""Zones within what the compiler lays out: kernels that go beyond a tensor of the arena or a constant."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.zones.test_zones import refused
from tilewright.codegen.cpu.kernel import emit
from tilewright.codegen.cpu.kernel.memory import MemoryAccess
from tilewright.ir.core import Op
from tilewright.ir.types import BufferType
from tilewright.runtime import Model
from tilewright.runtime.guarded import GUARD_ZONES as REPORT
from tilewright.runtime.guarded import PAGE
from tilewright.runtime.guarded.calls import GuardedContext
from tilewright.runtime.guarded.pages import IS_AVAILABLE, ZonedBuffer

pytestmark = pytest.mark.skipif(not IS_AVAILABLE, reason="there are zones on Linux for x86-64 only")

X = np.ones((16, 16), np.float32)


def two_products_proto(rows: int | str) -> bytes:
    """tanh(x @ a) @ b: what is between the products lies in the arena, a and b are constants."""
    rng = np.random.default_rng(0)
    nodes = [("MatMul", ["x", "a"], ["p"]), ("Tanh", ["p"], ["h"]), ("MatMul", ["h", "b"], ["y"])]
    shape = [rows, 16]
    graph = helper.make_graph(
        [helper.make_node(*node, name=f"the_{node[0]}") for node in nodes],
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(rng.standard_normal((16, 16), np.float32), name) for name in "ab"],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(proto.SerializeToString())


def two_products(rows: int | str) -> Model:
    return tilewright.compile(two_products_proto(rows), threads=2, cache=False)


def moved(patch: pytest.MonkeyPatch, method: str, argument: str, elements: int) -> None:
    """Accesses to arguments of kernels whose pointer has this name go so many elements after where they should."""
    before: Any = getattr(MemoryAccess, method)

    def beside(self: MemoryAccess, buffer: Any, where: Any, *rest: Any) -> Any:
        is_meant = buffer.pointer == argument
        return before(self, buffer, where._replace(constant=where.constant + elements * is_meant), *rest)

    patch.setattr(MemoryAccess, method, beside)


def of_kernel(run: Callable[[], object], found: str) -> None:
    """The first kernel is refused."""
    refused(run, rf"the kernel k0_\w+ of '\w+' goes beyond buffers: {found}")


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
    of_kernel(lambda: two_products(rows)(X), r"arena 'h', 1024 bytes at 3072: a store 0 bytes after its end")


def test_a_load_beyond_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    moved(monkeypatch, "_load_run", "%b1", 16)
    of_kernel(lambda: two_products(16)(X), r"constants 'a.packed', 1024 bytes at 3072: a load 0 bytes after its end")


@pytest.mark.parametrize("worker", [0, 1])
def test_a_store_beyond_the_scratch_memory_of_a_thread(worker: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread's ends with a page, and another one lies before that of the next."""
    model = two_products(16)
    model(X)
    begun = GuardedContext._divide

    def beyond(self: GuardedContext, program: Any, arena: ZonedBuffer, scratch: ZonedBuffer, *told: Any) -> None:
        begun(self, program, arena, scratch, *told)
        ctypes.memset(scratch.address + sum(scratch.places[worker]), 1, 1)

    monkeypatch.setattr(GuardedContext, "_divide", beyond)
    refused(lambda: model(X), rf"scratch memory, 1024 bytes at {3072 + worker * 8192}: a store 0 bytes after its end")


def test_scratch_memory_that_code_generation_counts_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel asks for a cache line less than its buffers take."""
    scratch = emit.Kernel._scratch

    def short(self: Any, op: Op, type: BufferType) -> str:
        at = scratch(self, op, type)
        self.scratch -= 64
        return at

    monkeypatch.setattr(emit.Kernel, "_scratch", short)
    found = r"scratch memory, 960 bytes at \d+: a store 0 bytes after its end"
    refused(lambda: two_products(16)(X), rf"the kernel k\d_\w+ of '\w+' goes beyond buffers: {found}")


def test_threads_that_code_generation_gives_one_scratch_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each runs in its turn, while those of the others are closed. Answers would be wrong by chance alone."""
    monkeypatch.setattr(GuardedContext, "takes_turns", True)
    x = np.ones((2048, 16), np.float32)
    two_products(2048)(x)
    task = emit.task_ir

    def of_the_first(*args: Any, **named: Any) -> str:
        return task(*args, **named).replace("mul nsw i64 %worker, %f2", "mul nsw i64 0, %f2")

    monkeypatch.setattr(emit, "task_ir", of_the_first)
    found = r"scratch memory, \d+ bytes at \d+: a store at byte \d+, in the turn of another thread"
    refused(lambda: two_products(2048)(x), rf"the kernel k\d_\w+ of '\w+' goes beyond buffers: {found}")


def test_a_store_before_a_tensor_of_the_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    moved(monkeypatch, "_store_run", "%b2", -16)
    found = r"arena 'h', 1024 bytes at 3072: 64 bytes changed, from 1 bytes before its start"
    of_kernel(lambda: two_products(16)(X), found)


@pytest.mark.without_room_for_zones
def test_without_room_a_model_is_laid_out_as_in_production() -> None:
    model = two_products(16)
    assert REPORT not in model.artifact.attached
    assert model.artifact.static_plan is not None and model.artifact.static_plan.arena == 1024
    assert [info.offset for info in model.artifact.constant_table] == [0, 1024]
