"""Kernels that are specialised for some dims: what holds for these, and the kernel for the others beside it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.codegen.native import run_kernel as run_native
from tilewright.ir.core import Func
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import var
from tilewright.ir.text import print_func
from tilewright.ir.verify import verify_func
from tilewright.loops.conditions.specialize import for_other_dims, specialize, specialize_less
from tilewright.loops.edit import extent_of, find_loop, loop_var, loops_in
from tilewright.loops.kernel_info import kernel_info, parse_kernel
from tilewright.loops.order.parallel import parallel
from tilewright.loops.order.peel import peel
from tilewright.loops.order.split import split
from tilewright.loops.spec import LOOPS_SPEC, versions_of
from tilewright.loops.storage.axes import merge_axes
from tilewright.loops.storage.inplace import overwritable
from tilewright.loops.storage.pack import pack_argument
from tilewright.loops.storage.packing import Packing
from tilewright.ops.define.loop_programs import run_kernel as interpret

TWICE = """
kernel @k(x: &f32[n], w: &f32[8], y: &f32[n]) dims(n, m) with {outputs=1} {
  for i in 0..n {
    y[i] = x[i] * 2 + w[3]
  }
  return
}
"""


def kernel(text: str = TWICE) -> Func:
    return parse_kernel(text)


def in_tiles(func: Func, rows: int) -> Func:
    split(func, find_loop(func, "i"), rows, "overlap")
    parallel(func, find_loop(func, "io"))
    return func


def joined() -> Func:
    """Tiles of 5 rows for 5 rows or more, else tiles of 2 for 2 or more, else single rows."""
    dims = kernel().dims
    large = in_tiles(specialize(kernel(), dims[0], 5), 5)
    small = kernel()
    specialize_less(small, kernel_info(large).specialized_for)
    between = small.dims
    fewest = kernel()
    parallel(fewest, find_loop(fewest, "i"))
    in_tiles(specialize(small, between[0], 2), 2)
    return for_other_dims(large, for_other_dims(small, fewest, between), dims)


def test_specialising_bounds_the_dim() -> None:
    func = kernel()
    n = func.dims[0]
    specialize(func, n // 3 - 1, 4)
    assert kernel_info(func).specialized_for == {"n": 15}
    assert [d.bounds[0] for d in func.dims] == [15, 0]
    assert extent_of(find_loop(func, "i")).bounds[0] == 15
    assert func.args[0].type.shape[0].bounds[0] == 15  # type: ignore[attr-defined]


def test_a_product_of_dims_is_long_when_all_of_them_are() -> None:
    func = kernel()
    n, m = func.dims
    specialize(func, n * m, 16)
    assert kernel_info(func).specialized_for == {"n": 4, "m": 4}
    assert not specialize_less(kernel(), kernel_info(func).specialized_for)


def test_nothing_is_known_of_a_dim_while_the_other_may_be_small() -> None:
    func = kernel()
    n, m = func.dims
    assert not specialize_less(func, {"n": 5, "m": 3})
    assert [d.bounds for d in func.dims] == [n.bounds, m.bounds]


def test_the_last_of_several_dims_is_small_where_the_others_are_large() -> None:
    func = kernel()
    specialize(func, func.dims[0], 7)
    assert specialize_less(func, {"n": 5, "m": 3})
    assert [d.bounds for d in func.dims] == [(7, None), (0, 2)]
    assert kernel_info(func).specialized_for == {"n": 7}
    assert verify_func(func, LOOPS_SPEC) is None
    assert parse_kernel(print_func(func)).info == func.info


GRID = """
kernel @k(x: &f32[m, n], w: &f32[8], y: &f32[m, n]) dims(n, m) with {outputs=1} {
  for j in 0..m {
    for i in 0..n {
      y[j, i] = x[j, i] * 2 + w[3]
    }
  }
  return
}
"""


@pytest.mark.parametrize(("n", "m"), [*product((0, 3, 4, 5, 9), (1, 2, 3, 8))])
def test_kernels_for_each_dim_and_for_what_is_left_serve_all_dims(n: int, m: int) -> None:
    dims = kernel(GRID).dims
    first, second = dims
    large = specialize(specialize(kernel(GRID), first, 5), second, 3)
    others = kernel(GRID)
    assert not specialize_less(others, kernel_info(large).specialized_for)
    specialize(others, others.dims[1], 3)
    left = kernel(GRID)
    assert specialize_less(left, kernel_info(others).specialized_for)
    func = for_other_dims(large, for_other_dims(others, left, dims), dims)
    x, w = np.arange(n * m, dtype=np.float32).reshape(m, n), np.arange(8, dtype=np.float32)
    interpret(func, [x, w, y := np.zeros((m, n), np.float32)], {"n": n, "m": m})
    np.testing.assert_array_equal(y, 2 * x + 3)
    run_native(func, [x, w, y := np.zeros((m, n), np.float32)], (n, m))
    np.testing.assert_array_equal(y, 2 * x + 3)


def test_dims_for_which_loops_that_never_run_divide_by_zero_are_not_narrowed() -> None:
    text = """
kernel @k(x: &f32[4, n], y: &f32[4*((n + 3) // 4)]) dims(n) with {outputs=1} {
  for i in 0..4*((n + 3) // 4) {
    y[i] = x[i // ((n + 3) // 4), i % ((n + 3) // 4)]
  }
  return
}
"""
    func = kernel(text)
    assert not specialize_less(func, {"n": 1})
    assert print_func(func) == print_func(kernel(text))
    assert specialize_less(func, {"n": 2})


def test_values_below_zero_are_not_specialised_for() -> None:
    func = kernel()
    axis = var("axis", None, -1)
    func.dims = (*func.dims, axis)
    with pytest.raises(ScheduleError, match="no bound of the dims is enough"):
        specialize(func, axis + 9, 4)


@pytest.mark.parametrize("extent", [var("other", 0), 7 - var("n", 0), var("n", 0) % 4])
def test_what_no_bound_of_a_dim_ensures_is_not_specialised_for(extent: object) -> None:
    with pytest.raises(ScheduleError, match="specialize"):
        specialize(kernel(), extent, 8)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 6, 9, 10, 23])
def test_each_size_is_computed_by_its_version(n: int) -> None:
    func = joined()
    verify_func(func, LOOPS_SPEC)
    x, w = np.arange(n, dtype=np.float32), np.arange(8, dtype=np.float32)
    y = np.zeros(n, np.float32)
    interpret(func, [x, w, y], {"n": n, "m": 1})
    np.testing.assert_array_equal(y, 2 * x + 3)
    text, _ = run_native(func, [x, w, y := np.zeros(n, np.float32)], (n, 1), slices=[(0, 2), (2, 1 << 40)])
    iterations = -(-n // 5) if n >= 5 else -(-n // 2) if n >= 2 else n
    assert text.parallel is not None and text.parallel.evaluate({"n": n, "m": 1}) == iterations
    np.testing.assert_array_equal(y, 2 * x + 3)


def test_versions_exclude_each_other_and_read_back() -> None:
    func = joined()
    assert [op.attrs["guard"] for op in func.body.ops if op.name == "if"] != []
    assert len(versions_of(func.body)) == 3
    assert print_func(kernel(print_func(func))) == print_func(func)


def test_results_take_the_place_of_arguments_where_every_version_allows_it() -> None:
    alone = kernel()
    assert overwritable(alone) == ((0, 2),)
    dims = kernel().dims
    whole, rest = specialize(kernel(), dims[0], 4), kernel()
    assert overwritable(for_other_dims(whole, rest, dims)) == ((0, 2),)
    twice, rest = in_tiles(specialize(kernel(), dims[0], 4), 4), kernel()
    parallel(rest, find_loop(rest, "i"))
    assert overwritable(for_other_dims(twice, rest, dims)) == (), "overlapping rows are read again"


def test_versions_must_agree_on_constants() -> None:
    dims = kernel().dims
    packed = specialize(kernel(), dims[0], 4)
    pack_argument(packed, packed.args[1], Packing(((4,),), (1, 0)))
    with pytest.raises(ScheduleError, match="in different orders"):
        for_other_dims(packed, kernel(), dims)


@pytest.mark.parametrize("n", [0, 1, 3, 4, 9])
@pytest.mark.parametrize("which", ["large", "small"])
def test_one_thread_runs_a_version_that_has_nothing_to_share(which: str, n: int) -> None:
    large, small, dims = specialize(kernel(), kernel().dims[0], 4), kernel(), kernel().dims
    shared = large if which == "large" else small
    parallel(shared, find_loop(shared, "i"))
    func = for_other_dims(large, small, dims)
    verify_func(func, LOOPS_SPEC)
    x, w = np.arange(n, dtype=np.float32), np.arange(8, dtype=np.float32)
    text, _ = run_native(func, [x, w, y := np.zeros(n, np.float32)], (n, 1), slices=[(0, 2), (2, 1 << 40)])
    assert text.parallel is not None
    assert text.parallel.evaluate({"n": n, "m": 1}) == (n if (n >= 4) == (which == "large") else 1)
    np.testing.assert_array_equal(y, 2 * x + 3)


@pytest.mark.parametrize("shared", [*product((False, True), repeat=3)])
def test_any_of_several_versions_may_have_nothing_to_share(shared: tuple[bool, ...]) -> None:
    """For 5 rows or more, for 2 or more, and for fewer; each version that threads do not share is one iteration."""
    dims = kernel().dims
    large, small, fewest = specialize(kernel(), dims[0], 5), kernel(), kernel()
    specialize_less(small, {"n": 5})
    between = small.dims
    specialize(small, between[0], 2)
    for version, is_shared in zip((large, small, fewest), shared, strict=True):
        if is_shared:
            parallel(version, find_loop(version, "i"))
    func = for_other_dims(large, for_other_dims(small, fewest, between), dims)
    verify_func(func, LOOPS_SPEC)
    assert len(versions_of(func.body)) == 3
    for n in (0, 1, 2, 4, 5, 11):
        x, w = np.arange(n, dtype=np.float32), np.arange(8, dtype=np.float32)
        text, _ = run_native(func, [x, w, y := np.zeros(n, np.float32)], (n, 1), slices=[(0, 2), (2, 1 << 40)])
        np.testing.assert_array_equal(y, 2 * x + 3)
        own = shared[0 if n >= 5 else 1 if n >= 2 else 2]
        assert (text.parallel is not None) == any(shared)
        if text.parallel is not None:
            assert text.parallel.evaluate({"n": n, "m": 1}) == (n if own else 1)


def test_a_version_whose_shared_loop_is_inside_of_others_stays_alone() -> None:
    func, inner, dims = specialize(kernel(MATRIX), kernel(MATRIX).dims[0], 4), kernel(MATRIX), kernel(MATRIX).dims
    first, second = (loop_var(o).name for o in loops_in(func.body)[:2])
    parallel(func, find_loop(func, first))
    parallel(inner, find_loop(inner, second))
    before = print_func(func), print_func(inner)
    with pytest.raises(ScheduleError, match="inside of others"):
        for_other_dims(func, inner, dims)
    assert (print_func(func), print_func(inner)) == before


@pytest.mark.parametrize("n", [0, 1, 4])
def test_threads_share_a_kernel_that_has_nothing_to_do_for_other_dims(n: int) -> None:
    func, dims = specialize(kernel(), kernel().dims[0], 1), kernel().dims
    parallel(func, find_loop(func, "i"))
    nothing = parse_kernel(TWICE[: TWICE.index("  for")] + "  return\n}")
    for_other_dims(func, nothing, dims)
    verify_func(func, LOOPS_SPEC)
    x, w = np.arange(n, dtype=np.float32), np.arange(8, dtype=np.float32)
    text, _ = run_native(func, [x, w, y := np.zeros(n, np.float32)], (n, 1), slices=[(0, 2), (2, 1 << 40)])
    assert text.parallel is not None and text.parallel.evaluate({"n": n, "m": 1}) == n
    np.testing.assert_array_equal(y, 2 * x + 3)


MATRIX = """
kernel @k(x: &f32[3, n, 4], y: &f32[3, n, 4]) dims(n) with {outputs=1} {
  for i in 0..3 { for j in 0..n { for k in 0..4 {
    y[i, j, k] = x[i, j, k] + 1
  } } }
  return
}
"""


@pytest.mark.parametrize("n", [0, 1, 3, 4, 9])
@pytest.mark.parametrize(
    ("large", "small"), [((0, 0), ()), ((), (0, 0)), ((0,), (1,)), ((1,), (0,)), ((1,), ())]
)
def test_versions_that_merged_other_axes_see_the_same_ones(
    n: int, large: tuple[int, ...], small: tuple[int, ...]
) -> None:
    dims = kernel(MATRIX).dims
    versions = specialize(kernel(MATRIX), dims[0], 4), kernel(MATRIX)
    for version, axes in zip(versions, (large, small), strict=True):
        for axis in axes:
            merge_axes(version, version.args[0], axis)
    func = for_other_dims(*versions, dims)
    verify_func(func, LOOPS_SPEC)
    x = np.arange(12 * n, dtype=np.float32).reshape(3, n, 4)
    y = np.zeros_like(x)
    seen = x.reshape([d.evaluate({"n": n}) for d in func.args[0].type.shape])  # type: ignore[attr-defined]
    interpret(func, [seen, y], {"n": n})
    np.testing.assert_array_equal(y, x + 1)


def test_iterations_that_overlap_need_a_dim_that_is_long_enough() -> None:
    func = specialize(kernel(), kernel().dims[0], 3)
    with pytest.raises(ScheduleError, match="never below 4"):
        split(func, find_loop(func, "i"), 4, "overlap")


@pytest.mark.parametrize("n", [3, 4, 11])
def test_peeling_needs_as_many_iterations_as_it_takes_out(n: int) -> None:
    func = kernel()
    with pytest.raises(ScheduleError, match="above 3"):
        peel(func, find_loop(func, "i"), 2, 1)
    specialize(func, func.dims[0], 3)
    peel(func, find_loop(func, "i"), 2, 1)
    x, w, y = np.arange(n, dtype=np.float32), np.arange(8, dtype=np.float32), np.zeros(n, np.float32)
    interpret(func, [x, w, y], {"n": n, "m": 1})
    np.testing.assert_array_equal(y, 2 * x + 3)
