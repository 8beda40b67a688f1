"""A small machine with memories, levels and queues, and kernels for it, for the tests of the loops level."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from tests.loops.interleave import run_interleaved
from tilewright.ir.core import Func
from tilewright.target.machine import GLOBAL, Intrinsic, Level, Machine, Memory, Route

MULTIPLY = Intrinsic(
    "mma",
    """
    kernel @mma(a: pad f32[m, k] strides(sa, 1), b: pad f32[k, n] strides(sb, 1), c: acc f32[m, n] strides(sc, 1))
        dims(m, n, k, sa, sb, sc) with {outputs=1} {
      for i in 0..m {
        for j in 0..n {
          for l in 0..k {
            c[i, j] += a[i, l] * b[l, j]
          }
        }
      }
      return
    }
    """,
    queue="tensor",
    sizes={"m": (1, 4), "n": (1, 4), "k": (2, 4)},
    limits=("sa % 4 == 0",),
    cycles="m * n + k",
)
DOUBLE = Intrinsic(
    "double",
    """
    kernel @double(x: pad f32[n], y: pad f32[n]) dims(n) with {outputs=1} {
      for i in 0..n {
        y[i] = x[i] * 2
      }
      return
    }
    """,
)
PAD, ACC = Memory("pad", 256, 16, "core"), Memory("acc", 128, 16, "thread")
LOAD = Route("global", "pad", "dma", unit=16)
MACHINE = Machine(
    "small",
    memories=(GLOBAL, PAD, ACC),
    levels=(Level("core", 2), Level("thread", 4)),
    intrinsics=(MULTIPLY, DOUBLE),
    routes=(LOAD, Route("acc", "global", "out", unit=4)),
)

COPIED = """
kernel @k(x: &f32[16], y: &f32[16]) dims() with {outputs=1} {
  for c in 0..2 parallel with {level="core"} {
    alloc a: pad f32[8]
    run copy on dma as t {
      for i in 0..8 {
        a[i] = x[8*c + i]
      }
    }
    wait t
    barrier thread
    for j in 0..8 parallel with {level="thread"} {
      y[8*c + j] = a[7 - j] + 1
    }
  }
  return
}
"""
"""Each core copies its half, and its threads read what others did not."""

PRODUCT = """
kernel @k(x: &f32[4, 12], w: &f32[12, 4], y: &f32[4, 4]) dims() with {outputs=1} {
  alloc s: acc f32[4, 4]
  for i in 0..4 {
    for j in 0..4 {
      s[i, j] = 0
    }
  }
  for k in 0..3 {
    alloc a: pad f32[4, 4]
    for ai in 0..4 {
      for aj in 0..4 {
        a[ai, aj] = x[ai, 4*k + aj]
      }
    }
    alloc b: pad f32[4, 4]
    for bi in 0..4 {
      for bj in 0..4 {
        b[bi, bj] = w[4*k + bi, bj]
      }
    }
    for mi in 0..4 {
      for mj in 0..4 {
        for ml in 0..4 {
          s[mi, mj] += b[ml, mj] * a[mi, ml]
        }
      }
    }
  }
  for di in 0..4 {
    for dj in 0..4 {
      y[di, dj] = s[di, dj]
    }
  }
  return
}
"""
"""A matrix product in tiles, in plain loops."""


def orders(func: Func, inputs: Sequence[np.ndarray], output: np.ndarray, count: int = 20) -> list[np.ndarray]:
    """What a kernel computes in random orders of its threads and queues."""
    found = []
    for seed in range(count):
        result = np.zeros_like(output)
        run_interleaved(func, [*inputs, result], {}, random.Random(seed))
        found.append(result)
    return found
