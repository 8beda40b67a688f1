"""Watches over memory: every write is seen, whoever makes it; what nobody writes to is not read twice."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tilewright.torch.watch import Span, Watch, memory, pages, refresh

rng = np.random.default_rng(0)


def span(array: np.ndarray) -> Span:
    return array.ctypes.data, array.nbytes


@pytest.fixture(params=["pages", "digests"])
def watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Watch]:
    """With the help of the kernel, where there is any, and without."""
    if request.param == "digests":
        monkeypatch.setattr(memory, "LEAST_TRACKED", 1 << 62)
    return lambda *arrays: Watch([span(a) for a in arrays])


@pytest.mark.parametrize("size", [1, 7, 8, 9, 63, 255, 256, 257, 1000, 4096, 100_001])
def test_each_byte_counts(size: int, watch: Callable[..., Watch]) -> None:
    around = rng.integers(0, 255, size + 2, np.uint8)
    array = around[1:-1]
    found = watch(array)
    assert found.is_unchanged()
    for k in {0, size // 3, size // 2, size - 1, *rng.integers(0, size, 10).tolist()}:
        array[k] ^= 128
        assert not found.is_unchanged()
        other = watch(array)
        assert other.contents != found.contents
        array[k] ^= 128
        found = watch(array)
        assert found.is_unchanged()
    around[0], around[-1] = 1, 2
    assert watch(array).contents == found.contents


def test_changes_that_sums_do_not_see() -> None:
    """Elements that change places, and signs that flip in pairs; arrays of other lengths."""
    x = rng.standard_normal(4096).astype(np.float32)
    swapped, negated, turned = x[::-1].copy(), -x, np.roll(x, 64)
    zeros = [np.zeros(n, np.uint8) for n in range(300)]
    digests = [Watch([span(a)]).contents for a in (x, swapped, negated, turned, *zeros[1:])]
    assert len(set(digests)) == len(digests)


def test_what_the_kernel_writes_is_seen(watch: Callable[..., Watch], tmp_path: Path) -> None:
    array = np.zeros(1 << 20, np.uint8)
    found = watch(array)
    path = tmp_path / "bytes"
    path.write_bytes(b"\1" * 100)
    with path.open("rb", buffering=0) as file:
        file.readinto(memoryview(array)[500_000:500_100])
    assert array[500_050] == 1 and not found.is_unchanged()


def test_memory_of_others_is_read(watch: Callable[..., Watch], tmp_path: Path) -> None:
    """What is mapped twice, and a file that is written to, changes without a write to the pages that are watched."""
    path = tmp_path / "weights"
    path.write_bytes(bytes(1 << 20))
    with path.open("r+b") as file:
        for access in (mmap.ACCESS_WRITE, mmap.ACCESS_READ):
            mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=access), np.uint8)
            found = watch(mapped)
            assert found.is_unchanged() and found.bytes_read == 1 << 20
            os.pwrite(file.fileno(), b"\2" if access == mmap.ACCESS_WRITE else b"\3", 600_000)
            assert not found.is_unchanged()


def test_one_watch_does_not_hide_a_write_from_another(watch: Callable[..., Watch]) -> None:
    array = rng.standard_normal(1 << 18)
    first, part = watch(array), watch(array[1000:])
    array[5000] = 1
    again = watch(array)  # its pages are clean from here on
    assert again.is_unchanged() and not first.is_unchanged() and not part.is_unchanged()
    del again, first
    other = watch(array[1000:])
    array[-1000] += 1
    assert not other.is_unchanged()


def test_large_arrays_are_not_read_where_the_kernel_tells() -> None:
    array = rng.standard_normal(1 << 20)
    found = Watch([span(array)])
    if memory._PAGES.track([(1, 1)]) == [] and memory._PAGES._faults == -1:
        pytest.skip("this kernel does not tell")
    assert found.bytes_read < 2 * pages.PAGE


def test_a_watch_that_trusts_looks_after_a_refresh() -> None:
    array = np.zeros(10)
    found = Watch([span(array)], trusts=True)
    array[0] = 1
    assert found.is_unchanged()
    refresh()
    assert not found.is_unchanged()


def test_nothing_is_unchanged() -> None:
    assert Watch([]).is_unchanged() and Watch([(0, 0)]).is_unchanged()
