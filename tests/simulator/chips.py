"""Machines of many kinds, each nothing but facts: what a chip engineer may bring. No strategy knows any of them."""

from __future__ import annotations

from tilewright.machines.families import matrix_unit
from tilewright.target.machine import GLOBAL, Accelerator, Intrinsic, Level, Memory, Route, VectorUnit

KB = 1 << 10
LANES = {"f32": 16, "i32": 16, "f16": 32, "i16": 32, "i8": 64, "u8": 64}
SIMPLE = dict.fromkeys(("add", "mul", "sub", "max", "min"), 1)


def ways(memory: str, *, unit: int = 64) -> tuple[Route, Route]:
    return (
        Route("global", memory, "dma", unit=unit, cycles=2, start=50, partial=True, fills=True),
        Route(memory, "global", "dma", unit=unit, cycles=2, start=50, partial=True),
    )


BLOCKS = Accelerator(
    "blocks",
    memories=(GLOBAL, Memory("pad", 64 * KB, 128)),
    intrinsics=(
        Intrinsic(
            "mm8",
            """
            kernel @mm8(a: pad i8[8, 8] strides(sa, 1), b: pad i8[8, 8] strides(sb, 1),
                c: pad i32[8, 8] strides(sc, 1)) dims(sa, sb, sc) with {outputs=1} {
              for i in 0..8 { for j in 0..8 { for l in 0..8 { c[i, j] += i32(a[i, l]) * i32(b[j, l]) } } }
              return
            }
            """,
            "engine",
            cycles="8",
        ),
    ),
    units=(VectorUnit("simd", ("pad",), LANES, SIMPLE, "simd", start=4),),
    routes=ways("pad"),
)
"""One memory for all, blocks of one size, weights that lie turned, and nothing that sets sums to zero."""

SHORT = Accelerator(
    "short",
    memories=(GLOBAL, Memory("pad", 32 * KB, 64)),
    intrinsics=matrix_unit("mm", ("f32 pad", "f32 pad", "f32 pad"), queue="engine", tile=(4, 4, 4), most=(8, 16, 32)),
    units=(VectorUnit("simd", ("pad",), LANES, SIMPLE, "simd"),),
    routes=ways("pad"),
)
"""Runs that are shorter than the tiles that its memory has room for."""

OUTER = Accelerator(
    "outer",
    memories=(GLOBAL, Memory("z", 32 * KB, 64), Memory("za", 16 * KB, 64)),
    intrinsics=(
        Intrinsic(
            "mopa",
            "kernel @mopa(a: z f32[16] strides(s), b: z f32[16], c: za f32[16, 16] strides(sc, 1)) dims(s, sc)"
            " with {outputs=1} { for i in 0..16 { for j in 0..16 { c[i, j] += a[i] * b[j] } }\n return\n }",
            "outer",
            cycles="1",
        ),
        Intrinsic(
            "zero",
            "kernel @zero(c: za f32[16, 16] strides(sc, 1)) dims(sc) with {outputs=1} {"
            " for i in 0..16 { for j in 0..16 { c[i, j] = 0.0 } }\n return\n }",
            "outer",
        ),
    ),
    units=(VectorUnit("simd", ("z",), {"f32": 4}, SIMPLE, "simd"),),
    routes=(*ways("z"), Route("za", "z", "out", unit=64, partial=True)),
)
"""A product of two vectors is added to a tile of sums, which leaves by another memory."""

ROWS = Accelerator(
    "rows",
    memories=(GLOBAL, Memory("pad", 32 * KB, 64)),
    intrinsics=(
        Intrinsic(
            "gemv",
            "kernel @gemv(a: pad f32[m, k] strides(sa, 1), x: pad f32[k] strides(sx), y: pad f32[m] strides(sy))"
            " dims(m, k, sa, sx, sy) with {outputs=1} { for i in 0..m { for l in 0..k { y[i] += a[i, l] * x[l] } }"
            "\n return\n }",
            "engine",
            {"m": (1, 64), "k": (4, 256)},
            ("k % 4 == 0",),
            "m * ((k + 31) // 32)",
        ),
    ),
    units=(VectorUnit("simd", ("pad",), LANES, SIMPLE, "simd"),),
    routes=ways("pad"),
)
"""A matrix by a vector, of depths that are multiples of four."""

LANED = Accelerator(
    "laned",
    memories=(GLOBAL, Memory("pad", 32 * KB, 64)),
    units=(VectorUnit("simd", ("pad",), LANES, SIMPLE, "simd", start=2),),
    routes=ways("pad"),
)
"""A vector unit alone."""

APART = Accelerator(
    "apart",
    memories=(GLOBAL, Memory("left", 8 * KB, 64), Memory("right", 8 * KB, 64), Memory("sums", 8 * KB, 64)),
    intrinsics=matrix_unit("mm", ("f32 left", "f32 right", "f32 sums"), queue="mm", tile=(8, 8, 1), most=(64, 64, 64)),
    routes=(
        Route("global", "left", "in", unit=32, partial=True, fills=True),
        Route("global", "right", "in2", unit=32, partial=True, fills=True),
        Route("sums", "global", "out", unit=32, partial=True),
    ),
)
"""No vector unit: sums leave as they are, and the scalar unit does what follows."""

CORES = Accelerator(
    "cores",
    memories=(GLOBAL, Memory("pad", 4 * KB, 64, "core"), Memory("acc", 1 * KB, 64, "core")),
    levels=(Level("core", 2),),
    intrinsics=(
        Intrinsic(
            "mma",
            """
            kernel @mma(a: pad f32[4, 4] strides(sa, 1), b: pad f32[4, 4] strides(sb, 1),
                c: acc f32[4, 4] strides(sc, 1)) dims(sa, sb, sc) with {outputs=1} {
              for i in 0..4 { for j in 0..4 { for l in 0..4 { c[i, j] += a[i, l] * b[l, j] } } }
              return
            }
            """,
            queue="tensor",
            limits=("sa % 4 == 0", "sb % 4 == 0"),
            cycles="4",
        ),
    ),
    units=(VectorUnit("simd", ("pad", "acc"), {"f32": 2}, SIMPLE, "simd"),),
    routes=(*ways("pad", unit=16), Route("acc", "pad", "out", unit=16, partial=True)),
)
"""The toy of `tests/machines/toy.py` on the kit: two cores with memories and a matrix unit each."""

CHIPS = {chip.name: chip for chip in (BLOCKS, SHORT, OUTER, ROWS, LANED, APART, CORES)}
UNIT_OF = {"blocks": "engine", "short": "engine", "outer": "outer", "rows": "engine", "laned": "simd", "apart": "mm",
           "cores": "tensor"}
"""The queue on which each of them multiplies."""
