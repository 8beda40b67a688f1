"""The strategies for CPUs, in the order in which they are asked where none is estimated to be faster."""

from __future__ import annotations

from tilewright.graph.fusion.strategy import Strategies
from tilewright.schedule.conv.fused_window import FusedWindow
from tilewright.schedule.conv.sliding_window import SlidingWindow
from tilewright.schedule.conv.unpack_output import UnpackOutput
from tilewright.schedule.conv.winograd import WinogradTiles
from tilewright.schedule.gemm.attention import Attention
from tilewright.schedule.gemm.contraction import Contraction
from tilewright.schedule.gemm.recurrence import Recurrence
from tilewright.schedule.gemm.rounded_bytes import RoundedBytes
from tilewright.schedule.gemm.rounded_rows import RoundedRows
from tilewright.schedule.maps.elementwise import Elementwise
from tilewright.schedule.maps.opaque import Opaque
from tilewright.schedule.rows.contiguous_sum import ContiguousSum
from tilewright.schedule.rows.dot_product import DotProduct
from tilewright.schedule.rows.reduction import Reduction
from tilewright.schedule.rows.row_reduction import RowReduction
from tilewright.schedule.strategy import Strategy

STRATEGIES: Strategies[Strategy] = Strategies((
    Recurrence(), Opaque(), Attention(), WinogradTiles(), FusedWindow(), UnpackOutput(),
    SlidingWindow(), DotProduct(), ContiguousSum(), RoundedBytes(), RoundedRows(), Contraction(), Reduction(),
    RowReduction(), Elementwise(),
))  # fmt: skip
