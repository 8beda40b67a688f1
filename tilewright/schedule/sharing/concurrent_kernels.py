"""Independent calls of kernels that have too few iterations for the threads: these share the iterations of all of them.

    call a          call b
    call b    ->    call a {concurrent=0}
    call c          call c {concurrent=0}

The two directions of a recurrent layer are the usual case: each is one iteration for each entry of the batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from tilewright.cost.parallel import ASSUMED_EXTENT, may_run_beside_others, threads
from tilewright.ir.core import Func, Module, Op, Value, replace_in_block, substitute
from tilewright.ir.diag import Remark
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.loops.edit import is_loop, kind_of
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.spec import parallel_extent
from tilewright.target.target import Target

MOST_TRIED = 4
"""Sets of calls, the last ones, that a call may join: tensors would wait for long between calls that are far
apart."""


def group_concurrent_kernels(module: Module, target: Target, remarks: list[Remark]) -> None:
    """Bring calls together that may run at the same time, and number each set of them in the attribute `concurrent`."""
    body = module.main.body
    calls = [op for op in body.ops if op.name == "call"]
    few = [op for op in calls if _has_few_iterations(module.funcs[op.attrs["kernel"]], op, target)]
    sets: list[list[Op]] = []
    for call in few:
        for known in sets[-MOST_TRIED:]:
            others = [s for s in sets if s is not known]
            if _ordered(body.ops, [*others, [*known, call]]) is not None:
                known.append(call)
                break
        else:
            sets.append([call])
    sets = [s for s in sets if len(s) > 1]
    ops = _ordered(body.ops, sets)
    assert ops is not None, "each set was tried before"
    replace_in_block(body, ops)
    for number, together in enumerate(sets):
        for call in together:
            call.attrs["concurrent"] = number
        first, *rest = (call.attrs["kernel"] for call in together)
        message = f"runs at the same time as {', '.join(rest)}: neither needs the other"
        remarks.append(Remark("concurrent-kernels", first, message, "applied"))


def _has_few_iterations(kernel: Func, call: Op, target: Target) -> bool:
    """Whether the call takes long, keeps not all threads busy, and reports no errors. Where dims are not known, a batch
    has one entry, and all else its usual size."""
    actual = dict(zip(kernel.dims, call.attrs["dims"], strict=True))
    counted = kernel_info(kernel).work
    work = 0 if counted is None else _usual(substitute(counted, actual))
    if not may_run_beside_others(work, sum(map(_usual_bytes, (*call.operands, *call.results))), target):
        return False
    extent = parallel_extent(kernel)
    iterations = sym(1) if extent is None else substitute(extent, actual)
    if _usual(iterations, dict.fromkeys(_batches(iterations), 1)) >= threads(target):
        return False
    forks = extent is None and any(is_loop(op) and kind_of(op) == "parallel" for op in kernel.body.walk())
    return not forks and not any(op.name == "check" for op in kernel.body.walk())


def _usual_bytes(value: Value) -> int:
    """Of a tensor that is no constant."""
    if value.op is not None and value.op.name == "constant":
        return 0
    return _usual(product(value.tensor.shape)) * value.tensor.dtype.bytes


def _usual(n: Sym, known: Mapping[str, int] | None = None) -> int:
    return int(n.evaluate({v.name: ASSUMED_EXTENT for v in n.vars} | dict(known or {})))


def _batches(iterations: Sym) -> set[str]:
    """The dims that are a number of iterations themselves, in any version of a kernel."""
    if iterations.kind == "select":
        return {name for version in iterations.args[1:] for name in _batches(version)}
    return {iterations.name} if iterations.kind == "var" else set()


def _ordered(ops: Sequence[Op], sets: Sequence[Sequence[Op]]) -> list[Op] | None:
    """The ops with those of each set next to one another, and as they were else. None where some of a set need, over
    whatever way, others of it."""
    position = {op: n for n, op in enumerate(ops)}
    node = {op: position[op] for op in ops}  # a set is where its last op was
    members = {position[op]: [op] for op in ops}
    for together in sets:
        at = max(position[op] for op in together)
        for op in together:
            del members[position[op]]
            node[op] = at
        members[at] = sorted(together, key=position.__getitem__)
    needs = {
        at: {node[v.op] for op in found for v in op.operands if v.op is not None}
        for at, found in members.items()
    }
    users: dict[int, list[int]] = {at: [] for at in members}
    for at, sources in needs.items():
        for source in sources:
            users[source].append(at)
    waiting = {at: len(sources) for at, sources in needs.items()}
    ready = [at for at, count in waiting.items() if not count]
    heapq.heapify(ready)
    found: list[Op] = []
    while ready:
        at = heapq.heappop(ready)
        found += members[at]
        for user in users[at]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, user)
    return found if len(found) == len(ops) else None
