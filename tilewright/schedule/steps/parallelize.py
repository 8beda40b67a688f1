"""Which loops threads share: the outermost ones, made one flat loop until it has iterations enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.cost.core import divisors
from tilewright.cost.parallel import ASSUMED_EXTENT, enough_iterations, is_worth_a_fork, uneven
from tilewright.cost.typical import TypicalSizes
from tilewright.ir.core import Op
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.loops.edit import body_of, extent_of, is_loop, kind_of
from tilewright.schedule.steps.access import perfect_nest
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


def parallelize_outer(s: Schedule, target: Target, *, keep_innermost: bool = False) -> None:
    """Make the kernel's only outer loop parallel; nothing is done where that is not legal. What threads cannot share
    evenly, or not at all, is noted as missed.

    With `keep_innermost` the innermost loop of a perfect nest stays apart, to become vectors.
    """
    loops = [op for op in s.func.body.ops if op.name != "return"]
    if len(loops) == 1:
        _share(s, loops[0], target, keep_innermost)


def parallelize_pieces(s: Schedule, target: Target, shared: Callable[[Op], bool] = is_loop) -> None:
    """Make the loop that is the whole kernel parallel, or each of several that are long enough to wake threads for, of
    those that may be `shared`; the innermost loops stay apart, to become vectors."""
    loops = [op for op in s.func.body.ops if op.name != "return"]
    for loop in filter(shared, loops):
        if len(loops) == 1 or (is_loop(loop) and is_worth_a_fork(_elements(loop), target)):
            _share(s, loop, target, keep_innermost=True)


def parallelize_each(s: Schedule, loops: Sequence[Op], target: Target, serial: Sequence[Op] = ()) -> None:
    """Make each of some outer loops of a kernel parallel, none of them with a `serial` one. Whether a call is worth
    waking threads for is decided when its size is known."""
    for loop in loops:
        _share(s, loop, target, keep_innermost=False, serial=serial)


def _elements(loop: Op) -> int:
    """Iterations of the loops of a nest together, of unknown dims those that are to be expected."""
    (elements,) = TypicalSizes({}).medium([product(map(extent_of, perfect_nest(loop)))])
    return elements


def _share(
    s: Schedule, outer: Op, target: Target, keep_innermost: bool, serial: Sequence[Op] = ()
) -> None:
    if not is_loop(outer) or kind_of(outer) != "serial":
        return
    wanted = enough_iterations(target)
    assumed = _assumed_dims(outer)
    with s.noting("not shared by more threads"):
        s.parallel(outer)
        while not _has_enough(outer, wanted, assumed):
            inner = _only_loop(outer)
            if inner is None or inner in serial:
                break
            if keep_innermost and not any(is_loop(op) for op in body_of(inner).ops):
                break
            outer = s.collapse(
                outer, _as_much_as_needed(s, outer, inner, wanted) if keep_innermost else inner
            )
    iterations = extent_of(outer)
    if iterations.is_const and kind_of(outer) == "parallel":
        reason = uneven(iterations.value, target)
        if reason:
            s.missed.append(reason)


def _assumed_dims(outermost: Op) -> Callable[[Sym], Sym]:
    """What an extent is for dims of a usual size. The extent of the outermost loop itself counts as 1 where it is such
    a dim: batches mostly have one entry."""
    batch = extent_of(outermost)

    def size(dim: Sym) -> Sym:
        return sym(1 if dim is batch else max(ASSUMED_EXTENT, dim.bounds[0] or 0))

    def assumed(extent: Sym) -> Sym:
        return extent.subs({dim: size(dim) for dim in extent.vars})

    return assumed


def _has_enough(loop: Op, wanted: int, assumed: Callable[[Sym], Sym]) -> bool:
    """Whether a loop has iterations enough, of unknown dims those that are to be expected: each loop that is made part
    of a flat one costs every iteration a division."""
    iterations = assumed(extent_of(loop))
    return iterations.is_const and iterations.value >= wanted


def _only_loop(loop: Op) -> Op | None:
    """The serial loop that is all of the body of `loop`."""
    ops = body_of(loop).ops
    return ops[0] if len(ops) == 1 and is_loop(ops[0]) and kind_of(ops[0]) == "serial" else None


def _as_much_as_needed(s: Schedule, outer: Op, inner: Op, wanted: int) -> Op:
    """The part of a long inner loop that gives iterations enough: each of a flat loop computes two indices."""
    iterations, extent = extent_of(outer), extent_of(inner)
    if not (iterations.is_const and extent.is_const):
        return inner
    needed = -(-wanted // max(1, iterations.value))
    factor = max((f for f in divisors(extent.value) if f * needed <= extent.value), default=1)
    return s.split(inner, factor).outer if 1 < factor < extent.value else inner
