"""Memory of outputs: aligned, used again when nobody holds the array, and only then."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.runtime.native import dynamic_artifact
from tilewright.runtime import Model
from tilewright.runtime.values.output_pool import LEAST_BYTES, Results

F32 = np.dtype(np.float32)


class Outputs(Results):
    """Of so many f32 each, with a place for their addresses."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.plan([((size,), F32) for size in sizes])

    def arrays(self) -> list[np.ndarray]:
        addresses = (ctypes.c_void_p * len(self.shapes))()
        made = self.make(addresses)
        for array, address in zip(made, addresses, strict=True):
            assert array.ctypes.data == address or not array.size
        return made


@pytest.mark.parametrize("size", [LEAST_BYTES // 4, 5000, 1 << 20, 3 << 20])
def test_arrays_are_aligned_and_whole(size: int) -> None:
    (array,) = Outputs(size).arrays()
    assert array.ctypes.data % 64 == 0
    assert array.shape == (size,) and array.dtype == F32 and array.flags.carray
    array[:] = 1  # the memory is there
    assert array.sum(dtype=np.float64) == size


def test_memory_serves_again_when_the_array_is_gone() -> None:
    made = Outputs(5000, 6000)
    addresses = [array.ctypes.data for array in made.arrays()]
    assert addresses[0] != addresses[1]
    assert [array.ctypes.data for array in made.arrays()] == addresses


def test_a_loop_that_holds_the_last_result_needs_two_blocks() -> None:
    made = Outputs(5000)
    seen, last = set(), None
    for _ in range(6):
        last = made.arrays()
        seen.add(last[0].ctypes.data)
    assert len(seen) == 2
    del last
    assert made.arrays()[0].ctypes.data in seen


class Watched(np.ndarray):
    """A subclass, which NumPy treats apart when it shortens chains of views."""


HOLDERS: dict[str, Callable[[np.ndarray], Any]] = {
    "itself": lambda array: array,
    "slice": lambda array: array[1:-1:2],
    "reshape": lambda array: array.reshape(2, -1).T[1:],
    "other dtype": lambda array: array.view(np.int32)[5:],
    "subclass": lambda array: array.view(Watched)[3:],
    "buffer": memoryview,
    "strides": lambda array: np.lib.stride_tricks.as_strided(array, (3, 3), (4, 4)),
    "broadcast": lambda array: np.broadcast_to(array, (3, *array.shape)),
    "frombuffer": lambda array: np.frombuffer(array, np.uint8)[64:],
    "dlpack": lambda array: np.from_dlpack(array)[4:],
    "object": lambda array: [array],
}


@pytest.mark.usefixtures("own_garbage")
@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_that_somebody_can_see_is_left_alone(holder: str) -> None:
    made = Outputs(5000)
    (array,) = made.arrays()
    array[:] = np.arange(5000)
    held = HOLDERS[holder](array)
    before = np.array(held)
    first = array.ctypes.data
    del array
    gc.collect()
    for _ in range(3):
        (other,) = made.arrays()
        assert other.ctypes.data != first
        other[:] = -1
        del other
    np.testing.assert_array_equal(held, before)


def test_an_output_holds_no_block_of_more_than_twice_its_size() -> None:
    made = Outputs(100_000)
    large = made.arrays()[0].ctypes.data
    made.plan([((60_000,), F32)])
    assert made.arrays()[0].ctypes.data == large
    made.plan([((40_000,), F32)])
    (small,) = made.arrays()
    assert small.base._length_ == 160_000


def test_small_and_empty_outputs_are_ordinary_arrays() -> None:
    small, empty = Outputs(8, 0).arrays()
    assert small.flags.owndata and empty.flags.owndata and empty.shape == (0,)


def test_dtypes_that_numpy_does_not_know() -> None:
    made = Outputs()
    made.plan([((70, 100), np.dtype(ml_dtypes.bfloat16)), ((70, 100), np.dtype(bool))])
    for array, dtype in zip(made.arrays(), (ml_dtypes.bfloat16, bool), strict=True):
        assert array.dtype == dtype and array.shape == (70, 100) and array.ctypes.data % 64 == 0


def test_a_model_keeps_results_that_are_held_and_reuses_the_others() -> None:
    model = Model(dynamic_artifact(), threads=1)
    a = np.arange(64 * 100, dtype=np.float32).reshape(64, 100)
    held = [model(a + step, a)[0] for step in range(5)]
    for step, result in enumerate(held):
        np.testing.assert_array_equal(result, model(a + step, a)[0].copy())
    addresses = {result.ctypes.data for result in held}
    assert len(addresses) == 5
    del held, result
    assert len({model(a, a)[0].ctypes.data for _ in range(5)}) == 1
