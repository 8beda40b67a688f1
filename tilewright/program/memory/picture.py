"""A picture of plans of memory (SVG): time to the right, bytes of the arena upwards, a rectangle for each tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from tilewright.ir.core import Func, Value
from tilewright.ir.sym import Sym
from tilewright.program.memory.places import arena_of, places_of
from tilewright.program.memory.views import bytes_of, locate

WIDTH, HEIGHT, LEFT, TOP = 960, 400, 20, 40
"""Of the area in which the tensors of a program are drawn, and of the margins, in pixels."""

_TURN = 137.508
"""Degrees between the hues of tensors that are made after each other: the golden angle, so that none are near."""

_LEGIBLE = 60, 12
"""Pixels that a rectangle has at least, in which a name is written."""


@dataclass(frozen=True)
class DrawnTensor:
    """A tensor of the arena: its name, its bytes from `offset` on, and the calls between which it is needed."""

    name: str
    offset: int
    size: int
    first: int
    last: int


def picture(programs: Iterable[tuple[str, Func]], sizes: Mapping[str, int]) -> str:
    """The text of an SVG file with each planned program below the other; dims that `sizes` has not are 1."""
    parts = [_panel(name, main, sizes, n * (HEIGHT + 2 * TOP)) for n, (name, main) in enumerate(programs)]
    width, height = WIDTH + 2 * LEFT, len(parts) * (HEIGHT + 2 * TOP)
    style = "text{font:11px sans-serif}rect.t{stroke:#fff;stroke-width:0.5}"
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    return "\n".join([begin, f"<style>{style}</style>", *parts, "</svg>\n"])


def drawn_tensors(main: Func, sizes: Mapping[str, int]) -> list[DrawnTensor]:
    """The tensors of a planned program's arena, in the order in which they are made."""
    places, locations = places_of(main), locate(main)
    calls = [op for op in main.body.ops if op.name == "call"]
    spans: dict[Value, tuple[int, int]] = {}
    for step, call in enumerate(calls):
        for value in (*call.operands, *call.results):
            root = locations[value].root
            spans[root] = spans.get(root, (step, step))[0], step
    return [
        DrawnTensor(root.name, _at(places[root].offset, sizes), _at(bytes_of(root), sizes), *span)
        for root, span in spans.items()
        if places[root].base == "arena"
    ]


def _panel(name: str, main: Func, sizes: Mapping[str, int], down: int) -> str:
    total = _at(arena_of(main), sizes)
    tensors = drawn_tensors(main, sizes)
    steps = 1 + max((t.last for t in tensors), default=0)
    most = max(_alive(tensors, steps), default=0)
    title = f"{name}: {total:,} bytes for {len(tensors)} tensors, {most:,} at once, in {steps} calls"
    lines = [
        f'<text x="{LEFT}" y="{down + TOP - 12}">{escape(title)}</text>',
        f'<rect x="{LEFT}" y="{down + TOP}" width="{WIDTH}" height="{HEIGHT}" fill="#f4f4f4"/>',
    ]
    for n, t in enumerate(tensors):
        across, up = WIDTH / steps, HEIGHT / max(total, 1)
        x, y = LEFT + t.first * across, down + TOP + HEIGHT - (t.offset + t.size) * up
        width, height = (t.last - t.first + 1) * across, t.size * up
        told = escape(f"{t.name or 'a tensor'}: {t.size:,} bytes at {t.offset:,}, calls {t.first} to {t.last}")
        lines.append(
            f'<rect class="t" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" '
            f'fill="hsl({n * _TURN % 360:.0f},55%,62%)"><title>{told}</title></rect>'
        )
        if width >= _LEGIBLE[0] and height >= _LEGIBLE[1]:
            lines.append(f'<text x="{x + 3:.2f}" y="{y + 11:.2f}">{escape(t.name[: int(width / 7)])}</text>')
    return "\n".join(lines)


def _alive(tensors: Sequence[DrawnTensor], steps: int) -> list[int]:
    """Bytes that lie in the arena at each call; those that tensors in each other's place share count once."""
    found = []
    for step in range(steps):
        ranges = {(t.offset, t.size) for t in tensors if t.first <= step <= t.last}
        found.append(sum(size for _, size in ranges))
    return found


def _at(size: Sym, sizes: Mapping[str, int]) -> int:
    return size.evaluate({v.name: sizes.get(v.name, 1) for v in size.vars})
