"""The thread pool that travels with a compiled model, as the text of one LLVM IR module.

Functions for the runtime and for generated code:

- `ptr tw_pool_create(i32 threads, ptr cpu_ids, i64 spin_ns)`: a pool of `threads` (the caller counts as
  worker 0, so `threads - 1` are started; fewer if the system refuses some). `cpu_ids` is null or an array of
  `threads` i32, the CPU each worker is pinned to (-1: not pinned; entry 0 is not used). Idle workers poll
  for `spin_ns` before they sleep. Null when there is no memory.
- `i32 tw_pool_threads(ptr pool)`: the number of threads the pool really has.
- `void tw_pool_destroy(ptr pool)`: ends and joins the workers; no job may be running.
- `void tw_parallel(ptr pool, ptr fn, ptr args, i64 n)`: runs `void fn(ptr args, i64 begin, i64 end,
  i64 worker)` over pieces that together are 0..n, and returns when all of it is done. Any number of pieces may
  have the same `worker`, below the number of threads, but never two at once: scratch memory that is indexed by
  `worker` is not shared. Where the pieces begin and end differs from call to call. A null pool means one thread
  and one piece. `fn` must not call `tw_parallel` while it uses scratch memory.
- `void tw_parallel_ordered(ptr pool, ptr fn, ptr args, i64 n, i1 backwards)`: the same; with `backwards` each
  thread's share is given out from its end.

How it works. Each worker has a mailbox on its own cache lines with one word of state:

    idle --offer--> offered --claim--> taken --finish--> idle
    idle --timeout--> asleep --offer--> offered --withdraw--> idle

The range is cut into equal shares, one for each thread, which a counter in the thread's mailbox gives out in
pieces: half of what is left, down to a small part of a share. A thread runs the pieces of its own share (the same
part of the same range each time, so that what it has in its caches is of use), and then those of the shares of
others. A thread that comes late, or whose core another process takes, so leaves all but one piece of its share to the
others (guided self-scheduling: Polychronopoulos and Kuck, 1987; taking from others: Blumofe and Leiserson, 1999).

The forker withdraws what it has offered to workers that have not begun when no piece is left. So a worker that sleeps
never makes a job late by the time it takes to wake (about 0.05 to 0.6 ms on a virtual machine). A claim is one
compare-and-swap, and the job is only read after a successful claim, so a late worker never sees the fields of a job
that is being replaced. Sleep is a state of the same word: the offer itself tells the forker whom it has to wake.

A guarded call brings a pool of its own without workers, whose word `turn` is a function of the runtime: the caller
runs the share of each worker, one after the other, tells it before each whose turn it is, and -1 after the last. So the
runtime can close what is not this worker's.

Two callers at once: the second finds the pool busy and runs all of its range itself. Models share pools, whichever
model's code has made one: what the types below say belongs to the format of artefacts (`container.FORMAT`).
Workers take over the floating-point environment of the caller, so that a host that flushes denormals gets the
same bits from every thread. Signals stay with the host's own threads, apart from those of faults.
"""

from __future__ import annotations

from tilewright.codegen.cpu.program.pool_platform import (
    ASLEEP,
    IDLE,
    OFFERED,
    QUIT,
    TAKEN,
    has_threads,
    platform_ir,
)

_ALONE = """
define void @tw_parallel(ptr %pool, ptr %fn, ptr %args, i64 %n) nounwind {
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %run, label %done
run:
  call void %fn(ptr %args, i64 0, i64 %n, i64 0)
  br label %done
done:
  ret void
}
define void @tw_parallel_ordered(ptr %pool, ptr %fn, ptr %args, i64 %n, i1 %backwards) nounwind {
  call void @tw_parallel(ptr %pool, ptr %fn, ptr %args, i64 %n)
  ret void
}
"""


def pool_ir(triple: str) -> str:
    """The pool for a target triple, a complete module; TargetError where no pool is known for the triple. Without
    threads it is two functions that run all of a loop."""
    if not has_threads(triple):
        return f'target triple = "{triple}"\n{_ALONE}'
    parts = [
        f'target triple = "{triple}"',
        _TYPES,
        _LIBC,
        platform_ir(triple),
        _PIECES,
        _WORKER,
        _FORK,
        _JOIN,
        _PARALLEL,
        _CREATE,
        _DESTROY,
    ]
    return "\n".join(parts)


# What different threads write lies 128 bytes apart: a line of Apple's cores, and the pair of 64-byte lines
# that Intel's and AMD's prefetchers fetch together.
_TYPES = """
; fn, args, number of shares, least size of a piece, floating-point modes of the caller, whether shares are given out
; from their ends
%tw_job = type { ptr, ptr, i64, i64, i64, i64 }
; threads, (padding), spin_ns, turn | busy | job
%tw_pool = type { i32, i32, i64, ptr, [104 x i8], i32, [124 x i8], %tw_job, [80 x i8] }
; state, index, pool, pthread_t, cpu | share: first element that is not given out (counted from the end where shares are
; given out from there), end, begin
%tw_mailbox = type { i32, i32, ptr, i64, i32, i32, i64, i64, i64, [72 x i8] }
"""

_LIBC = """
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)
declare i32 @sigdelset(ptr, i32)
declare i32 @sched_yield()
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)

define internal ptr @tw_mailbox_of(ptr %pool, i64 %index) alwaysinline nounwind {
  %first = getelementptr %tw_pool, ptr %pool, i64 1
  %mailbox = getelementptr %tw_mailbox, ptr %first, i64 %index
  ret ptr %mailbox
}
"""

PIECES = 32
"""Pieces of a thread's share: a call for each costs some tens of nanoseconds."""

_PIECES = """
; Runs pieces of share %index until none is left.
define internal void @tw_share(ptr %pool, i64 %index, i64 %worker) nounwind {
entry:
  %job = getelementptr %tw_pool, ptr %pool, i64 0, i32 7
  %args.at = getelementptr %tw_job, ptr %job, i64 0, i32 1
  %least.at = getelementptr %tw_job, ptr %job, i64 0, i32 3
  %mailbox = call ptr @tw_mailbox_of(ptr %pool, i64 %index)
  %next.at = getelementptr %tw_mailbox, ptr %mailbox, i64 0, i32 6
  %end.at = getelementptr %tw_mailbox, ptr %mailbox, i64 0, i32 7
  %first.at = getelementptr %tw_mailbox, ptr %mailbox, i64 0, i32 8
  %backwards.at = getelementptr %tw_job, ptr %job, i64 0, i32 5
  %fn = load ptr, ptr %job
  %args = load ptr, ptr %args.at
  %least = load i64, ptr %least.at
  %end = load i64, ptr %end.at
  %first = load i64, ptr %first.at
  %both = add i64 %first, %end
  %backwards.word = load i64, ptr %backwards.at
  %backwards = icmp ne i64 %backwards.word, 0
  br label %look
look:
  %next = load atomic i64, ptr %next.at monotonic, align 8
  br label %take
take:
  %begin = phi i64 [ %next, %look ], [ %seen, %try ]
  %left = sub i64 %end, %begin
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %try, label %done
try:
  %less = lshr i64 %left, 1
  %half = sub i64 %left, %less
  %enough = call i64 @llvm.umax.i64(i64 %half, i64 %least)
  %size = call i64 @llvm.umin.i64(i64 %enough, i64 %left)
  %upto = add i64 %begin, %size
  %taken = cmpxchg ptr %next.at, i64 %begin, i64 %upto monotonic monotonic
  %seen = extractvalue { i64, i1 } %taken, 0
  %mine = extractvalue { i64, i1 } %taken, 1
  br i1 %mine, label %run, label %take
run:
  %begin.back = sub i64 %both, %upto
  %upto.back = sub i64 %both, %begin
  %from = select i1 %backwards, i64 %begin.back, i64 %begin
  %to = select i1 %backwards, i64 %upto.back, i64 %upto
  call void %fn(ptr %args, i64 %from, i64 %to, i64 %worker)
  br label %look
done:
  ret void
}

; Runs pieces of all shares until none is left: first of the worker's own, then of those after it.
define internal void @tw_work(ptr %pool, i64 %worker) nounwind {
entry:
  %job = getelementptr %tw_pool, ptr %pool, i64 0, i32 7
  %shares.at = getelementptr %tw_job, ptr %job, i64 0, i32 2
  %shares = load i64, ptr %shares.at
  br label %share
share:
  %index = phi i64 [ %worker, %entry ], [ %next, %share ]
  call void @tw_share(ptr %pool, i64 %index, i64 %worker)
  %after = add i64 %index, 1
  %last = icmp eq i64 %after, %shares
  %next = select i1 %last, i64 0, i64 %after
  %more = icmp ne i64 %next, %worker
  br i1 %more, label %share, label %done
done:
  ret void
}
"""

# The clock is read once per burst of polls, and not before the first burst has passed: a worker that has just
# finished looks for the next job at once. Between bursts the core is given to whoever wants it: with fewer free cores
# than threads that may be the forker, and time that polling has used up is missing in the next job.
_WORKER = f"""
define internal ptr @tw_worker(ptr %mailbox) nounwind {{
entry:
  %index.at = getelementptr %tw_mailbox, ptr %mailbox, i64 0, i32 1
  %pool.at = getelementptr %tw_mailbox, ptr %mailbox, i64 0, i32 2
  %cpu.at = getelementptr %tw_mailbox, ptr %mailbox, i64 0, i32 4
  %index32 = load i32, ptr %index.at
  %index = zext i32 %index32 to i64
  %pool = load ptr, ptr %pool.at
  %cpu = load i32, ptr %cpu.at
  %spin.at = getelementptr %tw_pool, ptr %pool, i64 0, i32 2
  %spin = load i64, ptr %spin.at
  %job = getelementptr %tw_pool, ptr %pool, i64 0, i32 7
  %float.at = getelementptr %tw_job, ptr %job, i64 0, i32 4
  call void @tw_pin(i32 %cpu)
  br label %burst

burst:
  %deadline = phi i64 [ 0, %entry ], [ 0, %run ], [ 0, %asleep ],
                      [ %deadline.set, %clock ], [ %deadline.set, %doze ]
  br label %poll
poll:
  %polls = phi i64 [ 0, %burst ], [ %polls.next, %wait ]
  %state = load atomic i32, ptr %mailbox monotonic, align 4
  switch i32 %state, label %wait [ i32 {OFFERED}, label %claim
                                   i32 {QUIT}, label %quit ]
claim:
  %claimed = cmpxchg ptr %mailbox, i32 {OFFERED}, i32 {TAKEN} acquire monotonic
  %mine = extractvalue {{ i32, i1 }} %claimed, 1
  br i1 %mine, label %run, label %wait
run:
  %float = load i64, ptr %float.at
  call void @tw_set_float(i64 %float)
  call void @tw_work(ptr %pool, i64 %index)
  store atomic i32 {IDLE}, ptr %mailbox release, align 4
  br label %burst
wait:
  call void @tw_relax()
  %polls.next = add i64 %polls, 1
  %burst.over = icmp uge i64 %polls.next, 64
  br i1 %burst.over, label %clock, label %poll

clock:
  %yielded = call i32 @sched_yield()
  %now = call i64 @tw_now()
  %fresh = icmp eq i64 %deadline, 0
  %new = add i64 %now, %spin
  %deadline.set = select i1 %fresh, i64 %new, i64 %deadline
  %over = icmp sge i64 %now, %deadline.set
  br i1 %over, label %doze, label %burst
doze:
  %dozed = cmpxchg ptr %mailbox, i32 {IDLE}, i32 {ASLEEP} monotonic monotonic
  %sleeping = extractvalue {{ i32, i1 }} %dozed, 1
  br i1 %sleeping, label %sleep, label %burst
sleep:
  call void @tw_sleep(ptr %mailbox)
  br label %asleep
asleep:
  %woken = load atomic i32, ptr %mailbox monotonic, align 4
  %still = icmp eq i32 %woken, {ASLEEP}
  br i1 %still, label %sleep, label %burst

quit:
  ret ptr null
}}
"""

_FORK = f"""
; Offers the job to the workers of shares 1..%shares.
define internal void @tw_fork(ptr %pool, i64 %shares) nounwind {{
entry:
  br label %offer
offer:
  %index = phi i64 [ 1, %entry ], [ %next, %offered ]
  %mailbox = call ptr @tw_mailbox_of(ptr %pool, i64 %index)
  %old = atomicrmw xchg ptr %mailbox, i32 {OFFERED} acq_rel
  %sleeping = icmp eq i32 %old, {ASLEEP}
  br i1 %sleeping, label %wake, label %offered
wake:
  call void @tw_wake(ptr %mailbox)
  br label %offered
offered:
  %next = add i64 %index, 1
  %more = icmp ult i64 %next, %shares
  br i1 %more, label %offer, label %done
done:
  ret void
}}
"""

# After a burst the joiner gives its core away: with more runnable threads than cores the one it waits for may
# need that core.
_JOIN = f"""
; Withdraws the job from workers that have not begun, and waits for those that have.
define internal void @tw_join(ptr %pool, i64 %shares) nounwind {{
entry:
  br label %worker
worker:
  %index = phi i64 [ 1, %entry ], [ %next, %finished ]
  %mailbox = call ptr @tw_mailbox_of(ptr %pool, i64 %index)
  %withdrawn = cmpxchg ptr %mailbox, i32 {OFFERED}, i32 {IDLE} acquire acquire
  %late = extractvalue {{ i32, i1 }} %withdrawn, 1
  br i1 %late, label %finished, label %burst
burst:
  br label %poll
poll:
  %polls = phi i64 [ 0, %burst ], [ %polls.next, %wait ]
  %state = load atomic i32, ptr %mailbox acquire, align 4
  %running = icmp eq i32 %state, {TAKEN}
  br i1 %running, label %wait, label %finished
wait:
  call void @tw_relax()
  %polls.next = add i64 %polls, 1
  %over = icmp uge i64 %polls.next, 256
  br i1 %over, label %yield, label %poll
yield:
  %ignored = call i32 @sched_yield()
  br label %burst
finished:
  %next = add i64 %index, 1
  %more = icmp ult i64 %next, %shares
  br i1 %more, label %worker, label %done
done:
  ret void
}}
"""

_PARALLEL = f"""
define internal void @tw_fill_job(ptr %pool, ptr %fn, ptr %args, i64 %n, i64 %shares, i1 %backwards) nounwind {{
entry:
  %job = getelementptr %tw_pool, ptr %pool, i64 0, i32 7
  %args.at = getelementptr %tw_job, ptr %job, i64 0, i32 1
  %shares.at = getelementptr %tw_job, ptr %job, i64 0, i32 2
  %least.at = getelementptr %tw_job, ptr %job, i64 0, i32 3
  %float.at = getelementptr %tw_job, ptr %job, i64 0, i32 4
  %backwards.at = getelementptr %tw_job, ptr %job, i64 0, i32 5
  %backwards.word = zext i1 %backwards to i64
  %size = udiv i64 %n, %shares
  %larger = urem i64 %n, %shares
  %part = udiv i64 %size, {PIECES}
  %least = add i64 %part, 1
  %float = call i64 @tw_get_float()
  store ptr %fn, ptr %job
  store ptr %args, ptr %args.at
  store i64 %shares, ptr %shares.at
  store i64 %least, ptr %least.at
  store i64 %float, ptr %float.at
  store i64 %backwards.word, ptr %backwards.at
  br label %share
share:
  %index = phi i64 [ 0, %entry ], [ %index.next, %share ]
  %begin = phi i64 [ 0, %entry ], [ %end, %share ]
  %mailbox = call ptr @tw_mailbox_of(ptr %pool, i64 %index)
  %next.at = getelementptr %tw_mailbox, ptr %mailbox, i64 0, i32 6
  %end.at = getelementptr %tw_mailbox, ptr %mailbox, i64 0, i32 7
  %first.at = getelementptr %tw_mailbox, ptr %mailbox, i64 0, i32 8
  %is.larger = icmp ult i64 %index, %larger
  %one = zext i1 %is.larger to i64
  %count = add i64 %size, %one
  %end = add i64 %begin, %count
  store i64 %begin, ptr %next.at
  store i64 %end, ptr %end.at
  store i64 %begin, ptr %first.at
  %index.next = add i64 %index, 1
  %more = icmp ult i64 %index.next, %shares
  br i1 %more, label %share, label %done
done:
  ret void
}}

; One share after the other, each with the number of its worker.
define internal void @tw_in_turns(ptr %turn, ptr %fn, ptr %args, i64 %n, i64 %shares) nounwind {{
entry:
  %size = udiv i64 %n, %shares
  %larger = urem i64 %n, %shares
  br label %share
share:
  %index = phi i64 [ 0, %entry ], [ %next, %share ]
  %begin = phi i64 [ 0, %entry ], [ %end, %share ]
  %is.larger = icmp ult i64 %index, %larger
  %one = zext i1 %is.larger to i64
  %count = add i64 %size, %one
  %end = add i64 %begin, %count
  call void %turn(i64 %index)
  call void %fn(ptr %args, i64 %begin, i64 %end, i64 %index)
  %next = add i64 %index, 1
  %more = icmp ult i64 %next, %shares
  br i1 %more, label %share, label %done
done:
  call void %turn(i64 -1)
  ret void
}}

define void @tw_parallel(ptr %pool, ptr %fn, ptr %args, i64 %n) nounwind {{
  call void @tw_parallel_ordered(ptr %pool, ptr %fn, ptr %args, i64 %n, i1 false)
  ret void
}}

define void @tw_parallel_ordered(ptr %pool, ptr %fn, ptr %args, i64 %n, i1 %backwards) nounwind {{
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %sized, label %done
sized:
  %several = icmp sgt i64 %n, 1
  %pooled = icmp ne ptr %pool, null
  %maybe = and i1 %several, %pooled
  br i1 %maybe, label %counted, label %alone
counted:
  %threads32 = load i32, ptr %pool
  %threads = zext i32 %threads32 to i64
  %shares = call i64 @llvm.umin.i64(i64 %threads, i64 %n)
  %split = icmp ugt i64 %shares, 1
  br i1 %split, label %shared, label %alone
alone:
  call void %fn(ptr %args, i64 0, i64 %n, i64 0)
  br label %done
shared:
  %turn.at = getelementptr %tw_pool, ptr %pool, i64 0, i32 3
  %turn = load ptr, ptr %turn.at
  %in.turns = icmp ne ptr %turn, null
  br i1 %in.turns, label %turns, label %lock
turns:
  call void @tw_in_turns(ptr %turn, ptr %fn, ptr %args, i64 %n, i64 %shares)
  br label %done
lock:
  %busy = getelementptr %tw_pool, ptr %pool, i64 0, i32 5
  %locked = cmpxchg ptr %busy, i32 0, i32 1 acquire monotonic
  %free = extractvalue {{ i32, i1 }} %locked, 1
  br i1 %free, label %fork, label %alone
fork:
  call void @tw_fill_job(ptr %pool, ptr %fn, ptr %args, i64 %n, i64 %shares, i1 %backwards)
  call void @tw_fork(ptr %pool, i64 %shares)
  call void @tw_work(ptr %pool, i64 0)
  call void @tw_join(ptr %pool, i64 %shares)
  store atomic i32 0, ptr %busy release, align 4
  br label %done
done:
  ret void
}}
"""

_CREATE = """
define i32 @tw_pool_threads(ptr %pool) nounwind {
  %threads = load i32, ptr %pool
  ret i32 %threads
}

define ptr @tw_pool_create(i32 %threads32, ptr %cpus, i64 %spin) nounwind {
entry:
  %memory = alloca ptr
  %signals = alloca [128 x i8], align 16
  %threads = zext i32 %threads32 to i64
  %header = ptrtoint ptr getelementptr (%tw_pool, ptr null, i64 1) to i64
  %each = ptrtoint ptr getelementptr (%tw_mailbox, ptr null, i64 1) to i64
  %mailboxes = mul i64 %each, %threads
  %bytes = add i64 %header, %mailboxes
  %failed = call i32 @posix_memalign(ptr %memory, i64 128, i64 %bytes)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %fill, label %none
none:
  ret ptr null
fill:
  %pool = load ptr, ptr %memory
  call void @llvm.memset.p0.i64(ptr %pool, i8 0, i64 %bytes, i1 false)
  %spin.at = getelementptr %tw_pool, ptr %pool, i64 0, i32 2
  store i64 %spin, ptr %spin.at
  call void @tw_block_signals(ptr %signals)
  br label %next
next:
  %index = phi i64 [ 1, %fill ], [ %index.next, %started ]
  %more = icmp ult i64 %index, %threads
  br i1 %more, label %start, label %finish
start:
  %cpu = call i32 @tw_cpu_of(ptr %cpus, i64 %index)
  %error = call i32 @tw_start(ptr %pool, i64 %index, i32 %cpu)
  %running = icmp eq i32 %error, 0
  br i1 %running, label %started, label %finish
started:
  %index.next = add i64 %index, 1
  br label %next
finish:
  call void @tw_restore_signals(ptr %signals)
  %count = trunc i64 %index to i32
  store i32 %count, ptr %pool
  ret ptr %pool
}

define internal i32 @tw_cpu_of(ptr %cpus, i64 %index) nounwind {
entry:
  %given = icmp ne ptr %cpus, null
  br i1 %given, label %read, label %none
read:
  %cpu.at = getelementptr i32, ptr %cpus, i64 %index
  %cpu = load i32, ptr %cpu.at
  ret i32 %cpu
none:
  ret i32 -1
}

; Starts worker %index; 0 or pthread_create's error.
define internal i32 @tw_start(ptr %pool, i64 %index, i32 %cpu) nounwind {
  %mailbox = call ptr @tw_mailbox_of(ptr %pool, i64 %index)
  %index.at = getelementptr %tw_mailbox, ptr %mailbox, i64 0, i32 1
  %pool.at = getelementptr %tw_mailbox, ptr %mailbox, i64 0, i32 2
  %thread.at = getelementptr %tw_mailbox, ptr %mailbox, i64 0, i32 3
  %cpu.at = getelementptr %tw_mailbox, ptr %mailbox, i64 0, i32 4
  %index32 = trunc i64 %index to i32
  store i32 %index32, ptr %index.at
  store ptr %pool, ptr %pool.at
  store i32 %cpu, ptr %cpu.at
  %error = call i32 @pthread_create(ptr %thread.at, ptr null, ptr @tw_worker, ptr %mailbox)
  ret i32 %error
}
"""

_DESTROY = f"""
define void @tw_pool_destroy(ptr %pool) nounwind {{
entry:
  %threads32 = load i32, ptr %pool
  %threads = zext i32 %threads32 to i64
  br label %stop.next
stop.next:
  %stopping = phi i64 [ 1, %entry ], [ %stopping.next, %stopped ]
  %stop.more = icmp ult i64 %stopping, %threads
  br i1 %stop.more, label %stop, label %join.next
stop:
  %mailbox = call ptr @tw_mailbox_of(ptr %pool, i64 %stopping)
  %old = atomicrmw xchg ptr %mailbox, i32 {QUIT} acq_rel
  %sleeping = icmp eq i32 %old, {ASLEEP}
  br i1 %sleeping, label %wake, label %stopped
wake:
  call void @tw_wake(ptr %mailbox)
  br label %stopped
stopped:
  %stopping.next = add i64 %stopping, 1
  br label %stop.next
join.next:
  %joining = phi i64 [ 1, %stop.next ], [ %joining.next, %join ]
  %join.more = icmp ult i64 %joining, %threads
  br i1 %join.more, label %join, label %done
join:
  %joined = call ptr @tw_mailbox_of(ptr %pool, i64 %joining)
  %thread.at = getelementptr %tw_mailbox, ptr %joined, i64 0, i32 3
  %thread = load i64, ptr %thread.at
  %ignored = call i32 @pthread_join(i64 %thread, ptr null)
  %joining.next = add i64 %joining, 1
  br label %join.next
done:
  call void @free(ptr %pool)
  ret void
}}
"""
