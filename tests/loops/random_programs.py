"""Small kernels of random sizes, for the tests that apply random schedules to them.

Each gives the kernel and the values of its dims. Outputs may be read before they are written: then what they hold
on entry counts, as for a state that is updated in place.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from tests.loops import programs
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func
from tilewright.ir.sym import ge0, var
from tilewright.ir.types import buffer
from tilewright.loops.edit import loops_in
from tilewright.loops.kernel_info import KernelInfo, new_kernel
from tilewright.loops.lanes.vectorize import vectorize
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder


def chain(r: random.Random) -> tuple[Func, dict[str, int]]:
    """t0 = x0 + 1; t1 = t0 * x0 (shifted); y = t1 - t0."""
    m, n = r.randint(1, 9), r.randint(2, 11)
    rows = var("m", 1)

    def body(t: ScalarBuilder, x: Array, y: Array) -> None:
        first = t.alloc(x.dtype, (rows, n))
        second = t.alloc(x.dtype, (rows, n))
        with t.loop(rows, "a") as i, t.loop(n, "b") as j:
            first.store((i, j), x[i, j] + 1)
        with t.loop(rows, "c") as i, t.loop(n, "d") as j:
            guard = [ge0(j - 1)]
            second.store((i, j), first.load((i, j - 1), guard) * x[i, j])
        with t.loop(rows, "e") as i, t.loop(n, "f") as j:
            y.store((i, j), second[i, j] - first[i, n - 1 - j])

    return programs.kernel([(rows, n)], [(rows, n)], body, [rows]), {"m": m}


def product(r: random.Random) -> tuple[Func, dict[str, int]]:
    m, n, k = r.randint(1, 9), r.randint(1, 9), r.randint(1, 6)
    if r.random() < 0.5:
        size = var("m", 1)
        return programs.matmul(size, n, k, [size]), {"m": m}
    return (programs.matmul if r.random() < 0.5 else programs.plain_matmul)(m, n, k), {}


def rows_normalised(r: random.Random) -> tuple[Func, dict[str, int]]:
    """Row maximum, row sum of the differences, result of both: three reductions and maps over the same
    rows."""
    m, n = r.randint(1, 7), r.randint(1, 9)

    def body(t: ScalarBuilder, x: Array, y: Array) -> None:
        top, total = t.alloc(x.dtype, (m, 1)), t.alloc(x.dtype, (m,))
        with t.loop(m, "a") as i:
            top.store((i, 0), -100)
            with t.loop(n, "b") as j:
                top.store((i, 0), t.apply("max", top[i, 0], x[i, j]))
        with t.loop(m, "c") as i:
            total.store((i,), 0)
            with t.loop(n, "d") as j:
                total.store((i,), total[i] + (x[i, j] - top[i, 0]))
        with t.loop(m, "e") as i, t.loop(n, "f") as j:
            y.store((i, j), (x[i, j] - top[i, 0]) * total[i])

    return programs.kernel([(m, n)], [(m, n)], body), {}


def stencil(r: random.Random) -> tuple[Func, dict[str, int]]:
    """Two three-point stencils with zeros beyond the ends, the second on every other point."""
    n = r.randint(2, 14)
    half = (n + 1) // 2

    def point(source: Array, i: object, size: int) -> object:
        total = source.load((i,))  # type: ignore[list-item]
        for d in (-1, 1):
            total = total + source.load((i + d,), [ge0(i + d), ge0(size - 1 - i - d)])  # type: ignore[operator]
        return total

    def body(t: ScalarBuilder, x: Array, y: Array) -> None:
        once = t.alloc(x.dtype, (n,))
        with t.loop(n, "a") as i:
            once.store((i,), point(x, i, n))  # type: ignore[arg-type]
        with t.loop(half, "b") as i:
            y.store((i,), point(once, 2 * i, n))  # type: ignore[arg-type]

    return programs.kernel([(n,)], [(half,)], body), {}


def carried(r: random.Random) -> tuple[Func, dict[str, int]]:
    """Programs with dependences between iterations: running sums, shifts in place, overwriting."""
    n, m = r.randint(2, 9), r.randint(2, 6)
    which = r.randrange(4)

    def body(t: ScalarBuilder, x: Array, y: Array) -> None:
        with t.loop(m, "a") as i, t.loop(n, "b") as j:
            if which == 0:
                y.store((i, j), x[i, j] + y.load((i, j - 1), [ge0(j - 1)]))
            elif which == 1:
                y.store((i, j), y.load((i, j + 1), [ge0(n - 2 - j)]) - x[i, j])
            elif which == 2:
                y.store((i, j), x[i, j] + y.load((i - 1, j + 1), [ge0(i - 1), ge0(n - 2 - j)]))
            else:
                y.store((i, j // 2), x[i, j])
        with t.loop(m, "c") as i, t.loop(n, "d") as j:
            y.store((i, j), y[i, j] * 2 + y.load((m - 1 - i, j), [ge0(which - 2)]))

    return programs.kernel([(m, n)], [(m, n)], body), {}


def transposed(r: random.Random) -> tuple[Func, dict[str, int]]:
    """A permuted copy through a buffer, and column sums of it, in one flat loop."""
    m, n = r.randint(1, 6), r.randint(1, 6)

    def body(t: ScalarBuilder, x: Array, y: Array, s: Array) -> None:
        copy = t.alloc(x.dtype, (n, m))
        with t.loop(m * n, "a") as i:
            copy.store((i % n, i // n), x[i // n, i % n])
        with t.loop(m, "e") as i:
            s.store((i,), 0)
        with t.loop(n, "b") as j, t.loop(m, "c") as i:
            y.store((j, i), copy[j, i] * 3)
            s.store((i,), s[i] + copy[j, i])

    return programs.kernel([(m, n)], [(n, m), (m,)], body), {}


def gathered(r: random.Random) -> tuple[Func, dict[str, int]]:
    """Rows picked by data: y[i, j] is x[i', j] with i' computed from the elements, or a sum of such elements, with
    zeros beyond the ends."""
    m, n = r.randint(2, 6), r.randint(1, 8)
    summed = r.random() < 0.5

    def body(t: ScalarBuilder, x: Array, y: Array) -> None:
        with t.loop(m, "a") as i, t.loop(n, "b") as j:
            if not summed:
                row = t.bind(t.apply("abs", x[i, 0]).cast(dt.i64), "row", 0, 8)
                y.store((i, j), x.load((row, j), [ge0(m - 1 - row)], -1))
                return
            y.store((i, j), 0)
            with t.loop(3, "k") as k:
                row = t.bind(t.apply("abs", x[i, 0]).cast(dt.i64), "row", 0, 8)
                inside = [ge0(m - 1 - row), ge0(j + k - 1), ge0(n - j - k)]
                y.store((i, j), y[i, j] + x.load((row, j + k - 1), inside, 0))

    return programs.kernel([(m, n)], [(m, n)], body), {}


def convolution(r: random.Random) -> tuple[Func, dict[str, int]]:
    func = programs.convolution(
        r.randint(1, 3), r.randint(1, 4), r.randint(3, 5), r.choice([1, 3]), r.choice([0, 1])
    )
    return func, {}


def updated(r: random.Random) -> tuple[Func, dict[str, int]]:
    """A state updated in place: every element once, twice in one iteration, or once for each row; then read."""
    m, n = r.randint(1, 4), r.randint(2, 11)
    which = r.randrange(4)

    def body(t: ScalarBuilder, x: Array, h: Array, y: Array) -> None:
        with t.loop(n, "a") as j:
            if which == 0:
                h.store((j,), h[j] * 2 + x[0, j])
            elif which == 1:
                h.store((j,), x[0, j])
                h.store((j,), h[j] * 3 - 1)
            elif which == 2:
                y.store((0, j), h[j])
                h.store((j,), x[0, j])
            else:
                with t.loop(m, "b") as i:
                    h.store((j,), h[j] - x[i, j])
        with t.loop(m, "c") as i, t.loop(n, "d") as j:
            y.store((i, j), y[i, j] + h[j] * x[i, n - 1 - j])

    return programs.kernel([(m, n)], [(n,), (m, n)], body), {}


def through_a_cell(r: random.Random) -> tuple[Func, dict[str, int]]:
    """One cell that every iteration writes and reads again, with the value of the last left in it for the end."""
    m, n = r.randint(1, 5), r.randint(1, 6)
    carried_over = r.random() < 0.5

    def body(t: ScalarBuilder, x: Array, y: Array) -> None:
        cell = t.alloc(x.dtype, (1,))
        cell.store((0,), 1)
        with t.loop(m, "a") as i, t.loop(n, "b") as j:
            if not carried_over:
                cell.store((0,), x[i, j] + 1)
            cell.store((0,), cell[0] + x[i, j])
            y.store((i, j), cell[0] * 2)
        with t.loop(n, "c") as j:
            y.store((0, j), y[0, j] + cell[0])

    return programs.kernel([(m, n)], [(m, n)], body), {}


def guarded(r: random.Random) -> tuple[Func, dict[str, int]]:
    """Triangles and signs: conditions on indices and on data around stores and sums."""
    m, n = r.randint(1, 6), r.randint(1, 7)
    below = r.random() < 0.5

    def body(t: ScalarBuilder, x: Array, y: Array, s: Array) -> None:
        with t.loop(m, "a") as i:
            s.store((i,), 1)
            with t.loop(n, "b") as j:
                with t.when(ge0(i - j) if below else ge0(j - 2)):
                    y.store((i, j), x[i, j] * 2)
                with t.when(x[i, j] > 0):
                    s.store((i,), s[i] + x[i, j])
        with t.loop(m, "c") as i, t.when(s[i] > 2), t.loop(n, "d") as j:
            y.store((i, j), y[i, j] + s[i])

    return programs.kernel([(m, n)], [(m, n), (m,)], body), {}


def scattered(r: random.Random) -> tuple[Func, dict[str, int]]:
    """Elements put at places that come from data, which may coincide: the last, the sum, or the sum of part."""
    m, n, size = r.randint(1, 4), r.randint(2, 9), r.randint(1, 5)
    which = r.randrange(3)

    def body(t: ScalarBuilder, x: Array, y: Array, z: Array) -> None:
        with t.loop(m, "a") as i, t.loop(n, "b") as j:
            place = t.apply("abs", x[i, j]).cast(dt.i64)
            t.check(place >= 0, "index", "a place below 0")
            at = t.bind(t.apply("min", place, size - 1), "at", 0, size - 1)
            if which == 0:
                y.store((at,), x[i, j] + j_value(t, j))
            elif which == 1:
                y.store((at,), y[at] + x[i, j])
            else:
                y.store((at,), y[at] + z[at, j], [ge0(j - 1)])
            z.store((at, j), x[i, j])

    return programs.kernel([(m, n)], [(size,), (size, n)], body), {}


def j_value(t: ScalarBuilder, j: object) -> object:
    """An index as an element."""
    return t.index(j).cast(dt.f64)  # type: ignore[arg-type]


def perhaps_empty(r: random.Random) -> tuple[Func, dict[str, int]]:
    """Loops that may run no time at all: what stands in memory then stays."""
    rows, columns = var("m", 0), var("n", 0)
    fixed = r.randint(1, 9)

    def body(t: ScalarBuilder, x: Array, y: Array, s: Array) -> None:
        top = t.alloc(x.dtype, (fixed,))
        with t.loop(fixed, "a") as i:
            top.store((i,), -1)
        with t.loop(fixed, "b") as i, t.loop(columns, "c") as j:
            top.store((i,), t.apply("max", top[i], x[0, j]))
        with t.loop(fixed, "d") as i:
            with t.loop(columns, "e") as j:
                s.store((i,), top[i] + x[0, j])
            s.store((i,), s[i] * 2)
        with t.loop(rows, "f") as i, t.loop(columns, "g") as j:
            y.store((i, j), x[0, j] * 2)

    func = programs.kernel([(1, columns)], [(rows, columns), (fixed,)], body, [rows, columns])
    return func, {"m": r.randint(0, 6), "n": r.choice([0, 0, 1, 7])}


def rows_in_turn(r: random.Random) -> tuple[Func, dict[str, int]]:
    """Each row in a buffer of its own, which the result then takes the place of."""
    m, n = r.randint(1, 5), r.choice([3, 8, 16])
    reversed_rows = r.random() < 0.3

    def body(t: ScalarBuilder, x: Array, y: Array) -> None:
        with t.loop(m, "a") as i:
            row, total = t.alloc(x.dtype, (1, n)), t.alloc(x.dtype, (1,))
            total.store((0,), 0)
            with t.loop(n, "b") as j:
                row.store((0, j), x[i, j] * 2)
            with t.loop(n, "c") as j:
                total.store((0,), total[0] + row[0, j])
            with t.loop(n, "d") as j:
                y.store((i, j), row[0, n - 1 - j if reversed_rows else j] - total[0])

    return programs.kernel([(m, n)], [(m, n)], body), {}


def scaled_in_groups(r: random.Random) -> tuple[Func, dict[str, int]]:
    """y[i, j] = sum of x[i, k] * w[k, j], where w = q[k, j] * s[g, j] - m[g, j] of the group g that k is in, computed
    in registers for each step; or sums of x[i, k] * s[0, j]."""
    m, n, groups, size = r.randint(1, 3), r.randint(1, 6), r.randint(1, 3), r.randint(1, 4)
    form = r.randrange(3)

    def body(t: ScalarBuilder, x: Array, q: Array, scale: Array, least: Array, y: Array) -> None:
        with t.loop(m, "a") as i, t.loop(n, "b") as j:
            y.store((i, j), 0)
        with t.loop(groups, "g") as g, t.loop(size, "k") as k:
            step = size * g + k
            w = t.alloc(q.dtype, (1, n), "reg")
            if form:
                with t.loop(n, "c") as j:
                    spread = q[step, j] * scale[g, j]
                    w.store((0, j), spread - least[g, j] if form == 2 else spread)
            with t.loop(m, "d") as i, t.loop(n, "e") as j:
                y.store((i, j), y[i, j] + x[i, step] * (w[0, j] if form else scale[0, j]))

    depth = groups * size
    return programs.kernel([(m, depth), (depth, n), (groups, n), (groups, n)], [(m, n)], body), {}


def groups_of_bytes(r: random.Random) -> tuple[Func, dict[str, int]]:
    """y[i, j] = sum of a[i, k, g] * b[k, j, g] over k and groups of four, in i32 of narrow integers."""
    m, k, n = r.randint(1, 3), r.randint(1, 3), r.choice([1, 5, 16])
    types = [buffer(dt.u8, (m, k, 4)), buffer(dt.i8, (k, n, 4)), buffer(dt.i32, (m, n))]
    block = Block(types, ["a", "b", "y"])
    builder = Builder(block)
    trace = ScalarBuilder(builder)
    a, b, y = (trace.array(arg) for arg in block.args)
    with trace.loop(m, "i") as i, trace.loop(n, "j") as j:
        y.store((i, j), 0)
        with trace.loop(k, "k") as p, trace.loop(4, "g") as g:
            y.store((i, j), y[i, j] + a[i, p, g].cast(dt.i32) * b[p, j, g].cast(dt.i32))
    builder.emit("return")
    return new_kernel("k", block, (), KernelInfo(outputs=1)), {}


def recurrent(r: random.Random) -> tuple[Func, dict[str, int]]:
    """A state that each step computes from the one before, in a buffer beside it."""
    steps, n = r.randint(1, 5), r.choice([2, 5, 8])
    size = var("t", 1)

    def body(t: ScalarBuilder, x: Array, w: Array, y: Array, h: Array) -> None:
        following = t.alloc(x.dtype, (n,))
        with t.loop(n, "a") as j:
            h.store((j,), j_value(t, j))
        with t.loop(size, "b") as s:
            with t.loop(n, "c") as j:
                following.store((j,), x[s, j])
                with t.loop(n, "d") as k:
                    following.store((j,), following[j] + w[k, j] * h[k])
            with t.loop(n, "e") as j:
                h.store((j,), t.apply("min", t.apply("max", following[j], -9), 9))
                y.store((s, j), h[j])

    return programs.kernel([(size, n), (n, n)], [(size, n), (n,)], body, [size]), {"t": steps}


def doubled_lines(r: random.Random) -> tuple[Func, dict[str, int]]:
    """Whole cache lines that are written and never read, as vectors or not yet."""
    rows, n = var("m", 0), 8 * r.randint(1, 3)

    def body(t: ScalarBuilder, x: Array, y: Array) -> None:
        with t.loop(rows, "a") as i, t.loop(n, "b") as j:
            y.store((i, j), x[i, j] * 2)

    func = programs.kernel([(rows, n)], [(rows, n)], body, [rows])
    if r.random() < 0.6:
        vectorize(func, loops_in(func.body)[1], 8)
    return func, {"m": r.randint(0, 5)}


def attention(r: random.Random) -> tuple[Func, dict[str, int]]:
    """Sums of exponentials relative to the greatest exponent of a row, with all exponents as far apart that each power
    is 0 or 1: so any order of the sums gives the same."""
    m, n, k = r.randint(1, 4), r.randint(1, 3), r.randint(1, 9)
    columns = var("n", 0)
    apart = 1000
    least = r.choice([-math.inf, -1e6])

    def body(t: ScalarBuilder, x: Array, v: Array, y: Array) -> None:
        top, power = t.alloc(x.dtype, (m,)), t.alloc(x.dtype, (m, columns))
        total, out = t.alloc(x.dtype, (m,)), t.alloc(x.dtype, (m, n))
        with t.loop(m, "a") as i:
            top.store((i,), least)
            total.store((i,), 0)
            with t.loop(n, "b") as j:
                out.store((i, j), 0)
        with t.loop(columns, "c") as p, t.loop(m, "d") as i:
            top.store((i,), t.apply("max", top[i], x[i, p] * apart))
        with t.loop(columns, "e") as p, t.loop(m, "f") as i:
            power.store((i, p), t.apply("exp", x[i, p] * apart - top[i]))
        with t.loop(columns, "g") as p, t.loop(m, "h") as i:
            total.store((i,), total[i] + power[i, p])
        with t.loop(columns, "k") as p, t.loop(m, "l") as i, t.loop(n, "o") as j:
            out.store((i, j), out[i, j] + power[i, p] * v[p, j])
        with t.loop(m, "q") as i, t.loop(n, "r") as j:
            y.store((i, j), out[i, j] * total[i])

    return programs.kernel([(m, columns), (columns, n)], [(m, n)], body, [columns]), {"n": k}


Program = Callable[[random.Random], tuple[Func, dict[str, int]]]

PROGRAMS: tuple[Program, ...] = (
    chain,
    product,
    rows_normalised,
    stencil,
    carried,
    transposed,
    gathered,
    convolution,
    updated,
    through_a_cell,
    guarded,
    scattered,
    perhaps_empty,
    rows_in_turn,
    scaled_in_groups,
    groups_of_bytes,
    recurrent,
    doubled_lines,
    attention,
)
