"""The table of layouts: what stored weights are decoded to."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.frontends.weights.oracle import digest, random_tensor, recorded
from tilewright.frontends.weights.kinds import KINDS
from tilewright.frontends.weights.layout import BlockLayout, PlainLayout
from tilewright.frontends.weights.stored import StoredTensor


@pytest.mark.parametrize("name", recorded())
def test_random_blocks_are_decoded_as_the_oracle_does(name: str) -> None:
    assert digest(random_tensor(KINDS[name], 97).decoded()) == recorded()[name]


def test_every_layout_in_blocks_is_recorded() -> None:
    assert {kind.name for kind in KINDS.values() if isinstance(kind.layout, BlockLayout)} <= recorded().keys()


@pytest.mark.parametrize("name", KINDS)
def test_an_entry_of_the_table_uses_each_bit_of_a_block_once(name: str) -> None:
    kind = KINDS[name]
    if isinstance(kind.layout, PlainLayout):
        assert (kind.elements, kind.bytes) == (1, kind.layout.dtype.bytes)
        return
    used = np.zeros((kind.bytes, 8), int)
    for number in (kind.layout.scale, kind.layout.minimum):
        if number is not None:
            used[number.at : number.at + number.dtype.bytes] += 1
    for codes in (kind.layout.codes, kind.layout.factors, kind.layout.minimum_factors):
        for plane in () if codes is None else [p for piece in codes.pieces for p in piece]:
            bits = plane.bits * (plane.fields or 8 // plane.bits)
            used[plane.at : plane.at + plane.bytes, plane.shift : plane.shift + bits] += 1
    assert (used == 1).all()
    assert kind.layout.codes.count == kind.elements


def test_a_block_of_q4_k_by_hand() -> None:
    block = np.zeros(144, np.uint8)
    block[:4] = np.array([0.5, 0.25], np.float16).view(np.uint8)
    block[4 + 0], block[4 + 4 + 0] = 3, 8  # of the first group of 32: 0.5 * 3 * code - 0.25 * 8
    block[4 + 1], block[4 + 8 + 1] = 0x80, 0x05  # of the sixth, whose bits are apart: a factor of 5 + 32
    block[16:48] = 0x42  # codes of groups one and two
    block[16 + 64 : 16 + 96] = 0x70  # the sixth group has the high halves of the third 32 bytes
    values = StoredTensor("t", (1, 256), KINDS["Q4_K"], block).decoded()[0]
    expected = np.zeros(256, np.float32)
    expected[:32], expected[160:192] = 0.5 * 3 * 2 - 0.25 * 8, 0.5 * 37 * 7
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("I8", np.int8), ("U16", np.uint16), ("I64", np.int64), ("F64", np.float64), ("BOOL", np.bool_),
     ("F8_E4M3", ml_dtypes.float8_e4m3fn), ("F8_E5M2", ml_dtypes.float8_e5m2)],
)  # fmt: skip
def test_elements_that_are_stored_by_themselves(name: str, dtype: type) -> None:
    values = np.array([[0, 1, 2], [3, 1, 0]]).astype(dtype)
    tensor = StoredTensor("t", (2, 3), KINDS[name], np.frombuffer(values.tobytes(), np.uint8))
    np.testing.assert_array_equal(tensor.decoded(), values.astype(np.float32))
    elements = tensor.elements()
    assert elements is not None and elements.dtype == values.dtype
    np.testing.assert_array_equal(elements, values)


def test_elements_that_are_not_aligned_are_copied() -> None:
    values = np.arange(6, dtype=np.float32)
    data = np.frombuffer(b"x" + values.tobytes(), np.uint8)[1:]
    elements = StoredTensor("t", (2, 3), KINDS["F32"], data).elements()
    assert elements is not None and elements.flags.aligned
    np.testing.assert_array_equal(elements, values.reshape(2, 3))
