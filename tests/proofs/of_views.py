"""What is stated of rules about views, and of those that move views below what reads them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from tests.proofs.statement import Statement, stated, typed
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.sym import Sym, var
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as red
from tilewright.ops.contract import matmul
from tilewright.ops.define import OPERATORS
from tilewright.ops.norm import softmax
from tilewright.ops.source import full
from tilewright.ops.view import concat, expand, pad, reshape, reverse, slice_, transpose

N, M, K, D = (var(name) for name in ("n", "m", "k", "d"))
SIZES = (N, M, K, D)
S, T = var("s"), var("t")
"""Places where slices begin."""


def views() -> Iterator[Statement]:
    yield from _that_do_nothing()
    for rank in range(2, 5):
        orders = list(permutations(range(rank)))
        for number, first in enumerate(orders):
            second = orders[(5 * number + 1) % len(orders)]
            yield stated(
                "transpose_of_transpose", f"{first}, {second}",
                lambda x, a=first, b=second: transpose(transpose(x, perm=a), perm=b),
                typed(*SIZES[:rank]), is_quick=rank < 4 or number % 6 == 0,
            )  # fmt: skip
    for shape, perm in (((1, N, M), (1, 0, 2)), ((N, 1, M), (0, 2, 1)), ((N, 1, 1, M), (1, 0, 3, 2))):
        yield stated("transpose_of_unit_axes", f"{perm}", lambda x, p=perm: transpose(x, perm=p), typed(*shape))
    for old, middle, new in _RESHAPED:
        yield stated(
            "reshape_of_reshape", " to ".join(map(_shape, (old, middle, new))),
            lambda x, m=middle, n=new: reshape(reshape(x, shape=m), shape=n), typed(*old),
        )  # fmt: skip
    number = lambda *shape: full(value=2.5, dtype=dt.f32, shape=shape)  # noqa: E731
    yield stated("view_of_number", "transpose", lambda: transpose(number(N, M), perm=(1, 0)))
    yield stated("view_of_number", "reshape", lambda: reshape(number(N, M), shape=(N * M,)))
    yield stated("view_of_number", "expand", lambda: expand(number(1, M), shape=(N, M)))
    yield stated("expand_of_expand", "of rows", lambda x: expand(expand(x, shape=(M, K)), shape=(N, M, K)), typed(K))
    yield stated("expand_of_expand", "of columns",
                 lambda x: expand(expand(x, shape=(1, M, K)), shape=(N, M, K)), typed(1, M, 1))  # fmt: skip
    yield stated("broadcast_built_in", "expand", lambda x, y: ew.add(x, expand(y, shape=(N, M))),
                 typed(N, M), typed(1, M))  # fmt: skip
    yield stated("broadcast_built_in", "full", lambda x: ew.sub(x, number(N, M)), typed(N, M))
    yield from _slices()
    yield stated("transpose_into_matmul", "left", lambda a, b: matmul(transpose(a, perm=(0, 2, 1)), b),
                 typed(N, K, M), typed(N, K, D))  # fmt: skip
    yield stated("transpose_into_matmul", "right, with batches moved",
                 lambda a, b: matmul(a, transpose(b, perm=(1, 2, 0))), typed(N, M, K), typed(D, N, K))  # fmt: skip
    for name in ("reduce_sum", "reduce_prod", "reduce_min", "reduce_max"):
        yield stated("reduction_of_nothing", name,
                     lambda x, f=OPERATORS[name]: f(x, axes=(1,), keepdims=False), typed(N, 1, M),
                     arithmetic="reals")  # fmt: skip
    yield stated("repeated_heads", "4 heads, 2 of keys", _repeated, typed(N, 4, T, 3), typed(N, 2, 3, S))
    yield stated("repeated_heads_of_one_query", "4 heads, 2 of keys", _repeated, typed(N, 4, 1, 3), typed(N, 2, 3, S))


_RESHAPED = (
    ((N, 6), (N, 2, 3), (N, 3, 2)),
    ((N, 2, 3, 4), (N, 6, 4), (N, 24)),
    ((N, 12), (N, 3, 4), (N, 2, 6)),
    ((6, N), (2, 3, N), (3, 2, N)),
)


def _shape(dims: tuple[Sym | int, ...]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def _repeated(q: Value, k: Value) -> Value:
    wide = expand(reshape(k, shape=(N, 2, 1, 3, S)), shape=(N, 2, 2, 3, S))
    return matmul(q, reshape(wide, shape=(N, 4, 3, S)))


def _that_do_nothing() -> Iterator[Statement]:
    rule = "view_that_does_nothing"
    yield stated(rule, "transpose", lambda x: transpose(x, perm=(0, 1)), typed(N, M))
    yield stated(rule, "slice", lambda x: slice_(x, starts=(0, 0), sizes=(N, M)), typed(N, M))
    yield stated(rule, "pad", lambda x: pad(x, before=(0, 0), after=(0, 0)), typed(N, M))
    yield stated(rule, "reshape", lambda x: reshape(x, shape=(N, M)), typed(N, M))
    yield stated(rule, "expand", lambda x: expand(x, shape=(N, M)), typed(N, M))
    yield stated(rule, "concat", lambda x: concat(x, axis=0), typed(N, M))
    yield stated(rule, "reverse", lambda x: reverse(x, axes=(1,)), typed(N, 1))


def _slices() -> Iterator[Statement]:
    for inner, outer in ((1, 1), (2, 3), (3, 1)):
        yield stated(
            "slice_of_slice", f"steps {inner} and {outer}",
            lambda x, a=inner, b=outer: slice_(
                slice_(x, starts=(S, 0), sizes=(K, M), steps=(a, 1)), starts=(T, 0), sizes=(D, M), steps=(b, 1)
            ),
            typed(N, M),
        )  # fmt: skip
    both = lambda x, y: concat(x, y, axis=0)  # noqa: E731
    yield stated("slice_of_concat", "first", lambda x, y: slice_(both(x, y), starts=(1, 0), sizes=(N, M)),
                 typed(N + 2, M), typed(K, M))  # fmt: skip
    yield stated("slice_of_concat", "second",
                 lambda x, y: slice_(both(x, y), starts=(N + 1, 1), sizes=(K, 3), steps=(1, 2)),
                 typed(N, M), typed(K + 1, M))  # fmt: skip
    yield stated("concat_of_concat", "three parts", lambda x, y, z: both(both(x, y), z),
                 typed(N, D), typed(M, D), typed(K, D))  # fmt: skip
    yield stated("concat_of_concat", "an empty part", lambda x, y, z: concat(x, y, z, axis=1),
                 typed(D, N), typed(D, 0), typed(D, M))  # fmt: skip
    yield stated("slices_put_together_again", "of rows",
                 lambda x: both(slice_(x, starts=(0, 0), sizes=(N, D)), slice_(x, starts=(N, 0), sizes=(M, D))),
                 typed(N + M, D))  # fmt: skip
    yield stated("slices_beside_each_other", "of heads", _beside, typed(N, 3, M))


def _beside(x: Value) -> Value:
    parts = [slice_(x, starts=(0, k, 0), sizes=(N, 1, M)) for k in range(3)]
    return concat(*(transpose(p, perm=(1, 0, 2)) for p in parts), axis=0)


def sinks() -> Iterator[Statement]:
    rule = "transpose_below_elementwise"
    for perm in ((1, 0), (1, 2, 0), (2, 0, 3, 1)):
        sizes = SIZES[: len(perm)]
        yield stated(rule, f"two of {perm}",
                     lambda x, y, p=perm: ew.sub(transpose(x, perm=p), transpose(y, perm=p)),
                     typed(*sizes), typed(*sizes))  # fmt: skip
    yield stated(rule, "a constant", lambda x, c: ew.add(transpose(x, perm=(0, 2, 1)), c),
                 typed(N, 4, M), typed(4), constants=[1])  # fmt: skip
    rule = "transpose_below_window"
    yield stated(rule, "slice", lambda x: slice_(
        transpose(x, perm=(2, 0, 1)), starts=(S, 1, 0), sizes=(3, M, 2), steps=(2, 1, 3)), typed(N, M, K))  # fmt: skip
    for mode in ("constant", "reflect", "edge"):
        yield stated(rule, f"pad: {mode}", lambda x, m=mode: pad(
            transpose(x, perm=(2, 0, 1)), before=(1, 0, 2), after=(0, 3, 1), mode=m),
            typed(N + 5, M + 5, K + 5))  # fmt: skip
    yield stated("transpose_below_concat", "of channels",
                 lambda x, y: concat(transpose(x, perm=(0, 2, 1)), transpose(y, perm=(0, 2, 1)), axis=1),
                 typed(N, M, K), typed(N, M, D))  # fmt: skip
    for name in ("reduce_max", "reduce_min"):
        for keeps in (False, True):
            yield stated(
                "transpose_below_reduction", f"{name}{', axes kept' if keeps else ''}",
                lambda x, f=OPERATORS[name], k=keeps: f(transpose(x, perm=(2, 0, 1)), axes=(0, 1), keepdims=k),
                typed(N, M, K),
            )  # fmt: skip
    yield stated("transpose_below_reduction", "reduce_sum of one axis",
                 lambda x: red.reduce_sum(transpose(x, perm=(0, 2, 1)), axes=(1,), keepdims=False),
                 typed(N, M, K))  # fmt: skip
    yield stated("transpose_below_reduction", "reduce_sum of two axes",
                 lambda x: red.reduce_sum(transpose(x, perm=(2, 1, 0)), axes=(0, 1), keepdims=False),
                 typed(N, M, K), arithmetic="reals")  # fmt: skip
    yield stated("move_below_whole_reduction", "transpose",
                 lambda x: red.reduce_max(transpose(x, perm=(1, 0)), axes=(0, 1), keepdims=False), typed(N, M))
    yield stated("reshape_below_elementwise", "two", lambda x, y: ew.mul(
        reshape(x, shape=(N, 6)), reshape(y, shape=(N, 6))), typed(N, 2, 3), typed(N, 2, 3))  # fmt: skip
    yield stated("reshape_below_elementwise", "a constant", lambda x, c: ew.sub(reshape(x, shape=(N, 6)), c),
                 typed(N, 2, 3), typed(6), constants=[1])  # fmt: skip
    yield stated("reshape_below_softmax", "rows", lambda x: softmax(reshape(x, shape=(6, N)), axis=1), typed(2, 3, N))
    yield stated("reshape_below_transpose", "rows and columns", lambda x: transpose(
        reshape(x, shape=(6, N, M)), perm=(0, 2, 1)), typed(2, 3, N, M))  # fmt: skip
    yield stated("reshape_below_transpose", "axes of one element", lambda x: transpose(
        reshape(x, shape=(N, 1, M)), perm=(2, 1, 0)), typed(N, M))  # fmt: skip
    yield stated("expand_below_elementwise", "rows",
                 lambda x, y: ew.add(expand(x, shape=(N, M)), y), typed(1, M), typed(M))
    yield stated("expand_below_elementwise", "one operand", lambda x: ew.tanh(expand(x, shape=(N, M))), typed(M))
    yield stated("expand_below_product", "batches",
                 lambda x, w: matmul(expand(x, shape=(N, M, K)), w), typed(1, M, K), typed(K, D))  # fmt: skip
    yield stated("expand_below_product", "rows that are merged", lambda x, w: matmul(
        reshape(expand(x, shape=(N, 3, K)), shape=(N * 3, K)), w), typed(1, 3, K), typed(K, D))  # fmt: skip
    yield stated("expand_below_transpose", "rows", lambda x: transpose(expand(x, shape=(N, M, K)), perm=(2, 0, 1)),
                 typed(M, 1))  # fmt: skip
    yield stated("expand_below_reshape", "rows that are merged", lambda x: reshape(
        expand(x, shape=(N, 3, K)), shape=(N * 3, K)), typed(1, 1, K))  # fmt: skip
    yield stated("expand_below_reshape", "columns that are split", lambda x: reshape(
        expand(x, shape=(N, 6)), shape=(N, 2, 3)), typed(6))  # fmt: skip
    yield stated("transpose_below_product", "over channels", _product_over_axis, typed(N, K, M), typed(K, D),
                 constants=[1])


def _product_over_axis(x: Value, w: Value) -> tuple[Value, Value]:
    sums = matmul(transpose(x, perm=(0, 2, 1)), w)
    return sums, transpose(sums, perm=(0, 2, 1))
