"""The default schedule of a contraction whose result, an image in blocks of channels, leaves the kernel without blocks.

    for batch, bands of lines, panels of channels parallel {
      lines: scratch = sums of the contraction for the panel and the lines
      y = epilogue of `lines`, by squares through registers
    }

The lines of a panel stay near; in a kernel of its own, the change of layout would read and write the whole image again.
"""

from __future__ import annotations

from tilewright.cost.conv.bands import lines_of_plain, panel_of_blocks
from tilewright.cost.recompute import is_cheap
from tilewright.graph.fusion.profitability import unpacks_by_bands
from tilewright.graph.fusion.refusals import needed_elsewhere, not_worth
from tilewright.graph.fusion.rules import the_contraction
from tilewright.graph.fusion.strategy import Join, Match
from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.types import product
from tilewright.loops.edit import extent_of
from tilewright.loops.stages import Lowered, Stage
from tilewright.schedule.conv.sliding_window import SlidingWindow
from tilewright.schedule.gemm.contraction import is_contraction, tile_fused
from tilewright.schedule.gemm.reduction_nest import one_reduction
from tilewright.schedule.steps.access import element_bytes
from tilewright.schedule.steps.parallelize import parallelize_outer
from tilewright.schedule.steps.tiling import innermost_left
from tilewright.schedule.steps.transpose_tiles import schedule_squares, side_of
from tilewright.schedule.strategy import Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


class UnpackOutput(Strategy):
    """A contraction whose result leaves its blocks of channels a band of lines at a time."""

    name = "unpack_output"
    form = "tiles"
    keeps_layout = True

    def join(self, join: Join) -> Match | NoMatch | None:
        if join.producer.strategy is self:
            return NoMatch("the image has left its blocks")
        if not join.info.unblocks_channels or not is_contraction(join.producer):
            return None
        return _why_apart(join) or Match(join.consumer.domain)

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        schedule_unblocked(s, lowered, target)


def _why_apart(join: Join) -> NoMatch | None:
    """Why the result should leave its blocks in a kernel of its own; None when it should in that of the contraction."""
    if not join.leaves_nothing_else():
        return needed_elsewhere(join, "the tensor is needed in its own layout too")
    if any(u.name != "return" for u in join.op.result.users):
        return not_worth("its readers may be kernels that change the layout themselves")
    if not is_cheap(join.facts.cost(join.producer)):
        return not_worth("its elementwise work would be written out for each row of a square of elements")
    if isinstance(join.producer.strategy, SlidingWindow):
        return not_worth("it sums windows itself, and is as much bound by memory")
    if join.facts.target is None:
        return NoMatch("the caches are not known", "a machine that is described")
    return unpacks_by_bands(the_contraction(join.producer, join.facts), join.facts.target)


def schedule_unblocked(s: Schedule, lowered: Lowered, target: Target) -> None:
    """ScheduleError when the kernel is not one contraction, elementwise work, and the change of layout."""
    sums = one_reduction(s, lowered)
    stage, loops = sums.stage, sums.loops
    if len(loops) != 4 or len(stage.axes) != 5:
        raise ScheduleError("it is not an image in blocks of channels")
    batch, channels, rows, columns = loops
    lanes = extent_of(stage.axes[-1])
    if not all(extent_of(o).is_const for o in (channels, rows, columns, stage.axes[-1])):
        raise ScheduleError("the size of the image is not known")
    blocks = s.split(channels, lanes.value)
    panel = s.split(blocks.outer, panel_of_blocks(extent_of(blocks.outer).value))
    band = s.split(rows, _lines(stage, loops, extent_of(panel.inner).value, target))
    around = [batch, band.outer, panel.outer]
    nest = [panel.inner, band.inner, blocks.inner, columns]
    s.reorder(*around, *nest)
    s.simplify(batch)
    home = innermost_left(around)
    if home is None:
        raise ScheduleError("it is one band")
    part = s.compute_at(stage.buffer, home, guard="shift")
    tile_fused(s, stage, part, target)
    nest = [o for o in nest if o.parent is not None]
    schedule_squares(s, nest, blocks.inner, columns, side_of(blocks.inner, columns, target), target)
    s.simplify()
    parallelize_outer(s, target)


def _lines(stage: Stage, loops: list[Op], panel: int, target: Target) -> int:
    """Lines of a band of panels of so many blocks."""
    rows, columns = (extent_of(o).value for o in loops[2:])
    line = panel * columns * extent_of(stage.axes[-1]).value * element_bytes(stage.buffer)
    others = product(extent_of(o) for o in stage.axes[:2])
    parts = others.value // panel if others.is_const else 1
    return lines_of_plain(rows, line, parts, target)
