"""Samples of numbers in fixed point; what is expected are Python's integers, which have as many digits as they need."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from typing import Any

import numpy as np

from tests.ops.sampling import Sample, sample
from tilewright.ir import dtype as dt

ENDS = np.array([-(2**31), 2**31 - 1, -24, -8, 8, 24, 0, 1], np.int32)


def rounded(n: int, shift: int) -> int:
    """n / 2^shift to the nearest integer; halves go up."""
    return (n + (1 << shift - 1)) >> shift


def fixed() -> Iterator[Sample]:
    for stored, ours in ((np.int8, dt.i8), (np.uint8, dt.u8), (np.int16, dt.i16)):
        limits = np.iinfo(stored)
        for shift, factor in ((4, 1), (35, 2**31 - 1), (62, 2**31 - 1)):
            yield sample(
                "requantize_fixed", [ENDS, np.array([factor], np.int32)],
                lambda f=factor, n=shift, i=limits: np.array(
                    [min(max(rounded(int(v) * f, n) + 7, i.min), i.max) for v in ENDS], i.dtype
                ),
                shift=shift, zero_point=7, dtype=ours, note=str(shift),
            )  # fmt: skip
    for shift, factor, limit in ((31, 2**31 - 1, 2**31 - 1), (35, 2**31 - 1, 2**31 - 1), (3, 77, 2**30), (62, 5, 9)):
        yield sample(
            "rescale_fixed", [ENDS, np.array([factor], np.int32)],
            lambda f=factor, n=shift, m=limit: np.array(
                [min(max(rounded(int(v) * f, n), -m), m) for v in ENDS], np.int32
            ),
            shift=shift, limit=limit, note=str(shift),
        )  # fmt: skip
    logarithms = -np.array([0, 1, 32767, 32768, 32769, 100_000, 2**20, 2**24, 2**31], np.int64)
    for bits in (15, 22, 30):
        yield sample(
            "power_of_two_fixed", [logarithms.astype(np.int32)],
            lambda b=bits: np.array([power(int(x), b) for x in logarithms], np.int32), bits=bits, note=str(bits),
        )  # fmt: skip
    rng = np.random.default_rng(11)
    for shape, axis in (((3, 7), 1), ((2, 5, 3), 1), ((2, 300), -1), ((2, 1), 1)):
        x = rng.integers(-(2**18), 2**18, shape).astype(np.int32)
        x.reshape(-1)[0] = -(2**30)
        yield sample("softmax_fixed", [x], lambda x=x, a=axis: along(shares, x, a), axis=axis)
    roots = [0, 1, 2, 3, 4, 10**12, 10**12 - 1, 2**62 - 1, (2**31 - 1) ** 2, (2**31 - 1) ** 2 - 1]
    yield sample(
        "integer_root", [np.array(roots, np.int64)], lambda: np.array([isqrt(x) for x in roots], np.int64)
    )
    for centred in (True, False):
        for shape, least, epsilon in (((3, 8), -(2**20), 0), ((2, 5), -200, 17), ((2, 300), 0, 0)):
            x = rng.integers(least, -least + 1000 if least > -(2**20) else 2**20, shape).astype(np.int32)
            yield sample(
                "standardize_fixed", [x],
                lambda x=x, e=epsilon, c=centred: along(lambda row: standardized(row, 24, e, c), x, 1),
                axes=(1,), bits=24, epsilon=epsilon, centred=centred, note=f"{epsilon}",
            )  # fmt: skip
    yield sample(
        "standardize_fixed", [np.full((2, 4), 77, np.int32)], lambda: np.zeros((2, 4), np.int32), axes=(1,), bits=20,
        note="alike",
    )  # fmt: skip


def power(x: int, bits: int) -> int:
    """2^(x / 2^15) by the polynomial that the operator's documentation gives, each of its sums rounded down."""
    f = x % 2**15
    found = 446 * f >> 15
    for factor in (1705, 7908, 22711):
        found = (found + factor) * f >> 15
    assert abs((found + 2**15) / 2**15 - 2 ** (f / 2**15)) < 6e-5
    return (found + 2**15 << bits - 15) >> min(-(x // 2**15), 31)


def shares(row: list[int]) -> list[int]:
    bits = min(24, 30 - max(len(row) - 1, 1).bit_length())
    powers = [power(x - max(row), bits) for x in row]
    share = 2 ** (bits + 30) // sum(powers)
    found = [rounded(p * share, bits + 6) for p in powers]
    exact = [2 ** ((x - max(row)) / 2**15) for x in row]
    np.testing.assert_allclose(np.array(found) / 2**24, np.array(exact) / sum(exact), atol=2e-4)
    return found


def standardized(row: list[int], bits: int, epsilon: int, centred: bool) -> list[int]:
    n = len(row)
    mean = (2 * sum(row) + n) // (2 * n) if centred else 0
    x = [v - mean for v in row]
    root = isqrt(min(sum(v * v for v in x) // n + epsilon, 2**42 - 1) << 20)
    reciprocal = 2**56 // max(root, 1)
    return [rounded(v * reciprocal, 46 - bits) for v in x]


def along(function: Any, x: np.ndarray, axis: int) -> np.ndarray:
    """A function of lists of Python's integers, on each row along an axis."""
    last = np.moveaxis(x, axis, -1)
    rows = [function([int(v) for v in row]) for row in last.reshape(-1, last.shape[-1])]
    return np.moveaxis(np.array(rows, np.int64).reshape(last.shape), -1, axis).astype(np.int32)
