"""What is declared of the sizes of inputs: names and least sizes by the caller, ranges by PyTorch's tracing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from tilewright.frontends.torch.symbols.guards import range_of


def dim_names(program: ExportedProgram, given: Any) -> dict[str, str]:
    """The names that a caller gave to dims (torch.export.Dim), by symbol of the program."""
    found: dict[str, str] = {}
    for symbol, dim in _dims(program, given):
        if name := getattr(dim, "__name__", None):
            found.setdefault(symbol, name)
    return found


def dim_minima(program: ExportedProgram, given: Any) -> dict[str, int]:
    """The least sizes that a caller gave for dims, by symbol of the program, which does not tell 2 from what PyTorch
    takes for granted."""
    found: dict[str, int] = {}
    for symbol, dim in _dims(program, given):
        least = getattr(dim, "min", None)
        if isinstance(least, int) and least > 0:
            found.setdefault(symbol, least)
    return found


def _dims(program: ExportedProgram, given: Any) -> Iterator[tuple[str, Any]]:
    """The symbol of each axis that a caller gave something for, and what that is."""
    wanted = {} if given is None else _shapes_by_input(program, given)
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for axis, dim in (wanted.get(node.name) or {}).items():
            if isinstance(value, torch.Tensor) and isinstance(value.shape[axis], torch.SymInt):
                yield str(value.shape[axis].node.expr), dim


def _shapes_by_input(program: ExportedProgram, given: Any) -> dict[str, dict[int, Any]]:
    """The dims of each input that is a tensor by itself."""
    names = [s.arg.name for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    listed = list(given.values()) if isinstance(given, Mapping) else list(given)
    if len(listed) != len(names):
        return {}
    pairs = zip(names, listed, strict=True)
    return {
        name: dict(dims) if isinstance(dims, Mapping) else dict(enumerate(dims))
        for name, dims in pairs
        if isinstance(dims, Mapping | tuple | list)
    }


def symbols_of_inputs(inputs: Iterable[torch.fx.Node]) -> dict[sympy.Symbol, torch.SymInt]:
    """The symbols that are the size of an axis of an input that is a tensor."""
    found: dict[sympy.Symbol, torch.SymInt] = {}
    for node in inputs:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                found.setdefault(size.node.expr, size)
    return found


def traced_ranges(inputs: Iterable[torch.fx.Node]) -> tuple[tuple[str, int, int | None], ...]:
    """What is known of the symbols that are sizes of inputs of a graph of Dynamo's, which calls it with such alone."""
    found = []
    for symbol, size in symbols_of_inputs(inputs).items():
        environment = size.node.shape_env
        bounds = None if environment is None else environment.var_to_range.get(symbol)
        low, high = (0, None) if bounds is None else range_of(bounds)
        if low or high is not None:
            found.append((str(symbol), low, high))
    return tuple(found)
