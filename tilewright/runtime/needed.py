"""How much memory calls need, without making them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tilewright.runtime.artifact import StateInfo, TensorInfo
from tilewright.runtime.context import Planned
from tilewright.runtime.errors import OptionError
from tilewright.runtime.states import States
from tilewright.runtime.values.dtypes import numpy_dtype
from tilewright.runtime.values.inputs import Shape

MOST_BYTES = 1 << 47
"""Of a value: processes of 64-bit machines have no more addresses, and sizes are computed in 64 bits."""


class TellsBytes:
    """What models tell of the memory of their calls."""

    inputs: tuple[TensorInfo, ...]
    threads: int
    _states: States

    def peak_bytes(self, /, **dims: int) -> int:
        """The bytes of memory that one call needs beside weights, code and its inputs, for sizes of symbolic dims by
        name: `model.peak_bytes(batch=8, seq=128)`. They are the arena of intermediate results and scratch
        memory, the outputs, and the states. Nothing runs. OptionError for unknown and missing dims, and where
        sizes depend on data; InputError for sizes that the model refuses."""
        names = dict.fromkeys(d for info in self.inputs for d in info.shape if isinstance(d, str))
        if unknown := dims.keys() - names:
            told = f"its dims are: {', '.join(names)}" if names else "all of its shapes are fixed"
            raise OptionError(f"the model has no dim {', '.join(sorted(unknown))}", hint=told)
        needs = self._needs(tuple(_shape(info, dims) for info in self.inputs))
        if needs is None:
            raise OptionError(
                "what a model needs whose sizes depend on data is known after its calls alone",
                hint="look at the resident memory of a process that calls it",
            )
        arena, scratch, outputs = needs
        if max(needs) > MOST_BYTES:
            raise OptionError(
                f"a call of these sizes needs more than {MOST_BYTES} bytes, which no memory holds",
                hint="give sizes of inputs that a call can have",
            )
        return arena + scratch * self.threads + outputs + sum(map(_bytes_of_state, self._states.infos))

    def _needs(self, shapes: tuple[Shape, ...]) -> tuple[int, int, int] | None:
        """Bytes of the arena, of each thread's scratch memory and of the outputs, for shapes of the inputs; None where
        data decide, and where parts are called one after the other."""
        raise NotImplementedError


def needs_of(program: Planned) -> tuple[int, int, int]:
    """Bytes of the arena, of each thread's scratch memory and of the outputs of a program, as it is planned."""
    return *program.needs, sum(math.prod(shape) * dtype.itemsize for shape, dtype in program.results.shapes)


def _bytes_of_state(state: StateInfo) -> int:
    """What it holds, with room for all that it may grow to, twice where the next one is written beside it."""
    sizes = [size for size in state.info.shape if isinstance(size, int)]
    held = math.prod(sizes) * numpy_dtype(state.info.dtype).itemsize
    return 2 * held if state.way == "swapped" else held


def _shape(info: TensorInfo, sizes: Mapping[str, Any]) -> Shape:
    found = []
    for dim in info.shape:
        size = sizes.get(dim) if isinstance(dim, str) else dim
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise OptionError(
                f"what a call needs depends on '{dim}', which is {size!r:.80}",
                hint=f"give a whole number for each dim of {info}, such as peak_bytes({dim}=1)",
            )
        found.append(size)
    if math.prod(max(size, 1) for size in found) * numpy_dtype(info.dtype).itemsize > MOST_BYTES:
        raise OptionError(f"no memory holds {info} of these sizes", hint="give sizes of inputs that a call can have")
    return tuple(found)
