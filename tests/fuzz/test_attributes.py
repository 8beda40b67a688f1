"""Integers of attributes out of their range: refused, or as ONNX Runtime has it."""

from __future__ import annotations

import pytest

from tests.fuzz import attributes
from tests.fuzz.registry import run_seed

pytest.importorskip("onnxruntime")
FRESH = 8


@pytest.mark.fresh_seeds(1)
def test_attributes(fresh_seed: int) -> None:
    for seed in range(fresh_seed, fresh_seed + FRESH):
        run_seed("attributes", seed)


def test_results_are_compared() -> None:
    """The cases as they are run, and what is wrong is found."""
    data, inputs = next(c for c in attributes.corpus() if b"test_argmax_keepdims_random" in c[0])
    assert attributes.target(data, inputs) == {("ArgMax", "compared"): 1}
    (wanted,) = attributes.answers(data, inputs) or ()
    with pytest.raises(AssertionError, match="output 0"):
        attributes._compared((wanted + 1,), data, inputs)


def test_a_lost_engine_is_replaced() -> None:
    data, inputs = attributes.corpus()[0]
    first = attributes.Engine()
    first._process.kill()
    attributes._ENGINES[:] = [first]
    assert attributes.answers(data, inputs) is None
    assert attributes.answers(data, inputs) is not None
