"""Digests of what lies in memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from tilewright.frontends import files
from tilewright.frontends.files import digest_of_arrays

SIZES = (3, 100, 0, 16, 17, 1, 31, 64)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHUNK", 16)


def arrays(*sizes: int) -> list[memoryview]:
    content = np.random.default_rng(0).integers(0, 256, 400).astype(np.uint8)
    ends = np.cumsum(sizes)
    return [content[end - size : end].data for end, size in zip(ends, sizes, strict=True)]


def test_a_digest_does_not_depend_on_who_is_first() -> None:
    assert len({digest_of_arrays(arrays(*SIZES)) for _ in range(20)}) == 1


def test_content_order_and_ends_of_arrays_tell_digests_apart() -> None:
    given = arrays(*SIZES)
    other = bytearray(given[1])
    other[60] ^= 1
    found = [given, given[::-1], [given[0], memoryview(other), *given[2:]], arrays(4, 99, *SIZES[2:]), given[:-1], []]
    assert len({digest_of_arrays(each) for each in found}) == len(found)


def test_arrays_that_are_made_for_it_go_again() -> None:
    alive: list[int] = []

    def made() -> Iterator[memoryview]:
        held: list[weakref.ref[np.ndarray]] = []
        for k in range(50):
            gc.collect(0)
            alive.append(sum(each() is not None for each in held))
            array = np.full(64, k, np.uint8)
            held.append(weakref.ref(array))
            yield array.data

    digest_of_arrays(made())
    assert max(alive) <= 2 * files._THREADS + 2


def test_an_array_that_cannot_be_made_is_an_error() -> None:
    def made() -> Iterator[memoryview]:
        yield from arrays(*SIZES)
        raise ValueError("no values")

    with pytest.raises(ValueError, match="no values"):
        digest_of_arrays(made())
