"""A picture of a schedule (SVG): cycles to the right, the three queues above, bytes of the scratchpad below."""

from __future__ import annotations

from xml.sax.saxutils import escape

from tilewright.program.memory.scratchpad.problem import ScratchpadProblem
from tilewright.program.memory.scratchpad.schedule import Action, TimeLine, text_of
from tilewright.runtime.errors import printable

WIDTH, HEIGHT, LEFT, TOP, ROW = 960, 400, 60, 30, 24
"""Of the area for bytes, of the margins and of a queue, in pixels."""

_QUEUES = {"L": "load", "R": "compute", "S": "store"}
_TURN = 137.508
"""Degrees between the hues of tensors: the golden angle, so that none are near."""


def schedule_picture(problem: ScratchpadProblem, actions: tuple[Action, ...], line: TimeLine) -> str:
    """The text of an SVG file. A tensor has one hue, in the queues and in the scratchpad."""
    across, up = WIDTH / max(line.cycles, 1), HEIGHT / max(problem.capacity, 1)
    below = TOP + 3 * ROW + 10
    width, height = WIDTH + LEFT + 20, below + HEIGHT + 20
    title = f"{line.cycles:,} cycles, {line.peak:,} of {problem.capacity:,} bytes"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        "<style>text{font:11px sans-serif}rect.a{stroke:#fff;stroke-width:0.5}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="{TOP - 12}">{title}</text>',
        f'<rect x="{LEFT}" y="{below}" width="{WIDTH}" height="{HEIGHT}" fill="#f4f4f4"/>',
    ]
    for n, name in enumerate(_QUEUES.values()):
        lines.append(f'<text x="4" y="{TOP + n * ROW + 15}">{name}</text>')
    for action, start, end in zip(actions, line.starts, line.ends, strict=True):
        if action.kind in _QUEUES and end > start:
            row = TOP + list(_QUEUES).index(action.kind) * ROW
            tensor = action.index
            if action.kind == "R":
                tensor = min(problem.operations[action.index].writes, default=0)
            told = f"{text_of(problem, action)}: cycles {start:,} to {end:,}"
            lines.append(_box(tensor, LEFT + start * across, row, (end - start) * across, ROW - 4, told))
    for stay in line.stays:
        told = (
            f"{problem.tensors[stay.tensor].name}: {stay.size:,} bytes at {stay.offset:,}, "
            f"cycles {stay.start:,} to {stay.end:,}"
        )
        y = below + HEIGHT - (stay.offset + stay.size) * up
        lines.append(
            _box(stay.tensor, LEFT + stay.start * across, y, (stay.end - stay.start) * across, stay.size * up, told)
        )
    return "\n".join([*lines, "</svg>", ""])


def _box(tensor: int, x: float, y: float, width: float, height: float, told: str) -> str:
    hue = tensor * _TURN % 360
    return (
        f'<rect class="a" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" '
        f'fill="hsl({hue:.0f},55%,62%)"><title>{escape(printable(told))}</title></rect>'
    )
