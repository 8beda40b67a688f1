"""A sample of wrong shapes; `python -m tests.fuzz shapes` tries many."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.fuzz.registry import run_seed
from tests.fuzz.shapes.guarded import guarded
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


@pytest.mark.parametrize("at_end", [True, False])
def test_what_lies_beyond_an_array_cannot_be_read(at_end: bool) -> None:
    with guarded(np.arange(5, dtype=np.int32), at_end) as array:
        assert array.sum() == 10
    read = f"""
import ctypes, numpy as np
from tests.fuzz.shapes.guarded import guarded
with guarded(np.arange(5, dtype=np.int32), {at_end}) as array:
    ctypes.c_int32.from_address(array.ctypes.data + {20 if at_end else -4}).value
"""
    done = subprocess.run([sys.executable, "-c", read], env={**os.environ, "PYTHONPATH": "."}, check=False)
    assert done.returncode < 0
