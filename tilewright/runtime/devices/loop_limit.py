"""How many iterations of loops a driver lets a thread go through.

llvmpipe, with which Mesa runs shaders on CPUs, ends all loops of a thread after 65,535 iterations without an error. So
a device is tried with a loop of more before it is trusted.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

TRIED = 1 << 17
_FACTOR, _STEP = 1664525, 1013904223
_SHADER = f"""
@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(1)
fn main() {{ for (var k = 0u; k < {TRIED}u; k++) {{ x[0] = x[0] * {_FACTOR}u + {_STEP}u; }} }}
"""
"""Each iteration makes the next number of a sequence in which none of 32 bits comes again before all have come."""


@lru_cache(maxsize=1)
def most_iterations(wgpu: Any, gpu: Any) -> int | None:
    """The iterations of loops that a thread of a device of the library `wgpu` goes through at most; None where it goes
    through all."""
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    number = gpu.create_buffer_with_data(data=np.zeros(1, np.uint32), usage=usage)
    module = gpu.create_shader_module(code=_SHADER)
    pipeline = gpu.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    entries = [{"binding": 0, "resource": {"buffer": number, "offset": 0, "size": 4}}]
    encoder = gpu.create_command_encoder()
    work = encoder.begin_compute_pass()
    work.set_pipeline(pipeline)
    work.set_bind_group(0, gpu.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries))
    work.dispatch_workgroups(1)
    work.end()
    gpu.queue.submit([encoder.finish()])
    made = int(np.frombuffer(gpu.queue.read_buffer(number), np.uint32)[0])
    number.destroy()
    done = _position(made)
    return None if done == TRIED else done


def _position(number: int) -> int:
    """After how many iterations the sequence comes to a number; 0 where it does not within those that are tried."""
    found = 0
    for k in range(1, TRIED + 1):
        found = (found * _FACTOR + _STEP) & 0xFFFFFFFF
        if found == number:
            return k
    return 0
