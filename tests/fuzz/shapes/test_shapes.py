"""A sample of wrong shapes; `python -m tests.fuzz shapes` tries many."""

from __future__ import annotations

import pytest

from tests.fuzz.registry import run_seed
from tests.fuzz.shapes.subjects import subjects
from tilewright.ops.define import OPERATORS


@pytest.mark.fresh_seeds(12)
def test_fresh_shapes(fresh_seed: int) -> None:
    assert run_seed("shapes", fresh_seed)


def test_all_operators_are_tried() -> None:
    found = subjects()
    with_inputs = {name for name, op in OPERATORS.items() if op.fn.__module__.startswith("tilewright.")}
    without = {"fresh_key", "full", "iota", "sym_tensor"}
    assert with_inputs - without <= set(found)
    assert {"onnx.LSTM", "onnx.NonMaxSuppression", "com.microsoft.FusedConv"} <= set(found)
