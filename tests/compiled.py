"""Graphs of which a process of the suite has the artefact already are not compiled again, in rooms that say so, and
kernels that it has are not scheduled again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.zones.turned_on import zones
from tilewright import compilation, compiler
from tilewright.graph.fusion.strategy import Strategies
from tilewright.ir.constants import Deferred
from tilewright.ir.core import Module
from tilewright.ir.diag import Remark
from tilewright.ir.optional_steps import CHECKED, OptionalSteps
from tilewright.ir.text import print_module
from tilewright.options import Options
from tilewright.plugins import NO_PLUGINS, Plugins
from tilewright.requested import RequestedGraphs
from tilewright.runtime import Artifact
from tilewright.schedule.sharing.kernels import KnownKernels
from tilewright.schedule.strategy import Strategy
from tilewright.target.machine import Machine

KEPT_ARTEFACTS = 64
"""Those that were asked for last; a megabyte each where weights are of a small network."""

KEPT_KERNELS = 1000
"""Of all programs; when there are more, those of before are forgotten."""

_MADE: dict[Any, Artifact] = {}
_SCHEDULED: dict[Any, KnownKernels] = {}


@contextmanager
def graphs_are_compiled_once() -> Iterator[None]:
    """The artefact of a graph is that of an equal one that was compiled before: its text, its weights, the options and
    the machine are the same, and all that is read beside them is the compiler's code. It is for tests that compile as a
    means, and change nothing of the compiler."""
    compile_graphs = compiler.compile_graphs

    def once(
        graphs: RequestedGraphs, options: Options, machine: Machine, progress: Any = None,
        plugins: Plugins = NO_PLUGINS, optional: OptionalSteps = CHECKED, on_objects: Any = None, checks: Any = None,
    ) -> Artifact:  # fmt: skip
        how = progress, plugins, optional, on_objects, checks
        is_deferred = any(isinstance(array, Deferred) for array in graphs.general.constants.held.values())
        has_files = options.schedule is not None or options.override or options.dump is not None
        others = graphs.frequent or graphs.broadcasting or is_deferred or has_files or checks is not None
        if others or optional is CHECKED or plugins != NO_PLUGINS or on_objects is not None:
            return compile_graphs(graphs, options, machine, *how)
        here = zones()
        key = _digest(graphs.general), options, machine, here is not None and here.has_room
        found = _MADE.pop(key, None)
        _MADE[key] = found = compile_graphs(graphs, options, machine, *how) if found is None else found
        if len(_MADE) > KEPT_ARTEFACTS:
            del _MADE[next(iter(_MADE))]
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "compile_graphs", once)
        yield


@contextmanager
def kernels_are_scheduled_once() -> Iterator[None]:
    """A kernel that was scheduled before is taken again: of an equal region, which came of nodes of the same names, for
    the same machine and numerics. It is for rooms that change nothing of what schedules kernels, and where another
    compilation than the first of its kind is a means: what is verified, has a failed step, a plugin's strategy or a
    user's schedule is scheduled as ever."""
    schedule_regions = compilation.schedule_regions

    def once(
        module: Module, target: Machine, strategies: Strategies[Strategy], remarks: list[Remark], ready: Any, step: Any,
        *, optional: OptionalSteps, edited: Any, numbers: Any, strict: bool, rounded_rows: int,
        known: KnownKernels | None,
    ) -> list[int]:  # fmt: skip
        is_plain = not (optional.verified or optional.off or strategies.outside)
        if known is None and edited is None and is_plain and optional.raises:
            if sum(map(len, _SCHEDULED.values())) > KEPT_KERNELS:
                _SCHEDULED.clear()
            known = _SCHEDULED.setdefault((target, strict, rounded_rows, strategies.ours), {})
        return schedule_regions(
            module, target, strategies, remarks, ready, step, optional=optional, edited=edited, numbers=numbers,
            strict=strict, rounded_rows=rounded_rows, known=known,
        )  # fmt: skip

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compilation, "schedule_regions", once)
        yield


def _digest(module: Module) -> bytes:
    digest = hashlib.blake2b(print_module(module, locs=True).encode())
    for name, array in module.constants.items():
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return digest.digest()
