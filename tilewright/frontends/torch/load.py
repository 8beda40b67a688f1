"""`load_torch`: a module with examples, or an exported program, becomes a graph-level Module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tilewright.frontends.exported.kept_buffers import ROOM, KeptBuffers, kept_buffers
from tilewright.frontends.exported.one_sequence import OneSequence, required_sequence
from tilewright.frontends.front_end import ModelWithExamples
from tilewright.frontends.inputs import Bounds, Declared
from tilewright.frontends.torch.archive.read import read_program
from tilewright.frontends.torch.capture import Captured, captured
from tilewright.frontends.torch.export import exported
from tilewright.frontends.torch.importer import GraphImporter
from tilewright.frontends.torch.symbols.declared import dim_minima, dim_names
from tilewright.frontends.torch.tensors import array_of, part_of, require_dense
from tilewright.frontends.translation import Results, Translation, translated
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.diag import UnsupportedError
from tilewright.runtime.errors import OptionError


def program_of(source: Any) -> Captured:
    """The captured graph of a module with examples, an exported program or its file; made once for each source."""
    if isinstance(source, Captured):
        return source
    if isinstance(source, Path):
        return captured(read_program(source))
    if isinstance(source, torch.nn.Module):
        raise OptionError(
            f"the module {type(source).__name__} was given without examples of its inputs",
            hint="tilewright.compile(module, example_inputs=(x,)): they say what it is called with, and their shapes",
        )
    if not isinstance(source, ModelWithExamples):
        return captured(source)
    if not isinstance(source.model, torch.nn.Module):
        raise OptionError(
            "example_inputs= were given for an exported program, which has its own", hint="leave them out"
        )
    if "captured" not in source.made:
        program = exported(source.model, source.args, source.kwargs, source.dynamic_shapes)
        dims = source.dynamic_shapes
        source.made["captured"] = captured(program, dim_names(program, dims), dim_minima(program, dims))
    return source.made["captured"]


def load_captured(
    captured: Captured,
    *,
    constants: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    is_decoder: bool = False,
) -> Module:
    """Translate a captured graph to a Module with one function `main`, as a front end's `load` does; one that
    `is_decoder` is of one sequence."""
    captured = _without_unread(captured) if is_decoder else captured
    nodes = sum(node.op == "call_function" for node in captured.graph.graph.nodes)
    names = dict(captured.dims)
    inputs, outputs = _inputs(captured, names), list(captured.outputs)
    decoder = _decoder(captured, inputs) if is_decoder else None
    rooms: list[int] = []
    if decoder is not None:
        captured = _without_ranges(captured, decoder.computed)
        inputs, outputs = dict(decoder.inputs), decoder.outputs(outputs)

    def translate(translation: Translation, given: dict[str, Value | None]) -> Results:
        importer = GraphImporter(translation, captured)
        if decoder is None:
            return importer.main(given)
        given = {**given, **decoder.values(given)}
        results = importer.main(given)
        if isinstance(decoder, OneSequence):
            return results
        found, room = decoder.results(translation, given, dict(zip(captured.outputs, results, strict=True)))
        rooms.append(room)
        return found

    bounds: dict[str, Bounds] = {
        names[symbol]: (low, high) for symbol, low, high in captured.guards.ranges if symbol in names
    }
    module = translated(inputs, outputs, nodes, translate, constants=constants, shapes=shapes, bounds=bounds)
    if rooms:
        module.main.attrs[ROOM] = min(rooms)
    elif not is_decoder:
        _add_variables(module, captured)
    return module


def _decoder(captured: Captured, inputs: Mapping[str, Declared]) -> OneSequence | KeptBuffers:
    """What a decoder takes whose caches are inputs and outputs, or buffers."""
    return kept_buffers(inputs, captured.kept) if captured.kept else required_sequence(inputs)


def _without_unread(captured: Captured) -> Captured:
    """The same without buffers that calls write and do not read."""
    unread = {n.name for n in captured.graph.graph.find_nodes(op="placeholder") if not n.users}
    kept = {name: output for name, output in captured.kept.items() if name not in unread}
    dropped = {captured.kept[name] for name in captured.kept if name not in kept}
    pairs = zip(captured.outputs, captured.results, strict=True)
    left = [(name, result) for name, result in pairs if name not in dropped]
    return replace(
        captured,
        inputs=tuple(name for name in captured.inputs if name in kept or name not in captured.kept),
        outputs=tuple(name for name, _ in left),
        results=tuple(result for _, result in left),
        kept=kept,
    )


def _without_ranges(captured: Captured, computed: Mapping[str, Declared]) -> Captured:
    """The same without ranges of sizes that follow from others, which have theirs."""
    placeholders = (n for n in captured.graph.graph.find_nodes(op="placeholder") if n.name in computed)
    sizes = {str(size) for node in placeholders for size in node.meta["val"].shape}
    ranges = tuple(entry for entry in captured.guards.ranges if entry[0] not in sizes)
    return replace(captured, guards=replace(captured.guards, ranges=ranges))


def _add_variables(module: Module, captured: Captured) -> None:
    """Note which inputs are buffers that the module writes to: it can only be compiled as one that keeps them."""
    found = []
    for name, output in captured.kept.items():
        if name in module.main.attrs["inputs"]:
            target, tensor = captured.state[name]
            initial = module.add_constant(f"{target}.first", array_of(tensor, f"'{target}'").copy())
            found.append((name, output, initial, target))
    if found:
        module.main.attrs |= {"variables": tuple(found), "must_keep": True}


def _inputs(captured: Captured, names: dict[str, str]) -> dict[str, Declared]:
    """The inputs; dims that are one symbol have one name: that of `names`, to which the first such axis is added where
    it has none."""
    found: dict[str, Declared] = {}
    for node in captured.graph.graph.find_nodes(op="placeholder"):
        if node.name not in captured.inputs:
            continue
        given = node.meta.get("val")
        if isinstance(given, torch.Tensor):
            require_dense(given, f"the input '{node.name}'")
            dims = tuple(_dim(size, f"{node.name}_{axis}", names) for axis, size in enumerate(given.shape))
            found[node.name] = Declared(part_of(given.dtype), dims, given.is_complex())
        elif isinstance(given, torch.SymInt):
            found[node.name] = Declared(dt.i64, ())
        else:
            raise UnsupportedError(
                f"the input '{node.name}' is a {type(given).__name__}",
                hint="inputs are tensors, or whole numbers",
            )
    return found


def _dim(size: int | torch.SymInt, place: str, names: dict[str, str]) -> int | str:
    if isinstance(size, int):
        return size
    known = size.node.maybe_as_int()  # tracing may have fixed it
    if known is not None:
        return int(known)
    return names.setdefault(str(size.node.expr), place)
