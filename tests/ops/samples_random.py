"""Samples of random numbers, by the definition of Philox on Python's integers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tests.ops.sampling import Sample, sample
from tilewright.ir.dtype import BY_NAME


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox 4x32-10 (Salmon et al., 2011): four words of a counter of four and a key of two."""
    c, k = list(counter), list(key)
    for _ in range(10):
        (a, b), (x, y) = (divmod(m * c[n], 2**32) for m, n in ((0xD2511F53, 0), (0xCD9E8D57, 2)))
        c = [x ^ c[1] ^ k[0], y, a ^ c[3] ^ k[1], b]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def words(key: int, shape: Sequence[int], stream: int) -> tuple[np.ndarray, np.ndarray]:
    made = [philox([p, 0, stream, 0], [key % 2**32, key >> 32])[:2] for p in range(int(np.prod(shape)))]
    first, second = np.array(made, np.uint64).reshape(-1, 2).T
    return first.reshape(shape), second.reshape(shape)


def uniform(key: int, shape: Sequence[int], stream: int, dtype: type) -> np.ndarray:
    first, second = words(key, shape, stream)
    if dtype is np.float32:
        return ((first >> np.uint64(8)) / 2.0**24).astype(dtype)
    return ((first >> np.uint64(5)) * 2.0**26 + (second >> np.uint64(6))) / 2.0**53


def gaussian(key: int, shape: Sequence[int], stream: int, dtype: type) -> np.ndarray:
    drop = 8 if dtype is np.float32 else 0
    first, second = ((w >> np.uint64(drop)) / 2.0 ** (32 - drop) for w in words(key, shape, stream))
    made = np.sqrt(-2 * np.log(first + 2.0 ** -(32 - drop))) * np.cos(2 * np.pi * second)
    return np.asarray(made).astype(dtype)


def randoms() -> Iterator[Sample]:
    yield sample("fresh_key", [], lambda: np.uint64(0), bits=0)
    for name, function in (("random_uniform", uniform), ("random_normal", gaussian)):
        for dtype, code in ((np.float32, "f32"), (np.float64, "f64")):
            for key, shape, stream in ((0, (3, 7), 0), (0xFEDCBA9876543210, (2, 3, 5), 9), (77, (), 1)):
                yield sample(
                    name,
                    [np.array(key, np.uint64)],
                    lambda k=key, s=shape, n=stream, d=dtype, f=function: f(k, s, n, d),
                    shape=shape,
                    stream=stream,
                    dtype=BY_NAME[code],
                    loose=8,
                )
