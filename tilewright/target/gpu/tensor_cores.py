"""Tensor cores of NVIDIA's GPUs: instructions that the 32 threads of a warp execute together (PTX ISA, sections on
`mma`, `ldmatrix` and `cp.async`).

A warp is 8 rows of 4 threads. Each element of a fragment is in a register of one of them: which one, the section
"matrix fragments for mma.m16n8k16" says. For sums that is written in the shape of their buffers, [.., 2, 8, .., 4, 2]
for 16 rows and 8 columns, where 8 is the row of the thread and 4 its place in that; fragments of operands are touched
by these instructions alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.target.machine import GLOBAL, Intrinsic, Memory, Route

WARP_ROW, WARP = "warp_row", "warp"
"""Levels of a group whose warps are rows of warps; within a warp there are rows of threads."""
LANE_ROWS, LANES = 8, 4
"""Rows of a warp, and threads in each."""
LEFT, RIGHT = "left", "right"
"""Memories of a warp: fragments of operands, [rows, depth] and [columns, depth]."""
ROWS, COLUMNS = 16, 8
"""Of the sums of one instruction."""
COPY_BYTES = 16
"""What a thread copies at a time beside other work, and the bytes of a row of `ldmatrix`."""

FLOAT_DEPTH = 16
"""Products of 16-bit floats that one instruction adds up for each sum."""
MOST_PADDED = 2
"""How many times as many products, with those of zeros, are worth a tensor core."""
PART_BYTES = 64
"""Bytes of a row of an operand that come into shared memory at a time, or half of them: two parts of each operand of
the largest tile, and what is between their rows, take 37 of the 48 KB that a group has without asking for more."""


@dataclass(frozen=True)
class TensorCore:
    """The instruction for operands and sums of these dtypes, which multiplies `depth` elements of each row and column;
    how fragments of both operands are loaded from rows in shared memory that lie along the depth, and across ("": there
    is no instruction for that)."""

    operands: str
    sums: str
    depth: int
    multiply: str
    loads: tuple[str, str]
    loads_across: tuple[str, str]

    @property
    def pack(self) -> str:
        """What makes a left fragment of what threads own: each already has what it needs of that."""
        return f"pack_{LEFT}_{self.operands}" if self.depth == FLOAT_DEPTH else ""

    @property
    def bytes(self) -> int:
        """Of an element of the operands."""
        return 32 // self.depth


def _multiply(core: TensorCore) -> Intrinsic:
    a, b = (f"{core.sums}({x})" if core.operands != core.sums else x for x in ("a[8*h + i, l]", "b[2*j + u, l]"))
    body = f"""
    kernel @{core.multiply}(a: {LEFT} {core.operands}[16, {core.depth}], b: {RIGHT} {core.operands}[8, {core.depth}],
        c: owned {core.sums}[2, 8, 4, 2] strides(p, q, r, 1)) dims(p, q, r) with {{outputs=1}} {{
      for h in 0..2 {{ for i in 0..8 {{ for j in 0..4 {{ for u in 0..2 {{ for l in 0..{core.depth} {{
        c[h, i, j, u] += {a} * {b}
      }} }} }} }} }}
      return
    }}
    """
    return Intrinsic(core.multiply, body)


def _load(name: str, core: TensorCore, memory: str, strides: str) -> Intrinsic:
    body = f"""
    kernel @{name}(x: shared {core.operands}[16, {core.depth}] strides({strides}),
        y: {memory} {core.operands}[16, {core.depth}]) dims(s) with {{outputs=1}} {{
      for i in 0..16 {{ for l in 0..{core.depth} {{ y[i, l] = x[i, l] }} }}
      return
    }}
    """
    return Intrinsic(name, body, limits=(f"s % {COPY_BYTES // core.bytes} == 0",))


def _core(operands: str, sums: str, depth: int) -> TensorCore:
    loads = (f"ldmatrix_{LEFT}_{operands}", f"ldmatrix_{RIGHT}_{operands}")
    across = tuple(f"{name}_trans" if depth == FLOAT_DEPTH else "" for name in loads)
    return TensorCore(operands, sums, depth, f"mma_{operands}", loads, (across[0], across[1]))


def _pack(core: TensorCore) -> Intrinsic:
    body = f"""
    kernel @{core.pack}(x: owned {core.operands}[2, 8, 2, 4, 2] strides(p, q, r, s, 1),
        y: {LEFT} {core.operands}[16, 16]) dims(p, q, r, s) with {{outputs=1}} {{
      for h in 0..2 {{ for i in 0..8 {{ for c in 0..2 {{ for j in 0..4 {{ for u in 0..2 {{
        y[8*h + i, 8*c + 2*j + u] = x[h, i, c, j, u]
      }} }} }} }} }}
      return
    }}
    """
    return Intrinsic(core.pack, body)


TENSOR_CORES = (
    _core("f16", "f32", FLOAT_DEPTH), _core("bf16", "f32", FLOAT_DEPTH), _core("i8", "i32", 2 * FLOAT_DEPTH)
)  # fmt: skip
TF32 = _core("f32", "f32", FLOAT_DEPTH // 2)
"""Products of float32 of which both operands are rounded to 10 bits behind the point (TF32). Its body says nothing of
that: machines have it where they are told to."""


def intrinsics_of(core: TensorCore) -> tuple[Intrinsic, ...]:
    made = [_multiply(core), *([_pack(core)] if core.pack else [])]
    for memory, along, across in zip((LEFT, RIGHT), core.loads, core.loads_across, strict=True):
        made.append(_load(along, core, memory, "s, 1"))
        if across:
            made.append(_load(across, core, memory, "1, s"))
    return tuple(made)


INTRINSICS = tuple(intrinsic for core in TENSOR_CORES for intrinsic in intrinsics_of(core))
FRAGMENTS = tuple(Memory(name, 32 << 10, 16, WARP, constant_sizes=True) for name in (LEFT, RIGHT))
ASYNC = Route(GLOBAL.name, "shared", "async", COPY_BYTES, fills=True)
"""Copies of 16 bytes each, which all threads of a group start and go on beside what they do (`cp.async`)."""


def tensor_core(
    left: str, right: str, sums: str, cores: Sequence[TensorCore] = TENSOR_CORES
) -> TensorCore | None:
    """The one for operands of two dtypes and sums of a third."""
    return next((c for c in cores if (c.operands, c.operands, c.sums) == (left, right, sums)), None)


def is_deep(depth: int, multiple: int) -> bool:
    """Whether a sum of so many products may have zeros added to be of multiples of the depth of a tensor core."""
    return 0 < -(-depth // multiple) * multiple <= MOST_PADDED * depth
