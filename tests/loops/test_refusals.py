"""Each scheduling step that would change what a program computes is refused, with the reason."""

from __future__ import annotations

import pytest

from tests.loops.kernel_texts import (
    DOUBLE,
    HISTOGRAM,
    NEVER_INSIDE,
    PART_UPDATED,
    REGISTERS_BEFORE_THREADS,
    SUM,
    SYMBOLIC,
    TWO_STAGES,
    buffer,
    read,
)
from tilewright.ir.core import Func, Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.text import print_func
from tilewright.loops.edit import body_of, find_loop
from tilewright.loops.lanes.unroll import unroll
from tilewright.loops.lanes.unroll_and_jam import unroll_and_jam
from tilewright.loops.lanes.vectorize import vectorize, vectorize_reduction
from tilewright.loops.order.boustrophedon import boustrophedon
from tilewright.loops.order.compute_at import compute_at
from tilewright.loops.order.fuse import collapse, fuse
from tilewright.loops.order.parallel import parallel, serial
from tilewright.loops.order.reorder import reorder
from tilewright.loops.order.split import split
from tilewright.loops.order.split_evenly import split_evenly
from tilewright.loops.order.split_range import split_range
from tilewright.loops.storage.cache import cache, cache_write
from tilewright.loops.storage.pack import pack, pack_argument
from tilewright.loops.storage.packing import Packing
from tilewright.loops.storage.preload import preload

RUNNING_SUM = """
kernel @k(x: &f64[10], y: &f64[10]) dims() with {outputs=1} {
  for i in 0..10 {
    y[i] = x[i] + y[i - 1 if i >= 1 else 0]
  }
  return
}
"""

TWO_AXES = """
kernel @k(x: &f64[4, 8], y: &f64[4, 8]) dims() with {outputs=1} {
  for i in 0..4 {
    for j in 0..8 {
      y[i, j] = x[i, j] + x[i, j]
    }
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

SHARED_STEPS = """
kernel @k(x: &f64[3, 8], y: &f64[3, 8], z: &f64[3, 8]) dims() with {outputs=2} {
  alloc h: scratch f64[3, 8]
  for i in 0..3 {
    for j in 0..8 {
      h[i, j] = x[i, j]
    }
  }
  for t in 0..3 {
    for k in 0..8 parallel {
      y[t, k] = h[t, k] * x[t, 0]
    }
    for l in 0..8 parallel {
      z[t, l] = x[t, l]
    }
  }
  return
}
"""

SHARED_ROWS = """
kernel @k(x: &f64[3, 8], y: &f64[3, 8]) dims() with {outputs=1} {
  alloc h: scratch f64[3, 8]
  for i in 0..3 {
    for j in 0..8 parallel {
      h[i, j] = x[i, j]
    }
  }
  for t in 0..3 {
    for k in 0..8 {
      y[t, k] = h[t, k]
    }
  }
  return
}
"""

OUTSIDE = """
kernel @k(x: &f64[3], y: &f64[3, 8]) dims() with {outputs=1} {
  for t in 0..3 {
    v: f64 = x[t]
    for k in 0..8 {
      y[t, k] = v
    }
  }
  return
}
"""

SHARED_SUMS = """
kernel @k(x: &f64[3, 8, 4], y: &f64[3]) dims() with {outputs=1} {
  for t in 0..3 {
    for k in 0..8 parallel {
      for l in 0..4 {
        y[t] += x[t, k, l]
      }
    }
  }
  return
}
"""

UPDATE = DOUBLE.replace("x[i] * 2", "y[i] * 2 + x[i]")

LAST_ROW = """
kernel @k(x: &f64[3, 10], y: &f64[10]) dims() with {outputs=1} {
  for i in 0..3 {
    for j in 0..10 {
      y[j] = x[i, j]
    }
  }
  return
}
"""

OVERLAP_AND_LAST = """
kernel @k(x: &f64[10], y: &f64[10], z: &f64[1]) dims() with {outputs=2} {
  for i in 0..10 {
    y[i] = x[i] * 2
  }
  for k in 0..3 {
    z[0] = x[k]
  }
  return
}
"""

SYMBOLIC_STAGES = """
kernel @k(x: &f64[m, n], y: &f64[m, n]) dims(m, n) with {outputs=1} {
  alloc t: scratch f64[m, n]
  for i in 0..m {
    for p in 0..n {
      t[i, p] = x[i, p] + 1
    }
  }
  for j in 0..m {
    for q in 0..n {
      y[j, q] = t[j, q] * 2
    }
  }
  return
}
"""

CHANGED_BESIDE = """
kernel @k(x: &f64[3, 10], y: &f64[3]) dims() with {outputs=1} {
  alloc t: scratch f64[3]
  for i in 0..3 {
    t[i] = -1
  }
  for j in 0..3 {
    for r in 0..10 {
      t[j] = max(t[j], x[j, r])
    }
    for k in 0..10 {
      y[j] = t[j] + x[j, k]
    }
  }
  return
}
"""

PERHAPS_NEVER = """
kernel @k(x: &f64[n], y: &f64[3]) dims(n) with {outputs=1} {
  for i in 0..3 {
    for k in 0..n {
      y[i] = x[k]
    }
  }
  return
}
"""


def load_of(func: Func, loop: str, name: str) -> Op:
    """The load of a buffer in a loop."""
    (found,) = [
        o
        for o in body_of(find_loop(func, loop)).walk()
        if o.name == "load" and o.operands[0] is buffer(func, name)
    ]
    return found


REFUSED = {
    "split by zero": (
        DOUBLE,
        lambda f: split(f, find_loop(f, "i"), 0),
        "split loop 'i' (0..10, serial): the factor is 0, it must be at least 1",
    ),
    "even parts of nothing": (
        DOUBLE,
        lambda f: split_evenly(f, find_loop(f, "i"), 2, 3),
        "split_evenly loop 'i' (0..10, serial): its parts have at most 2 iterations, it must be at least 3",
    ),
    "even parts of too few iterations": (
        DOUBLE,
        lambda f: split_evenly(f, find_loop(f, "i"), 20, 11),
        "split_evenly loop 'i' (0..10, serial): its extent may be below 11",
    ),
    "unknown tail": (
        DOUBLE,
        lambda f: split(f, find_loop(f, "i"), 4, "drop"),
        "split loop 'i' (0..10, serial): tail 'drop' is none of guard, peel, branch, short, overlap",
    ),
    "cut a loop of unknown length": (
        SYMBOLIC,
        lambda f: split_range(f, find_loop(f, "i"), 3),
        "split_range loop 'i' (0..n, serial): position 3 is not known to be within it",
    ),
    "cut a loop behind its end": (
        DOUBLE,
        lambda f: split_range(f, find_loop(f, "i"), 11),
        "split_range loop 'i' (0..10, serial): position 11 is not known to be within it",
    ),
    "cut lanes": (
        DOUBLE,
        lambda f: split_range(f, vectorize(f, find_loop(f, "i")).inner, 3),
        "split_range loop 'i' (0..10, vector): it is a vector loop",
    ),
    "jam a loop of unknown length": (
        SYMBOLIC,
        lambda f: unroll_and_jam(f, find_loop(f, "i")),
        "unroll_and_jam loop 'i' (0..n, serial): its extent is not a constant; split it first",
    ),
    "jam a parallel loop": (
        DOUBLE,
        lambda f: unroll_and_jam(f, parallel(f, find_loop(f, "i"))),
        "unroll_and_jam loop 'i' (0..10, parallel): it is a parallel loop",
    ),
    "jam the terms of a sum": (
        SUM,
        lambda f: unroll_and_jam(f, find_loop(f, "k")),
        "unroll_and_jam loop 'k' (0..10, serial): an iteration may touch what another writes, in buffer 'y' (&f64[3]): "
        "load at [i] and store at [i]",
    ),
    "peel a parallel loop": (
        SYMBOLIC,
        lambda f: split(f, parallel(f, find_loop(f, "i")), 4, "peel"),
        "split loop 'i' (0..n, parallel): peeling would leave work beside the parallel loop; "
        'use tail="branch" or "guard"',
    ),
    "lanes of a short end": (
        DOUBLE,
        lambda f: vectorize(f, find_loop(f, "i"), 4, "short"),
        "vectorize loop 'i' (0..10, serial): a vector has as many lanes in each iteration; "
        "use another tail than 'short'",
    ),
    "smaller tiles at the end of peeled ones": (
        DOUBLE,
        lambda f: split(f, find_loop(f, "i"), 4, "peel", remainder=2),
        "split loop 'i' (0..10, serial): smaller tiles at the end need tail 'overlap', and a serial loop",
    ),
    "smaller tiles of a negative number": (
        DOUBLE,
        lambda f: split(f, find_loop(f, "i"), 4, "overlap", remainder=-1),
        "split loop 'i' (0..10, serial): the factor is -1, it must be at least 1",
    ),
    "overlapping iterations of a state updated in place": (
        UPDATE,
        lambda f: split(f, find_loop(f, "i"), 4, "overlap"),
        "split loop 'i' (0..10, serial): tail 'overlap' runs some iterations twice, and they change buffer "
        "'y' (&f64[10]), which they read",
    ),
    "overlapping iterations of sums that go on": (
        SUM.replace("    y[i] = 0\n", ""),
        lambda f: split(f, find_loop(f, "i"), 2, "overlap"),
        "split loop 'i' (0..3, serial): tail 'overlap' runs some iterations twice, and they change buffer "
        "'y' (&f64[3]), which they read",
    ),
    "overlapping lanes of a sum": (
        SUM,
        lambda f: vectorize_reduction(f, find_loop(f, "k"), 4, tail="overlap"),
        "split loop 'k' (0..10, serial): an iteration may touch what another writes, in buffer 'y' (&f64[3]): "
        "load at [i] and store at [i]",
    ),
    "threads for overlapping iterations in a loop that overwrites": (
        LAST_ROW,
        lambda f: parallel(
            f, collapse(f, find_loop(f, "i"), split(f, find_loop(f, "j"), 4, "overlap").outer)
        ),
        "parallel loop 'ijo' (0..9, serial): an iteration may touch what another writes, in buffer 'y' (&f64[10]): "
        "store at [ji + min(6, 4*(ijo % 3))] and store at [ji + min(6, 4*(ijo % 3))]",
    ),
    "threads for overlapping iterations beside another body": (
        OVERLAP_AND_LAST,
        lambda f: parallel(
            f,
            fuse(f, split(f, find_loop(f, "i"), 4, "overlap").outer, find_loop(f, "k")),
        ),
        "parallel loop 'io' (0..3, serial): an iteration may touch what another writes, in buffer 'y' (&f64[10]): "
        "store at [ii + min(6, 4*io)] and store at [ii + min(6, 4*io)]",
    ),
    "a register tile of unknown size": (
        SYMBOLIC_STAGES,
        lambda f: compute_at(f, buffer(f, "t"), find_loop(f, "j"), "reg"),
        "compute_at buffer 't' (scratch f64[m, n]): a register tile needs a constant size, not [1, n]",
    ),
    "a buffer that the nest of the loop goes on changing": (
        CHANGED_BESIDE,
        lambda f: compute_at(f, buffer(f, "t"), find_loop(f, "k")),
        "compute_at buffer 't' (scratch f64[3]): loop 'j' (0..3, serial), which holds the loop, writes it as well",
    ),
    "an output that an empty loop would fill": (
        PERHAPS_NEVER,
        lambda f: cache_write(f, f.args[1]),
        "cache_write buffer 'y' (&f64[3]): it is not certain that all of it is written, and before "
        "anything is read",
    ),
    "unroll a symbolic loop": (
        SYMBOLIC,
        lambda f: unroll(f, find_loop(f, "i")),
        "unroll loop 'i' (0..n, serial): its extent is not a constant; split it first",
    ),
    "parallel running sum": (
        RUNNING_SUM,
        lambda f: parallel(f, find_loop(f, "i")),
        "parallel loop 'i' (0..10, serial): an iteration may touch what another writes, in buffer 'y' (&f64[10]): "
        "load at [i - 1] and store at [i]",
    ),
    "parallel accumulation": (
        SUM,
        lambda f: parallel(f, find_loop(f, "k")),
        "parallel loop 'k' (0..10, serial): an iteration may touch what another writes, in buffer 'y' (&f64[3]): "
        "load at [i] and store at [i]",
    ),
    "parallel loop around one": (
        SHARED_STEPS,
        lambda f: parallel(f, find_loop(f, "t")),
        "parallel loop 't' (0..3, serial): threads share a loop in it already",
    ),
    "parallel loop that needs a scalar from outside": (
        OUTSIDE,
        lambda f: parallel(f, find_loop(f, "k")),
        "parallel loop 'k' (0..8, serial): it uses a f64 from outside, which other threads do not have",
    ),
    "serial vector": (
        DOUBLE,
        lambda f: serial(f, unroll(f, find_loop(f, "i"))),
        "serial loop 'i' (0..10, unroll): it is a unroll loop",
    ),
    "unroll around a parallel loop": (
        SHARED_STEPS,
        lambda f: unroll(f, find_loop(f, "t")),
        "unroll loop 't' (0..3, serial): threads share a loop in it",
    ),
    "reorder across a parallel loop": (
        SHARED_ROWS,
        lambda f: reorder(f, find_loop(f, "j"), find_loop(f, "i")),
        "reorder loop 'j' (0..8, parallel): no loop moves into a parallel loop or out of it",
    ),
    "fuse parallel siblings": (
        SHARED_STEPS,
        lambda f: fuse(f, find_loop(f, "k"), find_loop(f, "l")),
        "fuse loop 'k' (0..8, parallel): loop 'l' (0..8, parallel) waits for all threads of the first",
    ),
    "fuse a parallel producer": (
        SHARED_ROWS,
        lambda f: compute_at(f, buffer(f, "h"), find_loop(f, "k")),
        "compute_at buffer 'h' (scratch f64[3, 8]): its producer is parallel already; compute_at before that",
    ),
    "fuse into registers around a parallel loop": (
        SHARED_STEPS,
        lambda f: compute_at(f, buffer(f, "h"), find_loop(f, "t"), "reg"),
        "compute_at buffer 'h' (scratch f64[3, 8]): threads share a loop in loop 't' (0..3, serial), "
        "and have registers of their own",
    ),
    "fuse a producer that reads registers into what threads share": (
        REGISTERS_BEFORE_THREADS,
        lambda f: compute_at(f, buffer(f, "t"), find_loop(f, "l"), "reg"),
        "compute_at buffer 't' (scratch f64[3]): its producer uses registers, buffer 'r' (reg f64[3]), "
        "which other threads lack",
    ),
    "surplus elements over those of another producer": (
        PART_UPDATED,
        lambda f: compute_at(f, buffer(f, "t"), find_loop(f, "k"), guard="loads"),
        "compute_at buffer 't' (scratch f64[12]): guard='loads' is not possible, as loop 'j' (0..6, serial) runs over "
        "another part of axis 0 than a producer before it",
    ),
    "one loop of an empty one": (
        NEVER_INSIDE,
        lambda f: collapse(f, find_loop(f, "i"), find_loop(f, "j")),
        "collapse loop 'j' (0..0, serial): it never runs",
    ),
    "preload for several threads": (
        SHARED_STEPS,
        lambda f: preload(f, load_of(f, "k", "x"), find_loop(f, "k")),
        "preload buffer 'x' (&f64[3, 8]): threads share a loop in loop 'k' (0..8, parallel), "
        "and have registers of their own",
    ),
    "lanes of sums for several threads": (
        SHARED_SUMS,
        lambda f: vectorize_reduction(f, find_loop(f, "l"), 4, find_loop(f, "k")),
        "vectorize_reduction loop 'l' (0..4, serial): threads share a loop in loop 'k' (0..8, parallel), "
        "and have registers of their own",
    ),
    "vector of a running sum": (
        RUNNING_SUM,
        lambda f: vectorize(f, find_loop(f, "i"), 4),
        "vectorize loop 'i' (0..10, serial): iterations may meet in buffer 'y' (&f64[10]), "
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
        "vectorize_reduction loop 'i' (0..10, serial): the accumulated element of buffer 'y' (&f64[5]) "
        "moves with at",
    ),
    "reorder skewed": (
        SKEWED,
        lambda f: reorder(f, find_loop(f, "j"), find_loop(f, "i")),
        "reorder loop 'i' (0..4, serial): buffer 'y' (&f64[4, 4]): load at [i - 1, j + 1] and "
        "store at [i, j] may meet where i, j differ",
    ),
    "reorder around an imperfect nest": (
        SUM,
        lambda f: reorder(f, find_loop(f, "k"), find_loop(f, "i")),
        "reorder loop 'i' (0..3, serial): it holds more than the next loop (op 'const' of text:4); "
        "use fission first",
    ),
    "reorder strangers": (
        TWO_STAGES,
        lambda f: reorder(f, find_loop(f, "jo"), find_loop(f, "i")),
        "reorder loop 'jo' (0..4, serial): the loops jo, i are not nested in each other",
    ),
    "fuse siblings that cross": (
        REVERSED,
        lambda f: fuse(f, find_loop(f, "i"), find_loop(f, "j")),
        "fuse loop 'i' (0..8, serial): the second's load at [-i + 7] of buffer 't' (scratch f64[8]) "
        "may come before a later store at [i]",
    ),
    "fuse an argument": (
        DOUBLE,
        lambda f: compute_at(f, f.args[0], find_loop(f, "i")),
        "compute_at buffer 'x' (&f64[10]): it is an argument of the kernel; use cache_write to compute it "
        "in a buffer first",
    ),
    "fuse into a loop that does not read": (
        REVERSED,
        lambda f: compute_at(f, buffer(f, "t"), find_loop(f, "i")),
        "compute_at buffer 't' (scratch f64[8]): nothing before the loop writes it",
    ),
    "register tile of symbolic size": (
        SYMBOLIC,
        lambda f: cache(f, f.args[1], find_loop(f, "i")),
        "cache buffer 'y' (&f64[n]): a register tile needs a constant size, not [n]",
    ),
    "cache_write of an input": (
        DOUBLE,
        lambda f: cache_write(f, f.args[0]),
        "cache_write buffer 'x' (&f64[10]): it is not an output of the kernel",
    ),
    "pack what is written": (
        DOUBLE,
        lambda f: pack(f, f.args[1], find_loop(f, "i")),
        "pack buffer 'y' (&f64[10]): loop 'i' (0..10, serial) writes it",
    ),
    "pack inside of lanes": (
        DOUBLE,
        lambda f: pack(f, f.args[0], vectorize(f, find_loop(f, "i")).inner),
        "pack buffer 'x' (&f64[10]): it would be copied inside of loop 'i' (0..10, vector); "
        "vectorize after this step",
    ),
    "pack an output": (
        DOUBLE,
        lambda f: pack_argument(f, f.args[1], Packing(((),), (0,))),
        "pack_argument buffer 'y' (&f64[10]): it is not an input argument",
    ),
    "an order that forgets a piece": (
        DOUBLE,
        lambda f: Packing(((4,),), (0,)),
        "packing order (0,) does not list each of the 2 pieces once",
    ),
    "turns of iterations that depend on each other": (
        SUM,
        lambda f: boustrophedon(f, find_loop(f, "k"), find_loop(f, "i")),
        "boustrophedon loop 'k' (0..10, serial): an iteration may touch what another writes, in buffer 'y' (&f64[3]): "
        "load at [i] and store at [i]",
    ),
    "turns of a loop that is not inside": (
        SUM,
        lambda f: boustrophedon(f, find_loop(f, "i"), find_loop(f, "k")),
        "boustrophedon loop 'i' (0..3, serial): it is not in loop 'k' (0..10, serial)",
    ),
    "turns of lanes": (
        TWO_AXES,
        lambda f: boustrophedon(f, vectorize(f, find_loop(f, "j")).inner, find_loop(f, "i")),
        "boustrophedon loop 'j' (0..8, vector): it is a vector loop",
    ),
    "a loop that takes turns with one moves around it": (
        TWO_AXES,
        lambda f: (
            boustrophedon(f, find_loop(f, "j"), find_loop(f, "i")),
            reorder(f, find_loop(f, "j"), find_loop(f, "i")),
        ),
        "reorder loop 'j' (0..8, serial): it alternates with 'i', whose loop would be inside of it",
    ),
    "registers of unknown number for an output": (
        SYMBOLIC,
        lambda f: cache_write(f, f.args[1], "reg"),
        "cache_write buffer 'y' (&f64[n]): a register tile needs a constant size, not [n]",
    ),
    "a loop that does not exist": (
        SUM,
        lambda f: find_loop(f, "z"),
        "kernel @k has no loop 'z'; its loops are i, k",
    ),
}


TWO_STEPS = {
    "jam a parallel loop",
    "cut lanes",
    "serial vector",
    "peel a parallel loop",
    "pack inside of lanes",
    "threads for overlapping iterations in a loop that overwrites",
    "threads for overlapping iterations beside another body",
    "turns of lanes",
    "a loop that takes turns with one moves around it",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason_and_unchanged(name: str) -> None:
    text, step, reason = REFUSED[name]
    func = read(text)
    with pytest.raises(ScheduleError) as caught:
        step(func)
    assert str(caught.value) == reason
    if name not in TWO_STEPS:
        assert print_func(func) == print_func(read(text))
