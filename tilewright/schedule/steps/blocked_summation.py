"""Deep sums in parts: one running sum of many terms loses digits that a sum of shorter sums keeps.

A term that meets a running sum is rounded to the last place of the latter. Once some terms are large, each of the many
that follow loses as much as the largest did; a part begins from zero again.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.types import product
from tilewright.loops.edit import extent_of
from tilewright.loops.storage.rfactor import Rfactored
from tilewright.schedule.trace import Schedule

PART = 256
"""Terms of a part. Adding one up takes less than a hundredth of the time of its products; parts of 128 terms take
twice that and are little more exact."""

LEAST_PART = PART // 4
"""Terms of a part at least where all are of one length: parts of two lengths are two nests of loops, and what is kept
for both is more than the registers hold."""

LONGEST_PART = 3 * PART // 2
"""Terms up to which a sum stays whole."""


def whole_part(terms: int) -> int:
    """The longest part of a sum of so many terms of which all parts are as long."""
    return max(d for d in range(1, min(terms, LONGEST_PART) + 1) if terms % d == 0)


def is_deep(reduction: Sequence[Op]) -> bool:
    """Whether a sum over these loops is known to be long enough for parts."""
    terms = product(extent_of(o) for o in reduction)
    return terms.is_const and terms.value > LONGEST_PART


def sum_in_parts(s: Schedule, sums: Value, reduction: Sequence[Op]) -> list[Rfactored]:
    """Sum into `sums` in parts of about `PART` terms; `reduction` are the loops of a deep sum from the outermost."""
    loop, iterations = _part(reduction)
    parts = s.split(loop, iterations, tail="peel")
    return [s.rfactor(sums, o) for o in (parts.inner, parts.tail) if o is not None]


def _part(reduction: Sequence[Op]) -> tuple[Op, int]:
    """The loop to split, and its iterations that make one part: a divisor of its extent where there is a fair one."""
    within = 1
    for loop in reversed(reduction):
        extent = extent_of(loop).value
        if within * extent > LONGEST_PART:
            break
        within *= extent
    else:
        raise ScheduleError(f"a sum of {within} terms is not deep")
    most = max(1, LONGEST_PART // within)
    divisor = max(d for d in range(1, most + 1) if extent % d == 0)
    is_fair = divisor * within >= LEAST_PART or divisor == most
    return loop, divisor if is_fair else max(1, PART // within)
