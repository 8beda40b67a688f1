"""Instructions of IBM Z with the vector facility: the destination first, except for stores."""

from __future__ import annotations

import re

from tilewright.asm.effects import Described, Effects
from tilewright.asm.parse import Instruction

_VECTOR = re.compile(r"%v(\d+)")
_FLOAT = re.compile(r"%f(\d+)")
_STACK = re.compile(r"[(,]%r15\)")
_LOAD = re.compile(r"vl|vlm|vllez\w|vlbb|l[ed]y?|lde")
_BROADCAST = re.compile(r"vlrep\w")
_STORE = re.compile(r"vst|vstm|vstl|st[ed]y?")
_LANE = re.compile(r"v(?:le|ste)[bhfg]")
_MULTIPLY_ADD = re.compile(r"[vw]fn?m[as][sdx]b|vma[leoh]\w*|m[as][ed]br?")


def describe(instruction: Instruction) -> Described:
    """The effects of an instruction of IBM Z."""
    mnemonic, operands = instruction.mnemonic, instruction.operands
    calls, branches = int(mnemonic in ("brasl", "basr")), int(instruction.is_branch)
    vector = next((m for o in operands if (m := _VECTOR.fullmatch(o))), None)
    register = vector or next((m for o in operands if (m := _FLOAT.fullmatch(o))), None)
    if register is None:
        return Described(Effects(1, calls=calls, branches=branches))
    gathers, scatters = mnemonic.startswith("vge") and len(operands) == 3, mnemonic.startswith("vsce")
    lane = _LANE.fullmatch(mnemonic) is not None
    broadcast, stores = _BROADCAST.fullmatch(mnemonic) is not None, _STORE.fullmatch(mnemonic) is not None
    loads = _LOAD.fullmatch(mnemonic) is not None
    several = mnemonic in ("vlm", "vstm")
    count = _numbered(operands[1]) - _numbered(operands[0]) + 1 if several else 1
    moves = loads or stores or broadcast or lane or gathers or scatters
    effects = Effects(
        instructions=1,
        multiply_adds=int(_MULTIPLY_ADD.fullmatch(mnemonic) is not None),
        arithmetic=int(not moves),
        loads=count if loads else 0,
        broadcasts=int(broadcast),
        stores=count if stores else 0,
        spills=count if (loads or stores) and any(_STACK.search(o) for o in operands) else 0,
        gathers=int(gathers),
        scatters=int(scatters),
        lane_moves=int(lane),
    )
    single = vector is None or mnemonic.startswith("w")
    bits = (32 if re.search(r"sb$|e[by]?r?$|^l?st?e|^le", mnemonic) else 64) if single else 128
    return Described(effects, bits, "" if stores or scatters else register[1])


def _numbered(operand: str) -> int:
    found = _VECTOR.fullmatch(operand)
    return int(found[1]) if found else 0
