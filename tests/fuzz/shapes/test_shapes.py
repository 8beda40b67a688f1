"""A sample of wrong shapes; `python -m tests.fuzz shapes` tries many."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from tests.fuzz.registry import run_seed
from tests.fuzz.shapes.subjects import subjects
from tests.graph.test_bounds import BY_DATA
from tilewright.ir.diag import TilewrightError
from tilewright.ops.define import OPERATORS
from tilewright.options import Options
from tilewright.runtime import Model
from tilewright.runtime.errors import ExecutionError, InputError


@pytest.mark.fresh_seeds(3)
def test_fresh_shapes(fresh_seed: int) -> None:
    assert run_seed("shapes", fresh_seed)


def test_all_operators_are_tried() -> None:
    found = subjects()
    with_inputs = {name for name, op in OPERATORS.items() if op.fn.__module__.startswith("tilewright.")}
    without = {"fresh_key", "full", "iota", "sym_tensor"}
    assert with_inputs - without <= set(found)
    assert {"onnx.LSTM", "onnx.NonMaxSuppression", "com.microsoft.FusedConv"} <= set(found)


ODD = {"f": (np.nan, np.inf, -np.inf, 1e30, -1e30, -0.5), "i": (-1, 7, 1 << 31, -(1 << 62)), "u": (7, 255), "b": (1,)}


@pytest.mark.parametrize("name", sorted(BY_DATA))
def test_odd_elements_take_no_position_beyond_a_buffer(name: str) -> None:
    """Guard zones tell of positions beyond; any result or an error is right here."""
    subject = subjects()[name][0]()
    dims = {key: tuple(f"{key}_{k}" for k in range(a.ndim)) for key, a in subject.inputs.items()}
    options = Options(cache=False, compile_threads=1)
    try:
        model = Model(subject.compiled(dims, options), 1)
    except (TilewrightError, ValueError):  # its sizes must be known
        model = Model(subject.compiled({key: a.shape for key, a in subject.inputs.items()}, options), 1)
    for key, array in subject.inputs.items():
        bounds = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
        for value in ODD[array.dtype.kind]:
            odd = np.full_like(array, value if bounds is None else min(max(value, bounds.min), bounds.max))
            with suppress(InputError, ExecutionError), np.errstate(all="ignore"):
                model(*[odd if info.name == key else subject.inputs[info.name] for info in model.inputs])
