"""Floats in kinds of fewer bits: what is lost, in comparison with what the number of bits allows."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.frontends.weights.test_expression import evaluated
from tilewright.frontends.weights.encode import encoded, encoded_as, grouped
from tilewright.frontends.weights.forms import GROUPS
from tilewright.frontends.weights.kinds import KINDS
from tilewright.ir import dtype as dt
from tilewright.ir.diag import ModelError, UnsupportedError

STEPS = {"int8": 255, "int4": 15}


@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("shape", [(5, 300), (3, 64), (7, 1), (2, 3, 96), (40,), (), (0, 32), (4, 0), (2, 33)])
@pytest.mark.parametrize("minimum", [False, True])
@pytest.mark.parametrize("group", [0, *GROUPS])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_no_element_is_further_away_than_half_a_step(
    weights: str, group: int, minimum: bool, shape: tuple[int, ...], fresh_seed: int
) -> None:
    rng = np.random.default_rng(fresh_seed)
    values = rng.uniform(-0.1, 0.3, shape).astype(np.float32)
    tensor = encoded(values, weights, group, minimum, "w")
    found = tensor.decoded()
    assert found.shape == tensor.shape == shape and tensor.name == "w"
    assert tensor.data.nbytes == tensor.kind.tensor_bytes(shape)
    span = 0.4 if minimum else 0.6
    room = span / STEPS[weights] / 2 * 1.1 + 0.0005  # 16 bits round scales and minimums
    if weights == "int4":  # the smallest of the scales that are tried cut off ends
        room = 1.5 * span / STEPS["int4"] + 0.0005 if minimum else 0.3 * 0.3
    assert (np.abs(found - values) <= room).all()
    np.testing.assert_array_equal(evaluated(tensor), found)


@pytest.mark.parametrize("bits", [4, 8])
def test_groups_of_32_are_kinds_of_ggml(bits: int) -> None:
    assert grouped(bits, 32) is KINDS[f"Q{bits}_0"]
    assert grouped(4, 32, minimum=True) is KINDS["Q4_1"]


@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("group", [32, 128])
def test_symmetric_codes_of_4_bits_lose_less_than_with_the_largest_as_their_end(group: int, fresh_seed: int) -> None:
    """That rule is ggml's: the farthest element / -8 is the scale."""
    values = np.random.default_rng(fresh_seed).standard_normal((64, 512)).astype(np.float32)
    blocks = values.reshape(-1, group)
    farthest = np.take_along_axis(blocks, np.abs(blocks).argmax(1, keepdims=True), 1)
    scale = (farthest / -8).astype(np.float16).astype(np.float32)
    simple = (np.clip(np.rint(blocks / scale), -8, 7) * scale).reshape(values.shape)
    found = encoded(values, "int4", group).decoded()
    assert np.square(found - values).mean() < 0.97 * np.square(simple - values).mean()


@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("group", [32, 64, 128])
def test_minimums_of_4_bits_lose_less_than_with_the_least_and_the_greatest_as_ends(group: int, fresh_seed: int) -> None:
    values = np.random.default_rng(fresh_seed).standard_normal((64, 512)).astype(np.float32)
    blocks = values.reshape(-1, group)
    least = blocks.min(1, keepdims=True)
    scale = (blocks.max(1, keepdims=True) - least) / 15
    simple = (np.rint((blocks - least) / scale) * scale + least).reshape(values.shape)
    found = encoded(values, "int4", group, minimum=True).decoded()
    assert np.square(found - values).mean() < 0.9 * np.square(simple - values).mean()


@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("minimum", [False, True])
def test_columns_that_count_more_lose_less(minimum: bool, fresh_seed: int) -> None:
    rng = np.random.default_rng(fresh_seed)
    values = rng.standard_normal((64, 500)).astype(np.float32)
    importance = rng.choice([0.01, 1.0, 30.0], 500).astype(np.float32)
    plain, weighed = (
        np.square(encoded(values, "int4", 64, minimum, importance=given).decoded() - values)
        for given in (None, importance)
    )
    assert (weighed * importance).sum() < 0.95 * (plain * importance).sum()
    for factor in (2.0**-120, 2.0**120):  # sums of products with them are finite, and not 0
        other = encoded(values, "int4", 64, minimum, importance=importance * np.float32(factor)).decoded()
        np.testing.assert_array_equal(np.square(other - values), weighed)
    of_none = encoded(values, "int4", 64, minimum, importance=np.zeros(500, np.float32)).decoded()
    assert np.isfinite(of_none).all()


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("minimum", [False, True])
def test_values_that_are_codes_come_back_as_they_are(weights: str, minimum: bool) -> None:
    bits = 8 if weights == "int8" else 4
    low = 0 if minimum else -(1 << bits - 1) + (bits == 8)
    codes = np.arange(low, low + (1 << bits) - (bits == 8 and not minimum), dtype=np.float32)
    values = np.resize(codes, (3, 512)) * np.float32(0.125)
    np.testing.assert_array_equal(encoded(values, weights, 256, minimum).decoded(), values)


@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e7, 1e30, 3e37])
def test_scales_that_16_bits_do_not_hold_have_32(scale: float) -> None:
    values = (np.random.default_rng(1).standard_normal((4, 64)) * scale).astype(np.float32)
    for minimum in (False, True):
        tensor = encoded(values, "int8", 64, minimum)
        assert ("F32" in tensor.kind.name) == (scale != 1.0)
        np.testing.assert_allclose(tensor.decoded(), values, atol=4 * scale / 127)


@pytest.mark.parametrize("value", [0.0, -0.0, 0.5, -3.0])
@pytest.mark.parametrize("minimum", [False, True])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_rows_of_one_number(weights: str, minimum: bool, value: float) -> None:
    values = np.full((2, 40), value, np.float32)
    np.testing.assert_allclose(encoded(values, weights, 32, minimum).decoded(), values, rtol=1e-3)


def test_floats() -> None:
    values = np.array([[1.0, np.inf, np.nan, -0.0, 3.14159]], np.float32)
    for weights, dtype in (("float32", np.float32), ("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
        np.testing.assert_array_equal(encoded(values, weights).decoded(), values.astype(dtype).astype(np.float32))
    assert encoded(values.astype(np.float64), "float32").data.nbytes == 20


def test_what_cannot_be_encoded_says_why() -> None:
    values = np.array([[1.0, np.inf, np.nan]], np.float32)
    with pytest.raises(ModelError, match=r"2 of 3 weights are infinite or no numbers, which int4.*\n.*tensor 'w'"):
        encoded(values, "int4", name="w")
    with pytest.raises(ModelError, match=r"1 of 2 weights are too large for f16(.*\n)+.*bfloat16"):
        encoded(np.array([1e5, 1.0]), "float16")
    for weights, group in (("int3", 32), ("int4", 48)):
        with pytest.raises(UnsupportedError, match=rf"'{weights}' in groups of {group}(.*\n)+.*float32, .*int4; "):
            encoded(values, weights, group)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_codes_of_any_number_of_bits(bits: int) -> None:
    kind = grouped(bits, 24, scale=dt.f32)
    values = np.random.default_rng(2).standard_normal((3, 50)).astype(np.float32)
    found = encoded_as(values, kind).decoded()
    assert kind.bits == pytest.approx(bits + 32 / 24)
    assert np.square(found - values).mean() < {2: 0.3, 3: 0.08, 4: 0.02, 8: 1e-4}[bits]
