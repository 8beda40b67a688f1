"""The bounds of memory-bound kernels, and the models they are measured with."""

from __future__ import annotations

import onnx
import pytest

from bench.bandwidth import KERNELS, Rates, model


def test_bytes_that_are_only_read_or_written_do_not_count_as_copied() -> None:
    rates = Rates(read=20.0, write=5.0, copy=10.0, streamed=8.0)
    assert rates.seconds(10**9, 10**9) == pytest.approx(0.2)
    assert rates.seconds(3 * 10**9, 10**9) == pytest.approx(0.2 + 0.1)
    assert rates.seconds(0, 10**9) == pytest.approx(0.2)


def test_copies_are_bound_by_the_faster_kind_of_store() -> None:
    rates = Rates(read=20.0, write=5.0, copy=10.0, streamed=16.0)
    assert rates.seconds(10**9, 10**9) == pytest.approx(0.125)


@pytest.mark.parametrize("name", KERNELS)
def test_models_are_legal(name: str) -> None:
    made = onnx.load_from_string(model(name, 8192))
    onnx.checker.check_model(made, full_check=True)
    assert [d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim] == [4, 8, 256]
