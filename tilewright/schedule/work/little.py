"""Which regions take so little of their program's time that their kernels are made quickly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from tilewright.cost.core import Source, source_of
from tilewright.cost.roofline import kernel_cycles, little_ones
from tilewright.cost.typical import typical_sizes
from tilewright.ir.core import Func, Op
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS
from tilewright.schedule.sharing.regions import Canonical
from tilewright.schedule.work.operators import OperatorCounts, bytes_of, total
from tilewright.schedule.work.regions import CountedRegion
from tilewright.target.target import Target


def little_kernels(main: Func, regions: Mapping[Op, Canonical], target: Target) -> set[Any]:
    """Of the kernels that regions of a fused graph share, the keys of those that take next to nothing of its time, for
    small sizes as for large ones.

    An operator with loops of its own is never in one of them: how long these run may depend on data."""
    sizes = typical_sizes(arg.type for arg in main.args if isinstance(arg.type, TensorType))

    @cache
    def usual(size: Sym) -> tuple[int, int]:  # the smallest and the largest value
        values = sizes.of([size])
        return values[0][0], values[-1][0]

    weights = total(bytes_of(op.result) for op in main.body.ops if op.name == "constant" and op.result.users)
    weights_from = source_of(usual(weights)[1], target)
    counts = OperatorCounts()
    alike: dict[Any, list[Op]] = {}
    for region, form in regions.items():
        alike.setdefault((form.key, tuple(form.actual().items())), []).append(region)
    cycles: dict[Any, list[float]] = {}
    uncounted = set()
    for (kernel, _), ops in alike.items():
        counted = CountedRegion(ops[0], counts)
        ends = cycles.setdefault(kernel, [0.0, 0.0])
        for k in range(len(ends)):
            ends[k] += len(ops) * _cycles(counted, target, weights_from, partial(_value, usual, k))
        if _has_own_loops(ops[0]):
            uncounted.add(kernel)
    return little_ones(cycles) - uncounted


def _cycles(region: CountedRegion, target: Target, weights: Source, evaluate: Callable[[Sym], int]) -> float:
    work = region.work(target, weights, evaluate)
    assert work is not None, "every size is known"
    return kernel_cycles(work, target, threads=1)


def _value(usual: Callable[[Sym], Sequence[int]], k: int, size: Sym) -> int:
    return usual(size)[k]


def _has_own_loops(region: Op) -> bool:
    (body,) = region.blocks
    return any(op.name in OPERATORS and OPERATORS[op.name].kind == "irregular" for op in body.ops)
