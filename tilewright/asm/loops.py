"""The loops of a machine function: natural loops of its control flow."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.asm.parse import MachineFunction


@dataclass(frozen=True, slots=True)
class MachineLoop:
    """A loop by the positions of its blocks in the function.

    `header` is the block that a branch goes back to; `depth` is 1 for a loop that no other holds; `innermost`
    says that it holds none.
    """

    header: int
    blocks: frozenset[int]
    depth: int
    innermost: bool


def find_loops(function: MachineFunction) -> tuple[MachineLoop, ...]:
    """All loops, an outer one before those in it; branches back to one header make one loop (Aho et al.,
    Compilers, 9.6.6)."""
    following = [function.successors(k) for k in range(len(function.blocks))]
    bodies: dict[int, set[int]] = {}
    for source, header in _back_edges(following):
        bodies.setdefault(header, {header}).update(_reaching(source, header, following))
    loops = []
    for header, body in bodies.items():
        around = sum(1 for other in bodies.values() if body < other)
        innermost = not any(other < body for other in bodies.values())
        loops.append(MachineLoop(header, frozenset(body), 1 + around, innermost))
    return tuple(sorted(loops, key=lambda loop: (min(loop.blocks), loop.depth)))


def _back_edges(following: list[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Branches to a block that lies on the path to them, in a walk from the first block."""
    found: list[tuple[int, int]] = []
    seen = {0}
    path = [0]
    waiting = [iter(following[0])] if following else []
    while waiting:
        goal = next(waiting[-1], None)
        if goal is None:
            waiting.pop()
            path.pop()
        elif goal in path:
            found.append((path[-1], goal))
        elif goal not in seen:
            seen.add(goal)
            path.append(goal)
            waiting.append(iter(following[goal]))
    return found


def _reaching(source: int, header: int, following: list[tuple[int, ...]]) -> set[int]:
    """The blocks from which `source` can be reached without passing `header`."""
    before: dict[int, list[int]] = {}
    for block, goals in enumerate(following):
        for goal in goals:
            before.setdefault(goal, []).append(block)
    found: set[int] = set()
    waiting = [source]
    while waiting:
        block = waiting.pop()
        if block != header and block not in found:
            found.add(block)
            waiting.extend(before.get(block, ()))
    return found
