"""A neural processor of the Da Vinci kind: a cube of multipliers, a vector unit and a scalar unit around buffers.

Sizes of buffers and widths of ways are of the order of those that Huawei gave for the Ascend 910's core (Hot Chips 31,
2019): they are no measurement of it. A core has L1 for operands, L0A and L0B before the cube, L0C for its sums, and the
unified buffer for vectors.
"""

from __future__ import annotations

from tilewright.machines.families import matrix_unit
from tilewright.target.machine import GLOBAL, Accelerator, Events, Memory, Route, ScalarUnit, VectorUnit

KB = 1 << 10

SIMPLE = ("add", "sub", "mul", "min", "max", "abs", "neg", "and", "or", "xor", "not", "eq", "ne", "lt", "le", "gt",
          "ge", "select", "floor", "ceil", "round", "trunc", "sign", "shl", "shr")  # fmt: skip
SLOW = ("div", "sqrt", "rsqrt", "exp", "log")
SLOWEST = ("tanh", "sigmoid", "erf", "expm1", "log1p", "pow")
OPERATIONS = {**dict.fromkeys(SIMPLE, 1), **dict.fromkeys(SLOW, 4), **dict.fromkeys(SLOWEST, 16)}
LANES = {"f16": 128, "f32": 64, "i32": 64, "i16": 128, "i8": 256, "u8": 256, "bool": 256}


def _route(source: str, target: str, queue: str, bytes: int, start: int = 8, fills: bool = False) -> Route:
    """A way of so many bytes a cycle, in blocks of 32."""
    return Route(source, target, queue, 32, 32 / bytes, start, partial=True, fills=fills)


def npu(columns: int = 16) -> Accelerator:
    """A core whose cube has 16 rows, 16 steps of the depth and so many columns: float16 into float32 sums, int8 into
    int32 sums."""
    floats, whole = (
        matrix_unit(name, (f"{a} l0a", f"{a} l0b", f"{c} l0c"), queue="cube", tile=(16, columns, 16), most=(1024,) * 3)
        for name, a, c in (("mmad", "f16", "f32"), ("mmad_i8", "i8", "i32"))
    )
    return Accelerator(
        f"npu{columns}",
        memories=(
            GLOBAL,
            Memory("l1", 1024 * KB, 64),
            Memory("l0a", 64 * KB, 64),
            Memory("l0b", 64 * KB, 64),
            Memory("l0c", 256 * KB, 64),
            Memory("ub", 256 * KB, 64),
        ),
        intrinsics=(*floats, *whole),
        units=(VectorUnit("vector", ("ub",), LANES, OPERATIONS, "vector", across=7, start=4),),
        routes=(
            _route("global", "l1", "mte2", 256, start=32, fills=True),
            _route("global", "ub", "mte2", 256, start=32, fills=True),
            _route("l1", "l0a", "mte1", 1024, fills=True),
            _route("l1", "l0b", "mte1", 256, fills=True),
            _route("l0c", "ub", "fix", 512),
            _route("ub", "global", "mte3", 256, start=32),
            _route("ub", "l1", "mte3", 256),
        ),
        events=(Events("*", "*", 8),),
        scalar=ScalarUnit(operation=1, load=4, store=2, issue=1),
        clock_hz=1e9,
    )


NPU1, NPU2, NPU4, NPU8, NPU16 = (npu(n) for n in (1, 2, 4, 8, 16))
