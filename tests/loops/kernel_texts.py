"""Small kernels as text, for the tests that show what a scheduling step does or refuses."""

from __future__ import annotations

from textwrap import dedent

from tilewright.ir.core import Func, Value
from tilewright.loops.kernel_info import parse_kernel

DOUBLE = """
kernel @k(x: &f64[10], y: &f64[10]) dims() with {outputs=1} {
  for i in 0..10 {
    y[i] = x[i] * 2
  }
  return
}
"""

TWICE = """
kernel @k(x: &f64[10], y: &f64[10], z: &f64[10]) dims() with {outputs=2} {
  for i in 0..10 {
    y[i] = x[i] * 2
    z[i] = y[i] + 1
  }
  return
}
"""

TWICE_IN_A_ROW = """
kernel @k(x: &f64[10], y: &f64[1, 10], z: &f64[10]) dims() with {outputs=2} {
  for j in 0..1 {
    for i in 0..10 {
      y[j, i] = x[i] * 2
      z[i] = y[0, i] + 1
    }
  }
  return
}
"""

REGISTERS_BEFORE_THREADS = """
kernel @k(x: &f64[3], y: &f64[3]) dims() with {outputs=1} {
  alloc r: reg f64[3]
  for i in 0..3 {
    r[i] = x[i] * 2
  }
  alloc t: scratch f64[3]
  for j in 0..3 {
    t[j] = r[j]
  }
  for k in 0..3 parallel {
    for l in 0..2 {
      y[k] = t[k]
    }
  }
  return
}
"""

PART_UPDATED = """
kernel @k(x: &f64[12], y: &f64[12]) dims() with {outputs=1} {
  alloc t: scratch f64[12]
  for i in 0..12 {
    t[i] = x[i]
  }
  for j in 0..6 {
    t[j] += 5
  }
  for k in 0..12 {
    y[k] = t[k]
  }
  return
}
"""

NEVER_INSIDE = """
kernel @k(x: &f64[3], y: &f64[3]) dims() with {outputs=1} {
  for i in 0..3 {
    for j in 0..0 {
      y[i] = x[i]
    }
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

COPIED_ROWS = """
kernel @k(x: &f64[2, 5], y: &f64[2, 5]) dims() with {outputs=1} {
  for i in 0..2 {
    alloc t: scratch f64[5]
    for j in 0..5 {
      t[j] = x[i, j]
    }
    for j2 in 0..5 {
      y[i, j2] = t[j2]
    }
  }
  return
}
"""

GROUPS = """
kernel @k(a: &u8[4], b: &i8[16, 4], y: &i32[16]) dims() with {outputs=1} {
  for j in 0..16 {
    y[j] = 0
    for g in 0..4 {
      y[j] += i32(a[g]) * i32(b[j, g])
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
    func = parse_kernel(dedent(text))
    return func


def buffer(func: Func, name: str) -> Value:
    locals_ = [op.result for op in func.body.walk() if op.name == "alloc"]
    return next(v for v in (*func.args, *locals_) if v.name == name)
