"""The families of large models: what the compiler does for them grows as they do."""

from __future__ import annotations

import sys
from collections import Counter
from types import CodeType, FrameType
from typing import Any

import onnx
import pytest

from bench.large_models import FAMILIES
from tilewright.compilation import Compilation, Setting
from tilewright.frontends.onnx.load import load_onnx
from tilewright.options import Options
from tilewright.program.memory.effort import PlanEffort
from tilewright.program.memory.order import reorder
from tilewright.program.memory.storage import assign_storage
from tilewright.target.named import NAMED

NODES = 64
POWER = 1.5
"""Between the powers of the number of nodes of what is linear and what is quadratic."""
SHARE = 0.01
"""Of all lines that run: what is less than this says nothing, as tables that fill at first."""
NO_SEARCH = PlanEffort(order=0, offsets=0)
"""Searches end when their budgets do, which do not grow with a model."""


def make_kernels(model: onnx.ModelProto) -> None:
    """A model becomes a graph of kernels with memory."""
    options, target = Options(target="zen4", verify=False), NAMED["zen4"]
    module = load_onnx(model.SerializeToString())
    Compilation(module, Setting.of(options, target)).run("fused")
    reorder(module.main, effort=NO_SEARCH)
    assign_storage(module.main, effort=NO_SEARCH)


def lines_run(model: onnx.ModelProto) -> Counter[CodeType]:
    """How many lines of each function run while a model becomes a graph of kernels with memory."""
    found: Counter[CodeType] = Counter()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code

        def line(frame: FrameType, event: str, _: Any) -> Any:
            found[code] += event == "line"
            return line

        return line

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        make_kernels(model)
    finally:
        sys.settrace(before)
    return found


@pytest.mark.sweep(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_function_runs_more_than_linearly_often(family: str) -> None:
    small, large = (FAMILIES[family](n) for n in (NODES, 2 * NODES))
    growth = (len(large.graph.node) / len(small.graph.node)) ** POWER
    make_kernels(large)  # fills the tables of expressions
    once, twice = lines_run(small), lines_run(large)
    least = SHARE * twice.total()
    steep = {c.co_qualname: (once[c], n) for c, n in twice.items() if n > max(least, growth * once[c])}
    assert steep == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_models_are_legal_and_as_large_as_asked(family: str) -> None:
    model = FAMILIES[family](300)
    onnx.checker.check_model(model)
    assert 250 < len(model.graph.node) < 350
