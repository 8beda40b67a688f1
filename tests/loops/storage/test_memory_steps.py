"""Steps of kernels bound by memory: taking border iterations out, skipping padding, computing in the output."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import numpy as np
import pytest

from tilewright.ir.core import Func, Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.text import print_func
from tilewright.ir.verify import verify_func
from tilewright.loops.conditions.guard_reduction import guard_reduction
from tilewright.loops.conditions.pad_reduction import pad_reduction
from tilewright.loops.conditions.simplify import simplify
from tilewright.loops.edit import buffer_type, extent_of, find_loop, loops_in
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.order.compute_at import compute_at
from tilewright.loops.order.fuse import collapse, fuse
from tilewright.loops.order.peel import peel
from tilewright.loops.order.split import split
from tilewright.loops.spec import LOOPS_SPEC
from tilewright.loops.storage.axes import merge_axes, split_axis
from tilewright.loops.storage.cache import cache
from tilewright.loops.storage.compute_in import compute_in
from tilewright.loops.storage.pack import pack
from tilewright.loops.storage.preload import preload
from tilewright.loops.storage.swap_axes import swap_axes
from tilewright.ops.define.loop_programs import run_kernel

RNG = np.random.default_rng(5)

PADDED = """
kernel @k(x: &f64[8], w: &f64[3], y: &f64[8]) dims() with {outputs=1} {
  for i in 0..8 {
    y[i] = 0
    for k in 0..3 {
      y[i] += x[i + k - 1 if i + k >= 1, i + k < 9 else 0] * w[k]
    }
  }
  return
}
"""

LARGEST = """
kernel @k(x: &f64[8], y: &f64[8]) dims() with {outputs=1} {
  for i in 0..8 {
    y[i] = -inf
    for k in 0..3 {
      y[i] = max(y[i], x[i + k - 1 if i + k >= 1, i + k < 9 else OTHER])
    }
  }
  return
}
"""

NORMALISED = """
kernel @k(x: &f64[4, 6], y: &f64[4, 6]) dims() with {outputs=1} {
  for i in 0..4 {
    alloc t: scratch f64[1, 6]
    for j in 0..6 {
      t[0, j] = exp(x[i, j])
    }
    alloc s: scratch f64[1]
    s[0] = 0
    for k in 0..6 {
      s[0] += t[0, k]
    }
    for l in 0..6 {
      y[i, l] = t[0, LAST] / s[0]
    }
  }
  return
}
"""


def read(text: str) -> Func:
    func = parse_kernel(dedent(text))
    return func


def local(func: Func, name: str) -> Value:
    return next(op.result for op in func.body.walk() if op.name == "alloc" and op.result.name == name)


def run(func: Func, *inputs: np.ndarray) -> np.ndarray:
    y = np.full([d.value for d in func.args[-1].type.shape], np.nan)  # type: ignore[union-attr]
    run_kernel(func, [*inputs, y])
    return y


def refused(step: Callable[[], object]) -> str:
    with pytest.raises(ScheduleError) as caught:
        step()
    return str(caught.value)


def test_peeled_iterations_are_written_out_with_their_numbers() -> None:
    func = read(PADDED)
    peel(func, find_loop(func, "i"), 1, 1)
    x, w = RNG.standard_normal(8), RNG.standard_normal(3)
    np.testing.assert_allclose(run(func, x, w), np.convolve(np.pad(x, 1), w[::-1], "valid"))
    guard_reduction(func, loops_in(func.body)[1])
    simplify(func)
    text = print_func(func)
    assert "for i_1 <= 5 in 0..6" in text or "in 0..6" in text
    inside = text[text.index("in 0..6") : text.rindex("for k")]
    assert " if " not in inside, "no condition is left in the iterations away from the border"


@pytest.mark.parametrize(("first", "last", "why"), [(4, 4, "above 8"), (-1, 0, "-1 first")])
def test_peeling_needs_iterations_that_stay(first: int, last: int, why: str) -> None:
    func = read(PADDED)
    assert why in refused(lambda: peel(func, find_loop(func, "i"), first, last))


def test_a_peeled_loop_must_be_serial() -> None:
    func = read(PADDED)
    find_loop(func, "i").attrs["kind"] = "parallel"
    assert "it is a parallel loop" in refused(lambda: peel(func, find_loop(func, "i"), 1, 0))


def test_padding_of_a_sum_is_skipped() -> None:
    func = read(PADDED)
    guard_reduction(func, find_loop(func, "i"))
    (condition,) = (op for op in func.body.walk() if op.name == "if")
    assert [str(c) for c in condition.attrs["guard"]] == ["i + k >= 1", "i + k < 9"]
    x, w = RNG.standard_normal(8), RNG.standard_normal(3)
    np.testing.assert_allclose(run(func, x, w), np.convolve(np.pad(x, 1), w[::-1], "valid"))


PRODUCT = """
kernel @k(x: &f64[5, 7], w: &f64[7], y: &f64[5]) dims() with {outputs=1} {
  for i in 0..5 {
    y[i] = 0
    for k in 0..7 {
      y[i] += x[i, k] * w[k]
    }
  }
  return
}
"""


def test_parts_of_a_sum_are_whole_with_zeros() -> None:
    """What fills a tile with zeros needs no condition in the sum."""
    func = read(PRODUCT)
    step = split(func, find_loop(func, "k"), 4)
    pad_reduction(func, step.inner)
    assert not any(op.name == "if" for op in func.body.walk())
    x, w = RNG.standard_normal((5, 7)), RNG.standard_normal(7)
    np.testing.assert_allclose(run(func, x, w), x @ w)
    for value in func.args[:2]:
        cache(func, value, step.inner, space="scratch", read=0, zeros=True)
    verify_func(func, LOOPS_SPEC)
    assert not any("guard" in op.attrs for op in step.inner.walk())
    np.testing.assert_allclose(run(func, x, w), x @ w)


@pytest.mark.parametrize(
    ("term", "why"),
    [("x[i, k] + w[k]", "no products"), ("x[i, k] * x[i, k] * w[k]", "no elements of two tensors"),
     ("x[i, k] * 2", "no elements of two tensors")],
)  # fmt: skip
def test_zeros_are_added_to_sums_of_products_alone(term: str, why: str) -> None:
    func = read(PRODUCT.replace("x[i, k] * w[k]", term))
    assert "no condition" in refused(lambda: pad_reduction(func, find_loop(func, "k")))
    step = split(func, find_loop(func, "k"), 4)
    assert why in refused(lambda: pad_reduction(func, step.inner))


BOUND = """
kernel @k(x: &f64[5, 8], r: &i64[4], y: &f64[4]) dims() with {outputs=1} {
  for i in 0..4 {
    y[i] = 0
    for k in 0..3 {
      v: i64 = r[i]
      bind at = v
      y[i] += x[at, i + k - 1 if at < 5, i + k >= 1 else 0]
    }
  }
  return
}
"""


def test_a_condition_on_a_bound_position_stays() -> None:
    """What is bound beside the accumulation is not known around it."""
    func = read(BOUND)
    guard_reduction(func, find_loop(func, "i"))
    verify_func(func, LOOPS_SPEC)
    (condition,) = (op for op in func.body.walk() if op.name == "if")
    assert [str(c) for c in condition.attrs["guard"]] == ["i + k >= 1"]
    (load,) = (op for op in func.body.walk() if op.name == "load" and len(op.attrs["idx"]) == 2)
    assert len(load.attrs["guard"]) == 1


def test_what_is_checked_is_checked_in_each_round() -> None:
    func = read(
        BOUND.replace("bind at", 'ok: bool = v < 5\n      check ok else InputError("too far")\n      bind at')
    )
    assert "none of its sums has terms" in refused(lambda: guard_reduction(func, find_loop(func, "i")))


def test_padding_of_a_maximum_is_skipped_when_it_never_wins() -> None:
    func = read(LARGEST.replace("OTHER", "-inf"))
    guard_reduction(func, find_loop(func, "i"))
    x = RNG.standard_normal(8) - 9
    wide = np.pad(x, 1, constant_values=-np.inf)
    np.testing.assert_array_equal(run(func, x), [wide[i : i + 3].max() for i in range(8)])
    zeros = read(LARGEST.replace("OTHER", "0"))
    assert "none of its sums has terms" in refused(lambda: guard_reduction(zeros, find_loop(zeros, "i")))


def test_padding_of_the_largest_of_limited_elements_is_skipped() -> None:
    """As of products in sums: the least of anything and the neutral element of `max` is that element."""
    text = LARGEST.replace("max(y[i], x[", "max(y[i], min(0.5, x[").replace("OTHER])", "-inf]))")
    func = read(text)
    guard_reduction(func, find_loop(func, "i"))
    assert [op.name for op in func.body.walk()].count("if") == 1
    x = RNG.standard_normal(8)
    wide = np.minimum(0.5, np.pad(x, 1, constant_values=-np.inf))
    np.testing.assert_array_equal(run(func, x), [wide[i : i + 3].max() for i in range(8)])
    added = read(text.replace("min(0.5, x", "(0.5 + x"))
    assert "none of its sums has terms" in refused(lambda: guard_reduction(added, find_loop(added, "i")))


def test_an_intermediate_lives_in_the_output() -> None:
    func = read(NORMALISED.replace("LAST", "l"))
    compute_in(func, local(func, "t"), func.args[1])
    assert [op.result.name for op in func.body.walk() if op.name == "alloc"] == ["s"]
    x = RNG.standard_normal((4, 6))
    np.testing.assert_allclose(run(func, x), np.exp(x) / np.exp(x).sum(1, keepdims=True))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("LAST", "5 - l"), "just the element at its own place"),
        (("alloc t: scratch f64[1, 6]", "alloc t: scratch f64[1, 7]"), "not certain"),
    ],
)
def test_an_intermediate_stays_where_the_output_is_no_place_for_it(change: tuple[str, str], why: str) -> None:
    func = read(NORMALISED.replace(*change).replace("LAST", "l"))
    before = print_func(func)
    assert why in refused(lambda: compute_in(func, local(func, "t"), func.args[1]))
    assert print_func(func) == before


def test_iterations_that_run_twice_do_not_share_intermediates() -> None:
    func = read(NORMALISED.replace("LAST", "l"))
    split(func, find_loop(func, "i"), 3, "overlap")
    assert "twice" in refused(lambda: compute_in(func, local(func, "t"), func.args[1]))


def test_an_intermediate_whose_result_is_computed_twice_stays() -> None:
    func = read(NORMALISED.replace("LAST", "l"))
    split(func, find_loop(func, "l"), 4, "overlap")
    assert "not every element of it gets a last value" in refused(
        lambda: compute_in(func, local(func, "t"), func.args[1])
    )
    text = NORMALISED.replace("LAST", "l").replace("for l in 0..6 {", "for again in 0..2 { for l in 0..6 {")
    func = read(text.replace("/ s[0]\n    }", "/ s[0]\n    } }"))
    assert "loop 'again' (0..2, serial) computes each result several times" in refused(
        lambda: compute_in(func, local(func, "t"), func.args[1])
    )


DOWNWARDS = """
kernel @k(x: &f64[4], y: &f64[5]) dims() with {outputs=1} {
  for i in 0..4 {
    alloc t: scratch f64[2]
    t[0] = x[i]
    t[1] = x[i] * 2
    y[3 - i] = t[0] + t[1]
  }
  return
}
"""

PLACED_BY_DATA = """
kernel @k(z: &i64[4], y: &f64[8]) dims() with {outputs=1} {
  alloc t: scratch f64[4]
  for i in 0..4 {
    t[i] = f64(z[i])
  }
  bind at <= 4 = z[0]
  for j in 0..4 {
    y[at + j] = t[j]
  }
  return
}
"""


def test_an_intermediate_that_the_last_stage_does_not_replace_stays() -> None:
    # the second element would stand where the iteration before has put a result
    func = read(DOWNWARDS)
    assert "not every element of it gets a last value" in refused(
        lambda: compute_in(func, local(func, "t"), func.args[1])
    )


def test_an_intermediate_whose_place_is_not_known_yet_stays() -> None:
    func = read(PLACED_BY_DATA)
    assert "its place in the output depends on data" in refused(
        lambda: compute_in(func, local(func, "t"), func.args[1])
    )


def test_what_stands_between_two_loops_moves_before_them() -> None:
    func = read(NORMALISED.replace("LAST", "l"))
    fuse(func, find_loop(func, "j"), find_loop(func, "k"))
    assert len(loops_in(func.body)) == 3
    x = RNG.standard_normal((4, 6))
    np.testing.assert_allclose(run(func, x), np.exp(x) / np.exp(x).sum(1, keepdims=True))


def test_what_uses_the_first_loop_stays_after_it() -> None:
    text = NORMALISED.replace("LAST", "l").replace("s[0] = 0", "s[0] = t[0, 0]")
    func = read(text)
    before = print_func(func)
    why = refused(lambda: fuse(func, find_loop(func, "j"), find_loop(func, "k")))
    assert "load at [0, 0] after it uses buffer 't'" in why
    assert print_func(func) == before


TRANSPOSED = """
kernel @k(x: &f64[6, 10], y: &f64[10, 6]) dims() with {outputs=1} {
  for i in 0..10 {
    for j in 0..6 {
      y[i, j] = x[j, i] * 2
    }
  }
  return
}
"""


def only_load(func: Func) -> Op:
    (load,) = (op for op in func.body.walk() if op.name == "load")
    return load


def test_elements_are_read_ahead_in_the_order_asked_for() -> None:
    func = read(TRANSPOSED)
    i, j = find_loop(func, "i"), find_loop(func, "j")
    made = preload(func, only_load(func), j, i)
    assert [extent_of(o).value for o in made.fill] == [6, 10]
    assert func.body.ops[0] is made.buffer.op and func.body.ops[1] is made.fill[0]
    x = RNG.standard_normal((6, 10))
    np.testing.assert_allclose(run(func, x), x.T * 2)


def test_conditions_around_a_load_that_needs_them_go_with_it() -> None:
    text = (
        TRANSPOSED.replace("in 0..10", "in 0..12")
        .replace("y[i, j]", "if i < 10 { y[i, j]")
        .replace("* 2", "* 2 }")
    )
    func = read(text)
    preload(func, only_load(func), find_loop(func, "j"), find_loop(func, "i"))
    x = RNG.standard_normal((6, 10))
    np.testing.assert_allclose(run(func, x), x.T * 2)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("x[j, i]", "y[j, i]"), "writes it"),
        (("in 0..10", "in 0..n"), "constant extents"),
        (("for j in 0..6 {", "for j in 0..6 vector {"), "copied inside"),
    ],
)
def test_elements_that_may_change_are_not_read_ahead(change: tuple[str, str], why: str) -> None:
    func = read(TRANSPOSED.replace("dims()", "dims(n)").replace(*change))
    loops = [find_loop(func, "j"), find_loop(func, "i")]
    assert why in refused(lambda: preload(func, only_load(func), *loops))


def test_two_axes_are_seen_as_one() -> None:
    func = read(TRANSPOSED)
    collapse(func, find_loop(func, "i"), find_loop(func, "j"))
    merge_axes(func, func.args[1], 0)
    (store,) = (op for op in func.body.walk() if op.name == "store")
    assert [str(i) for i in store.attrs["idx"]] == ["ij"]
    x = RNG.standard_normal((6, 10))
    np.testing.assert_allclose(run(func, x).reshape(10, 6), x.T * 2)
    assert "no axes 0 and 1" in refused(lambda: merge_axes(func, func.args[1], 0))


EVERY_EIGHTH = """
kernel @k(x: &f64[24, 5], y: &f64[8, 3, 5]) dims() with {outputs=1} {
  for b in 0..8 { for i in 0..3 { for j in 0..5 { y[b, i, j] = x[8*i + b, j] * 2 } } }
  return
}
"""


def test_one_axis_is_seen_as_two() -> None:
    func = read(EVERY_EIGHTH)
    split_axis(func, func.args[0], 0, 8)
    assert [str(i) for i in only_load(func).attrs["idx"]] == ["i", "b", "j"]
    assert [d.value for d in buffer_type(func.args[0]).shape] == [3, 8, 5]
    x = RNG.standard_normal((24, 5))
    found = run(func, x.reshape(3, 8, 5))
    np.testing.assert_allclose(found, x.reshape(3, 8, 5).transpose(1, 0, 2) * 2)


@pytest.mark.parametrize(
    ("axis", "size", "change", "why"),
    [
        (0, 7, ("", ""), "no axis 0 of a multiple of 7"),
        (2, 1, ("", ""), "no axis 2"),
        (0, 0, ("", ""), "no axis 0"),
        (0, 4, ("8*i + b", "8*i + b"), "no sum of a multiple of 4"),
        (0, 8, ("8*i + b", "7*i + b"), "no sum of a multiple of 8"),
        (0, 8, ("outputs=1", "outputs=1, packed={0: Packing{factors=((), ()), order=(0, 1)}}"), "packed"),
    ],
)
def test_an_axis_is_not_taken_apart(axis: int, size: int, change: tuple[str, str], why: str) -> None:
    func = read(EVERY_EIGHTH.replace(*change))
    before = print_func(func)
    assert why in refused(lambda: split_axis(func, func.args[0], axis, size))
    assert print_func(func) == before


IN_BETWEEN = """
kernel @k(x: &f64[6, 10], y: &f64[6, 10]) dims() with {outputs=1} {
  alloc t: scratch f64[6, 10]
  for i in 0..6 { for j in 0..10 { t[i, j] = x[i, j] * 2 } }
  for a in 0..6 { for b in 0..10 { y[a, b] = t[a, b] + t[a, 0] } }
  return
}
"""


def test_a_local_buffer_is_laid_out_in_another_order() -> None:
    func = read(IN_BETWEEN)
    (local,) = (op.result for op in func.body.walk() if op.name == "alloc")
    swap_axes(func, local, 0, 1)
    assert "t: scratch f64[10, 6]" in print_func(func) and "t[j, i] =" in print_func(func)
    x = RNG.standard_normal((6, 10))
    np.testing.assert_allclose(run(func, x).reshape(6, 10), 2 * x + 2 * x[:, :1])
    assert "no axes 0 and 2" in refused(lambda: swap_axes(func, local, 0, 2))
    assert "its caller knows its order" in refused(lambda: swap_axes(func, func.args[0], 0, 1))


def test_lanes_that_are_summed_have_no_other_order() -> None:
    func = read(
        """
        kernel @k(x: &f64[1], y: &f64[1]) dims() with {outputs=1} {
          alloc t: reg f64[4]
          for l in 0..4 vector {
            t[l] = x[0]
          }
          y[0] = lanes_reduce.add(t)
          return
        }
        """
    )
    before = print_func(func)
    swap_axes(func, local(func, "t"), 0, 0)
    assert print_func(func) == before
    verify_func(func, LOOPS_SPEC)


def test_what_is_asked_for_of_an_intermediate_is_asked_for_of_the_output() -> None:
    func = read(
        NORMALISED.replace("LAST", "l").replace("for k in 0..6 {", "prefetch t[0, 4]\n    for k in 0..6 {")
    )
    compute_in(func, local(func, "t"), func.args[1])
    assert "prefetch y[i, 4]" in print_func(func)
    verify_func(func, LOOPS_SPEC)


SIBLINGS_INSIDE = """
kernel @k(x: &f64[4, 3], y: &f64[6, 3]) dims() with {outputs=1} {
  alloc t: scratch f64[4, 3]
  for i in 0..4 {
    for j in 0..3 {
      t[i, j] = x[i, j]
    }
    for k in 0..3 {
      t[i, k] += 1
    }
  }
  for p in 0..3 {
    for q in 0..2 {
      for r in 0..3 {
        y[2*p + q, r] = t[2*p + q, r if 2*p + q < 4 else 0]
      }
    }
  }
  return
}
"""


def test_a_producer_of_two_loops_is_kept_inside_of_its_domain_in_both() -> None:
    func = read(SIBLINGS_INSIDE)
    (alloc,) = (op for op in func.body.walk() if op.name == "alloc")
    compute_at(func, alloc.result, find_loop(func, "p"))
    conditions = [op for op in func.body.walk() if op.name == "if"]
    assert [len(op.attrs["guard"]) for op in conditions] == [1, 1]
    x = np.arange(12.0).reshape(4, 3)
    y = np.full((6, 3), np.nan)
    run_kernel(func, [x, y])
    assert np.array_equal(y, np.concatenate([x + 1, np.zeros((2, 3))]))


@pytest.mark.parametrize(("condition", "needed"), [("8*io + 7 < n", False), ("8*io + 6 < n", True), ("io < n", True)])
def test_a_copy_of_what_a_branch_knows_to_be_there_has_no_conditions(condition: str, needed: bool) -> None:
    func = parse_kernel(
        f"""
kernel @k(x: &f64[n], y: &f64[n]) dims(n) with {{outputs=1}} {{
  for io in 0..(n + 7) // 8 {{
    if {condition} {{
      for t in 0..1 {{
        for i in 0..8 {{
          y[8*io + i if 8*io + i < n] = x[8*io + i if 8*io + i < n else 0]
        }}
      }}
    }}
  }}
  return
}}
"""
    )
    made = pack(func, func.args[0], find_loop(func, "t"))
    assert verify_func(func, LOOPS_SPEC) is None
    (load,) = (op for op in made.fill[-1].walk() if op.name == "load")
    assert bool(load.attrs.get("guard")) == needed
