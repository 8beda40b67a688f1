"""Variables of streaming models, which TFLite keeps from one call to the next.

Each variable that is read is an input behind the model's own, each that is assigned an output behind its own, of the
same name. The main function says which belong together (`variables`), with the names of constants that hold their
first values, those of the subgraph that TFLite runs once. Compiled with `states=True`, the model keeps them; else
whoever calls it hands the one on as the other, and finds the first values by `first_states`.

Operators of recurrent networks have states of their own, tensors that are marked as variables. With `states=True` they
are inputs and outputs, too, for the model to keep; else each call begins with what TFLite's begins with after a reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.frontends.problems import shown
from tilewright.frontends.tflite.model import ModelInfo, Source, SubgraphInfo, TfliteTensor, read_model
from tilewright.frontends.tflite.tensors import array_of, dtype_of_tensor
from tilewright.ir.diag import ModelError

STATE_OPERATORS = ("ASSIGN_VARIABLE", "CALL_ONCE", "READ_VARIABLE", "VAR_HANDLE")


@dataclass(frozen=True)
class Variables:
    """Names of variables by the tensors that stand for them; what is read, as it is declared, and what is assigned."""

    handles: Mapping[int, str]
    read: Mapping[str, TfliteTensor]
    assigned: tuple[str, ...]


def states_of(graph: SubgraphInfo) -> Variables:
    """The variables of a subgraph."""
    handles = {
        o.outputs[0]: str(o.options["name"]) for o in graph.operators if o.kind == "VAR_HANDLE" and o.outputs
    }
    read: dict[str, TfliteTensor] = {}
    assigned: dict[str, None] = {}
    for operator in graph.operators:
        if operator.kind in ("READ_VARIABLE", "ASSIGN_VARIABLE"):
            name = handles.get(operator.inputs[0]) if operator.inputs else None
            if name is None:
                raise ModelError(
                    f"{operator.kind} without the variable that it means", hint="export the model again"
                )
            if operator.kind == "ASSIGN_VARIABLE":
                assigned[name] = None
            elif name not in assigned and operator.outputs:
                read.setdefault(name, graph.tensors[operator.outputs[0]])
    return Variables(handles, read, tuple(assigned))


def is_state(tensor: TfliteTensor) -> bool:
    """Whether a tensor is a state that an operator keeps from call to call."""
    return tensor.is_variable and tensor.data is None


def states_of_operators(graph: SubgraphInfo) -> list[TfliteTensor]:
    """The states that operators of a subgraph keep, in the order in which they are read."""
    own = {*graph.inputs}
    numbers = dict.fromkeys(n for o in graph.operators for n in o.inputs if n >= 0 and n not in own)
    return [graph.tensors[n] for n in numbers if is_state(graph.tensors[n])]


def reset_value(tensor: TfliteTensor) -> np.ndarray | None:
    """What such a state is before the first call: the integers that stand for zero, or None for zeros."""
    zeros = None if tensor.quantization is None else tensor.quantization.zeros
    if zeros is None or tensor.shape is None or not zeros.any():
        return None
    return np.full(tensor.shape, zeros[0], dtype_of_tensor(tensor).storage)


def first_states(source: Source) -> dict[str, np.ndarray]:
    """The values that the variables of a model have before its first call, by name. ModelError where they are not
    constants of the subgraph that is run once."""
    model = read_model(source)
    found = known_first_states(model)
    wanted = states_of(model.subgraphs[0]).read
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ModelError(
            f"the first value of the variable '{shown(missing[0])}' is not a constant of the file"
        )
    return {name: found[name] for name in wanted}


def known_first_states(model: ModelInfo) -> dict[str, np.ndarray]:
    """The first values of variables that are constants of the file, by name."""
    found: dict[str, np.ndarray] = {}
    for operator in model.subgraphs[0].operators:
        if operator.kind == "CALL_ONCE":
            found |= _assigned_in(model, int(operator.options["init_subgraph_index"]))
    return found


def _assigned_in(model: ModelInfo, number: int) -> dict[str, np.ndarray]:
    if not 0 < number < len(model.subgraphs):
        raise ModelError(f"there is no subgraph {number} to call")
    graph = model.subgraphs[number]
    handles = states_of(graph).handles
    found = {}
    for operator in graph.operators:
        if operator.kind == "ASSIGN_VARIABLE" and len(operator.inputs) == 2 and operator.inputs[1] >= 0:
            tensor = graph.tensors[operator.inputs[1]]
            if tensor.data is not None:
                found[handles[operator.inputs[0]]] = array_of(tensor)
    return found
