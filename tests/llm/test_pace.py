"""Times of tokens by length, and the exponents that fit them."""

from __future__ import annotations

import math

import pytest

from tests.llm.test_compiled_decoder import SMALL, decoder
from tilewright.llm.pace import measured_pace, slope
from tilewright.runtime.errors import InputError


def test_each_length_is_measured_in_a_decoder_of_its_own() -> None:
    found = decoder()
    found.feed([1, 2, 3])
    paces = measured_pace(found, [1, 2, SMALL.capacity])
    assert [pace.length for pace in paces] == [1, 2, SMALL.capacity] and found.length == 3
    assert all(0 < pace.cached < 10 and 0 < pace.recomputed < 10 for pace in paces)


@pytest.mark.parametrize("length", [0, SMALL.capacity + 1])
def test_lengths_that_the_context_has_no_room_for(length: int) -> None:
    with pytest.raises(InputError, match=rf"{length} tokens cannot be measured: the context has {SMALL.capacity}"):
        measured_pace(decoder(), [1, length])


def test_a_slope_is_the_exponent_of_a_power() -> None:
    lengths = [16, 64, 100, 512]
    assert slope(lengths, [3.0 * n**2 for n in lengths]) == pytest.approx(2)
    assert slope(lengths, [0.5] * 4) == pytest.approx(0)
    assert slope(lengths, [7 * n**1.5 for n in lengths]) == pytest.approx(1.5)
    assert all(math.isnan(slope(*pair)) for pair in (([5], [1.0]), ([5, 5], [1.0, 2.0]), ([1, 2], [0.0, 1.0])))
