"""The default schedule of windows over the result of a contraction: depthwise convolution or pooling of what a
convolution gives.

    for batch, bands of lines, panels of channels parallel {
      lines: scratch = contraction with its epilogue, for the panel and all lines that the band's windows read
      y = windows of `lines`, with their epilogue
    }

The lines of a panel stay in L2; those that two bands share are computed twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.cost.conv.bands import WindowLines, lines_of_windows, panel_of_windows
from tilewright.graph.fusion.profitability import windows_by_bands
from tilewright.graph.fusion.refusals import needed_elsewhere, not_worth
from tilewright.graph.fusion.rules import epilogue, into_reduction, the_contraction
from tilewright.graph.fusion.strategy import Join, Match
from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.sym import sym
from tilewright.ir.types import product
from tilewright.loops.analysis.bounds import Ranges, box
from tilewright.loops.analysis.deps import accesses
from tilewright.loops.edit import buffer_type, extent_of, loop_var, ranges_of
from tilewright.loops.stages import Lowered, Stage
from tilewright.schedule.conv.sliding_window import SlidingWindow, sum_windows
from tilewright.schedule.conv.two_stage_reduction import joins_line_sums, sum_lines, take_line_sums
from tilewright.schedule.gemm.contraction import is_contraction, tile_contraction, tile_fused
from tilewright.schedule.gemm.reduction_nest import copied, one_reduction, reduction_of
from tilewright.schedule.maps.elementwise import is_elementwise
from tilewright.schedule.steps.parallelize import parallelize_outer
from tilewright.schedule.steps.tiling import innermost_left
from tilewright.schedule.strategy import Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


@dataclass(eq=False)
class _Form:
    """The stages of the kernel: a contraction, elementwise work on it, windows; `lines` is what these read."""

    sums: Stage
    epilogue: Stage | None
    windows: Lowered

    @property
    def lines(self) -> Stage:
        return self.epilogue or self.sums


class FusedWindow(Strategy):
    """Windows over the result of a contraction, with elementwise work after both."""

    name = "fused_window"
    form = "windows"

    def join(self, join: Join) -> Match | NoMatch | None:
        if join.info.is_sliding_window and is_contraction(join.producer):
            return _why_apart(join) or Match(join.consumer.domain)
        if join.producer.strategy is self:
            answer = joins_line_sums(join)
            if answer is None and is_elementwise(join.consumer) and not join.info.is_tiled:
                answer = epilogue(join)
            return answer
        return (
            into_reduction(join) if join.consumer.strategy is self and is_elementwise(join.producer) else None
        )

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        schedule_banded(s, lowered, target)


def _why_apart(join: Join) -> NoMatch | None:
    """Why windows are not summed over bands of lines of the contraction's result as soon as these are complete; None
    when they are."""
    if not join.leaves_nothing_else():
        return needed_elsewhere(join, "the tensor is needed elsewhere too")
    if isinstance(join.producer.strategy, SlidingWindow):
        return not_worth("it sums windows itself, and is as much bound by memory")
    if join.facts.target is None:
        return NoMatch("the caches are not known", "a machine that is described")
    sums = the_contraction(join.producer, join.facts)
    return windows_by_bands(sums, join.op, join.facts.target)


def schedule_banded(s: Schedule, lowered: Lowered, target: Target) -> None:
    """ScheduleError when the kernel is not one contraction and windows of it, with elementwise work after both."""
    image, line_sums = take_line_sums(lowered)
    form = _form(s, image)
    windows = one_reduction(s, form.windows)
    if len(windows.loops) != 5:
        raise ScheduleError("it is not an image in blocks of channels")
    batch, blocks, rows, columns, lane = windows.loops
    if not extent_of(blocks).is_const:
        raise ScheduleError("the number of channels is not known")
    blocks_of_panel = panel_of_windows(extent_of(blocks).value)
    lines_of_band = _band(form, windows.stage, blocks_of_panel, target)

    def cut(around: list[Op]) -> list[Op]:
        batch, blocks, rows = around
        panel, band = s.split(blocks, blocks_of_panel), s.split(rows, lines_of_band)
        order = [batch, band.outer, panel.outer, panel.inner, band.inner]
        s.reorder(*order)
        return order

    around = cut([batch, blocks, rows])
    sum_windows(s, reduction_of(windows.stage, [*around, columns, lane]), target, within=batch)
    if line_sums is not None:
        sum_lines(s, line_sums, cut)
    home = innermost_left(around[:3])
    if home is None:
        raise ScheduleError("it is one band")
    lines = s.compute_at(form.lines.buffer, home, guard="shift")
    part = s.compute_at(form.sums.buffer, home) if form.epilogue is not None else lines
    if form.epilogue is None:
        tile_fused(s, form.sums, part, target)
    else:
        sums = copied(form.sums, part.copies, part.buffer)
        tile_contraction(s, reduction_of(sums, [lines.copies[o] for o in form.epilogue.axes]), target)
    s.simplify()
    parallelize_outer(s, target)


def _form(s: Schedule, lowered: Lowered) -> _Form:
    kinds = [st.kind for st in lowered.stages]
    if kinds.count("reduce") != 2 or kinds[0] != "reduce":
        raise ScheduleError("it is not one contraction and windows of its result")
    second = kinds.index("reduce", 1)
    middle = lowered.stages[1:second]
    if len(middle) > 1:
        raise ScheduleError("the work between the contraction and the windows is not one elementwise stage")
    windows = Lowered(lowered.func, lowered.stages[second:])
    return _Form(lowered.stages[0], middle[0] if middle else None, windows)


def _band(form: _Form, windows: Stage, panel: int, target: Target) -> int:
    """Lines of the result of a band of panels of so many blocks."""
    rows = extent_of(windows.axes[-3])
    if not rows.is_const:
        raise ScheduleError("the number of lines is not known")
    one, two = (_bytes_read(form.lines, windows, panel, lines) for lines in (1, 2))
    others = product(extent_of(o) for o in windows.axes[:2])
    parts = others.value // panel if others.is_const else 1
    depth = product(extent_of(o) for o in form.sums.reduce)
    if not depth.is_const:
        raise ScheduleError("the number of terms of a sum is not known")
    element = buffer_type(form.lines.buffer).dtype.bytes
    return lines_of_windows(WindowLines(rows.value, one, two, element, depth.value, parts), target)


def _bytes_read(lines: Stage, windows: Stage, panel: int, count: int) -> int:
    """Bytes that `count` lines of a panel of the result read."""
    batch, blocks, rows = map(loop_var, windows.axes[:3])
    part: Ranges = {v: (sym(0), sym(n - 1)) for v, n in ((batch, 1), (blocks, panel), (rows, count))}
    found = [a for a in accesses(windows.axes[0]) if a.buffer is lines.buffer]
    region = box([a.idx for a in found], [ranges_of(a.loops) | part for a in found])
    size = None if region is None else product(region.sizes)
    if size is None or not size.is_const:
        raise ScheduleError("the lines that a line of the result reads are not known")
    return int(size.value) * buffer_type(lines.buffer).dtype.bytes
