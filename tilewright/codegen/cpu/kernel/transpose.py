"""Rows that become columns: trees of shuffles of two registers each.

A register is seen as groups of 16 bytes. Within groups, interleaving registers (as `unpcklps` and `zip1` do) brings
the elements of one column together; whole groups are then exchanged between registers. All columns of an n x n
square share n * log2(n) such shuffles.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.cpu.kernel.text import Reg

GROUP_BYTES = 16


def interleaved(rows: Sequence[Reg]) -> Reg:
    """The first elements of all rows, then the second ones, and so on; as many rows as a power of two."""
    current = list(rows)
    while len(current) > 1:
        half = len(current) // 2
        lanes = current[0].lanes
        picks = [start + lane for lane in range(lanes) for start in (0, lanes)]
        current = [current[k].shuffled(current[k + half], picks) for k in range(half)]
    return current[0]


def transposed_column(rows: Sequence[Reg], column: int, element: int) -> Reg:
    """Lane `column` of each of the rows, as one register; as many rows as lanes, a power of two.

    `element` is the size of an element in bytes.
    """
    lanes = len(rows)
    group = min(lanes, max(1, GROUP_BYTES // element))
    current = list(rows)
    unit = 1
    while unit < group:
        upper = bool(column & (group // 2 // unit))
        picks = _interleaved(lanes, group, unit, upper)
        # Rows that differ in the bit `unit` meet; of each pair one register is left that has the wanted half.
        current = [current[k].shuffled(current[k + 1], picks) for k in range(0, len(current), 2)]
        unit *= 2
    return _exchanged(current, column // group, group)


def _interleaved(lanes: int, group: int, unit: int, upper: bool) -> list[int]:
    """In each group, the units of the lower (or upper) half of two registers in turn."""
    picks: list[int] = []
    for start in range(0, lanes, group):
        half = start + (group // 2 if upper else 0)
        for at in range(half, half + group // 2, unit):
            for source in (0, lanes):
                picks += [source + at + k for k in range(unit)]
    return picks


def _exchanged(registers: list[Reg], wanted: int, group: int) -> Reg:
    """Group `wanted` of each register, in order: pairs of registers give those groups that may still be it."""
    lanes = registers[0].lanes
    held = list(range(lanes // group))  # which group of the original registers lies where, from each source
    sources = 1
    while len(registers) > 1:
        left = [g for g in dict.fromkeys(held) if (g ^ wanted) & sources == 0]
        places = [p for p, g in enumerate(held) if g in left]
        picks = [start + place * group + k for start in (0, lanes) for place in places for k in range(group)]
        registers = [registers[k].shuffled(registers[k + 1], picks) for k in range(0, len(registers), 2)]
        held = [held[p] for p in places] * 2
        sources *= 2
    return registers[0]
