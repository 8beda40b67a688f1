"""How instructions of warps and copies beside other work are spelled in LLVM IR."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.codegen.cpu.kernel.lanes import memory_type
from tilewright.codegen.cpu.kernel.text import Text
from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, affine_in, simplify, sym, var
from tilewright.loops.edit import address_of, extent_of, loop_var
from tilewright.loops.machine.copies import Copy
from tilewright.target.gpu.tensor_cores import COPY_BYTES, LEFT

LANE, MEMBER = var("ptx.lane"), var("ptx.member")
"""The number of a thread in its warp, and in its group."""
_ROWS = 8
"""Threads that are served together, with 16 bytes each; as many rows begin in banks of their own."""
WAIT = "call void @llvm.nvvm.cp.async.wait.all()"
WARP_BARRIER = "call void @llvm.nvvm.bar.warp.sync(i32 -1)"
_LDMATRIX = "call {{i32, i32, i32, i32}} @llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{}.b16.p3(ptr addrspace(3) {})"
_COPY = "call void @llvm.nvvm.cp.async.cg.shared.global.16{}(ptr addrspace(3) {}, ptr addrspace(1) {}{})"


@dataclass(frozen=True)
class _Mma:
    """An instruction: its name, the LLVM type of the registers of its operands, and that of its sums."""

    name: str
    operand: str
    sums: str


_MMA = {
    dt.f16: _Mma("m16n8k16.row.col.f32.f32", "<2 x half>", "float"),
    dt.bf16: _Mma("m16n8k16.row.col.bf16", "i32", "float"),
    dt.i8: _Mma("m16n8k32.row.col.s8", "i32", "i32"),
    dt.f32: _Mma("m16n8k8.row.col.tf32", "i32", "float"),
}


def multiply(text: Text, dtype: DType, left: Sequence[str], right: Sequence[str], sums: Sequence[str]) -> list[str]:
    """The sums of a thread, with the products of two fragments added: four registers of the left one, two of the right
    one, four sums."""
    mma = _MMA[dtype]
    operands = [*left, *right]
    if mma.operand != "i32":
        operands = [text.emit(f"bitcast i32 {x} to {mma.operand}") for x in operands]
    arguments = ", ".join([*(f"{mma.operand} {x}" for x in operands), *(f"{mma.sums} {x}" for x in sums)])
    results = f"{{{', '.join([mma.sums] * 4)}}}"
    made = text.emit(f"call {results} @llvm.nvvm.mma.{mma.name}({arguments})")
    return [text.emit(f"extractvalue {results} {made}, {k}") for k in range(4)]


def load_fragment(text: Text, pointer: str, dtype: DType, is_across: bool) -> list[str]:
    """Four registers of a fragment, of rows each of which one thread points to; of float32 rounded to TF32, of which
    `mma` would cut the other bits off."""
    made = text.emit(_LDMATRIX.format(".trans" if is_across else "", pointer))
    found = [text.emit(f"extractvalue {{i32, i32, i32, i32}} {made}, {k}") for k in range(4)]
    return found if dtype is not dt.f32 else [_rounded(text, word) for word in found]


def _rounded(text: Text, word: str) -> str:
    return text.emit(f"call i32 @llvm.nvvm.f2tf32.rna(float {text.emit(f'bitcast i32 {word} to float')})")


def row_of_lane(space: str, stride: Sym, bytes: int, is_across: bool) -> Sym:
    """The element, from the first of a fragment of 16 x 32 bytes on, at which the row that a thread points to begins;
    rows lie `stride` elements apart. The four matrices of 8 rows that are loaded follow each other in the order in
    which `mma` takes their registers: the left operand has both halves of its rows first, the right one both halves of
    the depth of 8 columns."""
    eighth, half = LANE % 8 + 8 * ((LANE // 8) % 2), LANE // 16
    if (space == LEFT) == is_across:  # the second matrix is further along the rows in memory
        eighth, half = LANE % 8 + 8 * (LANE // 16), (LANE // 8) % 2
    return eighth * stride + half * (COPY_BYTES // bytes)


def pieces_of(copy: Copy, threads: int) -> Iterator[tuple[dict[Sym, Sym], Sym | None]]:
    """What a thread has of a copy that all threads of a group share, by 16 bytes: the variables of its loops at the
    first element of each piece, and a number that is below 0 where there is none."""
    each = COPY_BYTES // copy.target.buffer.dtype.bytes
    last = next(o for o in reversed(copy.loops) if affine_in(address_of(copy.store), loop_var(o))[0] == 1)  # type: ignore[index]
    loops = [*(o for o in copy.loops if o is not last), last]
    extents = [extent_of(o).value for o in loops]
    extents[-1] //= each
    total = prod(extents)
    ranges = {MEMBER: (sym(0), sym(threads - 1))}
    pieces = extents[-1]
    is_by_rows = pieces < _ROWS and len(extents) > 1 and extents[-2] % _ROWS == 0
    for first in range(0, total, threads):
        number = MEMBER + first
        places, rest = {}, number
        if is_by_rows:  # the same piece of eight rows, which begin in banks of their own
            rest = (rest // (_ROWS * pieces) * _ROWS + rest % _ROWS) * pieces + rest // _ROWS % pieces
        for k, (loop, extent) in reversed(list(enumerate(zip(loops, extents, strict=True)))):
            at = rest if k == 0 else rest % extent
            places[loop_var(loop)] = simplify(at * each if loop is last else at, ranges)
            rest = rest // extent
        yield places, number - total if first + threads > total else None


def copy_piece(text: Text, target: str, source: str, bytes: str | None) -> None:
    """Begin to copy 16 bytes, of which the first `bytes` are read and the others zero; None for all of them."""
    size = "" if bytes is None else f", i32 {bytes}"
    text.line(_COPY.format("" if bytes is None else ".s", target, source, size))


def registers_of(elements: int, dtype: DType) -> int:
    """Registers of 32 bits of a thread for its part of a fragment."""
    return elements * dtype.bytes // (4 * 32)


def element_pointer(text: Text, space: int, base: str, dtype: DType, index: str) -> str:
    return text.emit(f"getelementptr {memory_type(dtype)}, ptr addrspace({space}) {base}, i64 {index}")


