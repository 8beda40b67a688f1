"""Instructions of x86-64 in AT&T's spelling: sources first, the destination last."""

from __future__ import annotations

import re

from tilewright.asm.effects import Described, Effects
from tilewright.asm.parse import Instruction

_REGISTER = re.compile(r"%([xyz])mm(\d+)")
_BITS = {"x": 128, "y": 256, "z": 512}
_STACK = re.compile(r"\(%rsp\b")
_CONSTANT = re.compile(r"\.?LCPI\d+_\d+.*\(%rip\)")
_MULTIPLY_ADD = re.compile(r"vfn?m(?:add|sub)\w*|vpdp\w+|vdpbf16ps")
_SINGLE = re.compile(r"v?(?:fn?m(?:add|sub)\d+|add|sub|mul|div|min|max|sqrt|mov)?s([sd])")
_MOVE = re.compile(
    r"v?(?:mov(?:[au]p[sd]|dq[au](?:\d+)?|s[sd]|[dq]|ntp[sd]|ntdq)|p?maskmov\w+|lddqu|movntdqa?)"
)
_BROADCAST = re.compile(r"vp?broadcast\w+")
_LANE = re.compile(r"v?(?:pinsr\w|pextr\w|insertps|extractps|mov[hl]p[sd])")
_NO_VECTOR_UNIT = re.compile(r"vzeroupper|vzeroall")


def describe(instruction: Instruction) -> Described:
    """The effects of an instruction of x86-64."""
    mnemonic, operands = instruction.mnemonic, instruction.operands
    calls, branches = int(mnemonic.startswith("call")), int(instruction.is_branch)
    kinds = [_BITS[kind] for operand in operands for kind, _ in _REGISTER.findall(operand)]
    if not kinds or _NO_VECTOR_UNIT.fullmatch(mnemonic):
        return Described(Effects(1, calls=calls, branches=branches))
    memory = next((operand for operand in operands if "(" in operand), "")
    gather, scatter = "gather" in mnemonic, "scatter" in mnemonic
    stores = bool(memory) and memory == operands[-1] and not mnemonic.startswith(("vcmp", "vucomi"))
    lane = bool(memory) and _LANE.fullmatch(mnemonic) is not None
    broadcast = bool(memory) and (_BROADCAST.fullmatch(mnemonic) is not None or "{1to" in memory)
    reads = bool(memory) and not (stores or lane or gather or scatter)
    moves = _MOVE.fullmatch(mnemonic) or (memory and (_BROADCAST.fullmatch(mnemonic) or stores or lane))
    adds = _MULTIPLY_ADD.fullmatch(mnemonic) is not None
    effects = Effects(
        instructions=1,
        multiply_adds=int(adds),
        arithmetic=int(not (moves or gather or scatter)),
        loads=int(reads and not broadcast),
        broadcasts=int(reads and broadcast),
        constants=int(reads and _CONSTANT.search(memory) is not None),
        stores=int(stores and not (scatter or lane)),
        spills=int((reads or stores) and _STACK.search(memory) is not None),
        gathers=int(gather),
        scatters=int(scatter),
        lane_moves=int(lane),
    )
    written = _REGISTER.match(operands[-1])
    return Described(effects, _bits(mnemonic, kinds), written[2] if written else "")


def _bits(mnemonic: str, kinds: list[int]) -> int:
    single = _SINGLE.fullmatch(mnemonic)
    if single:
        return 32 if single[1] == "s" else 64
    return max(kinds)
