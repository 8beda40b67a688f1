"""The native thread pool: partition, visibility, contention, sleep, environment of the workers."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.runtime.native_threads import end_soon, native_threads
from tilewright.codegen.cpu.linking.link import link
from tilewright.codegen.cpu.program.pool import pool_ir
from tilewright.codegen.cpu.program.pool_platform import check_platform
from tilewright.runtime.storage.loader import LoadedImage
from tilewright.target.machine import TargetError

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
TRIPLE = llvm.get_process_triple()
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

# args: a table of 64 records of 8 i64 each, one per worker: calls, begin, end, thread id, last value, free...
BODIES = """
declare void @tw_parallel(ptr, ptr, ptr, i64)
declare i64 @pthread_self()
declare i32 @sched_getcpu()
declare i32 @sched_yield()

define internal ptr @record(ptr %args, i64 %worker) alwaysinline {
  %at = getelementptr [8 x i64], ptr %args, i64 %worker
  ret ptr %at
}

define void @note(ptr %args, i64 %begin, i64 %end, i64 %worker) {
  %r = call ptr @record(ptr %args, i64 %worker)
  %r1 = getelementptr i64, ptr %r, i64 1
  %r2 = getelementptr i64, ptr %r, i64 2
  %r3 = getelementptr i64, ptr %r, i64 3
  %calls = load i64, ptr %r
  %more = add i64 %calls, 1
  %self = call i64 @pthread_self()
  store i64 %more, ptr %r
  store i64 %begin, ptr %r1
  store i64 %end, ptr %r2
  store i64 %self, ptr %r3
  ret void
}

; Element i of the table, begin <= i < end, plus one.
define void @count(ptr %args, i64 %begin, i64 %end, i64 %worker) {
entry:
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %at = getelementptr i64, ptr %args, i64 %i
  %old = load i64, ptr %at
  %new = add i64 %old, 1
  store i64 %new, ptr %at
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}

define void @repeat(ptr %pool, ptr %args, i64 %n, i64 %times) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  call void @tw_parallel(ptr %pool, ptr @count, ptr %args, i64 %n)
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %times
  br i1 %more, label %loop, label %done
done:
  ret void
}

; Each piece waits for all to have begun, so that every thread must run one. Record 0 holds the number of pieces in
; entry 4; entry 5 counts those that have begun.
define void @meet(ptr %args, i64 %begin, i64 %end, i64 %worker) {
entry:
  %pieces.at = getelementptr i64, ptr %args, i64 4
  %begun.at = getelementptr i64, ptr %args, i64 5
  %pieces = load i64, ptr %pieces.at
  %r = call ptr @record(ptr %args, i64 %worker)
  %tiny.at = getelementptr i64, ptr %r, i64 6
  %cpu.at = getelementptr i64, ptr %r, i64 7
  %tiny = load volatile double, ptr %tiny.at
  %half = fmul double %tiny, 5.000000e-01
  store volatile double %half, ptr %tiny.at
  %cpu32 = call i32 @sched_getcpu()
  %cpu = sext i32 %cpu32 to i64
  store i64 %cpu, ptr %cpu.at
  call void @note(ptr %args, i64 %begin, i64 %end, i64 %worker)
  %ignored = atomicrmw add ptr %begun.at, i64 1 seq_cst
  br label %wait
wait:
  %begun = load atomic i64, ptr %begun.at seq_cst, align 8
  %all = icmp uge i64 %begun, %pieces
  %yielded = call i32 @sched_yield()
  br i1 %all, label %done, label %wait
done:
  ret void
}

; args: how many pieces there were, then begin, end and worker of each.
define void @list(ptr %args, i64 %begin, i64 %end, i64 %worker) {
  %k = atomicrmw add ptr %args, i64 1 seq_cst
  %skip = mul i64 %k, 3
  %first = getelementptr i64, ptr %args, i64 1
  %at = getelementptr i64, ptr %first, i64 %skip
  %at1 = getelementptr i64, ptr %at, i64 1
  %at2 = getelementptr i64, ptr %at, i64 2
  store i64 %begin, ptr %at
  store i64 %end, ptr %at1
  store i64 %worker, ptr %at2
  ret void
}

; As @list, but worker 0 gets no further than its first piece until all others are done: args begins with their number.
define void @stuck(ptr %args, i64 %begin, i64 %end, i64 %worker) {
entry:
  %listed = getelementptr i64, ptr %args, i64 2
  %done.at = getelementptr i64, ptr %args, i64 1
  call void @list(ptr %listed, i64 %begin, i64 %end, i64 %worker)
  %size = sub i64 %end, %begin
  %before = atomicrmw add ptr %done.at, i64 %size seq_cst
  %first = icmp eq i64 %worker, 0
  br i1 %first, label %wait, label %done
wait:
  %sum = load atomic i64, ptr %done.at seq_cst, align 8
  %n = load i64, ptr %args
  %all = icmp uge i64 %sum, %n
  %yielded = call i32 @sched_yield()
  br i1 %all, label %done, label %wait
done:
  ret void
}

; args: pool, table. Runs a job inside of a job.
define void @nest(ptr %args, i64 %begin, i64 %end, i64 %worker) {
  %table.at = getelementptr ptr, ptr %args, i64 1
  %pool = load ptr, ptr %args
  %table = load ptr, ptr %table.at
  %mine = getelementptr [64 x i64], ptr %table, i64 %begin
  call void @tw_parallel(ptr %pool, ptr @count, ptr %mine, i64 64)
  ret void
}
"""

# As pthread_create, but only the first three threads of the process's life are granted.
STINGY = """
@granted = internal global i32 0
define i32 @stingy_create(ptr %thread, ptr %attributes, ptr %start, ptr %argument) {
entry:
  %before = atomicrmw add ptr @granted, i32 1 seq_cst
  %enough = icmp uge i32 %before, 3
  br i1 %enough, label %refuse, label %grant
grant:
  %error = call i32 @pthread_create(ptr %thread, ptr %attributes, ptr %start, ptr %argument)
  ret i32 %error
refuse:
  ret i32 11
}
"""


class Native:
    """The pool and the functions above, linked into this process."""

    def __init__(self, pool_text: str) -> None:
        machine = llvm.Target.from_triple(TRIPLE).create_target_machine(reloc="pic", codemodel="small", opt=2)
        objects = []
        for text in (pool_text, BODIES):
            module = llvm.parse_assembly(text)
            module.verify()
            objects.append(machine.emit_object(module))
        self._loaded = LoadedImage(link(objects))
        pointer, i64 = ctypes.c_void_p, ctypes.c_int64
        self.create = self._function("tw_pool_create", pointer, ctypes.c_int32, pointer, i64)
        self.destroy = self._function("tw_pool_destroy", None, pointer)
        self.threads = self._function("tw_pool_threads", ctypes.c_int32, pointer)
        self.parallel = self._function("tw_parallel", None, pointer, pointer, pointer, i64)
        self.ordered = self._function(
            "tw_parallel_ordered", None, pointer, pointer, pointer, i64, ctypes.c_bool
        )
        self.repeat = self._function("repeat", None, pointer, pointer, i64, i64)

    def _function(self, name: str, result: object, *arguments: object):
        return ctypes.CFUNCTYPE(result, *arguments)(self.address(name))

    def address(self, name: str) -> int:
        return self._loaded.address(name)


@pytest.fixture(scope="module")
def native() -> Native:
    return Native(pool_ir(TRIPLE))


@pytest.fixture
def make_pool(native: Native):
    pools = []

    def make(threads: int, spin_ns: int = 1_000_000, cpus: list[int] | None = None) -> int:
        ids = (ctypes.c_int32 * threads)(*cpus) if cpus else None
        pools.append(native.create(threads, ids, spin_ns))
        return pools[-1]

    yield make
    for pool in pools:
        native.destroy(pool)


def table() -> np.ndarray:
    return np.zeros((64, 8), np.int64)


def pieces_of(listed: np.ndarray) -> list[list[int]]:
    """Begin, end and worker of each piece that `list` has noted, in the order of the range."""
    return sorted(listed[1:].reshape(-1, 3)[: listed[0]].tolist())


@pytest.mark.sweep(30)
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 15, 16, 17, 1000, 2**62 + 3])
def test_pieces_cover_the_range_once(
    native: Native, make_pool, threads: int, n: int, backwards: bool
) -> None:
    listed = np.zeros(3001, np.int64)
    native.ordered(make_pool(threads), native.address("list"), listed.ctypes.data, n, backwards)
    pieces = pieces_of(listed)
    assert pieces[0][0] == 0 and pieces[-1][1] == n
    assert [end for _, end, _ in pieces[:-1]] == [begin for begin, _, _ in pieces[1:]]
    assert {worker for _, _, worker in pieces} <= set(range(min(threads, n)))
    assert len(pieces) <= 40 * threads


@pytest.mark.parametrize("backwards", [False, True])
def test_a_share_is_given_out_from_its_start_or_its_end(native: Native, make_pool, backwards: bool) -> None:
    listed = np.zeros(3003, np.int64)
    listed[0] = 1000
    native.ordered(make_pool(2), native.address("stuck"), listed.ctypes.data, 1000, backwards)
    pieces = listed[3:].reshape(-1, 3)[: listed[2]].tolist()
    for worker, share in ((0, range(500)), (1, range(500, 1000))):
        first, upto = next((begin, end) for begin, end, by in pieces if by == worker and begin in share)
        assert (upto - 1 == share[-1]) if backwards else (first == share[0])
        own = [begin for begin, _, by in pieces if by == worker and begin in share]
        assert own == sorted(own, reverse=backwards)


def test_others_do_what_a_stuck_thread_leaves(native: Native, make_pool) -> None:
    for threads in (2, 3):
        listed = np.zeros(3003, np.int64)
        listed[0] = 1000
        native.parallel(make_pool(threads), native.address("stuck"), listed.ctypes.data, 1000)
        pieces = pieces_of(listed[2:])
        (own,) = [(begin, end) for begin, end, worker in pieces if worker == 0]
        assert sum(end - begin for begin, end, _ in pieces) == 1000
        assert own[1] - own[0] <= -(-1000 // threads // 2) + 1


@pytest.mark.parametrize("n", [0, -1, -(2**63)])
def test_nothing_to_do(native: Native, make_pool, n: int) -> None:
    records = table()
    native.parallel(make_pool(2), native.address("note"), records.ctypes.data, n)
    assert not records.any()


def test_no_pool_means_one_thread(native: Native) -> None:
    records = table()
    native.parallel(None, native.address("note"), records.ctypes.data, 100)
    assert records[0, :3].tolist() == [1, 0, 100] and not records[1:].any()


@pytest.mark.parametrize("spin_ns", [0, 1000, 1_000_000])
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_every_element_of_every_job_runs_once(native: Native, make_pool, threads: int, spin_ns: int) -> None:
    pool = make_pool(threads, spin_ns)
    for n, times in ((3, 20_000), (64, 20_000), (1000, 2_000)):
        counts = np.zeros(n + 1, np.int64)
        native.repeat(pool, counts.ctypes.data, n, times)
        assert (counts[:n] == times).all() and counts[n] == 0


def test_sleepers_come_back(native: Native, make_pool) -> None:
    pool = make_pool(4, 0)
    counts = np.zeros(100, np.int64)
    for _ in range(100):
        time.sleep(0.001)
        native.repeat(pool, counts.ctypes.data, 100, 3)
    assert (counts == 300).all()


def test_workers_really_work(native: Native, make_pool) -> None:
    records = table()
    records[0, 4] = 4
    for spin_ns in (0, 1_000_000):
        records[0, 5] = 0
        pool = make_pool(4, spin_ns)
        time.sleep(0.01)
        native.parallel(pool, native.address("meet"), records.ctypes.data, 4)
        assert len(set(records[:4, 3].tolist())) == 4
        assert records[0, 3] == threading.get_ident()


def test_a_busy_pool_is_shared_by_doing_the_work_alone(native: Native, make_pool) -> None:
    pool = make_pool(3)
    tables = [np.zeros(50, np.int64) for _ in range(4)]
    threads = [
        threading.Thread(target=native.repeat, args=(pool, counts.ctypes.data, 50, 20_000))
        for counts in tables
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((counts == 20_000).all() for counts in tables)


def test_a_job_inside_of_a_job(native: Native, make_pool) -> None:
    pool = make_pool(3)
    counts = np.zeros((3, 64), np.int64)
    args = (ctypes.c_void_p * 2)(pool, counts.ctypes.data)
    for _ in range(100):
        native.parallel(pool, native.address("nest"), ctypes.addressof(args), 3)
    assert (counts == 100).all()


def test_workers_use_the_callers_float_modes(native: Native, make_pool) -> None:
    if "x86_64" not in TRIPLE:
        pytest.skip("sets the modes of x86")
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(reloc="pic", codemodel="small")
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(MODES), machine)
    engine.finalize_object()
    meet = ctypes.CFUNCTYPE(
        None,
        ctypes.c_int32,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
    )(engine.get_function_address("with_modes"))
    pool = make_pool(2)
    halves = []
    for modes in (0x1F80, 0x9FC0, 0x1F80):  # default, flush to zero and denormals are zero, default
        records = table()
        records[0, 4] = 2
        records[:, 6] = 2  # the double 2 * 2^-1074, whose half is the smallest denormal
        meet(modes, native.address("tw_parallel"), pool, native.address("meet"), records.ctypes.data, 2)
        halves.append(int(records[1, 6]))
    assert halves == [1, 0, 1]


MODES = """
declare void @llvm.x86.sse.ldmxcsr(ptr)
define void @with_modes(i32 %modes, ptr %parallel, ptr %pool, ptr %fn, ptr %args, i64 %n) {
  %slot = alloca i32
  store i32 %modes, ptr %slot
  call void @llvm.x86.sse.ldmxcsr(ptr %slot)
  call void %parallel(ptr %pool, ptr %fn, ptr %args, i64 %n)
  store i32 8064, ptr %slot
  call void @llvm.x86.sse.ldmxcsr(ptr %slot)
  ret void
}
"""


@linux_only
def test_workers_stay_on_their_cpus(native: Native, make_pool) -> None:
    for cpu in sorted(os.sched_getaffinity(0))[:2]:
        records = table()
        records[0, 4] = 2
        pool = make_pool(2, 1_000_000, [-1, cpu])
        native.parallel(pool, native.address("meet"), records.ctypes.data, 2)
        assert records[1, 7] == cpu


@linux_only
def test_workers_leave_signals_to_the_host(make_pool) -> None:
    before = native_threads()
    make_pool(2)
    (worker,) = native_threads() - before
    interrupt, fault = 2, 11
    patience = time.monotonic() + 60  # a C library may block every signal of a thread until it has begun
    while is_blocked(f"self/task/{worker}", fault):
        assert time.monotonic() < patience
        time.sleep(0.001)
    assert is_blocked(f"self/task/{worker}", interrupt) and not is_blocked("thread-self", interrupt)


def is_blocked(thread: str, signal: int) -> bool:
    with open(f"/proc/{thread}/status") as file:
        blocked = int(next(line for line in file if line.startswith("SigBlk")).split()[1], 16)
    return bool(blocked >> (signal - 1) & 1)


def test_fewer_threads_than_asked_for() -> None:
    text = pool_ir(TRIPLE).replace("call i32 @pthread_create", "call i32 @stingy_create")
    native = Native(text + STINGY)
    pool = native.create(8, None, 1000)
    assert native.threads(pool) == 4
    counts = np.zeros(64, np.int64)
    native.repeat(pool, counts.ctypes.data, 64, 1000)
    assert (counts == 1000).all()
    native.destroy(pool)


@linux_only
def test_pools_end_their_threads(native: Native) -> None:
    before = native_threads()
    for spin_ns in (0, 10_000_000):
        for _ in range(20):
            native.destroy(native.create(5, None, spin_ns))
    assert end_soon(native_threads() - before)


@pytest.mark.parametrize(
    "triple",
    [
        "x86_64-unknown-linux-gnu",
        "aarch64-unknown-linux-gnu",
        "riscv64-unknown-linux-gnu",
        "s390x-unknown-linux-gnu",
        "arm64-apple-macosx14.0",
        "x86_64-apple-darwin23",
    ],
)
def test_code_for_every_target(triple: str) -> None:
    module = llvm.parse_assembly(pool_ir(triple))
    module.verify()
    assembly = llvm.Target.from_triple(triple).create_target_machine().emit_assembly(module)
    assert "tw_parallel" in assembly
    wake = "__ulock_wake" if "apple" in triple else "syscall"
    assert wake in assembly


def test_webassembly_has_one_thread() -> None:
    text = pool_ir("wasm32-unknown-unknown")
    llvm.parse_assembly(text).verify()
    assert "tw_parallel_ordered" in text and "pthread" not in text


@pytest.mark.parametrize("triple", ["x86_64-pc-windows-msvc", "armv7-unknown-linux"])
def test_targets_without_a_pool(triple: str) -> None:
    for refuse in (pool_ir, check_platform):
        with pytest.raises(TargetError, match=r"no code can be made for the .*\n  hint: .*Linux and macOS"):
            refuse(triple)
