"""Calls of a part of a model whose device keeps what it is given and what it makes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from functools import partial
from typing import Any, Protocol

import numpy as np

from tilewright.runtime.arena import address_of
from tilewright.runtime.artifact import TensorInfo
from tilewright.runtime.context import Context, Linked, Planned
from tilewright.runtime.kept.away import at_home
from tilewright.runtime.values.inputs import Shape, as_array


class Handing(Protocol):
    """What parts have for the steps of a model."""

    inputs: tuple[TensorInfo, ...]
    _input_dtypes: tuple[np.dtype, ...]
    _contexts: deque[Context]

    @property
    def linked(self) -> Linked: ...

    def _new_context(self) -> Context: ...

    def _plan(self, context: Context, shapes: tuple[Shape, ...]) -> None: ...

    def _failure(self, program: Planned, code: int, shapes: tuple[Shape, ...]) -> Exception: ...


CallHanding = Callable[[tuple[Any, ...], Container[int], object], tuple[np.ndarray, ...]]
"""Calls a part with arrays whose content devices may hold (`kept/away.py`), and gives such ones. Nobody needs arrays
afterwards with the identities that are given, too, and within the run that is given nobody writes to any."""


def handing_of(part: Handing) -> CallHanding | None:
    """How a part is called whose code keeps on its device what it makes; None for others."""
    return partial(_call, part) if getattr(part.linked.code, "hands_over", False) else None


def _call(part: Handing, args: tuple[Any, ...], freed: Container[int], of: object) -> tuple[np.ndarray, ...]:
    try:
        context = part._contexts.pop()
    except IndexError:
        context = part._new_context()
    try:
        arrays = []
        for index, (value, dtype) in enumerate(zip(args, part._input_dtypes, strict=True)):
            is_plain = type(value) is np.ndarray and value.dtype is dtype and value.flags.carray
            if context.reads_data or not is_plain:
                value = as_array(at_home(value), part.inputs[index], dtype)
            arrays.append(value)
            context.in_data[index] = address_of(value)
        shapes = tuple([array.shape for array in arrays])
        if shapes != context.planned or context.reads_data:
            part._plan(context, shapes)
        results = context.results.make(context.out_data)
        program = context.current
        code: Any = program.linked.code
        if failed := code.run_handing(context.call, arrays, results, freed, of):
            raise part._failure(program, failed, shapes)
        return tuple(results)
    finally:
        part._contexts.append(context)
