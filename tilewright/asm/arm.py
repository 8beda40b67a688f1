"""Instructions of AArch64: the destination first, except for stores."""

from __future__ import annotations

import re

from tilewright.asm.effects import Described, Effects
from tilewright.asm.parse import Instruction

_VECTOR = re.compile(r"\bv\d+\b|\bq\d+\b")
_SCALAR = re.compile(r"\b([hsd])\d+\b")
_WRITTEN = re.compile(r"\{? ?[vqhsd](\d+)\b")
_SCALAR_BITS = {"h": 16, "s": 32, "d": 64}
_STACK = re.compile(r"\[sp\b")
_CONSTANT = re.compile(r":lo12:\.?LCPI|\blCPI\w+@PAGEOFF")
_MULTIPLY_ADD = re.compile(r"fml[as]l?2?|fn?m(?:add|sub)|[us]{1,2}dot|mla|mls|[us]mmla|bf(?:dot|mmla|mlal[bt])")
_LANE = re.compile(r"\{ ?v\d+\.[bhsd] ?\}\[\d+\]")


def describe(instruction: Instruction) -> Described:
    """The effects of an instruction of AArch64."""
    mnemonic, operands = instruction.mnemonic, instruction.operands
    calls, branches = int(mnemonic in ("bl", "blr")), int(instruction.is_branch)
    text = ", ".join(operands)
    vectors, scalars = _VECTOR.findall(text), _SCALAR.findall(text)
    if not vectors and not scalars:
        return Described(Effects(1, calls=calls, branches=branches))
    loads = mnemonic.startswith("ld")
    stores = mnemonic.startswith("st")
    # a pair is two registers in one access
    count = sum(1 for operand in operands if not operand.startswith(("[", "#"))) if loads or stores else 0
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
    bits = 128 if vectors else max(_SCALAR_BITS[kind] for kind in scalars)
    written = None if stores else _WRITTEN.match(operands[0])
    return Described(effects, bits, written[1] if written else "")
