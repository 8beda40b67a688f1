"""The program of a model: the native functions `tw_plan` and `tw_run`, which call its kernels in order.

Their contract with the runtime is in `runtime/artifact.py`. A kernel is called through its task,
`void @<kernel>.task(ptr args, i64 begin, i64 end, i64 worker)`; `args` points to 64-bit words: the error state, the
scratch memory, its bytes per worker, the kernel's buffers, and its dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.codegen.indices import Indices, Wide
from tilewright.codegen.text import Text
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym

PARALLEL_WORK = 16_384
"""Scalar operations below which starting threads costs more than it gains: about ten microseconds on one core."""

WORD = 8
HEADER_WORDS = 3


@dataclass(frozen=True)
class BufferRef:
    """Memory that a kernel is given: `base` is "input", "output", "constants" or "arena"; `offset` is in bytes."""

    base: str
    index: int = 0
    offset: Sym = sym(0)


@dataclass(frozen=True)
class KernelCall:
    """One call: `rounds` of its parallel loop (None for a serial kernel), `work` in scalar operations."""

    kernel: str
    buffers: tuple[BufferRef, ...]
    dims: tuple[Sym, ...]
    rounds: Sym | None
    work: Sym


@dataclass(frozen=True)
class DimSource:
    """Where a variable's value comes from: axis `axis` of an input, or (with a dtype) its element `axis`."""

    variable: Sym
    input: int
    axis: int
    dtype: DType | None = None


@dataclass(frozen=True)
class Program:
    """Everything that `tw_plan` and `tw_run` do. `input_ranks` locates an input's dims among all of them;
    `arena` and `scratch` (per worker) are in bytes. `checks` are conditions on the dims with their error codes."""

    calls: tuple[KernelCall, ...]
    dims: tuple[DimSource, ...]
    input_ranks: tuple[int, ...]
    output_shapes: tuple[tuple[Sym, ...], ...]
    arena: Sym
    scratch: Sym
    checks: tuple[tuple[Sym, int], ...] = ()


def program_ir(program: Program, triple: str) -> str:
    """One LLVM module with `tw_plan` and `tw_run`."""
    kernels = dict.fromkeys(call.kernel for call in program.calls)
    lines = [f'target triple = "{triple}"', "declare void @tw_parallel(ptr, ptr, ptr, i64)"]
    lines += [f'declare void @"{name}.task"(ptr, i64, i64, i64)' for name in kernels]
    return "\n".join([*lines, _plan(program), _run(program)]) + "\n"


class _Writer:
    """A function under construction whose variables are the program's dims."""

    def __init__(self) -> None:
        self.text = Text()
        self.indices = Indices(self.text)

    def word(self, base: str, k: int | str, type: str = "i64") -> str:
        """Load word `k` of an array."""
        return self.text.emit(f"load {type}, ptr {self.slot(base, k)}, align 8")

    def slot(self, base: str, k: int | str) -> str:
        return self.text.emit(f"getelementptr i64, ptr {base}, i64 {k}")

    def function(self, header: str) -> str:
        body = [f"define {header} {{", "entry:", *self.text.allocas, *self.text.lines, "}"]
        return self.text.module() + "\n".join(body)


def _plan(program: Program) -> str:
    w = _Writer()
    starts = _starts(program.input_ranks)
    for k, source in enumerate(program.dims):
        value = _source_value(w, source, starts)
        w.indices.bind(source.variable, Wide(value))
        w.text.line(f"store i64 {value}, ptr {w.slot('%dims', k)}, align 8")
    for condition, code in program.checks:
        _check(w, condition, code)
    flat = [d for shape in program.output_shapes for d in shape]
    for target, values in (("%out_shapes", flat), ("%sizes", [program.arena, program.scratch])):
        for k, value in enumerate(values):
            w.text.line(f"store i64 {w.indices.uniform(value)}, ptr {w.slot(target, k)}, align 8")
    w.text.line("ret i32 0")
    return w.function("i32 @tw_plan(ptr %in_shapes, ptr %in_data, ptr %dims, ptr %out_shapes, ptr %sizes)")


def _starts(ranks: Sequence[int]) -> list[int]:
    starts = [0]
    for rank in ranks:
        starts.append(starts[-1] + rank)
    return starts


def _source_value(w: _Writer, source: DimSource, starts: Sequence[int]) -> str:
    if source.dtype is None:
        return w.word("%in_shapes", starts[source.input] + source.axis)
    data = w.word("%in_data", source.input, "ptr")
    type = f"i{8 * source.dtype.bytes}"
    element = w.text.emit(f"getelementptr {type}, ptr {data}, i64 {source.axis}")
    value = w.text.emit(f"load {type}, ptr {element}, align 1")
    if source.dtype.bytes == WORD:
        return value
    widen = "zext" if source.dtype.kind != "int" else "sext"
    return w.text.emit(f"{widen} {type} {value} to i64")


def _check(w: _Writer, condition: Sym, code: int) -> None:
    """Leave with `code` unless the condition holds."""
    flag = w.indices.condition(condition)
    holds, fails = w.text.label("holds"), w.text.label("fails")
    w.text.branch(flag, holds, fails)
    w.text.start(fails)
    w.text.line(f"ret i32 {code}")
    w.text.start(holds)


def _run(program: Program) -> str:
    w = _Writer()
    for k, source in enumerate(program.dims):
        w.indices.bind(source.variable, Wide(w.word("%dims", k)))
    words = max((HEADER_WORDS + len(c.buffers) + len(c.dims) for c in program.calls), default=HEADER_WORDS)
    args, state = w.text.alloca(f"[{words} x i64]", 64), w.text.alloca("i32", 64)
    w.text.line(f"store i32 0, ptr {state}, align 4")
    w.text.line(f"store ptr {state}, ptr {args}, align 8")
    w.text.line(f"store ptr %scratch, ptr {w.slot(args, 1)}, align 8")
    w.text.line(f"store i64 {w.indices.uniform(program.scratch)}, ptr {w.slot(args, 2)}, align 8")
    for call in program.calls:
        _call(w, call, args)
    w.text.line(f"ret i32 {w.text.emit(f'load i32, ptr {state}, align 4')}")
    arguments = ("%pool", "%in_data", "%out_data", "%constants", "%arena", "%scratch", "%dims")
    return w.function(f"i32 @tw_run({', '.join(f'ptr {a}' for a in arguments)})")


def _call(w: _Writer, call: KernelCall, args: str) -> None:
    for k, ref in enumerate(call.buffers):
        w.text.line(f"store ptr {_address(w, ref)}, ptr {w.slot(args, HEADER_WORDS + k)}, align 8")
    for k, d in enumerate(call.dims):
        slot = w.slot(args, HEADER_WORDS + len(call.buffers) + k)
        w.text.line(f"store i64 {w.indices.uniform(d)}, ptr {slot}, align 8")
    task = f'@"{call.kernel}.task"'
    if call.rounds is None:
        w.text.line(f"call void {task}(ptr {args}, i64 0, i64 1, i64 0)")
        return
    rounds = w.indices.uniform(call.rounds)
    if call.work.is_const:
        _launch(w, task, args, rounds, parallel=call.work.value >= PARALLEL_WORK)
        return
    big = w.text.emit(f"icmp sge i64 {w.indices.uniform(call.work)}, {PARALLEL_WORK}")
    shared, alone, after = (w.text.label(hint) for hint in ("shared", "alone", "after"))
    w.text.branch(big, shared, alone)
    for label, parallel in ((shared, True), (alone, False)):
        w.text.start(label)
        _launch(w, task, args, rounds, parallel=parallel)
        w.text.jump(after)
    w.text.start(after)


def _launch(w: _Writer, task: str, args: str, rounds: str, *, parallel: bool) -> None:
    if parallel:
        w.text.line(f"call void @tw_parallel(ptr %pool, ptr {task}, ptr {args}, i64 {rounds})")
    else:
        w.text.line(f"call void {task}(ptr {args}, i64 0, i64 {rounds}, i64 0)")


def _address(w: _Writer, ref: BufferRef) -> str:
    if ref.base in ("input", "output"):
        data = w.word("%in_data" if ref.base == "input" else "%out_data", ref.index, "ptr")
    else:
        data = "%constants" if ref.base == "constants" else "%arena"
    if ref.offset == 0:
        return data
    return w.text.emit(f"getelementptr i8, ptr {data}, i64 {w.indices.uniform(ref.offset)}")
