"""Products of narrow numbers in groups, by the instructions that the target has for them."""

from __future__ import annotations

from tilewright.codegen.cpu.kernel.lanes import memory_type, vector
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType
from tilewright.target.dots import Dot
from tilewright.target.target import Target


def instruction_for(
    target: Target, left: DType, right: DType, group: int, sums: DType, lanes: int
) -> Dot | None:
    """What multiplies groups of these dtypes, widened if need be, for `lanes` sums, whole registers of them."""
    for dot in target.dots_in(sums):
        if dot.takes(left, right) and dot.group == group and lanes % dot.calls[-1][0] == 0:
            return dot
    return None


def multiply_in_groups(dot: Dot, sums: Reg, left: Reg, right: Reg) -> Reg:
    """`sums` plus the products of each lane's groups in `left` and `right`, register by register."""
    left, right = _widened(left, dot.left), _widened(right, dot.right)
    if dot.left == dot.right or dot.turned:
        # An operand in memory, or broadcast from there, can only be the last one. Left ones are broadcast: alone, they
        # cost no register then. Products commute, and instructions take both operands alike.
        left, right = right, left
    found: list[Reg] = []
    first = 0
    while first < sums.lanes:
        lanes, name = next((n, name) for n, name in dot.calls if n <= sums.lanes - first)
        factors = [_operand(x.part(first * dot.group, lanes * dot.group)) for x in (left, right)]
        before = sums.part(first, lanes)
        if dot.scalable:
            made = _of_whole_registers(name, before, left.part(first * dot.group, lanes * dot.group),
                                       right.part(first * dot.group, lanes * dot.group))  # fmt: skip
        else:
            operands = ", ".join([before.typed, *factors] if dot.accumulates else factors)
            made = sums.text.reg(sums.dtype, lanes, f"call {before.type} @{name}({operands})")
        found.append(made if dot.accumulates else before + made)
        first += lanes
    return joined(found)


def _of_whole_registers(name: str, *operands: Reg) -> Reg:
    """A call of an intrinsic of SVE, the first operand of which is as its result: the vectors are whole registers, as
    long as functions say (`vscale_range`)."""
    text, first = operands[0].text, operands[0]
    scale, scaled = first.lanes // 4, []
    for x in operands:
        element, lanes = memory_type(x.dtype), x.lanes // scale
        type, suffix = f"<vscale x {lanes} x {element}>", f"nxv{lanes}{element}.v{x.lanes}{element}"
        whole = text.emit(f"call {type} @llvm.vector.insert.{suffix}({type} poison, {x.typed}, i64 0)")
        scaled.append(f"{type} {whole}")
    type = scaled[0].rpartition(" ")[0]
    made = text.emit(f"call {type} @{name}({', '.join(scaled)})")
    element = memory_type(first.dtype)
    suffix = f"v{first.lanes}{element}.nxv4{element}"
    return text.reg(first.dtype, first.lanes, f"call {first.type} @llvm.vector.extract.{suffix}({type} {made}, i64 0)")


def _operand(x: Reg) -> str:
    """As intrinsics take it: bfloat16 is an integer in registers everywhere else."""
    if x.dtype is not dt.bf16:
        return x.typed
    type = vector("bfloat", x.lanes)
    return f"{type} {x.text.emit(f'bitcast {x.typed} to {type}')}"


def _widened(x: Reg, dtype: DType) -> Reg:
    """Integers in `dtype`, which holds them: the machine widens them when it loads them."""
    return x if x.dtype is dtype else x.convert("sext" if x.dtype.kind == "int" else "zext", dtype)


def groups_of(vectors: Reg, group: int) -> Reg:
    """`group` vectors, one after the other in a register, as groups: one element of each vector."""
    lanes = vectors.lanes // group
    return vectors.shuffled(None, [k * lanes + lane for lane in range(lanes) for k in range(group)])


def joined(parts: list[Reg]) -> Reg:
    """Registers one after the other, all of the same lanes, a power of two of them."""
    while len(parts) > 1:
        both = range(2 * parts[0].lanes)
        parts = [a.shuffled(b, both) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
