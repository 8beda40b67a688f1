"""What the loops of a kernel's machine code do in one iteration, and the time it takes at least."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.asm.arm import describer as arm
from tilewright.asm.effects import Describe, Described, Effects, total
from tilewright.asm.ibm_z import describe as describe_ibm_z
from tilewright.asm.loops import MachineLoop, find_loops
from tilewright.asm.parse import MachineFunction, parse_assembly
from tilewright.asm.riscv import describer as riscv
from tilewright.asm.x86 import describe as describe_x86
from tilewright.ir.diag import UnsupportedError
from tilewright.target.target import Pipes, Target

_DESCRIBERS: dict[str, Callable[[Target], Describe]] = {
    "x86_64": lambda _: describe_x86,
    "aarch64": arm,
    "riscv64": riscv,
    "s390x": lambda _: describe_ibm_z,
}
_LOOP_NAME = re.compile(r"loop\.(.+?)\.\d+")


@dataclass(frozen=True, slots=True)
class LoopReport:
    """One iteration of a loop of machine code, without the loops in it.

    `name` is the variable of the loop of the kernel's program ("" where LLVM made another of it), `label` its
    place in the assembler text. Where the loop branches, all its instructions are counted. `widths` and
    `multiply_add_widths` are the bits of the registers (or elements) worked on, ascending. `cycles` is a lower
    bound from the target's pipes, if all data are in the nearest cache; `bound` is the reason of it.
    """

    name: str
    label: str
    depth: int
    innermost: bool
    effects: Effects
    widths: tuple[int, ...]
    multiply_add_widths: tuple[int, ...]
    cycles: float
    bound: str
    peak: float
    """The share of the multiply-adds that full vectors could do in these cycles; 0 to 1."""


@dataclass(frozen=True, slots=True)
class KernelReport:
    """The loops of a function, an outer one before those in it; `outside` is what no loop holds."""

    name: str
    loops: tuple[LoopReport, ...]
    outside: Effects

    @property
    def innermost(self) -> tuple[LoopReport, ...]:
        """The loops that hold no other."""
        return tuple(loop for loop in self.loops if loop.innermost)


def report_assembly(text: str, target: Target) -> tuple[KernelReport, ...]:
    """A report for each function of an assembler text; UnsupportedError for a target whose instructions are
    not known."""
    describe = instructions_of(target)
    return tuple(report_function(f, describe, target) for f in parse_assembly(text))


def instructions_of(target: Target) -> Describe:
    """What knows the target's instructions; UnsupportedError where nothing does."""
    if target.arch not in _DESCRIBERS:
        raise UnsupportedError(
            f"machine code of {target.arch} (target '{target.name}') cannot be read",
            hint=f"it can for {', '.join(_DESCRIBERS)}",
        )
    return _DESCRIBERS[target.arch](target)


def report_function(function: MachineFunction, describe: Describe, target: Target) -> KernelReport:
    """The report for one function."""
    blocks = [[describe(i) for i in block.instructions] for block in function.blocks]
    loops = find_loops(function)
    reports = tuple(_report_loop(function, loop, _own(loop, loops), blocks, target) for loop in loops)
    inside = frozenset[int]().union(*(loop.blocks for loop in loops))
    outside = [d.effects for k, block in enumerate(blocks) if k not in inside for d in block]
    return KernelReport(function.name, reports, total(outside))


def _own(loop: MachineLoop, loops: Sequence[MachineLoop]) -> list[int]:
    """The blocks of a loop that are in no other inside of it."""
    inner = frozenset[int]().union(*(other.blocks for other in loops if other.blocks < loop.blocks))
    return sorted(loop.blocks - inner)


def _report_loop(
    function: MachineFunction,
    loop: MachineLoop,
    own: list[int],
    blocks: list[list[Described]],
    target: Target,
) -> LoopReport:
    found = [d for k in own for d in blocks[k]]
    effects = total(d.effects for d in found)
    sums = [d for d in found if d.effects.multiply_adds]
    bounds = _bounds(effects, _longest_chain(found), target.pipes)
    bound = max(bounds, key=lambda name: bounds[name])
    width = sum(d.bits * d.effects.multiply_adds for d in sums) / target.vector_bits / target.pipes.multiply_adds
    header = function.blocks[loop.header]
    return LoopReport(
        name=_name(function, loop),
        label=header.label,
        depth=loop.depth,
        innermost=loop.innermost,
        effects=effects,
        widths=tuple(sorted({d.bits for d in found if d.bits})),
        multiply_add_widths=tuple(sorted({d.bits for d in sums})),
        cycles=bounds[bound],
        bound=bound,
        peak=width / bounds[bound] if bounds[bound] else 0.0,
    )


def _name(function: MachineFunction, loop: MachineLoop) -> str:
    """The loop variable that the header's block is named after, or else the only one of its blocks."""
    for k in (loop.header, *sorted(loop.blocks)):
        found = _LOOP_NAME.match(function.blocks[k].origin)
        if found:
            return found[1]
    return ""


def _bounds(effects: Effects, chain: int, pipes: Pipes) -> dict[str, float]:
    """Cycles that one iteration takes at least, by reason."""
    return {
        "multiply-adds": effects.multiply_adds / pipes.multiply_adds,
        "arithmetic": effects.arithmetic / pipes.arithmetic,
        "loads": (effects.loads + effects.broadcasts + effects.lane_moves) / pipes.loads,
        "stores": effects.stores / pipes.stores,
        "latency": float(chain * pipes.latency),
        "issue": effects.instructions / pipes.issue,
    }


def _longest_chain(found: Sequence[Described]) -> int:
    """The most multiply-adds that add to one register which keeps its sum from one iteration to the next."""
    sums = Counter(d.writes for d in found if d.effects.multiply_adds)
    others = {d.writes for d in found if not d.effects.multiply_adds}
    return max((count for register, count in sums.items() if register not in others), default=0)
