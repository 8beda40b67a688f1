"""Whole kernels: register tiles and their machine code, symbolic sizes, errors at run time, loops that do
not run."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

from tests.codegen.native import kernel, run_kernel
from tilewright.codegen.cpu.assemble import Unit, assembly, compile_all, compile_ir
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.codegen.program import Check
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func
from tilewright.ir.diag import InternalError, UnsupportedError
from tilewright.ir.sym import Sym, ceildiv, lt, var
from tilewright.ir.types import buffer
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder
from tilewright.target.named import NAMED
from tilewright.target.target import Target

n = var("n", 0)


def _elements(t: ScalarBuilder, rows: int, columns: int, lanes: int) -> Iterator[tuple[Sym, Sym]]:
    """Position (row, column) of a register tile, inside of its loops."""
    with (
        t.loop(rows, "i", "unroll") as i,
        t.loop(columns, "h", "unroll") as h,
        t.loop(lanes, "j", "vector") as j,
    ):
        yield i, lanes * h + j


def _tile(rows: int, columns: int, lanes: int, depth: int) -> Func:
    """C[io*rows + i, c] += A[io, k, i] * B[k, c], with all sums in registers."""

    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(n, "i", "parallel") as io:
            acc = t.alloc(dt.f32, (rows, columns * lanes), "reg")
            for i, c in _elements(t, rows, columns, lanes):
                acc.store((i, c), 0.0)
            with t.loop(depth, "k") as k:
                for i, c in _elements(t, rows, columns, lanes):
                    acc.store((i, c), acc[i, c] + a[0][io, k, i] * a[1][k, c])
            for i, c in _elements(t, rows, columns, lanes):
                a[2].store((rows * io + i, c), acc[i, c])

    width = columns * lanes
    types = [
        buffer(dt.f32, [n, depth, rows]),
        buffer(dt.f32, [depth, width]),
        buffer(dt.f32, [n * rows, width]),
    ]
    return kernel(types, body, dims=[n])


@pytest.mark.parametrize(("rows", "columns", "lanes"), [(14, 2, 16), (6, 2, 8), (5, 3, 16)])
def test_a_register_tile_multiplies_matrices(rows: int, columns: int, lanes: int) -> None:
    rng = np.random.default_rng(0)
    a, b = (
        rng.standard_normal((3, 50, rows), np.float32),
        rng.standard_normal((50, columns * lanes), np.float32),
    )
    c = np.zeros((3 * rows, columns * lanes), np.float32)
    run_kernel(_tile(rows, columns, lanes, 50), [a, b, c], [3], slices=[(0, 2), (2, 3)])
    expected = np.einsum("tki,kc->tic", a.astype(np.float64), b.astype(np.float64)).reshape(c.shape)
    np.testing.assert_allclose(c, expected, atol=1e-4)


def test_what_unrolled_iterations_share_is_in_the_text_once() -> None:
    text = kernel_ir(_tile(6, 2, 8, 50), NAMED["zen3"]).text
    operands = {name: len(re.findall(rf"load {type}, ptr %v\d+", text)) for name, type in
                (("a", "float"), ("b and sums", "<8 x float>"))}  # fmt: skip
    assert operands["a"] == 6  # one for each row, and not for each of the two registers in it
    assert operands["b and sums"] <= 2 + 12 + 12  # each of b once; sums as they are added to and as they are written
    pointers = re.findall(r"= (getelementptr .*)", text.split(".task(")[0])
    assert len(pointers) == len(set(pointers))


def _inner_loop(text: str) -> list[str]:
    """The instructions of the block with the most fused multiply-adds."""
    blocks = re.split(r"^\.?L\w*:", text, flags=re.M)
    best = max(blocks, key=lambda b: len(re.findall(r"vfmadd|fmla", b)))
    lines = [line.strip() for line in best.splitlines() if line.strip()]
    jump = next(k for k, line in enumerate(lines) if re.match(r"j\w+\s|b\.\w+\s|cb", line))
    return lines[: jump + 1]


@pytest.mark.parametrize(
    ("target", "rows", "columns", "lanes", "register"),
    [("cascadelake", 14, 2, 16, "zmm"), ("zen3", 6, 2, 8, "ymm"), ("zen3", 4, 3, 8, "ymm"),
     ("neoverse-n1", 6, 4, 4, "v")],
)  # fmt: skip
def test_the_inner_loop_of_a_tile_is_all_it_must_be(
    target: str, rows: int, columns: int, lanes: int, register: str
) -> None:
    """As many FMAs as the tile has vectors, each of full width, and no register spilled."""
    loop = _inner_loop(
        assembly(kernel_ir(_tile(rows, columns, lanes, 64), NAMED[target]).text, NAMED[target])
    )
    multiplies = [line for line in loop if re.match(r"vfmadd|fmla", line)]
    assert len(multiplies) == rows * columns
    assert all(register in line for line in multiplies)
    assert not [line for line in loop if "rsp" in line or "[sp" in line]
    assert len(loop) <= rows * columns + rows + columns + 6


def test_the_same_text_each_time() -> None:
    first, second = (kernel_ir(_tile(4, 2, 8, 32), NAMED["zen3"]).text for _ in range(2))
    assert first == second
    assert compile_ir(first, NAMED["zen3"]) == compile_ir(second, NAMED["zen3"])


def test_threads_compile_what_one_thread_compiles() -> None:
    texts = [kernel_ir(_tile(rows, 1, 8, 8), NAMED["zen3"]).text for rows in (1, 2, 3, 4)]
    units = [Unit(text) for text in texts]
    assert compile_all(units, NAMED["zen3"], 3) == [compile_ir(text, NAMED["zen3"]) for text in texts]


def test_text_that_llvm_refuses_is_our_defect() -> None:
    with pytest.raises(InternalError, match="LLVM refuses generated code"):
        compile_ir("define void @f() { nonsense }", NAMED["zen3"])


@pytest.mark.parametrize("name", ["aarch64-neon", "x86-64-v4", "cascadelake"])
def test_other_targets_compile(name: str) -> None:
    assert len(compile_ir(kernel_ir(_tile(4, 2, 4, 8), NAMED[name]).text, NAMED[name])) > 500


def _divide(kind: str, guarded: bool) -> Func:
    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(16, "j", kind) as j:
            if guarded:
                with t.when(lt(j, n)):
                    a[2].store((j,), t.apply("div", a[0][j], a[1][j]))
            else:
                a[2].store((j,), t.apply("div", a[0][j], a[1][j]))

    return kernel([buffer(dt.i32, [16])] * 3, body, dims=[n])


@pytest.mark.parametrize("kind", ["vector", "serial"])
def test_integer_division_by_zero_is_reported(kind: str) -> None:
    x = np.arange(16, dtype=np.int32)
    d = np.where(np.arange(16) == 9, 0, 2).astype(np.int32)
    y = np.full(16, 5, np.int32)
    compiled, error = run_kernel(_divide(kind, False), [x, d, y], [0])
    assert compiled.checks == (Check("ExecutionError", "integer division by zero"),)
    assert error == 1
    np.testing.assert_array_equal(y, np.where(d == 0, 0, x // 2))


@pytest.mark.parametrize("kind", ["vector", "serial"])
def test_lanes_that_are_off_cannot_fail(kind: str) -> None:
    x, d = np.arange(16, dtype=np.int32), np.where(np.arange(16) < 9, 3, 0).astype(np.int32)
    y = np.full(16, 5, np.int32)
    _, error = run_kernel(_divide(kind, True), [x, d, y], [9])
    assert error == 0
    np.testing.assert_array_equal(y, np.where(np.arange(16) < 9, x // 3, 5))


def test_smallest_integer_over_minus_one_wraps() -> None:
    x = np.full(16, -(2**31), np.int32)
    y = np.zeros(16, np.int32)
    _, error = run_kernel(_divide("vector", False), [x, np.full(16, -1, np.int32), y], [0])
    assert error == 0 and (y == -(2**31)).all()


@pytest.mark.parametrize("kind", ["vector", "serial"])
def test_the_first_failed_check_is_reported_from_the_base_of_the_step(kind: str) -> None:
    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(16, "j", kind) as j:
            t.check(a[0][j] < 100, "ExecutionError", "too large")
            t.check(a[0][j] >= 0, "ExecutionError", "negative")
            a[1].store((j,), a[0][j])

    x = np.arange(16, dtype=np.int32)
    x[3] = -1
    y = np.zeros(16, np.int32)
    compiled, error = run_kernel(kernel([buffer(dt.i32, [16])] * 2, body), [x, y])
    assert [c.message for c in compiled.checks] == ["too large", "negative"]
    assert error == 2
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("size", [0, 1, 5, 64])
def test_loops_of_unknown_length(size: int) -> None:
    def body(t: ScalarBuilder, a: list[Array]) -> None:
        a[1].store((0,), 0.0)
        with t.loop(n, "i") as i, t.loop(i, "k") as k, t.when(lt(2 * k, i)):
            a[1].store((0,), a[1][0] + a[0][k])

    x = np.arange(64, dtype=np.float32)
    y = np.ones(1, np.float32)
    run_kernel(kernel([buffer(dt.f32, [64]), buffer(dt.f32, [1])], body, dims=[n]), [x, y], [size])
    assert y[0] == sum(k for i in range(size) for k in range(i) if 2 * k < i)


def test_division_of_dims_that_are_zero_does_not_trap() -> None:
    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(n, "i") as i:
            a[0].store((i // n + (i - 1) % n,), 1)

    y = np.zeros(4, np.int32)
    run_kernel(kernel([buffer(dt.i32, [4])], body, dims=[n]), [y], [0])
    assert (y == 0).all()


def test_vector_of_unrolled_and_unrolled_of_vector_loops() -> None:
    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with (
            t.loop(ceildiv(n, 32), "o") as o,
            t.loop(2, "u", "unroll") as u,
            t.loop(8, "j", "vector") as j,
            t.loop(2, "w", "unroll") as w,
        ):
            e = 32 * o + 16 * u + 2 * j + w
            with t.when(lt(e, n)):
                a[1].store((e,), a[0][e] + 1)

    x = np.arange(77, dtype=np.int64)
    y = np.zeros_like(x)
    run_kernel(kernel([buffer(dt.i64, [n])] * 2, body, dims=[n]), [x, y], [77])
    np.testing.assert_array_equal(y, x + 1)


def test_strings_are_refused() -> None:
    def body(t: ScalarBuilder, a: list[Array]) -> None:
        a[1].store((0,), a[0][0])

    with pytest.raises(UnsupportedError, match="strings cannot be elements"):
        kernel_ir(kernel([buffer(dt.string, [1])] * 2, body), NAMED["zen3"])


def test_the_task_form_reads_its_arguments_from_memory(host: Target) -> None:
    text = kernel_ir(_tile(4, 1, 8, 8), host).text
    assert "define void @k.task(ptr %args, i64 %begin, i64 %end, i64 %worker)" in text
    assert "call void @k(ptr %f0, ptr %f3, ptr %f4, ptr %f5, i64 %f6, ptr %own, i64 %begin, i64 %end)" in text


@pytest.fixture
def host() -> Target:
    return NAMED["zen3"]
