"""Graphs of which a process of the suite has the artefact already are not compiled again, in rooms that say so."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.zones.turned_on import zones
from tilewright import compiler
from tilewright.ir.constants import Deferred
from tilewright.ir.core import Module
from tilewright.ir.optional_steps import CHECKED, OptionalSteps
from tilewright.ir.text import print_module
from tilewright.options import Options
from tilewright.plugins import NO_PLUGINS, Plugins
from tilewright.requested import RequestedGraphs
from tilewright.runtime import Artifact
from tilewright.target.machine import Machine

KEPT_ARTEFACTS = 64
"""Those that were asked for last; a megabyte each where weights are of a small network."""

_MADE: dict[Any, Artifact] = {}


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


def _digest(module: Module) -> bytes:
    digest = hashlib.blake2b(print_module(module, locs=True).encode())
    for name, array in module.constants.items():
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return digest.digest()
