"""The forms of kernels for GPUs, and the order in which they are tried."""

from __future__ import annotations

from tilewright.graph.fusion.classify import OpInfo
from tilewright.graph.fusion.strategy import Match
from tilewright.ir.core import Op
from tilewright.ir.rewrite import NoMatch
from tilewright.loops.stages import Lowered
from tilewright.schedule.gpu.product import GpuContraction, GpuHalfProduct, GpuProduct
from tilewright.schedule.gpu.rows import GpuRows
from tilewright.schedule.gpu.steps import schedule_grids, schedule_nests, schedule_serial
from tilewright.schedule.maps.elementwise import Elementwise
from tilewright.schedule.maps.opaque import Opaque
from tilewright.schedule.rows.reduction import Reduction
from tilewright.schedule.rows.row_reduction import RowReduction
from tilewright.schedule.strategy import FusedRegion, Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.gpu.webgpu import Gpu


class GpuElementwise(Elementwise):
    """Elements that are computed each on its own, by a thread each."""

    name = "gpu_elementwise"
    kind = "gpu"
    form = None  # type: ignore[assignment]

    def schedule(self, s: Schedule, lowered: Lowered, target: Gpu) -> None:  # type: ignore[override]
        schedule_grids(s, lowered, target)


class GpuReduction(Reduction):
    """Reductions of other axes than the last, and of windows."""

    name = "gpu_reduction"
    kind = "gpu"
    form = None  # type: ignore[assignment]

    def match(self, region: FusedRegion) -> Match | NoMatch:
        return Strategy.match(self, region)

    def schedule(self, s: Schedule, lowered: Lowered, target: Gpu) -> None:  # type: ignore[override]
        schedule_grids(s, lowered, target)


class GpuRowReduction(RowReduction):
    """Reductions of rows, and elementwise work on these."""

    name = "gpu_row_reduction"
    kind = "gpu"
    form = None  # type: ignore[assignment]

    def match(self, region: FusedRegion) -> Match | NoMatch:
        return Strategy.match(self, region)

    def schedule(self, s: Schedule, lowered: Lowered, target: Gpu) -> None:  # type: ignore[override]
        schedule_grids(s, lowered, target)


class GpuOpaque(Opaque):
    """An operator with loops of its own: a thread for each iteration of those that are independent."""

    name = "gpu_opaque"
    kind = "gpu"

    def schedule(self, s: Schedule, lowered: Lowered, target: Gpu) -> None:  # type: ignore[override]
        schedule_nests(s, target)


class GpuSerial(Strategy):
    """Any kernel, by one thread in order."""

    name = "gpu_serial"
    kind = "gpu"

    def claims(self, op: Op, info: OpInfo) -> bool:
        return True

    def match(self, region: FusedRegion) -> Match | NoMatch:
        return Match()

    def schedule(self, s: Schedule, lowered: Lowered, target: Gpu) -> None:
        schedule_serial(s)


STRATEGIES: tuple[Strategy, ...] = (
    GpuOpaque(), GpuProduct(), GpuHalfProduct(), GpuContraction(), GpuReduction(), GpuRows(), GpuRowReduction(),
    GpuElementwise(), GpuSerial(),
)  # fmt: skip
"""Those for GPUs, in the order in which they are asked."""
