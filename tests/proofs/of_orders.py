"""What is stated of rules that move transposes, for each order of up to four axes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations

from tests.proofs.statement import Statement, stated, typed
from tilewright.ir.core import Value
from tilewright.ir.sym import var
from tilewright.ops import elementwise as ew
from tilewright.ops.define import OPERATORS
from tilewright.ops.view import concat, expand, pad, slice_, transpose

SIZES = tuple(var(name) for name in "nmkd")
BEGINS = tuple(var(name) for name in ("a", "b", "c", "e"))
"""Places where slices begin, and elements that are added before."""

Perm = tuple[int, ...]


def orders() -> Iterator[Statement]:
    for rank in range(2, 5):
        for perm in list(permutations(range(rank)))[1:]:
            yield from _of_order(perm)


def _of_order(perm: Perm) -> Iterator[Statement]:
    rank = len(perm)
    sizes = SIZES[:rank]
    whole, many = typed(*sizes), {"is_quick": False}

    def moved(x: Value) -> Value:
        return transpose(x, perm=perm)

    yield stated(
        "transpose_below_elementwise", f"{perm}", lambda x, y: ew.sub(moved(x), moved(y)), whole, whole, **many
    )
    yield stated(
        "transpose_below_elementwise", f"{perm} with a constant", lambda x, c: ew.sub(moved(x), c),
        whole, typed(*(sizes[k] for k in perm[1:])), constants=[1], **many,
    )  # fmt: skip
    steps = (2, 1, 3, 1)[:rank]
    yield stated(
        "transpose_below_window", f"slice of {perm}",
        lambda x: slice_(moved(x), starts=BEGINS[:rank], sizes=(2, 3, 4, 5)[:rank], steps=steps), whole, **many,
    )  # fmt: skip
    yield stated(
        "transpose_below_window", f"pad of {perm}",
        lambda x: pad(moved(x), before=BEGINS[:rank], after=(1, 0, 2, 0)[:rank]), whole, **many,
    )  # fmt: skip
    for axis in range(rank):
        other = [d + 1 if k == perm[axis] else d for k, d in enumerate(sizes)]
        yield stated(
            "transpose_below_concat", f"{perm} along axis {axis}",
            lambda x, y, a=axis: concat(moved(x), moved(y), axis=a), whole, typed(*other), **many,
        )  # fmt: skip
    for count in range(1, rank):
        for axes in combinations(range(rank), count):
            for keeps in (False, True):
                yield stated(
                    "transpose_below_reduction", f"axes {axes} of {perm}{', kept' if keeps else ''}",
                    lambda x, a=axes, k=keeps: OPERATORS["reduce_max"](moved(x), axes=a, keepdims=k), whole, **many,
                )  # fmt: skip
    yield stated(
        "expand_below_transpose", f"{perm}", lambda x: moved(expand(x, shape=sizes)),
        typed(*(1 if k % 2 else d for k, d in enumerate(sizes))), **many,
    )  # fmt: skip
