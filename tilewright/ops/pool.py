"""Pooling: reductions over windows of the spatial axes of [n, c, *space]."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.scalar import identity
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product, row_major
from tilewright.ops.define import Compute, Operator, compute, op, primitive
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.elementwise import abs_, cast, div, mul, pow_
from tilewright.ops.reduce import as_dtype, dtype_of, widened
from tilewright.ops.shape import Dim, require_equal_dim, require_space
from tilewright.ops.source import dim_value, full
from tilewright.ops.view import shape_of
from tilewright.ops.window import Window


def _pool(name: str, doc: str, combine: str, trailing: int = 0) -> Operator:
    """The operator `name` that reduces windows of the axes after the first two, but for `trailing` last ones."""

    def pool(
        x: Array,
        *,
        kernel: Sequence[Dim],
        strides: Sequence[int] = (),
        pads_begin: Sequence[Dim] = (),
        pads_end: Sequence[Dim] = (),
        dilations: Sequence[int] = (),
    ) -> Compute:
        window = Window(require_space(x, trailing), kernel, strides, pads_begin, pads_end, dilations)
        end = x.rank - trailing

        def body(t: ScalarBuilder, i: Sequence[Sym], k: Sequence[Sym]) -> Scalar:
            at, guard = window.visited(i[2:end], k)
            return x.load((*i[:2], *at, *i[end:]), guard, identity(combine, x.dtype))

        shape = [*x.shape[:2], *window.counts, *x.shape[end:]]
        return compute([x], shape, body, reduce=window.extents, combine=combine)

    pool.__name__, pool.__doc__ = name, doc
    return primitive(pool)


max_pool = _pool("max_pool", "The greatest element of each window; padding never wins.", "max")
sum_pool = _pool("sum_pool", "The sum of each window; padding counts as 0.", "add")
max_pool_blocked = _pool("max_pool_blocked", "`max_pool` of blocked data [n, c / b, *space, b].", "max", 1)
sum_pool_blocked = _pool("sum_pool_blocked", "`sum_pool` of blocked data [n, c / b, *space, b].", "add", 1)


@primitive
def max_pool_positions(
    x: Array,
    pooled: Array,
    *,
    kernel: Sequence[Dim],
    strides: Sequence[int] = (),
    pads_begin: Sequence[Dim] = (),
    pads_end: Sequence[Dim] = (),
    dilations: Sequence[int] = (),
) -> Compute:
    """Where `max_pool` of x, given as `pooled`, found its elements: flat i64 positions, the first of equals."""
    window = Window(require_space(x), kernel, strides, pads_begin, pads_end, dilations)
    for a, b in zip(pooled.shape, (*x.shape[:2], *window.counts), strict=True):
        require_equal_dim(a, b, "what was pooled and the windows")
    steps = row_major(x.shape)

    def body(t: ScalarBuilder, i: Sequence[Sym], k: Sequence[Sym]) -> Scalar:
        inside, guard = window.visited(i[2:], k)
        at = (*i[:2], *inside)
        found = x.load(at, guard, identity("max", x.dtype)).eq(pooled[tuple(i)])
        for condition in guard:
            found = found & t.index(condition, dt.bool_)
        flat = sum((p * step for p, step in zip(at, steps, strict=True)), sym(0))
        return t.select(found, t.index(flat), (1 << 63) - 1)

    shape = [*x.shape[:2], *window.counts]
    return compute([x, pooled], shape, body, reduce=window.extents, combine="min", dtype=dt.i64)


@op
def average_pool(
    x: Value,
    *,
    kernel: Sequence[Dim],
    strides: Sequence[int] = (),
    pads_begin: Sequence[Dim] = (),
    pads_end: Sequence[Dim] = (),
    dilations: Sequence[int] = (),
    overhang: Sequence[Dim] = (),
    include_pad: bool = False,
) -> Value:
    """The mean of each window, of the elements inside of x; with `include_pad` padding counts as zeros.

    `overhang` are further positions at the end that no mean counts (a rounded-up result reaches there).
    """
    shape, space = shape_of(x), shape_of(x)[2:]
    before = tuple(sym(p) for p in pads_begin) or (sym(0),) * len(space)
    after = tuple(sym(p) for p in pads_end) or (sym(0),) * len(space)
    beyond = tuple(sym(p) for p in overhang) or (sym(0),) * len(space)
    wide = widened(x)
    attrs = {"kernel": tuple(kernel), "strides": tuple(strides), "dilations": tuple(dilations)}
    ends = {"pads_begin": before, "pads_end": tuple(a + b for a, b in zip(after, beyond, strict=True))}
    total = sum_pool(wide, **attrs, **ends)
    counted = shape[2:]
    if include_pad:
        counted = tuple(b + d + a for b, d, a in zip(before, counted, after, strict=True))
        ends = {"pads_begin": (sym(0),) * len(space), "pads_end": beyond}
    if all(p == 0 for pads in ends.values() for p in pads):
        count = _number(product(sym(k) for k in kernel), wide)
    else:
        ones = full(value=1.0, dtype=dtype_of(wide), shape=(sym(1), sym(1), *counted))
        count = sum_pool(ones, **attrs, **ends)
    assert len(shape) > 2
    return as_dtype(div(total, count), dtype_of(x))


def _number(n: Sym, like: Value) -> Value:
    """A dim as a rank-0 tensor of the dtype of `like`."""
    if n.is_const:
        return full(value=n.value, dtype=dtype_of(like), shape=())
    return cast(dim_value(n), dtype=dtype_of(like))


@op
def lp_pool(
    x: Value,
    *,
    kernel: Sequence[Dim],
    p: float = 2,
    strides: Sequence[int] = (),
    pads_begin: Sequence[Dim] = (),
    pads_end: Sequence[Dim] = (),
    dilations: Sequence[int] = (),
) -> Value:
    """(sum |x|^p)^(1/p) over each window."""
    wide = widened(x)
    power = mul(wide, wide) if p == 2 else pow_(abs_(wide), float(p))
    window = {"kernel": kernel, "strides": strides, "pads_begin": pads_begin, "pads_end": pads_end}
    return as_dtype(pow_(sum_pool(power, dilations=dilations, **window), 1.0 / p), dtype_of(x))
