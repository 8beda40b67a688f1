"""Machine code of a compiled model, linked: what a file holds of it, and what the loader makes code of."""

from __future__ import annotations

import mmap
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tilewright.runtime.process.forks import free_in_children

WORD = 8
"""Bytes of an address in an image."""

_SMALLEST_PAGE, _LARGEST_PAGE = 4096, 65536
_MOST_BYTES = 1 << 31
"""Distances within an image have 32 bits."""


@dataclass(frozen=True)
class ImageLayout:
    """What an image needs before it can run. Offsets and sizes are in bytes, offsets from its start.

    `text` bytes of code and of data that are only read come first: these pages are the same wherever the image lies.
    The `data` bytes behind them begin with a page of their own, as machines with pages of up to `page` bytes have
    them. A table of words at `table` takes the addresses of the `imports`, in this order; those of names in `weak` are
    0 where nobody has them. Runs of words, an offset and a count, that are `based` hold offsets of the image, and take
    addresses. `symbols` are the functions that others may call. With `writes` the code writes to its data, so that no
    two users can share it.
    """

    text: int
    data: int
    page: int
    table: int
    imports: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    based: tuple[tuple[int, int], ...] = ()
    symbols: Mapping[str, int] = field(default_factory=dict)
    writes: bool = False

    def __post_init__(self) -> None:
        for wrong, holds in self._checks():
            if not holds:
                raise ValueError(f"{wrong} of the code's image is wrong")

    def _checks(self) -> Iterator[tuple[str, bool]]:
        page = self.page
        yield "the page", _SMALLEST_PAGE <= page <= _LARGEST_PAGE and page & (page - 1) == 0
        yield "the size", min(self.text, self.data) >= 0 and self.text % page == 0 and self.size < _MOST_BYTES
        runs = ((self.table, len(self.imports)), *self.based)
        yield "a table", all(at % WORD == 0 and count >= 0 and self._holds(at, count) for at, count in runs)
        yield "a symbol", all(0 <= at < self.text for at in self.symbols.values())

    def _holds(self, at: int, count: int) -> bool:
        return self.text <= at <= self.size and count <= (self.size - at) // WORD

    @property
    def size(self) -> int:
        return self.text + self.data


@dataclass(frozen=True)
class Image:
    """The bytes of linked code as they are in a file: nothing in them depends on where they will lie.

    Where they were mapped from a file, `pages` are the pages that hold them, for this image alone: what is written
    there stays in this process, and `text` is a view of them.
    """

    layout: ImageLayout
    text: bytes | memoryview = field(repr=False)
    data: bytes = field(repr=False)
    pages: mmap.mmap | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if (memoryview(self.text).nbytes, len(self.data)) != (self.layout.text, self.layout.data):
            raise ValueError(
                f"the code's image has {memoryview(self.text).nbytes} and {len(self.data)} bytes in place of "
                f"{self.layout.text} and {self.layout.data}"
            )

    @property
    def nbytes(self) -> int:
        return self.layout.size

    @classmethod
    def of(cls, layout: ImageLayout, stored: memoryview) -> Image:
        """The image in the bytes of a file; ValueError where these are too few or too many."""
        pages = stored.obj if isinstance(stored.obj, mmap.mmap) else None
        return cls(layout, stored[: layout.text], bytes(stored[layout.text :]), pages)


def shared_image(image: Image, digest: str) -> Image:
    """The image of this digest that somebody in this process has already, or this one: models whose code is in the
    store of a fleet run it in the same pages. One in memory of its own and one in those of a file are two."""
    if not digest:
        return image
    with _LOCK:
        return _KNOWN.setdefault((digest, image.pages is None, repr(image.layout)), image)


_KNOWN: weakref.WeakValueDictionary[tuple[str, bool, str], Image] = weakref.WeakValueDictionary()
_LOCK = free_in_children(threading.Lock())
