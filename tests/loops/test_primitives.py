"""Each scheduling step as a picture: the program before, the step, the program after."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from tests.loops.kernel_texts import (
    COPIED_ROWS,
    DOUBLE,
    GROUPS,
    SUM,
    SYMBOLIC,
    TWICE,
    TWICE_IN_A_ROW,
    TWO_STAGES,
    buffer,
    read,
)
from tilewright.ir.core import Func
from tilewright.ir.text import print_func
from tilewright.loops.conditions.simplify import simplify
from tilewright.loops.edit import body_of, find_loop
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.lanes.dot import dot
from tilewright.loops.lanes.unroll import unroll
from tilewright.loops.lanes.unroll_and_jam import unroll_and_jam
from tilewright.loops.lanes.vectorize import vectorize, vectorize_reduction
from tilewright.loops.order.compute_at import compute_at
from tilewright.loops.order.fission import fission
from tilewright.loops.order.fuse import collapse, fuse
from tilewright.loops.order.parallel import parallel
from tilewright.loops.order.reorder import reorder
from tilewright.loops.order.split import split
from tilewright.loops.order.split_evenly import split_evenly
from tilewright.loops.order.split_range import split_range
from tilewright.loops.storage.cache import cache, cache_write
from tilewright.loops.storage.pack import pack, pack_argument
from tilewright.loops.storage.packing import Packing

Step = Callable[[Func], object]


def after(text: str, step: Step) -> str:
    """The body of the kernel after the step, without the frame and its indentation."""
    func = read(text)
    step(func)
    lines = print_func(func).strip().splitlines()[1:-2]
    return dedent("\n".join(lines))


def picture(text: str) -> str:
    return dedent(text).strip()


CASES = {
    "split with a guard": (
        DOUBLE,
        lambda f: split(f, find_loop(f, "i"), 4),
        """
        for io <= 2 in 0..3 {
          for ii <= 3 in 0..4 {
            if 4*io + ii < 10 {
              y[4*io + ii] = x[4*io + ii] * 2
            }
          }
        }
        """,
    ),
    "split that divides": (
        DOUBLE,
        lambda f: split(f, find_loop(f, "i"), 5, "peel"),
        """
        for io <= 1 in 0..2 {
          for ii <= 4 in 0..5 {
            y[5*io + ii] = x[5*io + ii] * 2
          }
        }
        """,
    ),
    "products in groups inside of a vector": (
        GROUPS,
        lambda f: (dot(f, find_loop(f, "g")), vectorize(f, find_loop(f, "j"))),
        """
        for j in 0..16 vector {
          y[j] = 0
          for g in 0..4 dot {
            y[j] += i32(a[g]) * i32(b[j, g])
          }
        }
        """,
    ),
    "split of a symbolic extent with a peeled tail": (
        SYMBOLIC,
        lambda f: split(f, find_loop(f, "i"), 4, "peel"),
        """
        for io in 0..n // 4 {
          for ii <= 3 in 0..4 {
            y[4*io + ii] = x[4*io + ii] * 2
          }
        }
        for it <= 2 in 0..n % 4 {
          y[4*(n // 4) + it] = x[4*(n // 4) + it] * 2
        }
        """,
    ),
    "cut at a position": (
        DOUBLE,
        lambda f: split_range(f, find_loop(f, "i"), 3),
        """
        for i_2 <= 2 in 0..3 {
          y[i_2] = x[i_2] * 2
        }
        for i_1 <= 6 in 0..7 {
          y[i_1 + 3] = x[i_1 + 3] * 2
        }
        """,
    ),
    "jam of sums": (
        SUM,
        lambda f: unroll_and_jam(f, find_loop(f, "i")),
        """
        y[0] = 0
        y[1] = 0
        y[2] = 0
        for k_1 <= 9 in 0..10 {
          y[0] += x[0, k_1]
          y[1] += x[1, k_1]
          y[2] += x[2, k_1]
        }
        """,
    ),
    "jam of pairs of rows, and the row that is left over": (
        SUM,
        lambda f: unroll_and_jam(f, split(f, parallel(f, find_loop(f, "i")), 2, "branch").inner),
        """
        for io <= 1 in 0..2 parallel {
          if -io + 1 {
            y[2*io] = 0
            y[2*io + 1] = 0
            for k_2 <= 9 in 0..10 {
              y[2*io] += x[2*io, k_2]
              y[2*io + 1] += x[2*io + 1, k_2]
            }
          }
          if io {
            for it <= 0 in 0..1 {
              y[2*io + it] = 0
              for k_1 <= 9 in 0..10 {
                y[2*io + it] += x[2*io + it, k_1]
              }
            }
          }
        }
        """,
    ),
    "jam of iterations with buffers of their own": (
        COPIED_ROWS,
        lambda f: unroll_and_jam(f, find_loop(f, "i")),
        """
        alloc t: scratch f64[5]
        alloc t_1: scratch f64[5]
        for j_1 <= 4 in 0..5 {
          t[j_1] = x[0, j_1]
          t_1[j_1] = x[1, j_1]
        }
        for j2_1 <= 4 in 0..5 {
          y[0, j2_1] = t[j2_1]
          y[1, j2_1] = t_1[j2_1]
        }
        """,
    ),
    "split with overlapping iterations": (
        DOUBLE,
        lambda f: parallel(f, split(f, find_loop(f, "i"), 4, "overlap").outer),
        """
        for io <= 2 in 0..3 parallel with {overlap=true} {
          for ii <= 3 in 0..4 {
            y[ii + min(6, 4*io)] = x[ii + min(6, 4*io)] * 2
          }
        }
        """,
    ),
    "overlapping iterations that read what they have just written": (
        TWICE,
        lambda f: parallel(f, split(f, find_loop(f, "i"), 4, "overlap").outer),
        """
        for io <= 2 in 0..3 parallel with {overlap=true} {
          for ii <= 3 in 0..4 {
            y[ii + min(6, 4*io)] = x[ii + min(6, 4*io)] * 2
            z[ii + min(6, 4*io)] = y[ii + min(6, 4*io)] + 1
          }
        }
        """,
    ),
    "overlapping iterations that read it in other words": (
        TWICE_IN_A_ROW,
        lambda f: split(f, find_loop(f, "i"), 4, "overlap"),
        """
        for j in 0..1 {
          for io <= 2 in 0..3 with {overlap=true} {
            for ii <= 3 in 0..4 {
              y[j, ii + min(6, 4*io)] = x[ii + min(6, 4*io)] * 2
              z[ii + min(6, 4*io)] = y[0, ii + min(6, 4*io)] + 1
            }
          }
        }
        """,
    ),
    "split with smaller tiles at the end": (
        DOUBLE,
        lambda f: split(f, find_loop(f, "i"), 7, "overlap", remainder=2),
        """
        for io <= 0 in 0..1 {
          for ii <= 6 in 0..7 {
            y[7*io + ii] = x[7*io + ii] * 2
          }
        }
        for it <= 1 in 0..2 with {overlap=true} {
          for ii_1 <= 1 in 0..2 {
            y[ii_1 + min(8, 2*it + 7)] = x[ii_1 + min(8, 2*it + 7)] * 2
          }
        }
        """,
    ),
    "split in even parts": (
        DOUBLE,
        lambda f: split_evenly(f, find_loop(f, "i"), 4, 2),
        """
        for io <= 2 in 0..3 with {overlap=true} {
          for ii <= 3 in 0..4 {
            y[ii + min(6, 4*io)] = x[ii + min(6, 4*io)] * 2
          }
        }
        """,
    ),
    "overlapping iterations of sums that begin anew": (
        SUM,
        lambda f: split(f, find_loop(f, "i"), 2, "overlap"),
        """
        for io <= 1 in 0..2 with {overlap=true} {
          for ii <= 1 in 0..2 {
            y[ii + min(1, 2*io)] = 0
            for k in 0..10 {
              y[ii + min(1, 2*io)] += x[ii + min(1, 2*io), k]
            }
          }
        }
        """,
    ),
    "split with a branch": (
        DOUBLE,
        lambda f: split(f, find_loop(f, "i"), 4, "branch"),
        """
        for io <= 2 in 0..3 {
          if io < 2 {
            for ii <= 3 in 0..4 {
              y[4*io + ii] = x[4*io + ii] * 2
            }
          }
          if io >= 2 {
            for it <= 1 in 0..2 {
              y[4*io + it] = x[4*io + it] * 2
            }
          }
        }
        """,
    ),
    "split with a short end": (
        DOUBLE,
        lambda f: split(f, find_loop(f, "i"), 4, "short"),
        """
        for io <= 2 in 0..3 {
          for ii <= 3 in 0..min(4, -4*io + 10) {
            y[4*io + ii] = x[4*io + ii] * 2
          }
        }
        """,
    ),
    "fission and reorder": (
        SUM,
        lambda f: (
            fission(f, body_of(find_loop(f, "i")).ops[1]),
            reorder(f, find_loop(f, "k"), find_loop(f, "i")),
        ),
        """
        for i_1 <= 2 in 0..3 {
          y[i_1] = 0
        }
        for k in 0..10 {
          for i in 0..3 {
            y[i] += x[i, k]
          }
        }
        """,
    ),
    "collapse": (
        TWO_STAGES,
        lambda f: collapse(f, find_loop(f, "jo"), find_loop(f, "ji")),
        """
        alloc t: scratch f64[16]
        for i in 0..16 {
          t[i] = x[i] + 1
        }
        for joji <= 15 in 0..16 {
          y[joji] = t[joji] * 2
        }
        """,
    ),
    "fuse": (
        TWO_STAGES,
        lambda f: (
            collapse(f, find_loop(f, "jo"), find_loop(f, "ji")),
            fuse(f, find_loop(f, "i"), find_loop(f, "joji")),
        ),
        """
        alloc t: scratch f64[16]
        for i in 0..16 {
          t[i] = x[i] + 1
          y[i] = t[i] * 2
        }
        """,
    ),
    "compute_at": (
        TWO_STAGES,
        lambda f: compute_at(f, buffer(f, "t"), find_loop(f, "jo"), "reg"),
        """
        for jo in 0..4 {
          alloc t: reg f64[4]
          for i_1 <= 3 in 0..4 {
            t[i_1] = x[4*jo + i_1] + 1
          }
          for ji <= 3 in 0..4 {
            y[4*jo + ji] = t[ji] * 2
          }
        }
        """,
    ),
    "cache of an accumulated element": (
        SUM,
        lambda f: cache(f, buffer(f, "y"), find_loop(f, "k")),
        """
        for i in 0..3 {
          y[i] = 0
          alloc y_1: reg f64[1]
          for t <= 0 in 0..1 {
            y_1[t] = y[i + t]
          }
          for k in 0..10 {
            y_1[0] += x[i, k]
          }
          for t_1 <= 0 in 0..1 {
            y[i + t_1] = y_1[t_1]
          }
        }
        """,
    ),
    "cache of each of two reads": (
        """
        kernel @k(x: &f64[20], y: &f64[8]) dims() with {outputs=1} {
          for i in 0..8 {
            y[i] = x[i] * x[i + 12]
          }
          return
        }
        """,
        lambda f: [cache(f, buffer(f, "x"), find_loop(f, "i"), space="scratch", read=0) for _ in range(2)],
        """
        alloc x_1: scratch f64[8]
        for t <= 7 in 0..8 {
          x_1[t] = x[t]
        }
        alloc x_2: scratch f64[8]
        for t_1 <= 7 in 0..8 {
          x_2[t_1] = x[t_1 + 12]
        }
        for i in 0..8 {
          y[i] = x_1[i] * x_2[i]
        }
        """,
    ),
    "cache_write": (
        DOUBLE,
        lambda f: cache_write(f, buffer(f, "y")),
        """
        alloc y_1: scratch f64[10]
        for i in 0..10 {
          y_1[i] = x[i] * 2
        }
        for t <= 9 in 0..10 {
          y[t] = y_1[t]
        }
        """,
    ),
    "pack": (
        SUM,
        lambda f: pack(f, buffer(f, "x"), find_loop(f, "i"), Packing(((), (4,)), (2, 0, 1))),
        """
        for i in 0..3 {
          alloc x_1: scratch f64[4, 1, 3]
          for t <= 3 in 0..4 {
            for t_1 <= 0 in 0..1 {
              for t_2 <= 2 in 0..3 {
                x_1[t, t_1, t_2] = x[i + t_1, 4*t_2 + t if 4*t_2 + t < 10 else 0]
              }
            }
          }
          y[i] = 0
          for k in 0..10 {
            y[i] += x_1[k % 4, 0, k // 4]
          }
        }
        """,
    ),
    "vectorize": (
        DOUBLE,
        lambda f: vectorize(f, find_loop(f, "i"), 5),
        """
        for io <= 1 in 0..2 {
          for ii <= 4 in 0..5 vector {
            y[5*io + ii] = x[5*io + ii] * 2
          }
        }
        """,
    ),
    "vectorize_reduction": (
        SUM,
        lambda f: vectorize_reduction(f, find_loop(f, "k"), 4, tail="peel"),
        """
        for i in 0..3 {
          y[i] = 0
          alloc y_lanes: reg f64[4]
          for lane <= 3 in 0..4 vector {
            y_lanes[lane] = 0.0
          }
          for ko <= 1 in 0..2 {
            for ki <= 3 in 0..4 vector {
              y_lanes[ki] += x[i, 4*ko + ki]
            }
          }
          y[i] += lanes_reduce.add(y_lanes)
          for kt <= 1 in 0..2 {
            y[i] += x[i, kt + 8]
          }
        }
        """,
    ),
    "unroll and parallel": (
        SUM,
        lambda f: (unroll(f, find_loop(f, "k")), parallel(f, find_loop(f, "i"))),
        """
        for i in 0..3 parallel {
          y[i] = 0
          for k in 0..10 unroll {
            y[i] += x[i, k]
          }
        }
        """,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_picture(name: str) -> None:
    before, step, expected = CASES[name]
    assert after(before, step) == picture(expected)


def test_pack_argument_changes_the_layout_and_drops_the_guard() -> None:
    func = read(SUM)
    split(func, find_loop(func, "k"), 4)
    pack_argument(func, func.args[0], Packing(((), (4,)), (1, 0, 2)))
    assert str(func.args[0].type) == "&f64[3, 3, 4]"
    assert kernel_info(func).packed == {0: Packing(((), (4,)), (1, 0, 2))}
    assert "x[ko, i, ki]" in print_func(func)


def test_simplify_decides_what_the_ranges_decide() -> None:
    text = """
    kernel @k(x: &f64[16], y: &f64[16]) dims(n) with {outputs=1} {
      for a in 0..1 {
        for i in 0..16 {
          if i + a < 16 {
            for j in 0..4 {
              if n >= 3 {
                if i >= 20 {
                  y[j] = 1
                }
                y[i] = x[(16*j + i) // 16 + (i // 16) if i < 16 else 0]
              }
            }
          }
        }
      }
      return
    }
    """
    expected = """
    if n >= 3 {
      for i in 0..16 {
        for j in 0..4 {
          y[i] = x[j]
        }
      }
    }
    """
    assert after(text, simplify) == picture(expected)


def test_simplify_removes_loops_that_never_run_and_buffers_that_nobody_reads() -> None:
    text = """
    kernel @k(x: &f64[16], y: &f64[16]) dims() with {outputs=1} {
      alloc t: scratch f64[4]
      for i in 0..4 {
        t[i] = x[i]
      }
      for i in 0..0 {
        y[i] = x[i]
      }
      return
    }
    """
    assert after(text, simplify) == ""


# What is refused, and why
