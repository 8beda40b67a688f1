"""Instructions of AArch64, with NEON and SVE: the destination first, except for stores."""

from __future__ import annotations

import re
from functools import partial

from tilewright.asm.effects import Describe, Described, Effects
from tilewright.asm.parse import Instruction
from tilewright.target.target import Target

_VECTOR = re.compile(r"\b[vq]\d+\b")
_SCALABLE = re.compile(r"\bz\d+\b")
_PREDICATE = re.compile(r"p\d+(/[mz])?")
_SCALAR = re.compile(r"\b([hsd])\d+\b")
_WRITTEN = re.compile(r"\{? ?[vzqhsd](\d+)\b")
_SCALAR_BITS = {"h": 16, "s": 32, "d": 64}
_STACK = re.compile(r"\[sp\b")
_CONSTANT = re.compile(r":lo12:\.?LCPI|\blCPI\w+@PAGEOFF")
_MULTIPLY_ADD = re.compile(
    r"fml[as]l?2?|fn?m(?:add|sub)|[us]{1,2}dot|ml[as]|mad|fn?ml[as]|fn?m(?:ad|sb)|[us]mmla|bf(?:dot|mmla|mlal[bt])"
)
_LANE = re.compile(r"\{ ?v\d+\.[bhsd] ?\}\[\d+\]")


def describer(target: Target) -> Describe:
    """What knows the instructions of a target, whose registers of SVE are as long as its vectors."""
    return partial(_describe, vector_bits=target.vector_bits)


def _describe(instruction: Instruction, vector_bits: int) -> Described:
    mnemonic, operands = instruction.mnemonic, instruction.operands
    calls, branches = int(mnemonic in ("bl", "blr")), int(instruction.is_branch)
    text = ", ".join(operands)
    scalable, scalars = _SCALABLE.search(text) is not None, _SCALAR.findall(text)
    vectors = scalable or _VECTOR.search(text) is not None
    if not vectors and not scalars:
        return Described(Effects(1, calls=calls, branches=branches))
    loads = mnemonic.startswith("ld")
    stores = mnemonic.startswith("st")
    # a pair is two registers in one access
    registers = [o for o in operands if not o.startswith(("[", "#")) and not _PREDICATE.fullmatch(o)]
    count = len(registers) if loads or stores else 0
    lane = (loads or stores) and _LANE.search(text) is not None
    broadcast = loads and not lane and (mnemonic.startswith("ld1r") or not vectors)
    spills = (loads or stores) and _STACK.search(text) is not None
    adds = _MULTIPLY_ADD.fullmatch(mnemonic) is not None
    effects = Effects(
        instructions=1,
        multiply_adds=int(adds),
        arithmetic=int(not (loads or stores)),
        loads=count if loads and not (broadcast or lane) else 0,
        broadcasts=count if broadcast else 0,
        constants=count if loads and _CONSTANT.search(text) else 0,
        stores=count if stores and not lane else 0,
        spills=count if spills else 0,
        lane_moves=int(lane),
    )
    bits = vector_bits if scalable else 128 if vectors else max(_SCALAR_BITS[kind] for kind in scalars)
    written = None if stores else _WRITTEN.match(operands[0])
    return Described(effects, bits, written[1] if written else "")
