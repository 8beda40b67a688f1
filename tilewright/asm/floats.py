"""Which instructions compute with floating-point numbers.

Those that make, compare, round or convert such numbers do. What moves, mixes or combines bits does not, whatever its
name says: LLVM takes `vmovups` or `vblendps` for integers, too, where they are shorter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from tilewright.asm.parse import Instruction, parse_assembly
from tilewright.ir.diag import UnsupportedError
from tilewright.target.target import Target

_X86 = re.compile(
    r"v?(?:"
    r"(?:add|sub|mul|div|min|max|sqrt|rcp|rsqrt|hadd|hsub|addsub|dp|cmp\w*?|u?comi|round)[ps][sdh]"
    r"|(?:rcp14|rsqrt14|rndscale|scalef|getexp|getmant|fixupimm|range|reduce|fpclass)[ps][sdh]\w?"
    r"|fn?m(?:add|sub|addsub|subadd)\d+[ps][sdh]"
    r"|fc?m(?:add|ul)c[ps]h"
    r"|cvt\w+|dpbf16ps"
    r")|f(?!xsave|xrstor|emms)[a-z]\w*"  # and the instructions of the x87
)
_ARM = re.compile(r"f(?!mov$)[a-z]\w*|[su]cvtf|bf(?!i$|xil$|m$|c$)\w+|fjcvtzs")
_COMPUTING: Mapping[str, re.Pattern[str]] = MappingProxyType({"x86_64": _X86, "aarch64": _ARM})


def floating_point_instructions(text: str, target: Target) -> list[Instruction]:
    """The instructions of an assembler text that compute with floats, in order; UnsupportedError for a target whose
    instructions are not known."""
    computing = _COMPUTING.get(target.arch)
    if computing is None:
        raise UnsupportedError(f"the instructions of {target.arch} are not known")
    return [
        instruction
        for function in parse_assembly(text)
        for block in function.blocks
        for instruction in block.instructions
        if computing.fullmatch(instruction.mnemonic)
    ]
