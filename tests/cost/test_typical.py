"""Sizes that dims of unknown size are expected to have."""

from __future__ import annotations

import pytest

from tilewright.cost.typical import LENGTHS, SMALLEST_IMAGE, typical_extents, typical_sizes
from tilewright.ir import dtype as dt
from tilewright.ir.sym import ceildiv, floordiv, sym, var
from tilewright.ir.types import tensor
from tilewright.program.memory.plan import TYPICAL_DIM, typical

N, H, W, T = (var(name, 1) for name in ("n", "h", "w", "t"))


def test_images_are_half_as_large_with_twice_the_channels() -> None:
    assert typical_extents(3) == typical_extents(16) == [224, 448, 896]
    for channels in (16, 32, 64, 128, 256):
        assert typical_extents(channels) == [2 * extent for extent in typical_extents(2 * channels)]
    assert min(typical_extents(4096)) == SMALLEST_IMAGE


def test_sizes_within_a_network_follow_from_those_of_its_input() -> None:
    typical = typical_sizes([tensor(dt.f32, (N, 3, H, W))])
    found = typical.of([N, ceildiv(H, 32), ceildiv(W, 32)])
    assert found == [(1, 7, 7), (1, 14, 14), (1, 28, 28)], "the last layers of ResNet"
    assert typical.medium([ceildiv(H, 8)]) == (56,)


def test_no_size_is_expected_beyond_the_bounds_of_a_dim() -> None:
    few, many = var("few", 1, 48), var("many", 200)
    typical = typical_sizes([tensor(dt.f32, (few, many))])
    assert typical.of([var("length", 0, 48)]) == [(32,), (48,)]
    assert typical.of([few, many]) == [(1, 200), (1, 512)]


def test_known_sizes_are_one_case() -> None:
    assert typical_sizes([tensor(dt.f32, (N, 3, H, W))]).of([sym(5), sym(9)]) == [(5, 9)]


def test_a_small_image_that_a_window_does_not_fit_has_one_position() -> None:
    typical = typical_sizes([tensor(dt.f32, (N, 4096, H, W))])
    assert typical.of([H - 50])[0] == (1,)


@pytest.mark.parametrize("shape", [(N, T), (N, T, 768)])
def test_other_dims_are_lengths(shape: tuple[object, ...]) -> None:
    typical = typical_sizes([tensor(dt.i64, shape)])
    assert typical.of([N, T]) == [(1, length) for length in LENGTHS]


def test_dims_that_are_no_inputs_are_lengths() -> None:
    assert typical_sizes([]).of([T]) == [(length,) for length in LENGTHS]


def test_a_size_that_typical_dims_do_not_define() -> None:
    """A divisor may be 0 for them: nothing else depends on that."""
    assert typical_sizes([]).of([floordiv(T, T - LENGTHS[1])]) == [(1,)]
    assert typical(floordiv(T, T - TYPICAL_DIM)) == 0
