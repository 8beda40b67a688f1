"""The forms of kernels for GPUs of NVIDIA: those of all GPUs, with arrays of threads in registers."""

from __future__ import annotations

from tilewright.loops.edit import buffer_type, enclosing_loops, extent_of, kind_of, loop_var, places_of
from tilewright.loops.stages import Lowered
from tilewright.schedule.cuda.product import CudaProduct, check_room
from tilewright.schedule.cuda.tensor_product import TensorProduct
from tilewright.schedule.gpu.product import GpuHalfProduct, GpuProduct
from tilewright.schedule.gpu.strategies import STRATEGIES as GPU_STRATEGIES
from tilewright.schedule.strategy import Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.gpu.cuda import RUN, Cuda
from tilewright.target.gpu.webgpu import REGISTERS, Gpu


class CudaSmallProduct(GpuProduct):
    """The tiles of `GpuProduct`, whose sums of a thread have constant indices, without which they are in memory."""

    name = "cuda_small_product"

    def schedule(self, s: Schedule, lowered: Lowered, target: Gpu) -> None:
        super().schedule(s, lowered, target)
        unroll_arrays(s)
        assert isinstance(target, Cuda)
        check_room(s, target)


def unroll_arrays(s: Schedule) -> None:
    """Write out the loops whose variables are indices of arrays in registers."""
    allocs = [op.result for op in s.func.body.walk() if op.name == "alloc"]
    arrays = [buffer for buffer in allocs if buffer_type(buffer).space == REGISTERS]
    for op in [op for array in arrays for op in places_of(array)]:
        read = {v for index in op.attrs["idx"] for v in index.vars}
        for loop in enclosing_loops(op):
            extent = extent_of(loop)
            is_short = extent.is_const and extent.value <= 2 * RUN
            if is_short and loop_var(loop) in read and kind_of(loop) == "serial":
                s.unroll(loop)


STRATEGIES: tuple[Strategy, ...] = (
    TensorProduct(), CudaProduct(),
    *(
        CudaSmallProduct() if isinstance(each, GpuProduct) else each
        for each in GPU_STRATEGIES if not isinstance(each, GpuHalfProduct)
    ),
)  # fmt: skip
"""In the order in which they are asked."""
