"""The text form of programs: one syntax for every level, readable as a program.

`print -> parse -> print` is a fixpoint for every program. An op without a notation of its own is written as
`y, z = name(a, b) {key=value} : type, type (block_arg: type) { ... }`. Scalar ops that are used once are
written inside of the line of their user, `y[i, j] = acc[i, j] + b[j]`, unless a statement lies between.
"""

from tilewright.ir.text.attributes import Record
from tilewright.ir.text.parser import parse_func, parse_module
from tilewright.ir.text.printer import line_of, print_block, print_func, print_module, texts_of_ops

__all__ = [
    "Record",
    "line_of",
    "parse_func",
    "parse_module",
    "print_block",
    "print_func",
    "print_module",
    "texts_of_ops",
]
