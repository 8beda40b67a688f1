"""Assembler text with what is known of its loops written beside them, as comments of the assembler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from tilewright.asm.effects import Effects
from tilewright.asm.parse import MachineFunction, parse_assembly
from tilewright.asm.report import KernelReport, LoopReport, instructions_of, report_function
from tilewright.target.target import Target

_COMMENT = {"x86_64": "#", "aarch64": "//", "riscv64": "#", "s390x": "#"}


def annotated(text: str, target: Target) -> str:
    """The functions of an assembler text, each below a table of its loops, which are named again where they
    begin; the text as it is for a target whose instructions are not known."""
    mark = _COMMENT.get(target.arch)
    if mark is None:
        return text
    describe = instructions_of(target)
    parts = []
    for function in parse_assembly(text):
        report = report_function(function, describe, target)
        table = "".join(f"{mark} {line}\n" for line in summary(report))
        parts.append(table + "".join(f"{line}\n" for line in _listing(function, report, mark)))
    return "\n".join(parts)


def summary(report: KernelReport) -> list[str]:
    """A line for each loop, indented by depth."""
    heads = [f"{report.name}: {len(report.loops)} loops, {report.outside.instructions} instructions outside"]
    return heads + ["  " * loop.depth + describe_loop(loop) for loop in report.loops]


def describe_loop(loop: LoopReport) -> str:
    """One line: its name, and for an innermost loop what an iteration does and costs."""
    head = f"loop {loop.name or '(no name)'} at {loop.label}: {_counted(loop.effects, loop.innermost)}"
    if not loop.innermost:
        return head
    widths = "/".join(map(str, loop.multiply_add_widths or loop.widths))
    parts = [head]
    if widths:
        parts.append(f"{widths} bits")
    reads = loop.effects.loads + loop.effects.broadcasts
    if loop.effects.multiply_adds and reads:
        parts.append(f"{loop.effects.multiply_adds / reads:.1f} multiply-adds per load")
    cost = f"at least {loop.cycles:.1f} cycles ({loop.bound})"
    if loop.effects.multiply_adds:
        cost += f", {100 * loop.peak:.0f}% of peak"
    return "; ".join([*parts, cost])


def _counted(effects: Effects, all_counts: bool) -> str:
    """Counts that are not zero: all of them, or those that an outer loop should not have."""
    shown = [f.name for f in fields(Effects)] if all_counts else ["instructions", "spills", "calls"]
    counts = [(name, getattr(effects, name)) for name in shown]
    return ", ".join(f"{count} {name.replace('_', '-')}" for name, count in counts if count)


def _listing(function: MachineFunction, report: KernelReport, mark: str) -> Iterator[str]:
    loops = {loop.label: loop for loop in report.loops}
    yield f"{function.name}:"
    for block in function.blocks:
        if block.label in loops:
            yield f"{mark} {describe_loop(loops[block.label])}"
        if block.label and not block.label.startswith("%"):
            yield f"{block.label}:"
        yield from (f"\t{instruction}" for instruction in block.instructions)
