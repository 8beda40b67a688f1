"""The operators that most networks have, on both drivers of WebGPU that need no GPU: the cases of the onnx package."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

import onnx
import pytest
from onnx import TensorProto

import tilewright
from tests.conformance import Case, cases, compare, tensors
from tests.machines.operators_used import MOST, most_used, operators
from tilewright import Session

BY_DAY = 3
"""Cases of an operator that are tried by day; by night all are."""
LACKING = frozenset({TensorProto.DOUBLE, TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128})
"""Element types that WGSL has not."""
IN_FLOAT64 = frozenset({"Pow", "Range", "Resize"})
"""Operators that compute in float64 for some types and open sizes: the CPU does that."""
CUTTING = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Operators that cut a program into parts."""


@cache
def cases_of() -> Mapping[str, Sequence[Case]]:
    """Those of each operator, without those in which functions are written out."""
    found: dict[str, list[Case]] = {}
    for case in cases("node"):
        if "_expanded" not in case.name:
            for name in operators(case.model):
                found.setdefault(name, []).append(case)
    return MappingProxyType(found)


def test_sixty_operators_have_cases() -> None:
    assert len(most_used()) >= MOST
    assert all(cases_of().get(name) for name in most_used()), "each one is tried"


def _takes_types_that_wgsl_lacks(model: onnx.ModelProto) -> bool:
    values = [v.type for v in (*model.graph.input, *model.graph.output)]
    types = {t.tensor_type.elem_type for t in values if t.HasField("tensor_type")}
    return bool(LACKING & types) or len([t for t in values if not t.HasField("tensor_type")]) > 0


def _is_right(case: Case, session: Session) -> bool:
    """Whether all of a case runs on the device; AssertionError where its results are not those expected."""
    inputs = [i.name for i in case.model.graph.input]
    may_be_cut = (IN_FLOAT64 | CUTTING) & operators(case.model) or _takes_types_that_wgsl_lacks(case.model)
    try:
        made = tilewright.compile(
            case.model.SerializeToString(), target="webgpu", placement="device", session=session, threads=1
        )
    except tilewright.UnsupportedError as error:
        assert may_be_cut and "WebGPU has no f64" in str(error), (case.name, error)
        return False
    for given, wanted in case.sets:
        named = dict(zip(inputs, tensors(given), strict=True))
        for ours, theirs in zip(made(*[named[i.name] for i in made.inputs]), tensors(wanted), strict=True):
            compare(ours, theirs, case.rtol, case.atol)
    placed = made.report().placed
    assert may_be_cut or not placed, (case.name, placed)
    return not placed


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", most_used())
def test_an_operator(name: str, driver: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each case is right, and all of it runs on the device where WGSL has its types."""
    is_sweep = request.config.getoption("--sweeps")
    chosen = list(cases_of()[name])
    session = Session(folder=tmp_path)
    whole = [_is_right(c, session) for c in (chosen if is_sweep else random.sample(chosen, min(BY_DAY, len(chosen))))]
    assert not is_sweep or any(whole) or name in ("Einsum", "If"), "of Einsum there are cases in float64 alone"
