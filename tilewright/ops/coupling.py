"""Probabilities of classes from those of pairs of them."""

from __future__ import annotations

from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import irregular
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder

MOST_PASSES = 100
TOLERANCE = 0.005
"""Divided by the number of classes: how far the equations may be from holding."""


def _coupled_types(r: TensorType) -> tuple[TensorType, ...]:
    if r.rank != 3 or r.shape[1] != r.shape[2] or not r.dtype.is_float:
        raise ValueError(f"the probabilities of pairs must be [rows, classes, classes] of floats, not {r}")
    return (TensorType(r.dtype, r.shape[:2]),)


@irregular(_coupled_types)
def coupled_probabilities(t: ScalarBuilder, inputs: list[Array], outputs: list[Array]) -> None:
    """p[n, i] with r[n, i, j] close to p[n, i] / (p[n, i] + p[n, j]): the second method of Wu, Lin and Weng
    (Probability Estimates for Multi-class Classification by Pairwise Coupling, 2004). The diagonal of r is not read."""
    (r,), (p,) = inputs, outputs
    rows, classes, _ = r.shape
    with t.loop(rows, "row", "parallel") as row:
        q = t.alloc(r.dtype, (classes, classes))
        qp = t.alloc(r.dtype, (classes,))
        sums = t.alloc(r.dtype, (2,))  # p . q p, and the greatest error
        with t.loop(classes, "i") as i:
            p.store((row, i), t.const(1, r.dtype) / t.index(classes).cast(r.dtype))
            q.store((i, i), 0)
            with t.loop(classes, "j") as j:
                is_other = t.index(i).ne(t.index(j))
                term = t.select(is_other, r[row, j, i] * r[row, j, i], 0)
                total = q[i, i] + term
                q.store((i, j), t.select(is_other, -r[row, j, i] * r[row, i, j], q[i, j]))
                q.store((i, i), total)
        sums.store((1,), 1)
        limit = t.const(TOLERANCE, r.dtype) / t.index(classes).cast(r.dtype)
        with t.loop(MOST_PASSES, "round"), t.when(sums[1] >= limit):
            _check_equations(t, q, qp, sums, p, row)
            with t.when(sums[1] >= limit), t.loop(classes, "i") as i:
                change = (sums[0] - qp[i]) / q[i, i]
                p.store((row, i), p[row, i] + change)
                scale = 1 + change
                sums.store((0,), (sums[0] + change * (change * q[i, i] + 2 * qp[i])) / scale / scale)
                with t.loop(classes, "j") as j:
                    qp.store((j,), (qp[j] + change * q[i, j]) / scale)
                    p.store((row, j), p[row, j] / scale)


def _check_equations(t: ScalarBuilder, q: Array, qp: Array, sums: Array, p: Array, row: Sym) -> None:
    """q p, p . q p and the greatest difference of the two."""
    (classes,) = qp.shape
    sums.store((0,), 0)
    with t.loop(classes, "i") as i:
        qp.store((i,), 0)
        with t.loop(classes, "j") as j:
            qp.store((i,), qp[i] + q[i, j] * p[row, j])
        sums.store((0,), sums[0] + p[row, i] * qp[i])
    sums.store((1,), 0)
    with t.loop(classes, "i") as i:
        sums.store((1,), t.apply("max", sums[1], t.apply("abs", qp[i] - sums[0])))
