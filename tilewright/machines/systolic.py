"""A systolic array with an output-stationary dataflow, as Gemmini generates it (Genc et al., DAC 2021): sums stay in
its elements while operands stream through it from a scratchpad of banks, and leave through an accumulator memory.

Sizes are those of Gemmini's default: 16 x 16 elements, a scratchpad of 256 KB in 4 banks, of which rows and columns of
a product take two each, an accumulator of 64 KB; transfers of 16 bytes a cycle. They are no measurement of it.
"""

from __future__ import annotations

from tilewright.machines.families import matrix_unit
from tilewright.target.machine import GLOBAL, Accelerator, Memory, Route, ScalarUnit, VectorUnit

KB = 1 << 10

SIDE = 16
"""Rows and columns of the array, through which one element of the depth streams in a cycle."""


def _way(source: str, target: str, queue: str, cycles: float = 1, start: int = 40, fills: bool = False) -> Route:
    """Rows of the scratchpad, one after the other."""
    return Route(source, target, queue, SIDE, cycles, start, partial=True, fills=fills)


SIMPLE = ("add", "sub", "mul", "min", "max", "round", "select", "lt", "gt", "le", "ge", "eq", "neg", "abs")
OPERATIONS = {**dict.fromkeys(SIMPLE, 1), **dict.fromkeys(("div", "exp", "tanh"), 16)}
LANES = dict.fromkeys(("i8", "u8", "f16", "i32", "f32", "bool"), SIDE)
WHOLE, HALVES = (
    matrix_unit(
        name, (f"{a} rows", f"{a} columns", f"{c} accumulator"), queue="execute", tile=(SIDE, SIDE, 1),
        most=(256, 256, 4096),
    )
    for name, a, c in (("matmul_i8", "i8", "i32"), ("matmul_f16", "f16", "f32"))
)  # fmt: skip

SYSTOLIC = Accelerator(
    "systolic16",
    memories=(
        GLOBAL,
        Memory("rows", 128 * KB, SIDE),
        Memory("columns", 128 * KB, SIDE),
        Memory("accumulator", 64 * KB, 4 * SIDE),
        Memory("line", 32 * KB, 4 * SIDE),
    ),
    intrinsics=(*WHOLE, *HALVES),
    units=(VectorUnit("scale", ("line",), LANES, OPERATIONS, "store", across=SIDE),),
    routes=(
        _way("global", "rows", "load", fills=True),
        _way("global", "columns", "load", fills=True),
        _way("global", "line", "load", fills=True),
        _way("accumulator", "line", "store", cycles=0.25, start=0),
        _way("line", "global", "store"),
    ),
    scalar=ScalarUnit(operation=1, load=3, store=2, issue=2),
)
"""int8 into int32 sums and float16 into float32 sums. What follows a product, activations and scales, is done on the
way out of the accumulator, row by row, on the queue that stores."""
