"""`load_tflite`: a TFLite model becomes a graph-level Module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.frontends.inputs import Declared, are_states_kept
from tilewright.frontends.problems import shown
from tilewright.frontends.tflite import adapters as adapters
from tilewright.frontends.tflite.importer import TfliteImporter
from tilewright.frontends.tflite.model import Source, TfliteTensor, read_model
from tilewright.frontends.tflite.tensors import dtype_of_tensor
from tilewright.frontends.tflite.variables import (
    known_first_states,
    reset_value,
    states_of,
    states_of_operators,
)
from tilewright.frontends.translation import Results, Translation, translated
from tilewright.ir.core import Module, Value
from tilewright.ir.diag import ModelError


def load_tflite(
    source: Source,
    *,
    constants: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> Module:
    """Translate the model at a path (or given as bytes) to a Module with one function `main`, as a front end's `load`
    does. ModelError when the file is broken, UnsupportedError listing all that is not supported.

    Inputs and outputs have the names of the model's signature, or where it has none those of their tensors; variables
    that TFLite keeps are inputs and outputs behind these, and so are states of operators where they are kept (see
    `variables.py`).
    """
    model = read_model(source)
    graph = model.subgraphs[0]
    if len(set(graph.inputs)) < len(graph.inputs):
        raise ModelError("a tensor is an input of the model twice", hint="export the model again")
    states = states_of(graph)
    own = _names(graph.tensors, graph.inputs, model.input_names, "input")
    kept = {name: _unique(name, own) for name in states.read}
    memory = {t.number: t for t in states_of_operators(graph)} if are_states_kept() else {}
    held: dict[int, str] = {}
    for n, tensor in memory.items():
        held[n] = _unique(tensor.name or f"state_{n}", [*own, *kept.values(), *held.values()])
    outputs = _names(graph.tensors, graph.outputs, model.output_names, "output")
    assigned: dict[str, str] = {}
    for name in states.assigned:
        assigned[name] = _unique(kept.get(name, name), outputs)
        outputs.append(assigned[name])
    updated: dict[int, str] = {}
    for n, name in held.items():
        updated[n] = _unique(name, outputs)
        outputs.append(updated[n])
    tensors = [*(graph.tensors[n] for n in graph.inputs), *states.read.values(), *memory.values()]
    names = [*own, *kept.values(), *held.values()]
    declared = {name: _declared(tensor) for name, tensor in zip(names, tensors, strict=True)}

    def translate(translation: Translation, inputs: dict[str, Value | None]) -> Results:
        values = {n: inputs[name] for name, n in zip(own, graph.inputs, strict=True)}
        values |= {n: inputs[name] for n, name in held.items()}
        variables = {name: inputs[unique] for name, unique in kept.items()}
        return TfliteImporter(translation, model, states, [*held]).main(values, variables)

    nodes = len(graph.operators)
    module = translated(declared, outputs, nodes, translate, constants=constants, shapes=shapes)
    given = {name: unique for name, unique in kept.items() if unique in module.main.attrs["inputs"]}
    first = known_first_states(model) if given else {}
    variables = [
        (
            unique,
            assigned[name],
            module.add_constant(f"{unique}.first", first[name]) if name in first else "",
            name,
        )
        for name, unique in given.items()
        if name in assigned
    ]
    for n, name in held.items():
        if name in module.main.attrs["inputs"]:
            value = reset_value(memory[n])
            initial = "" if value is None else module.add_constant(f"{name}.first", value)
            variables.append((name, updated[n], initial, name))
    if variables:
        module.main.attrs["variables"] = tuple(variables)
    return module


def _names(
    tensors: Sequence[TfliteTensor], numbers: Sequence[int], signature: Mapping[int, str], kind: str
) -> list[str]:
    """Names of inputs or outputs: the signature's where it names all, else those of tensors; each another one."""
    named = all(signature.get(n) for n in numbers)
    found: list[str] = []
    for k, n in enumerate(numbers):
        found.append(_unique(signature[n] if named else tensors[n].name or f"{kind}_{k}", found))
    return found


def _unique(name: str, taken: Sequence[str]) -> str:
    count, unique = 1, name
    while unique in taken:
        count += 1
        unique = f"{name}_{count}"
    return unique


def _declared(tensor: TfliteTensor) -> Declared:
    """An input; dims that the file leaves open are dims of their own."""
    try:
        dtype = dtype_of_tensor(tensor)
    except ModelError as e:
        e.where = f"graph input '{shown(tensor.name)}'"
        raise
    shape = tensor.shape
    return Declared(dtype, None if shape is None else tuple(None if d == -1 else d for d in shape))
