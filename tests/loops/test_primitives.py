"""Each scheduling step as a picture: the program before, the step, the program after."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from tilewright.ir.core import Func, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.text import parse_module, print_func
from tilewright.loops.cache import cache, cache_write
from tilewright.loops.fission import fission
from tilewright.loops.fuse_at import fuse_at
from tilewright.loops.fuse_loops import fuse_loops, fuse_siblings
from tilewright.loops.nest import body_of, find_loop
from tilewright.loops.pack import pack, pack_argument
from tilewright.loops.packing import Packing
from tilewright.loops.parallel import parallel
from tilewright.loops.reorder import reorder
from tilewright.loops.simplify import simplify
from tilewright.loops.split import split
from tilewright.loops.unroll import unroll
from tilewright.loops.vectorize import vectorize, vectorize_reduction

Step = Callable[[Func], object]

DOUBLE = """
kernel @k(x: &f64[10], y: &f64[10]) dims() with {outputs=1} {
  for i in 0..10 {
    y[i] = x[i] * 2
  }
  return
}
"""

SYMBOLIC = """
kernel @k(x: &f64[n], y: &f64[n]) dims(n) with {outputs=1} {
  for i in 0..n {
    y[i] = x[i] * 2
  }
  return
}
"""

SUM = """
kernel @k(x: &f64[3, 10], y: &f64[3]) dims() with {outputs=1} {
  for i in 0..3 {
    y[i] = 0
    for k in 0..10 {
      y[i] += x[i, k]
    }
  }
  return
}
"""

HISTOGRAM = """
kernel @k(x: &i64[10], y: &f64[5]) dims() with {outputs=1} {
  for i in 0..10 {
    bind at = x[i]
    y[at] += 1
  }
  return
}
"""

TWO_STAGES = """
kernel @k(x: &f64[16], y: &f64[16]) dims() with {outputs=1} {
  alloc t: scratch f64[16]
  for i in 0..16 {
    t[i] = x[i] + 1
  }
  for jo in 0..4 {
    for ji <= 3 in 0..4 {
      y[4*jo + ji] = t[4*jo + ji] * 2
    }
  }
  return
}
"""


def read(text: str) -> Func:
    (func,) = parse_module(dedent(text)).funcs.values()
    return func


def buffer(func: Func, name: str) -> Value:
    locals_ = [op.result for op in func.body.walk() if op.name == "alloc"]
    return next(v for v in (*func.args, *locals_) if v.name == name)


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
    "fission and reorder": (
        SUM,
        lambda f: (
            fission(f, body_of(find_loop(f, "i")).ops[1]),
            reorder(f, [find_loop(f, "k"), find_loop(f, "i")]),
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
    "fuse_loops": (
        TWO_STAGES,
        lambda f: fuse_loops(f, find_loop(f, "jo"), find_loop(f, "ji")),
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
    "fuse_siblings": (
        TWO_STAGES,
        lambda f: (
            fuse_loops(f, find_loop(f, "jo"), find_loop(f, "ji")),
            fuse_siblings(f, find_loop(f, "i"), find_loop(f, "joji")),
        ),
        """
        alloc t: scratch f64[16]
        for i in 0..16 {
          t[i] = x[i] + 1
          y[i] = t[i] * 2
        }
        """,
    ),
    "fuse_at": (
        TWO_STAGES,
        lambda f: fuse_at(f, buffer(f, "t"), find_loop(f, "jo"), "reg"),
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
    assert str(func.args[0].type) == "global f64[3, 3, 4]"
    assert func.attrs["packed"] == {0: Packing(((), (4,)), (1, 0, 2))}
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

RUNNING_SUM = """
kernel @k(x: &f64[10], y: &f64[10]) dims() with {outputs=1} {
  for i in 0..10 {
    y[i] = x[i] + y[i - 1 if i >= 1 else 0]
  }
  return
}
"""

SKEWED = """
kernel @k(x: &f64[4, 4], y: &f64[4, 4]) dims() with {outputs=1} {
  for i in 0..4 {
    for j in 0..4 {
      y[i, j] = x[i, j] + y[i - 1, j + 1 if i >= 1 and j < 3 else 0]
    }
  }
  return
}
"""

REVERSED = """
kernel @k(x: &f64[8], y: &f64[8]) dims() with {outputs=1} {
  alloc t: scratch f64[8]
  for i in 0..8 {
    t[i] = x[i]
  }
  for j in 0..8 {
    y[j] = t[7 - j]
  }
  return
}
"""

REFUSED = {
    "split by zero": (
        DOUBLE,
        lambda f: split(f, find_loop(f, "i"), 0),
        "split loop 'i' (0..10, serial): the factor is 0, it must be at least 1",
    ),
    "unknown tail": (
        DOUBLE,
        lambda f: split(f, find_loop(f, "i"), 4, "drop"),
        "split loop 'i' (0..10, serial): tail 'drop' is none of guard, peel, branch, overlap",
    ),
    "peel a parallel loop": (
        SYMBOLIC,
        lambda f: split(f, parallel(f, find_loop(f, "i")), 4, "peel"),
        "split loop 'i' (0..n, parallel): peeling would leave work beside the parallel loop; "
        'use tail="branch" or "guard"',
    ),
    "unroll a symbolic loop": (
        SYMBOLIC,
        lambda f: unroll(f, find_loop(f, "i")),
        "unroll loop 'i' (0..n, serial): its extent is not a constant; split it first",
    ),
    "parallel running sum": (
        RUNNING_SUM,
        lambda f: parallel(f, find_loop(f, "i")),
        "parallel loop 'i' (0..10, serial): two iterations may meet in buffer 'y' (global f64[10]): "
        "load at [i - 1] and store at [i]",
    ),
    "parallel accumulation": (
        SUM,
        lambda f: parallel(f, find_loop(f, "k")),
        "parallel loop 'k' (0..10, serial): it is not an outermost loop",
    ),
    "vector of a running sum": (
        RUNNING_SUM,
        lambda f: vectorize(f, find_loop(f, "i"), 4),
        "vectorize loop 'i' (0..10, serial): iterations may meet in buffer 'y' (global f64[10]), "
        "load at [i - 1] and store at [i]; an accumulation needs vectorize_reduction",
    ),
    "too many lanes": (
        DOUBLE,
        lambda f: vectorize(f, find_loop(f, "i"), 128),
        "vectorize loop 'i' (0..10, serial): 128 lanes are not within 1..64; give a number of lanes",
    ),
    "vector around a loop": (
        SUM,
        lambda f: vectorize(f, find_loop(f, "i")),
        "vectorize loop 'i' (0..3, serial): loop 'k' (0..10, serial) is inside of it; "
        "unroll it or move it out",
    ),
    "lanes of what accumulates nothing": (
        DOUBLE,
        lambda f: vectorize_reduction(f, find_loop(f, "i"), 4),
        "vectorize_reduction loop 'i' (0..10, serial): it accumulates nothing by an associative operation",
    ),
    "lanes of sums at computed places": (
        HISTOGRAM,
        lambda f: vectorize_reduction(f, find_loop(f, "i"), 2),
        "vectorize_reduction loop 'i' (0..10, serial): the accumulated element of buffer 'y' (global f64[5]) "
        "moves with at",
    ),
    "reorder skewed": (
        SKEWED,
        lambda f: reorder(f, [find_loop(f, "j"), find_loop(f, "i")]),
        "reorder loop 'i' (0..4, serial): buffer 'y' (global f64[4, 4]): load at [i - 1, j + 1] and "
        "store at [i, j] may meet where i, j differ",
    ),
    "reorder around an imperfect nest": (
        SUM,
        lambda f: reorder(f, [find_loop(f, "k"), find_loop(f, "i")]),
        "reorder loop 'i' (0..3, serial): it holds more than the next loop (op 'const' of text:4); "
        "use fission first",
    ),
    "reorder strangers": (
        TWO_STAGES,
        lambda f: reorder(f, [find_loop(f, "jo"), find_loop(f, "i")]),
        "reorder loop 'jo' (0..4, serial): the loops jo, i are not nested in each other",
    ),
    "fuse siblings that cross": (
        REVERSED,
        lambda f: fuse_siblings(f, find_loop(f, "i"), find_loop(f, "j")),
        "fuse_siblings loop 'i' (0..8, serial): the second's load at [-i + 7] of buffer 't' (scratch f64[8]) "
        "may come before a later store at [i]",
    ),
    "fuse an argument": (
        DOUBLE,
        lambda f: fuse_at(f, f.args[0], find_loop(f, "i")),
        "fuse_at buffer 'x' (global f64[10]): it is an argument of the kernel; use cache_write to compute it "
        "in a buffer first",
    ),
    "fuse into a loop that does not read": (
        REVERSED,
        lambda f: fuse_at(f, buffer(f, "t"), find_loop(f, "i")),
        "fuse_at buffer 't' (scratch f64[8]): nothing before the loop writes it",
    ),
    "register tile of symbolic size": (
        SYMBOLIC,
        lambda f: cache(f, f.args[1], find_loop(f, "i")),
        "cache buffer 'y' (global f64[n]): a register tile needs a constant size, not [n]",
    ),
    "cache_write of an input": (
        DOUBLE,
        lambda f: cache_write(f, f.args[0]),
        "cache_write buffer 'x' (global f64[10]): it is not an output of the kernel",
    ),
    "pack what is written": (
        DOUBLE,
        lambda f: pack(f, f.args[1], find_loop(f, "i")),
        "pack buffer 'y' (global f64[10]): loop 'i' (0..10, serial) writes it",
    ),
    "pack inside of lanes": (
        DOUBLE,
        lambda f: pack(f, f.args[0], vectorize(f, find_loop(f, "i")).inner),
        "pack buffer 'x' (global f64[10]): it would be copied inside of loop 'i' (0..10, vector); "
        "vectorize after this step",
    ),
    "pack an output": (
        DOUBLE,
        lambda f: pack_argument(f, f.args[1], Packing(((),), (0,))),
        "pack_argument buffer 'y' (global f64[10]): it is not an input argument",
    ),
    "an order that forgets a piece": (
        DOUBLE,
        lambda f: Packing(((4,),), (0,)),
        "packing order (0,) does not list each of the 2 pieces once",
    ),
    "a loop that does not exist": (
        SUM,
        lambda f: find_loop(f, "z"),
        "kernel @k has no loop 'z'; its loops are i, k",
    ),
}


TWO_STEPS = {"peel a parallel loop", "pack inside of lanes"}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason_and_unchanged(name: str) -> None:
    text, step, reason = REFUSED[name]
    func = read(text)
    with pytest.raises(ScheduleError) as caught:
        step(func)
    assert str(caught.value) == reason
    if name not in TWO_STEPS:
        assert print_func(func) == print_func(read(text))
