"""Functions that the thread pool calls, as LLVM IR text: what they take from memory, and the call that hands it over.

A piece of work of the pool gets {state, scratch, bytes of scratch of a worker, buffers, numbers} at its arguments, and
begin, end and worker from the pool (`codegen/cpu/program/pool.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.cpu.kernel.text import Text


def task_ir(symbol: str, buffers: int, numbers: int, *, sees_first: bool = False) -> str:
    """`symbol.task`, the form for the thread pool of a function (state, buffers, numbers, scratch, begin, end).

    Its scratch memory is the worker's own; with `sees_first` that of the first worker comes before it.
    """
    kinds = ["ptr"] * 2 + ["i64"] + ["ptr"] * buffers + ["i64"] * numbers
    lines = []
    for k, kind in enumerate(kinds):
        lines.append(f"  %p{k} = getelementptr i64, ptr %args, i64 {k}")
        lines.append(f"  %f{k} = load {kind}, ptr %p{k}, align 8")
    lines.append("  %skip = mul nsw i64 %worker, %f2")
    lines.append("  %own = getelementptr i8, ptr %f1, i64 %skip")
    arguments = [f"{kind} %f{k}" for k, kind in enumerate(kinds) if k not in (1, 2)]
    arguments += ["ptr %f1"] if sees_first else []
    call = ", ".join([*arguments, "ptr %own", "i64 %begin", "i64 %end"])
    head = f"define void @{symbol}.task(ptr %args, i64 %begin, i64 %end, i64 %worker) #0 {{"
    return "\n".join([head, "entry:", *lines, f"  call void @{symbol}({call})", "  ret void", "}", ""])


def fork(
    text: Text,
    symbol: str,
    buffers: Sequence[str],
    numbers: Sequence[str],
    extent: str,
    backwards: str | None = None,
) -> None:
    """Let the threads of %pool run the task of `symbol` over 0..`extent`, each its share from the end where the flag
    `backwards` is set, in a function that has %state, %scratch and %stride (the bytes of scratch of a worker); returns
    when all of it is done."""
    words = [("ptr", "%state"), ("ptr", "%scratch"), ("i64", "%stride")]
    words += [("ptr", b) for b in buffers] + [("i64", n) for n in numbers]
    arguments = text.alloca(f"[{len(words)} x i64]", 64)
    for k, (kind, value) in enumerate(words):
        at = text.emit(f"getelementptr i64, ptr {arguments}, i64 {k}")
        text.line(f"store {kind} {value}, ptr {at}, align 8")
    work = f"ptr %pool, ptr @{symbol}.task, ptr {arguments}, i64 {extent}"
    if backwards is None:
        text.declarations["declare void @tw_parallel(ptr, ptr, ptr, i64)"] = None
        text.line(f"call void @tw_parallel({work})")
    else:
        text.declarations["declare void @tw_parallel_ordered(ptr, ptr, ptr, i64, i1)"] = None
        text.line(f"call void @tw_parallel_ordered({work}, i1 {backwards})")
