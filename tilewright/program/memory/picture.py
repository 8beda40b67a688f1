"""A picture of plans of memory (SVG): time to the right, bytes of the arena upwards, a rectangle for each tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from tilewright.ir.core import Func, Value
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.program.memory.places import SCRATCH, THREADS, arena_of, places_of
from tilewright.program.memory.views import bytes_of, locate
from tilewright.runtime.errors import InputError, printable

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
    """The text of an SVG file with each planned program below the other; dims that `sizes` has not are 1. InputError
    for sizes with which there are no such tensors."""
    parts = [_panel(name, main, sizes, n * (HEIGHT + 2 * TOP)) for n, (name, main) in enumerate(programs)]
    width, height = WIDTH + 2 * LEFT, len(parts) * (HEIGHT + 2 * TOP)
    style = "text{font:11px sans-serif}rect.t{stroke:#fff;stroke-width:0.5}"
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    return "\n".join([begin, f"<style>{style}</style>", *parts, "</svg>\n"])


def dims_of(main: Func) -> set[str]:
    """The names of dims that the shapes of a program depend on."""
    values = (*main.args, *(v for op in main.body.ops for v in op.results))
    shapes = [v.tensor.shape for v in values if isinstance(v.type, TensorType)]
    return {v.name for shape in shapes for dim in shape for v in dim.vars}


def drawn_tensors(main: Func, sizes: Mapping[str, int]) -> list[DrawnTensor]:
    """The tensors of a planned program's arena, in the order in which they are made, and the scratch memory in each
    call: that of a thread, or of all for which there is room."""
    places, locations = places_of(main), locate(main)
    calls = [op for op in main.body.ops if op.name == "call"]
    spans: dict[Value, tuple[int, int]] = {}
    for step, call in enumerate(calls):
        for value in (*call.operands, *call.results):
            root = locations[value].root
            spans[root] = spans.get(root, (step, step))[0], step
    threads = main.attrs.get(THREADS, 1)
    scratch = [
        DrawnTensor("scratch memory", at_sizes(start, sizes), at_sizes(bytes, sizes) * threads, step, step)
        for step, (start, bytes) in ((n, c.attrs[SCRATCH]) for n, c in enumerate(calls) if SCRATCH in c.attrs)
    ]
    tensors = [
        DrawnTensor(root.name, at_sizes(places[root].offset, sizes), at_sizes(bytes_of(root), sizes), *span)
        for root, span in spans.items()
        if places[root].base == "arena"
    ]
    return tensors + scratch


def _panel(name: str, main: Func, sizes: Mapping[str, int], down: int) -> str:
    total = at_sizes(arena_of(main), sizes)
    tensors = drawn_tensors(main, sizes)
    steps = 1 + max((t.last for t in tensors), default=0)
    most = max(alive_bytes(tensors, steps), default=0)
    title = f"{name}: {total:,} bytes for {len(tensors)} tensors, {most:,} at once, in {steps} calls"
    lines = [
        f'<text x="{LEFT}" y="{down + TOP - 12}">{_text(title)}</text>',
        f'<rect x="{LEFT}" y="{down + TOP}" width="{WIDTH}" height="{HEIGHT}" fill="#f4f4f4"/>',
    ]
    for n, t in enumerate(tensors):
        across, up = WIDTH / steps, HEIGHT / max(total, 1)
        x, y = LEFT + t.first * across, down + TOP + HEIGHT - (t.offset + t.size) * up
        width, height = (t.last - t.first + 1) * across, t.size * up
        told = _text(f"{t.name or 'a tensor'}: {t.size:,} bytes at {t.offset:,}, calls {t.first} to {t.last}")
        lines.append(
            f'<rect class="t" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" '
            f'fill="hsl({n * _TURN % 360:.0f},55%,62%)"><title>{told}</title></rect>'
        )
        if width >= _LEGIBLE[0] and height >= _LEGIBLE[1]:
            lines.append(f'<text x="{x + 3:.2f}" y="{y + 11:.2f}">{_text(t.name[: int(width / 7)])}</text>')
    return "\n".join(lines)


def alive_bytes(tensors: Sequence[DrawnTensor], steps: int) -> list[int]:
    """Bytes that lie in the arena at each call; those that tensors in each other's place share count once."""
    changes: list[list[tuple[tuple[int, int], int]]] = [[] for _ in range(steps + 1)]
    for t in tensors:
        changes[t.first].append(((t.offset, t.size), 1))
        changes[t.last + 1].append(((t.offset, t.size), -1))
    found, held = [0], Counter[tuple[int, int]]()
    for at_step in changes[:steps]:
        total = found[-1]
        for place, change in at_step:
            before = held[place]
            held[place] += change
            total += ((before + change > 0) - (before > 0)) * place[1]
        found.append(total)
    return found[1:]


def _text(text: str) -> str:
    """For a place where markup may stand, without what no XML may hold."""
    return escape(printable(text))


def at_sizes(size: Sym, sizes: Mapping[str, int]) -> int:
    """Bytes for these sizes of dims, and 1 for others; InputError where there are no such tensors."""
    known = {v.name: sizes.get(v.name, 1) for v in size.vars}
    try:
        found = size.evaluate(known)
    except ZeroDivisionError:
        found = -1
    if found < 0:
        dims = ", ".join(f"{name}={n}" for name, n in sorted(known.items()))
        raise InputError(f"there are no tensors for {dims}", hint="give larger sizes (--dim NAME=SIZE)")
    return found
