"""What is called with wrong shapes: operators by their samples, and ONNX operators by the cases of the onnx package."""

from __future__ import annotations

import pkgutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module

import numpy as np
import onnx

from tests.conformance import Case, cases
from tests.frontends import microsoft
from tests.frontends.microsoft.against import Case as OnnxRuntimeCase
from tests.graph.programs import program
from tests.ops.samples import FAMILIES
from tests.ops.sampling import Sample
from tilewright.api import compile_artifact
from tilewright.compiler import compile_module
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir import dtype as dt
from tilewright.ir.diag import TypeRuleError, UnsupportedError
from tilewright.ir.sym import sym, var
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.demands import undecided
from tilewright.ops.define.interp import evaluate, evaluate_func
from tilewright.ops.define.staged import STAGED
from tilewright.options import Options
from tilewright.runtime import Artifact, Model
from tilewright.target.host import host_target

Dims = Mapping[str, tuple[int | str, ...]]
"""The shapes of inputs, with names where the sizes come with the call."""

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Subject:
    """A program with the inputs of a right call."""

    name: str
    operator: str
    inputs: Arrays
    compiled: Callable[[Dims, Options], Artifact]
    reference: Callable[[Arrays], Sequence[np.ndarray]]
    """What a call with these arrays gives; a TilewrightError where they do not fit."""


def of_sample(sample: Sample) -> Subject:
    """An operator of its own."""
    operator = OPERATORS[sample.op]
    inputs = {f"x{k}": np.asarray(a) for k, a in enumerate(sample.inputs)}

    def compiled(dims: Dims, options: Options) -> Artifact:
        types = [
            TensorType(dt.from_numpy(a.dtype), tuple(var(d, 0) if isinstance(d, str) else sym(d) for d in dims[name]))
            for name, a in inputs.items()
        ]
        with undecided() as demands:
            module = program(lambda *args: operator(*args, **sample.attrs), *types)
        assumed = tuple((holds, f"{wrong}: it must be that {holds}", "", sample.op) for holds, wrong in demands)
        module.main.attrs |= {"inputs": tuple(inputs), "assumed": assumed}
        return compile_module(module, options, host_target())

    def reference(arrays: Arrays) -> Sequence[np.ndarray]:
        try:
            found = evaluate(operator, *arrays.values(), **sample.attrs)
        except (ValueError, IndexError, ZeroDivisionError) as e:  # as rules of composites say it
            raise TypeRuleError(str(e)) from e
        return found if isinstance(found, tuple) else (found,)

    return Subject(str(sample), sample.op, inputs, compiled, reference)


def of_case(case: Case) -> Subject:
    """An ONNX model whose inputs are tensors; those that must be known are constants."""
    arrays = [np.asarray(a) for a in case.sets[0][0]]
    preset = {t.name for t in case.model.graph.initializer}
    names = [i.name for i in case.model.graph.input if i.name not in preset]
    given = dict(zip(names, arrays, strict=True))
    constants = _constants(case.model, given)
    inputs = {name: a for name, a in given.items() if name not in constants}

    def compiled(dims: Dims, options: Options) -> Artifact:
        return compile_artifact(declared(case.model, dims), constants=constants, options=options)

    def reference(arrays: Arrays) -> Sequence[np.ndarray]:
        fixed = {name: a.shape for name, a in arrays.items()}
        model = declared(case.model, fixed)
        module = load_onnx(model, constants=constants)
        if any(op.name in STAGED for op in module.main.body.ops):
            artifact = compile_artifact(model, constants=constants, options=Options(cache=False))
            return Model(artifact, 1)(*arrays.values())
        try:
            return evaluate_func(module.main, module, list(arrays.values()))
        except ValueError as e:  # a size that an element of an input gives is below 0
            raise TypeRuleError(str(e)) from e

    return Subject(case.name, case.operator, inputs, compiled, reference)


def _constants(model: onnx.ModelProto, given: Arrays) -> dict[str, np.ndarray]:
    """Inputs without which the model cannot be compiled."""
    chosen: dict[str, np.ndarray] = {}
    short = {name: a for name, a in given.items() if a.size <= 32 and a.dtype.kind in "iub"}
    for constants in ({}, short, {name: a for name, a in given.items() if a.size <= 32}):
        chosen = constants
        with suppress(UnsupportedError):
            dims = {n: tuple(f"{n}_{k}" for k in range(a.ndim)) for n, a in given.items() if n not in constants}
            load_onnx(declared(model, dims), constants=constants)
            break
    return chosen


def declared(model: onnx.ModelProto, dims: Dims) -> bytes:
    """The model with inputs of these shapes, and of what it computes only the ranks."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    del copied.graph.value_info[:]
    for info in copied.graph.input:
        if info.name in dims:
            shape = info.type.tensor_type.shape
            del shape.dim[:]
            for d in dims[info.name]:
                shape.dim.add(**({"dim_param": d} if isinstance(d, str) else {"dim_value": d}))
    for info in copied.graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    return copied.SerializeToString()


@cache
def subjects() -> Mapping[str, Sequence[Callable[[], Subject]]]:
    """What makes the subjects of each operator; those of ONNX have its name with "onnx." before it."""
    found: dict[str, list[Callable[[], Subject]]] = defaultdict(list)
    for family in FAMILIES:
        for sample in family():
            if sample.inputs:
                found[sample.op].append(lambda sample=sample: of_sample(sample))
    for case in cases("node"):
        if _is_suitable(case):
            found[f"onnx.{case.operator}"].append(lambda case=case: of_case(case))
    for name, case in onnxruntime_cases():
        if _is_suitable(case):
            found[name].append(lambda case=case: of_case(case))
    return dict(found)


def onnxruntime_cases() -> Iterator[tuple[str, Case]]:
    """The nodes of ONNX Runtime's own operators that tests compare, with all operands as inputs."""
    for module in pkgutil.iter_modules(microsoft.__path__, f"{microsoft.__name__}."):
        if not module.name.rpartition(".")[2].startswith("test_"):
            continue
        for table in vars(import_module(module.name)).values():
            for case in table if isinstance(table, list | tuple) else ():
                if isinstance(case, OnnxRuntimeCase):
                    arrays = [np.asarray(a) for a in case.arrays if a is not None]
                    model = replace(case, known=()).model()
                    yield f"{case.domain}.{case.op}", Case(f"{case.domain}/{case}", case.op, model, [(arrays, ())])


def _is_tensor(info: onnx.ValueInfoProto) -> bool:
    return info.type.HasField("tensor_type") and info.type.tensor_type.elem_type != 0


def _is_suitable(case: Case) -> bool:
    if not case.sets or not case.sets[0][0] or not all(map(_is_tensor, case.model.graph.input)):
        return False
    inputs = case.sets[0][0]
    return all(
        isinstance(a, np.ndarray | np.generic) and np.asarray(a).dtype.kind in "fiub" and np.asarray(a).size <= 1 << 16
        for a in inputs
    ) and sum(np.asarray(a).ndim for a in inputs) > 0
