"""Families of intrinsics, each by one call."""

from __future__ import annotations

from tilewright.target.machine import Intrinsic


def matrix_unit(
    name: str, operands: tuple[str, str, str], *, queue: str, tile: tuple[int, int, int], most: tuple[int, int, int]
) -> tuple[Intrinsic, Intrinsic]:
    """A unit of matrix products, and what sets its sums to zero.

    `operands` are dtype and memory of the left and the right matrix and the sums, as in "f16 l0a". A run multiplies
    [m, k] by [k, n], m, n and k up to `most`; each `tile` of products takes one cycle, and so does each tile of sums
    that is set to zero. What does not fill a tile takes as long as one.
    """
    (a, left), (b, right), (c, sums) = (text.split() for text in operands)
    tiles = [f"(({d} + {t - 1}) // {t})" if t > 1 else d for d, t in zip("mnk", tile, strict=True)]
    widen = [f"{c}(%s)" if t != c else "%s" for t in (a, b)]
    product = " * ".join(w % x for w, x in zip(widen, ("a[i, l]", "b[l, j]"), strict=True))
    multiply = f"""
    kernel @{name}(a: {left} {a}[m, k] strides(sa, ta), b: {right} {b}[k, n] strides(sb, tb),
        c: {sums} {c}[m, n] strides(sc, 1)) dims(m, n, k, sa, ta, sb, tb, sc) with {{outputs=1}} {{
      for i in 0..m {{ for l in 0..k {{ for j in 0..n {{ c[i, j] += {product} }} }} }}
      return
    }}
    """
    clear = f"""
    kernel @{name}_clear(c: {sums} {c}[m, n] strides(sc, 1)) dims(m, n, sc) with {{outputs=1}} {{
      for i in 0..m {{ for j in 0..n {{ c[i, j] = {"0.0" if c.startswith(("f", "bf")) else "0"} }} }}
      return
    }}
    """
    sizes = {d: (1, n) for d, n in zip("mnk", most, strict=True)}
    return (
        Intrinsic(name, multiply, queue, sizes, cycles=" * ".join(tiles)),
        Intrinsic(f"{name}_clear", clear, queue, {d: sizes[d] for d in "mn"}, cycles=" * ".join(tiles[:2])),
    )
