"""Elementwise work and sums along a line: how many elements at a time."""

from __future__ import annotations

from collections.abc import Collection

from tilewright.ir.scalar import COSTLY
from tilewright.target.target import VECTOR_BYTES, Target

CHUNK = 4096
"""Elements that a thread takes at a time of a loop that has no loop around it."""

SUMS = 4
"""Vectors that a sum runs in: as many as hide the latency of an addition on every core of the last ten years."""

POLYNOMIALS = 4
"""Registers in which polynomials are evaluated interleaved: they share the loads of the coefficients, and hide one
another's latency."""

MOST_LANES = 64
"""Lanes of one vector loop at most."""


ODD_TURNS = (3, 5, 6, 7)
"""Lines of which elements are taken in turns; vectors of any size are whole turns of 2 and 4."""

MOST_PIECES = 2
"""Vectors of powers of two that take less to load, compute and store some lanes than one under a mask."""

FEWEST_CASES, MOST_CASES = 5, 128
"""Cases that loops of their own are made for whatever their length: all of fewer are looked at for each vector in less
time than short loops take to begin (four inputs that are joined, Zen 3), and more are much code."""

CYCLES_OF_A_CASE = 3.5
"""Cycles that a vector takes to pick among operands, for each of them: a masked load, its condition, a selection."""

MOST_COMPUTED = 1
"""Operations on what was picked up to which picking is most of the time."""

CYCLES_OF_A_COPY = 1.5
"""Cycles of a vector that is loaded and stored."""

CYCLES_OF_A_LOOP = 16
"""Cycles that a loop takes to begin, and for what is left after its vectors."""

OPS_OF_A_CASE = 3
"""Ops that one more case adds to the body that picks among them: a load, a condition, a selection."""

MOST_COPIED = 2048
"""Ops of the work that is common to all cases, all copies of it together."""

ELEMENTS_OF_A_CASE = 16
"""Elements that are moved in the time that one more case adds to the choice of a pointer: a cycle for a vector."""

COSTLY_OPERATIONS = 8
"""That a costly one (a polynomial, a division) takes more than an addition."""


def weighted_operations(names: Collection[str]) -> int:
    """Scalar operations of these names, in additions."""
    return len(names) + COSTLY_OPERATIONS * sum(name in COSTLY for name in names)


def chunk_of_line(extent: int | None, turns: int = 1) -> int:
    """Elements that a thread takes at a time of one line of so many (None: not known); 0 where it takes all. They are
    whole vectors whose lanes come from so many other lines in turns."""
    return CHUNK - CHUNK % (turns * MOST_LANES) if extent is None or extent > 2 * CHUNK else 0


def lanes_of_turns(lanes: int, turns: int) -> int:
    """Lanes of a vector that takes elements of so many lines in turns: as many of each, so that these lie at the same
    distances in all vectors, and nothing is divided to find them."""
    if turns == 1:
        return lanes
    each = lanes
    while each * turns > MOST_LANES:
        each //= 2
    return each * turns


def cases_are_worth_loops(cases: int, ops: int) -> bool:
    """Whether a body of so many ops, which picks among so many operands by the position, becomes a loop for each."""
    copied = cases * max(0, ops - OPS_OF_A_CASE * cases)
    return FEWEST_CASES <= cases <= MOST_CASES and copied <= MOST_COPIED


def runs_are_worth_loops(operands: int, vectors: int, computed: int) -> bool:
    """Whether so many vectors in a row, each of which picks among so many operands by its position and does so many
    operations on what it picks, take longer than a loop for each operand."""
    picked = vectors * operands * CYCLES_OF_A_CASE
    apart = operands * CYCLES_OF_A_LOOP + vectors * CYCLES_OF_A_COPY
    return computed <= MOST_COMPUTED and picked > apart


def pointer_is_worth_choosing(cases: int, elements: int) -> bool:
    """Whether so many elements are read behind a pointer, which is chosen among so many, that the choice costs little
    beside them, and loops for each case are not worth their code."""
    return elements >= ELEMENTS_OF_A_CASE * cases


def lanes_of_vector(element: int, extent: int | None) -> int:
    """Lanes of a vector loop of elements of so many bytes; fewer for short loops."""
    return _fewer(VECTOR_BYTES // element, 1, extent)


def lanes_of_short_line(element: int, extent: int | None, has_polynomials: bool) -> int:
    """Lanes of the one masked vector that computes a whole line of elements of so many bytes, where this takes less
    than vectors of just the lanes that there are, of which each computes its polynomials; 0 where there is none."""
    if extent is None or extent.bit_count() <= (1 if has_polynomials else MOST_PIECES):
        return 0
    lanes = 1 << extent.bit_length()
    return lanes if lanes <= VECTOR_BYTES // element else 0


def lanes_of_polynomials(lanes: int, element: int, extent: int | None, target: Target) -> int:
    """Lanes of a loop that takes longer to compute than to load: several registers of single precision."""
    wide = min(MOST_LANES, POLYNOMIALS * target.f32_lanes)
    return lanes if wide <= lanes or element != 4 else _fewer(wide, lanes, extent)


FEW_VECTORS = 4
"""Vectors up to which lines of unknown length are gone over one vector at a time, each under a mask: sums in several
vectors, and sums of their lanes apart from those of what is left, take longer for rows so short (on Zen 5 the least of
rows of 5 takes a fourth of the time)."""


def lanes_of_sum(lanes: int, jammed: int) -> int:
    """Lanes that a sum runs in, where so many of them run in turns and hide one another's latencies."""
    return min(MOST_LANES, max(1, SUMS // jammed) * lanes)


def _fewer(lanes: int, least: int, extent: int | None) -> int:
    """As many lanes as a loop has iterations at most, halved until they are so few."""
    while extent is not None and lanes > least and lanes > extent:
        lanes //= 2
    return lanes
