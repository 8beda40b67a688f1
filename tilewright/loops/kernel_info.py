"""What is known of a kernel beside its loops, as typed fields, and kernels read from text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.ir.core import Block, Func, Value
from tilewright.ir.sym import Sym
from tilewright.ir.text import parse_func
from tilewright.loops.storage.packing import Packing


@dataclass(frozen=True, kw_only=True)
class KernelInfo:
    """Facts about one kernel, in `Func.info`; a step that changes one replaces the whole (`dataclasses.replace`).

    The text form shows the fields that differ from their defaults, `kernel @k(...) dims(n) with {outputs=1}`.
    Arguments are named by their positions.
    """

    outputs: int
    """How many arguments, the last ones, are results; all others are operands."""
    origin: tuple[str, ...] = ()
    """Names of the nodes of the model that the kernel computes, each once."""
    constants: tuple[int, ...] = ()
    """Operands whose elements are known when compiling."""
    packed: Mapping[int, Packing] = field(default_factory=dict)
    """Constant operands that the caller has to pass in another layout."""
    specialized_for: Mapping[str, int] = field(default_factory=dict)
    """Names of dims, each with the least value for which the kernel is right; no name for one that serves all dims."""
    schedule: tuple[str, ...] = ()
    """The steps that made these loops of those that were lowered, in order."""
    work: Sym | None = None
    """How many elements the kernel computes, reduction steps counted singly; None where nobody counted."""
    rounds_as_written: bool = False
    """Whether each product is rounded as the model says: no factor moves from the terms of a sum to the sum."""
    rounded_rows: int = 0
    """Bits of the integers to which rows of products by integers may be rounded (rows and short floats that they are
    multiplied by to 14 bits); 0 where they may not."""
    little: bool = False
    """Whether it takes so little of its program's time that its code is to be made quickly."""
    external: tuple[Any, ...] = ()
    """Of a kernel from outside: its name, and operator and attributes that it computes, as these loops say it."""
    inplace: tuple[tuple[int, int], ...] = ()
    """Pairs (operand, result) that are proven to be right in the same memory."""


def new_kernel(name: str, body: Block, dims: Sequence[Sym], info: KernelInfo) -> Func:
    """A function of the loops level."""
    return Func(name, body, "loops", dims=tuple(dims), info=info)


def is_kernel(func: Func) -> bool:
    """Whether a function is one of the loops level."""
    return isinstance(func.info, KernelInfo)


def kernel_info(func: Func) -> KernelInfo:
    """The facts about a kernel."""
    assert isinstance(func.info, KernelInfo), f"@{func.name} is no kernel"
    return func.info


def operands_of(func: Func) -> tuple[Value, ...]:
    """The arguments that a kernel reads."""
    return func.args[: len(func.args) - kernel_info(func).outputs]


def results_of(func: Func) -> tuple[Value, ...]:
    """The arguments that a kernel writes."""
    return func.args[len(func.args) - kernel_info(func).outputs :]


def constants_of(func: Func) -> list[Value]:
    """The operands whose elements are known when compiling."""
    return [func.args[k] for k in kernel_info(func).constants]


def parse_kernel(text: str, *, file: str = "text") -> Func:
    """The kernel that `text` spells; TextError shows the line and the place of what is wrong."""
    return parse_func(text, file=file, records={"Packing": Packing}, infos={"loops": KernelInfo})
