"""The entry points: sizes from shapes, kernels in order, threads, errors of steps."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.native import Native, kernel
from tilewright.codegen.cpu.assemble import Effort, Unit, compile_all
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.codegen.cpu.program.emit import program_ir
from tilewright.codegen.cpu.program.pool import pool_ir
from tilewright.codegen.program import (
    BufferRef,
    Check,
    Condition,
    Dim,
    ErrorTable,
    InputAxis,
    InputElement,
    Program,
)
from tilewright.ir import dtype as dt
from tilewright.ir.sym import ceildiv, eq, ge, lt, sym, var
from tilewright.ir.text import parse_module
from tilewright.ir.types import buffer
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder
from tilewright.program.memory.storage import Place
from tilewright.target.host import host_target

n = var("n", 0)
batch, width = var("batch", 0), var("width", 0)


def _scale(t: ScalarBuilder, a: list[Array]) -> None:
    """y = 2 x, in blocks of 64 by threads."""
    with t.loop(ceildiv(n, 64), "o", "parallel") as o:
        scratch = t.alloc(dt.f32, (64,))
        with t.loop(64, "j", "vector") as j, t.when(lt(64 * o + j, n)):
            scratch.store((j,), a[0][64 * o + j] * 2.0)
        with t.loop(64, "j", "vector") as j, t.when(lt(64 * o + j, n)):
            a[1].store((64 * o + j,), scratch[j])


def _ratio(t: ScalarBuilder, a: list[Array]) -> None:
    """y = x // 3 with a check, on one thread."""
    with t.loop(n, "i") as i:
        t.check(a[0][i] < 1000, "ExecutionError", "value too large")
        a[1].store((i,), t.apply("div", a[0][i], 3))


def _copy(t: ScalarBuilder, a: list[Array]) -> None:
    """y = x, on one thread."""
    with t.loop(2, "i") as i:
        a[1].store((i,), a[0][i])


class Compiled:
    """A program of a float and an integer input; see `_program`."""

    def __init__(self, program: Program, kernels: list[str]) -> None:
        target = host_target()
        self.text = program_ir(program, target, profile=True)
        units = [Unit(k) for k in kernels]
        units += [Unit(self.text.text, Effort.CALLS), Unit(pool_ir(target.triple), Effort.SUPPORT)]
        self.native = Native(*compile_all(units, target, 2))
        self.program = program

    def call(self, symbol: str, result: type | None, *arguments: object) -> int:
        kinds = [ctypes.c_void_p if not isinstance(a, ctypes._SimpleCData) else type(a) for a in arguments]
        return int(ctypes.CFUNCTYPE(result, *kinds)(self.native.address(symbol))(*arguments) or 0)

    def plan(self, inputs: list[np.ndarray]) -> tuple[int, list[int], list[int], list[int]]:
        shapes = np.array([d for x in inputs for d in x.shape], np.int64)
        data = np.array([x.ctypes.data for x in inputs], np.uint64)
        dims = np.zeros(len(self.program.dims), np.int64)
        out = np.zeros(sum(map(len, self.program.outputs)), np.int64)
        sizes = np.zeros(2, np.int64)
        error = self.call(
            "tw_plan", ctypes.c_int32, *(a.ctypes.data for a in (shapes, data, dims, out, sizes))
        )
        return error, dims.tolist(), out.tolist(), sizes.tolist()

    def run(
        self, inputs: list[np.ndarray], outputs: list[np.ndarray], constants: np.ndarray, threads: int
    ) -> int:
        _, dims, _, (arena_bytes, scratch_bytes) = self.plan(inputs)
        arena, scratch = (
            np.zeros(size, np.uint8) for size in (arena_bytes + 64, scratch_bytes * threads + 64)
        )
        values = np.array(dims, np.int64)
        ins, outs = (np.array([x.ctypes.data for x in xs], np.uint64) for xs in (inputs, outputs))
        create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)
        pool = create(self.native.address("tw_pool_create"))(threads, None, 1000)
        arrays = (ins, outs, constants, arena, scratch, values, np.zeros(1, np.int32))
        call = np.array([pool or 0, *(a.ctypes.data for a in arrays)], np.uint64)
        error = self.call("tw_run", ctypes.c_int32, call.ctypes.data)
        steps = len(self.program.steps)
        counts = np.zeros(steps + 2 + steps * threads + 1, np.int64)
        counts[steps + 1] = threads
        assert self.call("tw_run_profiled", ctypes.c_int32, call.ctypes.data, counts.ctypes.data) == error
        ticks, self.busy = counts[: steps + 1], counts[steps + 2 : -1].reshape(steps, threads)
        assert (np.diff(ticks) >= 0).all() and ticks[0] > 0 and counts[-1] == 0
        assert (self.busy <= np.diff(ticks)[:, np.newaxis]).all() and (self.busy.sum(axis=1) > 0).all()
        self.call("tw_pool_destroy", None, pool)
        return error


PROGRAM = """
constant @both: i64[2]
constant @second: i64[2]

program @main(x: f32[batch, width], k: i32[3]) -> (f32[batch, width], i32[3], i64[2], i64[last // 2])
    where(-inf <= last) with {arena=`4*batch*width + 128`, unshared=`4*batch*width + 128`, overwrites=()} {
  both = constant @both : i64[2]
  second = constant @second : i64[2]
  a = call(x) {kernel="scale", dims=[batch*width], at=(Place{base="arena", offset=`128`},)} : f32[batch, width]
  c = call(second) {kernel="copy", dims=[], concurrent=0, at=(Place{base="output", index=2},)} : i64[2]
  y = call(a) {kernel="scale", dims=[batch*width], concurrent=0, at=(Place{base="output"},)} : f32[batch, width]
  d = call(both) {kernel="copy", dims=[], concurrent=0, at=(Place{base="output", index=3},)} : i64[last // 2]
  q = call(k) {kernel="ratio", dims=[3], at=(Place{base="output", index=1},)} : i32[3] loc("Div_7", "Div")
  return y, q, c, d
}
"""


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    """Outputs: 4 x of the first input [batch, width] through the arena; the second [3] // 3; two parts of the
    constants. Three of the calls share their iterations."""
    target = host_target()
    scale = kernel([buffer(dt.f32, [n])] * 2, _scale, dims=[n])
    scale.name, scale.info = "scale", replace(kernel_info(scale), work=2 * n)
    ratio = kernel([buffer(dt.i32, [n])] * 2, _ratio, dims=[n])
    ratio.name = "ratio"
    copy = kernel([buffer(dt.i64, [sym(2)])] * 2, _copy)
    copy.name = "copy"
    scale_text, ratio_text, copy_text = (kernel_ir(k, target) for k in (scale, ratio, copy))
    last = var("last", None)
    module = parse_module(PROGRAM, records={"Place": Place})
    module.funcs |= {k.name: k for k in (scale, ratio, copy)}
    texts = {k.name: text for k, text in ((scale, scale_text), (ratio, ratio_text), (copy, copy_text))}
    constants = {"both": BufferRef("constants"), "second": BufferRef("constants", offset=sym(8))}
    program = Program(
        module, texts, constants,
        (Dim(batch, InputAxis(0, 0)), Dim(width, InputAxis(0, 1)), Dim(last, InputElement(1, 2, dt.i32)),
         Dim(var("twice"), 2 * batch)),
        (Condition(ge(batch, 1), Check("InputError", "the batch must not be empty")),
         Condition(eq(width % 2, 0), Check("ExecutionError", "width must be even"))),
    )  # fmt: skip
    return Compiled(program, [scale_text.text, ratio_text.text, copy_text.text])


@pytest.mark.without_room_for_zones
def test_plan_gives_dims_shapes_and_sizes(compiled: Compiled) -> None:
    inputs = [np.zeros((5, 8), np.float32), np.array([1, 2, -7], np.int32)]
    error, dims, out, sizes = compiled.plan(inputs)
    assert error == 0
    assert dims == [5, 8, -7, 10]
    assert out == [5, 8, 3, 2, -4]
    assert sizes == [128 + 4 * 40, 256]


@pytest.mark.parametrize(
    ("shape", "message"), [((0, 8), "the batch must not be empty"), ((2, 3), "width must be even")]
)
def test_plan_refuses_what_the_conditions_exclude(
    compiled: Compiled, shape: tuple[int, int], message: str
) -> None:
    error, *_ = compiled.plan([np.zeros(shape, np.float32), np.zeros(3, np.int32)])
    assert compiled.text.errors.entries[error - 1].message == message


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", [(3, 10), (70, 1000)])
def test_run_calls_the_steps_in_order(compiled: Compiled, shape: tuple[int, int], threads: int) -> None:
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    k = np.array([10, -10, 999], np.int32)
    constants = np.arange(4, dtype=np.int64)
    outputs = [np.zeros_like(x), np.zeros_like(k), np.zeros(2, np.int64), np.zeros(2, np.int64)]
    assert compiled.run([x, k], outputs, constants, threads) == 0
    np.testing.assert_array_equal(outputs[0], 4 * x)
    assert outputs[1].tolist() == [3, -3, 333]
    assert outputs[2].tolist() == [1, 2]
    assert outputs[3].tolist() == [0, 1]


def test_run_reports_which_step_failed(compiled: Compiled) -> None:
    x, k = np.zeros((1, 2), np.float32), np.array([1, 1000, 5], np.int32)
    outputs = [np.zeros_like(x), np.zeros_like(k), np.zeros(2, np.int64), np.zeros(2, np.int64)]
    error = compiled.run([x, k], outputs, np.zeros(4, np.int64), 2)
    assert compiled.text.errors.metadata()[error - 1] == {
        "kind": "execution",
        "message": "value too large (in node 'Div_7' (Div))",
    }


def test_error_table_keeps_equal_lists_once() -> None:
    table = ErrorTable()
    first, second = Check("InputError", "a"), Check("ExecutionError", "b")
    assert table.base((first, second)) == 0
    assert table.base((second,)) == 2
    assert table.base((first, second)) == 0
    assert [e["kind"] for e in table.metadata()] == ["input", "execution", "execution"]


@pytest.mark.without_room_for_zones
def test_scratch_is_what_the_greediest_step_needs(compiled: Compiled) -> None:
    texts = {name: replace(text, scratch=sym(0)) for name, text in compiled.program.kernels.items()}
    texts |= {name: replace(texts[name], scratch=most) for name, most in (("ratio", sym(100)), ("scale", 4 * n))}
    program = replace(compiled.program, kernels=texts)
    assert [program.scratch.evaluate({"batch": b, "width": 1}) for b in (1, 100)] == [128, 448]
