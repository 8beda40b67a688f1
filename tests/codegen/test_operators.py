"""Every operator as native code, on one of its samples: the same samples that tests/ops runs in the interpreter. What a
plugin's kernels compute is in tests/external."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.samples import FAMILIES
from tests.ops.sampling import Sample
from tests.ops.test_operators import check
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module
from tilewright.ir.types import tensor
from tilewright.ops.define import OPERATORS
from tilewright.ops.external import external_kernel
from tilewright.options import Options
from tilewright.runtime import Model
from tilewright.target.named import parse_target

LOOSER = 4.0
"""Times the error that the interpreter is allowed: kernels add in another order, and have functions of their own."""


def chosen() -> dict[str, Sample]:
    """Of each operator the sample with the most elements; the first of those in float32, where there are any."""
    found: dict[str, Sample] = {}
    with np.errstate(all="ignore"):
        for family in FAMILIES:
            for sample in family():
                if sample.op == external_kernel.name:
                    continue
                if sample.op not in found or rank(sample) > rank(found[sample.op]):
                    found[sample.op] = sample
    return found


def rank(sample: Sample) -> tuple[bool, int]:
    return any(a.dtype == np.float32 for a in sample.inputs), sum(a.size for a in sample.inputs)


CHOSEN = chosen()


@pytest.mark.parametrize("name", CHOSEN)
def test_native_code_gives_what_the_reference_gives(name: str) -> None:
    sample = CHOSEN[name]
    types = [tensor(dt.from_numpy(a.dtype), a.shape) for a in sample.inputs]
    names = [f"x{k}" for k in range(len(types))]
    body, module = Block(types, names), Module()
    with Builder(body, module) as builder:
        results = OPERATORS[name](*body.args, **sample.attrs)
        results = results if isinstance(results, tuple) else (results,)
        builder.emit("return", results)
    outputs = tuple(f"y{k}" for k in range(len(results)))
    module.add(Func("main", body, "graph", {"inputs": tuple(names), "outputs": outputs}))
    model = Model(compile_module(module, Options(), parse_target("host")), 1)
    expected = sample.expected()
    for found, wanted in zip(
        model(*sample.inputs), expected if isinstance(expected, tuple) else (expected,), strict=True
    ):
        check(found, wanted, sample, LOOSER)
