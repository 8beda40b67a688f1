"""Which instructions compute with floating-point numbers.

Those that make, compare, round or convert such numbers do, and calls of functions that do. What moves, mixes or
combines bits does not, whatever its name says: LLVM takes `vmovups`, `vshufps` or `vblendps` for integers, too, where
they are shorter, and on AArch64 `fneg`, which flips the highest bit as `xorps` does, for constants.
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
_ARM = re.compile(r"f(?!mov$|neg$|abs$)[a-z]\w*|[su]cvtf|bf(?!i$|xil$|m$|c$)\w+|fjcvtzs")
_FUNCTION = re.compile(  # of the mathematical library, and of compilers for machines without floats
    r"_{0,2}(?:(?:exp|exp2|exp10|expm1|log|log2|log10|log1p|pow|sqrt|cbrt|sin|cos|tan|asin|acos|atan|atan2|sinh|cosh|tanh"
    r"|asinh|acosh|atanh|erf|erfc|fmod|fma|fmin|fmax|floor|ceil|round|trunc|rint|nearbyint|roundeven|ldexp|frexp"
    r"|hypot|tgamma|lgamma)[fl]?|(?:add|sub|mul|div|neg|pow[sdtx]i)[hsdtx]f\d?|(?:eq|ne|lt|le|gt|ge|cmp|unord)[sdtx]f2"
    r"|(?:extend|trunc)[hsdtxb]f[hsdtxb]f2|fix(?:uns)?[hsdtx]f[sdt]i|float(?:un)?[sdt]i[hsdtxb]f|gnu_\w+_ieee)"
)
_CALLS = frozenset({"call", "callq", "bl", "b", "jmp"})
_COMPUTING: Mapping[str, re.Pattern[str]] = MappingProxyType({"x86_64": _X86, "aarch64": _ARM})


def check_known(target: Target) -> str:
    """The architecture, whose instructions must be known."""
    if target.arch not in _COMPUTING:
        raise UnsupportedError(f"which instructions of {target.arch} compute with floats is not known")
    return target.arch


def floating_point_instructions(text: str, target: Target) -> list[Instruction]:
    """The instructions of an assembler text that compute with floats, in order; UnsupportedError for a target whose
    instructions are not known."""
    computing = _COMPUTING[check_known(target)]
    return [
        instruction
        for function in parse_assembly(text)
        for block in function.blocks
        for instruction in block.instructions
        if computing.fullmatch(instruction.mnemonic) or _calls_function_of_floats(instruction)
    ]


def _calls_function_of_floats(instruction: Instruction) -> bool:
    if instruction.mnemonic not in _CALLS or len(instruction.operands) != 1:
        return False
    symbol = instruction.operands[0].lstrip("*").partition("@")[0].partition("(")[0]
    return _FUNCTION.fullmatch(symbol) is not None
