"""Results that no cache could hold until they are read go past all caches."""

from __future__ import annotations

from tilewright.cost.data_movement import passes_caches
from tilewright.ir.core import Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import Sym
from tilewright.ir.types import product
from tilewright.loops.edit import buffer_type
from tilewright.loops.kernel_info import results_of
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


def stream_results(s: Schedule, target: Target) -> None:
    """Let outputs larger than the last cache be stored past it, as far as they are stored in whole lines; where dims
    decide their size, it is looked at when the kernel runs."""
    for output in results_of(s.func):
        type = buffer_type(output)
        condition = passes_caches(product(type.shape) * type.dtype.bytes, target)
        if not condition.is_const or condition.value:
            _stream(s, output, condition)


def _stream(s: Schedule, output: Value, condition: Sym) -> None:
    stores = [op for op in s.func.body.walk() if op.name == "store" and op.operands[-1] is output]
    reasons, streamed = [], False
    for store in stores:
        try:
            s.nontemporal(store, condition)
            streamed = True
        except ScheduleError as e:
            reasons.append(str(e))
    if reasons and not streamed:
        s.missed.append(f"{output.name} is not stored past the caches: {reasons[0]}")
