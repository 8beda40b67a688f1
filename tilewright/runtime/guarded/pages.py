"""Memory between pages that cannot be touched, where an access beyond is recorded instead of ending the process.

The pages around each buffer have no rights, so the processor refuses any load and any store there, in all threads. A
handler of the signal that follows (machine code of its own: Python must not run there) writes down the address, gives
the page rights, and lets the access go on. What it has written down is a `AccessBeyond` of whoever asks next. Between a
buffer and the pages around it lie at most the rest of its own pages, filled with a pattern, so that stores there are
seen too.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import llvmlite.binding as llvm

from tilewright.runtime.errors import BeyondBufferError, ExecutionError
from tilewright.runtime.guarded import PAGE
from tilewright.runtime.process.forks import free_in_children

PATTERN = 0xA5
"""Fills what lies between a buffer and the end of its pages."""
POISON = 0xFF
"""Fills memory that nothing has been written to yet: not a number as floats, and far out as an index."""
IS_AVAILABLE = sys.platform == "linux" and platform.machine() == "x86_64"
"""Whether the signal handler below is one for this machine; elsewhere there are no zones."""

_CHUNK = 64 << 20
_MOST_CHUNKS, _MOST_RECORDS = 1024, 256
_READ, _READ_WRITE, _NONE = 1, 3, 0
_MAP = 0x4022  # MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
_DONTNEED = 4
_ON_STACK_WITH_INFO = 0x0800_0000 | 4  # SA_ONSTACK | SA_SIGINFO
_PATTERNS = bytes([PATTERN]) * PAGE
_NO_RECORDS = bytes(8 * _MOST_RECORDS)

# What the system gives a handler: `siginfo_t` has the address at byte 16; of `ucontext_t` the word at byte 192 is the
# processor's error code, whose second bit says that it was a store (signal.h and sys/ucontext.h of glibc for x86-64).
# A record is one word, twice the address and one more for a store, put into the first free place by one atomic
# exchange: whoever reads records while other threads write them sees whole ones. The page is opened before: whoever
# takes the record closes it again, and would otherwise do so too early.
# An access that is not to zones is for the handler that was there before. That one may put this one back to raise the
# signal again, as faulthandler does: then the process ends as it would have without zones.
_HANDLER = """
declare i32 @mprotect(ptr, i64, i32)
declare i32 @sigaction(i32, ptr, ptr)

define void @tw_zones_touched(i32 %signal, ptr %info, ptr %context) nounwind {{
entry:
  %address.at = getelementptr i8, ptr %info, i64 16
  %address = load i64, ptr %address.at
  br label %look
look:
  %k = phi i64 [ 0, %entry ], [ %next, %other ]
  %known = load volatile i64, ptr inttoptr (i64 {count} to ptr)
  %over = icmp uge i64 %k, %known
  br i1 %over, label %foreign, label %compare
compare:
  %begin.at = getelementptr [2 x i64], ptr inttoptr (i64 {chunks} to ptr), i64 %k
  %end.at = getelementptr i64, ptr %begin.at, i64 1
  %begin = load i64, ptr %begin.at
  %end = load i64, ptr %end.at
  %after = icmp uge i64 %address, %begin
  %before = icmp ult i64 %address, %end
  %within = and i1 %after, %before
  br i1 %within, label %ours, label %other
other:
  %next = add i64 %k, 1
  br label %look
ours:
  %page = and i64 %address, -4096
  %at = inttoptr i64 %page to ptr
  %failed = call i32 @mprotect(ptr %at, i64 4096, i32 3)
  %is.shut = icmp ne i32 %failed, 0
  br i1 %is.shut, label %foreign, label %write
write:
  %code.at = getelementptr i8, ptr %context, i64 192
  %code = load i64, ptr %code.at
  %shifted = lshr i64 %code, 1
  %is.store = and i64 %shifted, 1
  %twice = shl i64 %address, 1
  %record = or i64 %twice, %is.store
  br label %place
place:
  %j = phi i64 [ 0, %write ], [ %j.next, %taken ]
  %room = icmp ult i64 %j, {most}
  br i1 %room, label %try, label %done
try:
  %record.at = getelementptr i64, ptr inttoptr (i64 {records} to ptr), i64 %j
  %tried = cmpxchg ptr %record.at, i64 0, i64 %record seq_cst seq_cst
  %was.free = extractvalue {{ i64, i1 }} %tried, 1
  br i1 %was.free, label %done, label %taken
taken:
  %j.next = add i64 %j, 1
  br label %place
done:
  ret void
foreign:
  %restored = call i32 @sigaction(i32 %signal, ptr inttoptr (i64 {old} to ptr), ptr null)
  store i64 0, ptr inttoptr (i64 {old} to ptr)
  ret void
}}
"""


class _SignalAction(ctypes.Structure):
    """`struct sigaction` of glibc."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint8 * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class AccessBeyond:
    """An access outside of a buffer, in words."""

    text: str


def room_for(pages: int) -> int:
    """Pages of addresses that a buffer of `pages` takes: one of eight numbers up to its double, so that buffers whose
    sizes change from call to call take those of others."""
    step = 1 << max(0, pages.bit_length() - 4)
    return -(-pages // step) * step


Places = tuple[tuple[int, int], ...]
"""Offsets and bytes of the parts of a buffer, in order."""


class ZonedBuffer:
    """`nbytes` at `address`, at the end of whole pages (or at their beginning), with pages around that cannot be
    touched. `alignment` is that of the address, and keeps a buffer up to so many bytes away from the end."""

    def __init__(
        self, memory: ZonedMemory, name: str, nbytes: int, alignment: int, *, at_end: bool = True
    ) -> None:
        self.name, self.nbytes = name, nbytes
        self.pages = max(1, -(-nbytes // PAGE))
        self.base = memory.take(self.pages)
        self._memory = memory
        self._end = self.base + self.pages * PAGE
        self._closed = room_for(self.pages) - self.pages + 1
        self.address = (self._end - nbytes) // alignment * alignment if at_end else self.base
        self._is_read_only = False
        self._open: Collection[int] | None = None
        """The parts that may be touched, by number; None for all."""
        self.places: Places = ((0, nbytes),)
        self.names: dict[int, str] = {}
        """Of parts, by their offsets."""
        self.calls = 0
        """How many calls use it now."""
        self._fill_slack()
        memory.owners[self.base] = self

    def split(self, places: Places) -> None:
        """Let the buffer, which takes whole pages, be several ones: offsets and bytes, each followed by the rest of its
        page and another one, which is closed. What was there is lost."""
        if places == self.places:
            return
        assert self.address == self.base and self.nbytes % PAGE == 0
        _protect(self.base, self.pages, _READ_WRITE)
        self.places = places
        self._fill_slack()
        self.close_pages()

    def add_parts(self, places: Places) -> None:
        """Let these be parts, beside those that there are; what is in the buffer stays, also between them."""
        known = self.places if self._is_split() else ()
        if not set(places) <= set(known):
            self.places = tuple(sorted({*known, *places}))
            self.close_pages()

    def leave_open(self, parts: Collection[int] | None) -> None:
        """Close all parts but these, until others are named; None opens all."""
        self._open = parts
        for number, place in enumerate(self.places):
            begin = (self.address + place[0]) // PAGE * PAGE
            rights = _READ_WRITE if parts is None or number in parts else _NONE
            _protect(begin, (self._zone_after(place) - begin) // PAGE, rights)

    def _fill_slack(self) -> None:
        for at, count in self._slack():
            ctypes.memset(at, PATTERN, count)

    def _is_split(self) -> bool:
        return self.places != ((0, self.nbytes),)

    def _zone_after(self, place: tuple[int, int]) -> int:
        """The address of the closed page after a part."""
        return self.base + -(-sum(place) // PAGE) * PAGE

    def _slack(self) -> list[tuple[int, int]]:
        """Addresses and bytes of what is left of the pages before and after the buffer, or its parts."""
        found, begin = [], self.base
        for offset, nbytes in self.places:
            start, end = self.address + offset, self.address + offset + nbytes
            last = self._zone_after((offset, nbytes)) if self._is_split() else self._end
            found += [(begin, start - begin), (end, last - end)]
            begin = last + PAGE
        return [(at, count) for at, count in found if count]

    def fill(self, byte: int = POISON) -> None:
        """Give all bytes this value."""
        for offset, nbytes in self.places:
            ctypes.memset(self.address + offset, byte, nbytes)

    def poison(self, most: int) -> None:
        """Give all bytes of a buffer of at most so many a value that is none."""
        if self.nbytes <= most:
            self.fill()

    def copy_from(self, address: int) -> None:
        """Take the bytes from there."""
        ctypes.memmove(self.address, address, self.nbytes)

    def copy_to(self, address: int) -> None:
        """Write the bytes to there."""
        ctypes.memmove(address, self.address, self.nbytes)

    def differs_from(self, address: int) -> bool:
        """Whether the bytes are other than those there."""
        return _LIBC.memcmp(self.address, address, self.nbytes) != 0

    def make_read_only(self) -> None:
        """Let stores within the buffer be findings as well."""
        self._is_read_only = True
        self.close_pages()

    def make_writable(self) -> None:
        """Let stores within the buffer be none."""
        if self._is_read_only:
            self._is_read_only = False
            _protect(self.base, self.pages, _READ_WRITE)

    def release(self) -> None:
        """Give the memory back; the buffer is not used any more."""
        del self._memory.owners[self.base]
        self._memory.give_back(self.base, self.pages)

    def stores_beside(self) -> AccessBeyond | None:
        """What has been written to what is left of the buffer's pages, and repairs it."""
        for at, count in self._slack():
            if count <= PAGE and _LIBC.memcmp(at, _PATTERNS, count) == 0:
                continue
            found = ctypes.string_at(at, count)
            if found == bytes([PATTERN]) * count:
                continue
            changed = [at + k for k, byte in enumerate(found) if byte != PATTERN]
            _protect(self.base, self.pages, _READ_WRITE)
            ctypes.memset(at, PATTERN, count)
            self.close_pages()
            what = f"{len(changed)} bytes changed, from"
            return self._beside(changed[0], changed[-1], what, " on")
        return None

    def touched(self, address: int, is_store: bool) -> AccessBeyond:
        """The finding of an access to a page without rights."""
        what = "a store" if is_store else "a load"
        within = [p for p in self.places if 0 <= address - self.address - p[0] < p[1]]
        if within:
            at = address - self.address - (within[0][0] if self._is_split() else 0)
            why = "which may only be read" if self._is_read_only else "in the turn of another thread"
            return AccessBeyond(f"{self._named(within[0])}: {what} at byte {at}, {why}")
        return self._beside(address, address, what, "")

    def _beside(self, first: int, last: int, what: str, end: str) -> AccessBeyond:
        """Accesses from an address to another one, which lie after the end or before the start of the nearest part."""
        before = [p for p in self.places if sum(p) <= first - self.address]
        following = next((p for p in self.places if p[0] > last - self.address), None)
        if before and (following is None or first < self._zone_after(before[-1]) + PAGE):
            place = before[-1]
            distance = first - self.address - sum(place)
            return AccessBeyond(f"{self._named(place)}: {what} {distance} bytes after its end{end}")
        place = following or self.places[0]
        distance = place[0] - (last - self.address)
        return AccessBeyond(f"{self._named(place)}: {what} {distance} bytes before its start{end}")

    def _named(self, place: tuple[int, int] | None) -> str:
        if place is None or not self._is_split():
            return f"{self.name} ({self.nbytes} bytes)"
        of = f" '{name:.40}'" if (name := self.names.get(place[0])) else ""
        return f"{self.name}{of}, {place[1]} bytes at {place[0]}"

    def surrounds(self, address: int) -> bool:
        """Whether an address lies in the buffer's pages or in the closed ones around."""
        return self.base - PAGE <= address < self._end + self._closed * PAGE

    def close_pages(self) -> None:
        """Give all pages the rights that they should have."""
        _protect(self.base - PAGE, 1, _NONE)
        _protect(self._end, self._closed, _NONE)
        if self._is_read_only:
            _protect(self.base, self.pages, _READ)
        if self._is_split():
            for place in self.places:
                _protect(self._zone_after(place), 1, _NONE)


class ZonedMemory:
    """Pages of this process between pages without rights, the handler of accesses to these, and who has which."""

    def __init__(self) -> None:
        self.owners: dict[int, ZonedBuffer] = {}
        """Buffers by the address of their first page."""
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._lock = free_in_children(threading.RLock())  # what ends a buffer may run while one is taken
        self._next = self._end = 0
        self._chunks = (ctypes.c_int64 * (2 * _MOST_CHUNKS))()
        self._of_others: list[tuple[ZonedBuffer | None, AccessBeyond]] = []
        self._count = ctypes.c_int64(0)
        self._records = (ctypes.c_int64 * _MOST_RECORDS)()
        self._old = _SignalAction()
        self._engine = _linked(
            _HANDLER.format(
                count=ctypes.addressof(self._count),
                chunks=ctypes.addressof(self._chunks),
                records=ctypes.addressof(self._records),
                old=ctypes.addressof(self._old),
                most=_MOST_RECORDS,
            )
        )
        self._action = _SignalAction(
            handler=self._engine.get_function_address("tw_zones_touched"), flags=_ON_STACK_WITH_INFO
        )
        self.listen()

    def listen(self) -> None:
        """Let the handler be the process's, also where somebody has set another one since (faulthandler, a library):
        that is then for accesses to other memory."""
        with self._lock:
            now = _SignalAction()
            _set_handler(None, now)
            if now.handler != self._action.handler:
                _set_handler(self._action, self._old)

    def take(self, pages: int) -> int:
        """The address of so many pages with all rights between two without any."""
        room = room_for(pages)
        with self._lock:
            if self._free[room]:
                base = self._free[room].pop()
            else:
                needed = (room + 2) * PAGE
                if self._end - self._next < needed:
                    self._add_chunk(max(_CHUNK, needed))
                base = self._next + PAGE
                self._next += needed
        _protect(base, pages, _READ_WRITE)
        _protect(base + pages * PAGE, room - pages + 1, _NONE)
        return base

    def give_back(self, base: int, pages: int) -> None:
        """Take pages back, for the next who needs about as many."""
        _protect(base, pages, _READ_WRITE)
        if pages > 64:
            _LIBC.madvise(ctypes.c_void_p(base), ctypes.c_size_t(pages * PAGE), _DONTNEED)
        with self._lock:
            self._free[room_for(pages)].append(base)

    def _add_chunk(self, nbytes: int) -> None:
        begin = _LIBC.mmap(None, ctypes.c_size_t(nbytes), _NONE, _MAP, -1, ctypes.c_int64(0))
        at = self._count.value
        if begin in (None, ctypes.c_void_p(-1).value) or at == _MOST_CHUNKS:
            raise ExecutionError(f"there are no {nbytes} bytes of addresses for guard zones", hint=_FEWER)
        self._chunks[2 * at : 2 * at + 2] = [begin, begin + nbytes]
        self._count.value = at + 1
        self._next, self._end = begin, begin + nbytes

    def findings(self, own: Collection[ZonedBuffer] | None = None) -> list[AccessBeyond]:
        """The accesses to pages without rights since the last time, by any thread; the pages are closed again. For a
        call, with its `own` buffers, those near other ones that another call uses now are left to that call."""
        with self._lock:  # before looking: another thread may be about to leave accesses to this call
            if not self._of_others and _LIBC.memcmp(self._records, _NO_RECORDS, len(_NO_RECORDS)) == 0:
                return []
            found = [*self._of_others, *map(self._told, self._taken_records())]
            self._of_others = []
            if own is not None:
                self._of_others = [(b, access) for b, access in found if b is not None and b.calls and b not in own]
            return [access for owner, access in found if (owner, access) not in self._of_others]

    def _told(self, record: tuple[int, bool]) -> tuple[ZonedBuffer | None, AccessBeyond]:
        """Whose an access is, in words; its page is closed again."""
        address, is_store = record
        owner = next((b for b in list(self.owners.values()) if b.surrounds(address)), None)
        if owner is None:
            _protect(address // PAGE * PAGE, 1, _NONE)
            what = "a store" if is_store else "a load"
            return None, AccessBeyond(f"{what} to memory that was given back")
        owner.close_pages()
        return owner, owner.touched(address, is_store)

    def _taken_records(self) -> Iterator[tuple[int, bool]]:
        """Addresses of accesses that were written down, and whether each was a store; their places are free again."""
        for k, record in enumerate(self._records):
            if record:  # the handler leaves a place alone until it is free
                self._records[k] = 0
                yield record >> 1, bool(record & 1)

    @contextmanager
    def used(self, buffers: Collection[ZonedBuffer]) -> Iterator[None]:
        """A call of these buffers goes on."""
        with self._lock:
            for buffer in buffers:
                buffer.calls += 1
        try:
            yield
        finally:
            with self._lock:
                for buffer in buffers:
                    buffer.calls -= 1


NO_KERNELS: Mapping[str, str] = MappingProxyType({})


def check(findings: Iterable[AccessBeyond], where: str, kernels: Mapping[str, str] = NO_KERNELS) -> None:
    """BeyondBufferError if there are any findings, of one of the `kernels`, by their names and with what they are for
    people, where these are known."""
    texts = list(dict.fromkeys(found.text for found in findings))
    if not texts:
        return
    who = "native code goes beyond its buffers"
    if kernels:
        named = ", ".join(kernels.values())
        who = f"{'the kernel' if len(kernels) == 1 else 'one of the kernels'} {named} goes beyond buffers"
    error = BeyondBufferError(
        f"{who}: {'; '.join(texts[:MOST_TOLD])}", where=where,
        hint="this is a defect of the compiler; please report it with the model",
    )  # fmt: skip
    error.kernels = tuple(kernels)
    raise error


MOST_TOLD = 20
"""Findings that an error lists."""


def _linked(text: str) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    return engine


def _protect(address: int, pages: int, rights: int) -> None:
    if _LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(pages * PAGE), rights):
        raise ExecutionError(
            f"pages for guard zones cannot be closed or opened: {os.strerror(ctypes.get_errno())}", hint=_FEWER
        )


def _set_handler(action: _SignalAction | None, before: _SignalAction) -> None:
    """Set the process's handler, and note what it has been."""
    if _LIBC.sigaction(int(signal.SIGSEGV), None if action is None else ctypes.byref(action), ctypes.byref(before)):
        raise ExecutionError(f"no handler for accesses beyond buffers can be set: {os.strerror(ctypes.get_errno())}")


_FEWER = "close models, or let the process have more mappings (vm.max_map_count, ulimit -v)"


_LIBC = ctypes.CDLL(None, use_errno=True)
if IS_AVAILABLE:
    _LIBC.mmap.restype = ctypes.c_void_p
    _LIBC.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    assert mmap.PAGESIZE == PAGE
