"""Functions over operators against an independent reference, in the interpreter and as native code."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tests.ops.samples_composites import COMPOSITE_FAMILIES
from tests.ops.sampling import Sample
from tests.ops.test_operators import check
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.types import tensor
from tilewright.ops import composites
from tilewright.ops.composites.complex import ComplexPair
from tilewright.ops.composites.listed import COMPOSITES
from tilewright.ops.define.interp import evaluate_block
from tilewright.options import Options
from tilewright.runtime import Model
from tilewright.target.named import parse_target

TENSORS = {"Value", "Value | None", "Value | float", "Number", "ComplexPair"}
ATTRIBUTES = {"int", "bool", "str", "float", "Sym", "DType", "Sequence[int]", "Sequence[float]", "Sym | None",
              "float | None"}  # fmt: skip
RESULTS = {"Value", "ComplexPair", "tuple[Value, Value]", "tuple[Value, Value, Value]"}
APART = {
    "positions": "sizes of results come from data, which a program of several parts measures",
    "integers": "steps of resizing images of integers",
    "text": "strings, which the host computes",
    "sequences": "sequences, which the host computes",
}
"""Files whose functions are tried through front ends alone."""


def split(array: np.ndarray) -> list[np.ndarray]:
    """The arrays that stand for one operand: both parts of complex numbers."""
    return [array.real.copy(), array.imag.copy()] if np.iscomplexobj(array) else [array]


def called(sample: Sample, values: Sequence[Value]) -> list[Value]:
    """Write the operators of a function, whose operands are so many values; the values of its result."""
    rest = iter(values)
    operands = [ComplexPair(next(rest), next(rest)) if np.iscomplexobj(a) else next(rest) for a in sample.inputs]
    given: dict[str, Any] = dict(sample.attrs)
    for name, parameter in inspect.signature(COMPOSITES[sample.op]).parameters.items():
        if parameter.annotation in TENSORS:
            given[name] = operands.pop(0)
        elif parameter.annotation == "Sequence[Value]":
            given[name], operands = operands, []
    assert not operands, sample
    found = COMPOSITES[sample.op](**given)
    results = found if isinstance(found, tuple) else (found,)
    return [v for r in results for v in ((r.real, r.imaginary) if isinstance(r, ComplexPair) else (r,))]


def compare(found: Sequence[np.ndarray], sample: Sample, looser: float = 1.0) -> None:
    expected = sample.expected()
    wanted = [p for one in (expected if isinstance(expected, tuple) else (expected,)) for p in split(np.asarray(one))]
    for ours, theirs in zip(found, wanted, strict=True):
        check(ours, theirs, sample, looser)


def written(sample: Sample) -> tuple[Module, Block, list[Value], list[np.ndarray]]:
    arrays = [part for array in sample.inputs for part in split(array)]
    module, block = Module(), Block([tensor(dt.from_numpy(a.dtype), a.shape) for a in arrays])
    with Builder(block, module):
        results = called(sample, block.args)
    return module, block, results, arrays


@pytest.mark.parametrize("family", COMPOSITE_FAMILIES, ids=lambda f: f.__name__)
def test_composite_gives_what_the_reference_gives(family: Callable[[], Iterator[Sample]]) -> None:
    for sample in family():
        module, block, results, arrays = written(sample)
        values = dict(zip(block.args, arrays, strict=True))
        evaluate_block(block.ops, values, {}, module)
        compare([values[v] for v in results], sample)


FIRST = {sample.op: sample for family in reversed(COMPOSITE_FAMILIES) for sample in reversed([*family()])}


@pytest.mark.sweep(5)
@pytest.mark.with_scalar_kernels
@pytest.mark.parametrize("name", FIRST)
def test_native_code_gives_what_the_reference_gives(name: str) -> None:
    module, block, results, arrays = written(FIRST[name])
    with Builder(block, module) as builder:
        builder.emit("return", results)
    inputs, outputs = tuple(f"x{k}" for k in range(len(arrays))), tuple(f"y{k}" for k in range(len(results)))
    module.add(Func("main", block, "graph", {"inputs": inputs, "outputs": outputs}))
    model = Model(compile_module(module, Options(), parse_target("host")), 1)
    compare(model(*arrays), FIRST[name], 9)


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public functions of the package whose operands are values, attributes aside, and whose result is values."""
    for found in pkgutil.walk_packages(composites.__path__, f"{composites.__name__}."):
        module, family = importlib.import_module(found.name), found.name.rpartition(".")[2]
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ != module.__name__ or name.startswith("_") or family in APART:
                continue
            signature = inspect.signature(function)
            taken = [p.annotation for p in signature.parameters.values()]
            plain = all(t in TENSORS | ATTRIBUTES | {"Sequence[Value]"} for t in taken)
            if plain and signature.return_annotation in RESULTS and not TENSORS.isdisjoint({*taken}):
                yield f"{family}.{name}", function


def test_every_composite_is_declared_and_has_a_sample() -> None:
    missing = [name for name, function in functions() if COMPOSITES.get(name) is not function]
    assert missing == [], "declare them (`@composite`)"
    assert sorted({*COMPOSITES} - {*FIRST}) == [], "give them samples in tests/ops/samples_composites.py"
