"""Fuzzing sizes: huge numbers where nodes say how large something is. Each ends soon, with an answer or an error."""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fuzz.files.limits import limited
from tests.fuzz.registry import Tried
from tilewright.api import compile_artifact
from tilewright.ir.diag import InternalError, TilewrightError
from tilewright.options import Options
from tilewright.runtime.errors import PerformanceWarning

HUGE = (2000, 46341, 10**6, 2**31 - 1, 2**31, 2**32, 2**40, 2**53 + 1, 2**62, 2**63 - 1)
SECONDS, BYTES = 40.0, 3 << 30
"""Of processor time and memory for each file: a compilation of one node takes less than a second."""

LARGEST_CASE = 3000  # bytes


@functools.cache
def corpus() -> tuple[bytes, ...]:
    """The cases of single nodes that the onnx package brings, with small inputs of integers as constants: sizes
    are given by attributes or by tensors."""
    from tests.onnx_cases import cases_of_nodes  # takes seconds

    found = set()
    for case in cases_of_nodes():
        if case.model is None:
            continue
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        values = case.data_sets[0][0] if case.data_sets else []
        for info, value in zip(list(model.graph.input), values, strict=False):
            is_size = info.type.tensor_type.elem_type == TensorProto.INT64 and np.ndim(value) <= 1
            if is_size and isinstance(value, np.ndarray) and value.size <= 8:
                model.graph.input.remove(info)
                model.graph.initializer.append(numpy_helper.from_array(value, info.name))
        text = model.SerializeToString()
        if len(text) <= LARGEST_CASE and _places(model):
            found.add(text)
    return tuple(sorted(found))


Place = tuple[str, int, int]
"""An attribute of the node, or an initializer or an input; its number, and that of the element."""


def _places(model: onnx.ModelProto) -> list[Place]:
    found: list[Place] = []
    for node in model.graph.node[:1]:
        for k, attribute in enumerate(node.attribute):
            if attribute.type == onnx.AttributeProto.INT:
                found.append(("int", k, 0))
            found += [("ints", k, i) for i in range(len(attribute.ints))]
    for k, tensor in enumerate(model.graph.initializer):
        if tensor.data_type == TensorProto.INT64:
            found += [("tensor", k, i) for i in range(int(np.prod(tensor.dims)))]
    for k, info in enumerate(model.graph.input):
        found += [("dim", k, i) for i, d in enumerate(info.type.tensor_type.shape.dim) if d.HasField("dim_value")]
    return found


def enlarged(data: bytes, random: Random) -> bytes:
    """The model with a huge number at one place, and sometimes at others."""
    model = onnx.ModelProto.FromString(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        kind, k, i = random.choice(_places(model))
        number = random.choice(HUGE)
        if kind == "tensor":
            array = numpy_helper.to_array(model.graph.initializer[k]).copy()
            array.reshape(-1)[i] = number
            model.graph.initializer[k].CopyFrom(numpy_helper.from_array(array, model.graph.initializer[k].name))
        elif kind == "dim":
            model.graph.input[k].type.tensor_type.shape.dim[i].dim_value = number
        elif kind == "int":
            model.graph.node[0].attribute[k].i = number
        else:
            model.graph.node[0].attribute[k].ints[i] = number
    for info in model.graph.output:  # what the case declares does not fit any more
        info.type.tensor_type.ClearField("shape")
    return bytes(model.SerializeToString())


def fuzz(seed: int) -> Tried:
    random = Random(seed)
    return target(enlarged(random.choice(corpus()), random))


def target(data: bytes) -> Tried:
    """Compile a model within the limits."""
    kind = onnx.ModelProto.FromString(data).graph.node[0].op_type
    try:
        with limited(SECONDS, BYTES), warnings.catch_warnings(action="ignore", category=PerformanceWarning):
            compile_artifact(data, options=Options(cache=False, verify=True, compile_threads=1))
    except InternalError:
        raise
    except TilewrightError:
        return Counter({(kind, "refused"): 1})
    except BaseException as error:
        error.add_note(f"the model: {helper.printable_graph(onnx.ModelProto.FromString(data).graph)}")
        raise
    return Counter({(kind, "compiled"): 1})
