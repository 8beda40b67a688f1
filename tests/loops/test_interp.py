"""The interpreter of kernels: against NumPy, and the errors that it reports."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.loops import programs
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func
from tilewright.ir.diag import ExecutionError, InternalError
from tilewright.ir.sym import sym, var
from tilewright.ir.types import BufferType
from tilewright.loops.kernel_info import parse_kernel
from tilewright.ops.define.loop_programs import run_kernel
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder


def read(text: str) -> Func:
    func = parse_kernel(text)
    return func


def test_matrix_product() -> None:
    func = programs.matmul(5, 7, 3)
    a, b, bias, _ = arrays = programs.arguments(func)
    assert (programs.run(func, arrays)[0] == np.maximum(a @ b + bias, 0)).all()


def test_padded_convolution() -> None:
    func = programs.convolution(2, 3, 5, 3, 1)
    x, w, _ = arrays = programs.arguments(func)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    expected = np.maximum(np.einsum("chwyx,ocyx->ohw", windows, w), 0)
    assert (programs.run(func, arrays)[0] == expected).all()


def test_float32_rounds_at_every_step() -> None:
    def body(t: ScalarBuilder, x: Array, y: Array) -> None:
        y.store((0,), 0)
        with t.loop(200) as i:
            y.store((0,), y[0] + x[i])

    func = programs.kernel([(200,)], [(1,)], body, dtype=dt.f32)
    x = np.full(200, 0.1, np.float32)
    total = np.float32(0)
    for element in x:
        total = np.float32(total + element)
    y = np.zeros(1, np.float32)
    run_kernel(func, [x, y])
    assert y[0] == total


def test_running_sum_is_not_run_in_lockstep() -> None:
    func = read(
        "kernel @k(x: &f64[20], y: &f64[20]) dims() with {outputs=1} {\n"
        "  for i in 0..20 { y[i] = x[i] + y[i - 1 if i >= 1 else 0] }\n  return\n}"
    )
    x, y = np.arange(20.0), np.zeros(20)
    run_kernel(func, [x, y])
    assert (y == np.cumsum(x)).all()


def test_lanes_of_a_vector_loop_run_op_by_op() -> None:
    """A shift to the right in place: in order it spreads the first element, lane by lane it shifts."""
    text = "kernel @k(y: &f64[5]) dims() with {outputs=1} { for i in 0..4 KIND { y[i + 1] = y[i] }\n return }"
    serial, lanes = np.arange(5.0), np.arange(5.0)
    run_kernel(read(text.replace("KIND", "")), [serial])
    run_kernel(read(text.replace("KIND", "vector")), [lanes])
    assert serial.tolist() == [0, 0, 0, 0, 0]
    assert lanes.tolist() == [0, 0, 1, 2, 3]


def chosen(i: np.ndarray, k: int) -> np.ndarray:
    return np.maximum(i, 3) if k >= 2 else 2 * k + 0 * i


@pytest.mark.parametrize(
    ("index", "source"),
    [
        ("2*i + k", lambda i, k: 2 * i + k),
        ("30 - 3*i - k // 2", lambda i, k: 30 - 3 * i - k // 2),
        ("5 + k % 2", lambda i, k: 5 + k % 2 + 0 * i),
        ("i // 2 + (7*i + k) % 5", lambda i, k: i // 2 + (7 * i + k) % 5),
        ("min(i, k) + select(k - 2 >= 0, max(i, 3), 2*k)", lambda i, k: np.minimum(i, k) + chosen(i, k)),
    ],
)  # fmt: skip
def test_lanes_find_their_elements(index: str, source: Callable[[np.ndarray, int], np.ndarray]) -> None:
    """Whatever an index is in the number of the lane: in order, backwards, the same for all, with remainders."""
    func = read(
        "kernel @k(x: &f64[40], y: &f64[4, 8]) dims() with {outputs=1} {\n"
        f"  for k in 0..4 {{ for i in 0..8 vector {{ y[k, 7 - i] = x[{index}] }} }}\n  return\n}}"
    )
    x, y = np.arange(40.0) ** 2, np.zeros((4, 8))
    run_kernel(func, [x, y])
    expected = np.array([x[source(np.arange(8), k)] for k in range(4)])
    np.testing.assert_array_equal(y[:, ::-1], expected)


@pytest.mark.parametrize(("index", "wrong"), [("i + 1", 8), ("6 - i", -1), ("9", 9), ("i - 1", -1), ("2*i", 14)])
def test_lanes_out_of_bounds(index: str, wrong: int) -> None:
    func = read(
        "kernel @k(x: &f64[8], y: &f64[8]) dims() with {outputs=1} {\n"
        f"  for i in 0..8 vector {{ y[{index}] = x[i] }}\n  return\n}}"
    )
    with pytest.raises(InternalError, match=rf"store of buffer 'y' \[8\] at index {wrong} of axis 0"):
        run_kernel(func, [np.zeros(8), np.zeros(8)])


def test_strides_and_offset_of_a_buffer() -> None:
    """Every other element from the third on, of flat memory."""

    def body(t: ScalarBuilder, x: Array, y: Array) -> None:
        with t.loop(3) as i:
            y.store((i,), x[i])

    func = programs.kernel([(3,)], [(3,)], body)
    func.args[0].type = BufferType(dt.f64, (sym(3),), (sym(2),), "global", sym(2))
    y = np.zeros(3)
    run_kernel(func, [np.arange(10.0), y])
    assert y.tolist() == [2, 4, 6]


def test_symbolic_dims_come_from_the_environment() -> None:
    n = var("n", 1)
    func = programs.matmul(n, 2, 2, [n])
    a, b, bias, _ = arrays = programs.arguments(func, {"n": 4})
    assert (programs.run(func, arrays, {"n": 4})[0] == np.maximum(a @ b + bias, 0)).all()


@pytest.mark.parametrize("extent", [2, 30])
def test_access_out_of_bounds_names_buffer_and_index(extent: int) -> None:
    func = read(
        f"kernel @k(x: &f64[1], y: &f64[{extent}]) dims() with {{outputs=1}} {{\n"
        f"  for i in 0..{extent} {{ y[i] = x[i - 1] }}\n  return\n}}"
    )
    message = r"load of buffer 'x' \[1\] at index -1 of axis 0, which is out of 0..1"
    with pytest.raises(InternalError, match=message):
        run_kernel(func, [np.zeros(1), np.zeros(extent)])


@pytest.mark.parametrize("extent", [2, 30])
def test_failing_check(extent: int) -> None:
    def body(t: ScalarBuilder, x: Array, y: Array) -> None:
        with t.loop(extent) as i:
            t.check(x[i] < 1, "ExecutionError", "the element is too large")
            y.store((i,), x[i])

    func = programs.kernel([(extent,)], [(extent,)], body)
    run_kernel(func, [np.zeros(extent), np.zeros(extent)])
    with pytest.raises(ExecutionError, match="the element is too large"):
        run_kernel(func, [np.arange(float(extent)), np.zeros(extent)])


def test_memory_that_is_read_before_it_is_written_shows() -> None:
    func = read(
        "kernel @k(y: &f64[3]) dims() with {outputs=1} {\n  alloc t: scratch f64[3]\n"
        "  for i in 0..3 { y[i] = t[i] }\n  return\n}"
    )
    y = np.zeros(3)
    run_kernel(func, [y])
    assert np.isnan(y).all()


def test_arrays_that_do_not_fit() -> None:
    func = programs.plain_matmul(2, 2, 2)
    two = np.zeros((2, 2))
    with pytest.raises(InternalError, match="takes 3 arrays, not 1"):
        run_kernel(func, [two])
    with pytest.raises(InternalError, match=r"'x1' is &f64\[2, 2\], the array is float64\[2, 3\]"):
        run_kernel(func, [two, np.zeros((2, 3)), two])
    with pytest.raises(InternalError, match=r"argument 'x0' .* the array is float32"):
        run_kernel(func, [two.astype(np.float32), two, two])
    with pytest.raises(InternalError, match="'x0': the array must be C-contiguous"):
        run_kernel(func, [np.zeros((4, 2))[::2], two, two])


def test_an_array_without_elements_fits_merged_axes() -> None:
    func = read(
        """
        kernel @k(x: &f64[8*n], y: &f64[8*n]) dims(n) with {outputs=1} {
          for i in 0..8*n {
            y[i] = x[i]
          }
          return
        }
        """
    )
    run_kernel(func, [np.zeros((0, 8)), np.zeros((0, 8))], {"n": 0})
    with pytest.raises(InternalError, match="the array is float64"):
        run_kernel(func, [np.zeros((1, 8)), np.zeros((0, 8))], {"n": 0})


def test_a_loop_that_holds_a_condition_alone() -> None:
    func = read(
        "kernel @k(x: &f64[20], y: &f64[20]) dims() with {outputs=1} {\n"
        "  for i in 0..20 { if 3 <= i { y[i] = x[i] + y[i] } }\n  return\n}"
    )
    x, y = np.arange(20, dtype=np.float64), np.ones(20)
    run_kernel(func, [x, y])
    assert y.tolist() == [1.0] * 3 + [n + 1.0 for n in range(3, 20)]
