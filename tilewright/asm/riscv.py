"""Instructions of RISC-V with vectors: the destination first, except for stores."""

from __future__ import annotations

import re

from tilewright.asm.effects import Describe, Described, Effects
from tilewright.asm.parse import Instruction
from tilewright.target.target import Target

_VECTOR = re.compile(r"v\d+")
_FLOAT = re.compile(r"f[ats]\d+")
_GROUP = re.compile(r"m([1248])")
_WHOLE = re.compile(r"v[ls](\d)re?\d*\.v")
"""Loads and stores of whole registers, which LLVM takes for what it keeps on the stack."""
_MULTIPLY_ADD = re.compile(
    r"v(?:w?macc|fw?n?macc|fw?n?msac|fn?madd|fn?msub|madd|nmsac|nmsub)\w*\.\w+|fn?m(?:add|sub)\.\w"
)
_MEMORY = re.compile(r"v[ls]s?e\d+\.v|v[ls][uo]xei\d+\.v|f[ls][hwd]")


def describer(target: Target) -> Describe:
    """What knows the instructions of one function of a target after the other: how many registers one works on is what
    the last `vsetvli` before it says. One on a group of registers counts as often as it has registers."""
    registers = 1

    def describe(instruction: Instruction) -> Described:
        nonlocal registers
        mnemonic, operands = instruction.mnemonic, instruction.operands
        calls, branches = int(mnemonic in ("call", "jalr", "jal")), int(instruction.is_branch)
        if mnemonic.startswith("vset"):
            groups = [int(found[1]) for operand in operands if (found := _GROUP.fullmatch(operand))]
            registers = groups[0] if groups else 1
            return Described(Effects(1))
        vector = next((o for o in operands if _VECTOR.fullmatch(o)), "") if mnemonic.startswith("v") else ""
        if not vector and not (mnemonic.startswith("f") and any(_FLOAT.fullmatch(o) for o in operands)):
            return Described(Effects(1, calls=calls, branches=branches))
        whole = _WHOLE.fullmatch(mnemonic)
        count = int(whole[1]) if whole else registers if vector else 1
        effects = _effects(mnemonic, operands, count, is_vector=bool(vector), is_spill=whole is not None)
        stores = effects.stores or effects.scatters
        return Described(effects, target.vector_bits if vector else _bits(mnemonic), "" if stores else operands[0])

    return describe


def _effects(mnemonic: str, operands: tuple[str, ...], count: int, *, is_vector: bool, is_spill: bool) -> Effects:
    memory = is_spill or _MEMORY.fullmatch(mnemonic) is not None
    loads, indexed = mnemonic[1] == "l", "xei" in mnemonic
    broadcast = memory and loads and (not is_vector or (mnemonic.startswith("vlse") and operands[-1] == "zero"))
    plain = memory and not indexed
    return Effects(
        instructions=1,
        multiply_adds=count if _MULTIPLY_ADD.fullmatch(mnemonic) else 0,
        arithmetic=0 if memory else count,
        loads=count if plain and loads and not broadcast else 0,
        broadcasts=count if broadcast else 0,
        stores=count if plain and not loads else 0,
        spills=count if is_spill or (memory and any("(sp)" in o for o in operands)) else 0,
        gathers=count if memory and indexed and loads else 0,
        scatters=count if memory and indexed and not loads else 0,
    )


def _bits(mnemonic: str) -> int:
    kind = mnemonic.rpartition(".")[2] if "." in mnemonic else mnemonic[-1]
    return {"h": 16, "s": 32, "w": 32}.get(kind, 64)
