"""Programs of kernels as LLVM IR: `tw_plan` computes sizes from shapes, `tw_run` calls the kernels.

    i32 tw_plan(ptr in_shapes, ptr in_data, ptr dims, ptr out_shapes, ptr sizes)
    i32 tw_run(ptr call)

The program's suffix ends both names. Both return 0 or the number (from 1) of an entry of the program's error table; a
run -1 where the word at `stops` has changed since it began, at which it looks between two kernels.
`sizes` receives the bytes of the arena and of one worker's scratch memory; `call` holds the pointers `CALL`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice

from tilewright.codegen.cpu.float_modes import FLUSH_DENORMALS, float_modes
from tilewright.codegen.cpu.kernel.convert import convert
from tilewright.codegen.cpu.kernel.indices import Indices, Number
from tilewright.codegen.cpu.kernel.lanes import memory_type
from tilewright.codegen.cpu.program.function import ProgramFunction
from tilewright.codegen.cpu.program.parallel_tasks import task_ir
from tilewright.codegen.cpu.program.sizes import SaturatingIndices
from tilewright.codegen.program import (
    BufferRef,
    Condition,
    Dim,
    ErrorTable,
    InputAxis,
    KernelCall,
    Program,
)
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op
from tilewright.ir.sym import ZERO, Sym, maximum, sym, unbounded
from tilewright.program.memory.places import ZONES
from tilewright.runtime.guarded import PAGE
from tilewright.runtime.staged.frame import CANCELLED
from tilewright.target.target import Target

CALL = ("pool", "in_data", "out_data", "constants", "arena", "scratch", "dims", "stops")
"""What a run is given, in memory: to pass one pointer from Python takes a fourth of the time of seven."""

_UNGUARDED = """
define i32 @tw_runSUFFIX(ptr %call) #0 {
  %code = call i32 @tw_run_guardedSUFFIX(ptr %call, ptr null, ptr null)
  ret i32 %code
}
"""


def kernel_calls_ir(program: Program, target: Target, errors: ErrorTable, profile: bool) -> list[str]:
    """The functions of a program of kernels. With `profile` there is also

        i32 tw_run_profiled(ptr call, ptr ticks)

    which stores the cycle counter at its start and after each step. Behind these follow the number of threads, which
    the caller stores there, and for each step a counter for each thread, to which the cycles are added that it computed
    pieces of the step. Steps that fork by themselves add nothing.

    Of a program that is guarded, `tw_run` is a call of

        i32 tw_run_guarded(ptr call, ptr places, ptr tell)

    which, where it is given `tell`, stores at `places` the bytes of a worker's scratch memory, and of each tensor of
    the arena the offset and the bytes; calls `i32 tell(i64 steps)` with 0 then, and after each step with how many are
    done; and ends as where a call is cancelled when that gives something else than 0.
    """
    parts = ["declare void @tw_parallel(ptr, ptr, ptr, i64)", *_kernel_declarations(program)]
    flush = FLUSH_DENORMALS.get(target.arch, 0) if program.flush_denormals else 0
    if flush:
        parts.append(float_modes(target.triple))
    parts.append(_Plan(program, errors).written())
    for timed in [False, True] if profile else [False]:
        run = _Run(program, errors, flush, timed, target.calibration.fork_work)
        parts += [run.written(), *(_timed_task(symbol, at, program) for symbol, at in run.timed.items())]
    parts += [
        _together(_concurrent_symbol(k, program), [program.step(op) for op in ops])
        for k, ops in enumerate(_in_turn(program.main.body.ops))
        if _is_concurrent(ops)
    ]
    return [*parts, "attributes #0 = { nounwind }"]


def _in_turn(ops: Iterable[Op]) -> Iterator[list[Op]]:
    """The calls of a program, those together whose iterations threads share as if they were one kernel's. These kernels
    do not fork, and report no errors."""
    calls = (op for op in ops if op.name == "call")
    for _, together in groupby(calls, lambda op: op.attrs.get("concurrent", op)):
        yield list(together)


def _is_concurrent(ops: Sequence[Op]) -> bool:
    return "concurrent" in ops[0].attrs


def _concurrent_symbol(position: int, program: Program) -> str:
    return f"tw_concurrent{position}{program.suffix}"


def _together(symbol: str, steps: Sequence[KernelCall]) -> str:
    """The function (state, buffers, dims, iterations of each call, scratch, begin, end) that runs this range of the
    iterations of all calls, one call after the other, and its task."""
    buffers = [f"ptr %b{n}" for n in range(sum(len(s.buffers) for s in steps))]
    dims = [f"i64 %d{n}" for n in range(sum(len(s.dims) for s in steps))]
    iterations = [f"i64 %n{k}" for k in range(len(steps))]
    parameters = ["ptr %state", *buffers, *dims, *iterations, "ptr %scratch", "i64 %begin", "i64 %end"]
    lines = [f"define internal void @{symbol}({', '.join(parameters)}) #0 {{", "entry:"]
    taken, counted = iter(buffers), iter(dims)
    before = "0"
    for k, step in enumerate(steps):
        own = [*islice(taken, len(step.buffers)), *islice(counted, len(step.dims))]
        arguments = ["ptr %state", *own, "ptr %scratch", f"i64 %first{k}", f"i64 %last{k}"]
        lines += [
            f"  %from{k} = sub i64 %begin, {before}",
            f"  %to{k} = sub i64 %end, {before}",
            f"  %first{k} = call i64 @llvm.smax.i64(i64 %from{k}, i64 0)",
            f"  %last{k} = call i64 @llvm.smin.i64(i64 %to{k}, i64 %n{k})",
            f"  %some{k} = icmp slt i64 %first{k}, %last{k}",
            f"  br i1 %some{k}, label %call{k}, label %after{k}",
            f"call{k}:",
            f"  call void @{step.kernel}({', '.join(arguments)})",
            f"  br label %after{k}",
            f"after{k}:",
            f"  %sum{k} = add i64 {before}, %n{k}",
        ]
        before = f"%sum{k}"
    lines += ["  ret void", "}"]
    return "\n".join([*lines, task_ir(symbol, len(buffers), len(dims) + len(iterations))])


def _timed_symbol(symbol: str, program: Program) -> str:
    return f"{symbol}.timed{program.suffix}"


def _timed_task(symbol: str, at: int, program: Program) -> str:
    """The task of a kernel that adds the cycles it takes to the counter of its thread; the address of the first one is
    the word at this position of the arguments."""
    return f"""
define internal void @{_timed_symbol(symbol, program)}(ptr %args, i64 %begin, i64 %end, i64 %worker) #0 {{
  %before = call i64 @llvm.readcyclecounter()
  call void @{symbol}.task(ptr %args, i64 %begin, i64 %end, i64 %worker)
  %after = call i64 @llvm.readcyclecounter()
  %word = getelementptr ptr, ptr %args, i64 {at}
  %counters = load ptr, ptr %word, align 8
  %counter = getelementptr i64, ptr %counters, i64 %worker
  %known = load i64, ptr %counter, align 8
  %span = sub i64 %after, %before
  %sum = add i64 %known, %span
  store i64 %sum, ptr %counter, align 8
  ret void
}}"""


def _kernel_declarations(program: Program) -> list[str]:
    lines: dict[str, None] = {}
    for step in program.steps:
        kinds = ["ptr"] * (1 + len(step.buffers)) + ["i64"] * len(step.dims)
        kinds += ["ptr", "i64", "ptr" if step.forks else "i64"]
        lines[f"declare void @{step.kernel}({', '.join(kinds)})"] = None
        if step.parallel is not None:
            lines[f"declare void @{step.kernel}.task(ptr, i64, i64, i64)"] = None
    return list(lines)


class _OfKernels(ProgramFunction):
    """What both entry points share: integer expressions, and errors."""

    def __init__(self, program: Program, errors: ErrorTable) -> None:
        super().__init__()
        self.program = program
        self.errors = errors
        self.indices: Indices = Indices(self.code)

    def define(self, name: str, parameters: Sequence[str]) -> str:
        return self.text(f"i32 @{name}{self.program.suffix}({', '.join(parameters)}) #0")


class _Plan(_OfKernels):
    def __init__(self, program: Program, errors: ErrorTable) -> None:
        super().__init__(program, errors)
        self.indices = SaturatingIndices(self.code)

    def written(self) -> str:
        for k, dim in enumerate(self.program.dims):
            value = self._value(dim)
            for v in dict.fromkeys((dim.var, unbounded(dim.var))):
                self.indices.bind(v, value)
            self.write(self.indices.in_lanes(value, 1).name, "%dims", k)
        for condition in self.program.conditions:
            self._require(condition)
        flat = [d for shape in self.program.outputs for d in shape]
        for k, d in enumerate(flat):
            self.write(self.indices.uniform(d), "%out_shapes", k)
        self.write(self.indices.uniform(self.program.arena), "%sizes", 0)
        self.write(self.indices.uniform(self.program.scratch), "%sizes", 1)
        self.code.line("ret i32 0")
        names = ("in_shapes", "in_data", "dims", "out_shapes", "sizes")
        return self.define("tw_plan", [f"ptr %{name}" for name in names])

    def call(self, op: Op) -> None:
        raise AssertionError("a plan calls no kernels")

    def _value(self, dim: Dim) -> Number:
        source = dim.source
        if isinstance(source, Sym):
            return self.indices.number(source)
        if isinstance(source, InputAxis):
            first = sum(self.program.ranks[: source.input])
            return self.indices.integer(self.read("%in_shapes", first + source.axis))
        data = self.read("%in_data", source.input, "ptr")
        element = memory_type(source.dtype)
        at = self.code.emit(f"getelementptr {element}, ptr {data}, i64 {source.element}")
        raw = self.code.reg(source.dtype, 1, f"load {element}, ptr {at}, align {source.dtype.bytes}")
        return convert(raw, dt.i64)

    def _require(self, condition: Condition) -> None:
        holds = self.indices.condition(condition.holds)
        if holds.known:
            return
        self.require(holds.name, lambda: self.errors.base((condition.check,)) + 1)


class _Run(_OfKernels):
    def __init__(
        self, program: Program, errors: ErrorTable, flush: int, profile: bool, fork_work: int
    ) -> None:
        super().__init__(program, errors)
        self.fork_work = fork_work  # scalar operations below which a kernel stays on the caller's thread
        self.flush = flush  # bits to set among the floating-point modes
        self.profile = profile
        self.ticks = 0
        self.timed: dict[str, int] = {}  # kernels of which tasks add up times, with the word that says where
        self.guarded = program.guarded and not profile
        self.done = 0  # steps
        self.is_first, self.looks = True, False
        self.is_alone = False  # whether the step that was written has the caller's thread alone
        self.bases: dict[tuple[str, int], str] = {}
        steps = [[program.step(op) for op in ops] for ops in _in_turn(program.main.body.ops)]
        words = max((4 + sum(len(s.buffers) + len(s.dims) + 1 for s in calls) for calls in steps), default=1)
        self.steps = sum(map(len, steps))
        self.state = self.code.alloca("[2 x i32]", 8)
        self.arguments = self.code.alloca(f"[{words} x i64]", 64)

    def written(self) -> str:
        for k, name in enumerate(CALL):
            name = "scratch.base" if self.guarded and name == "scratch" else name
            self.code.line(f"%{name} = load ptr, ptr {self.word('%call', k)}, align 8")
        self.code.line(f"store i64 0, ptr {self.state}, align 8")
        self.began, self.stopped = self.stops(), self.code.label("stopped")
        for k, dim in enumerate(self.program.dims):
            self.indices.bind(dim.var, self.indices.integer(self.read("%dims", k)))
        if self.guarded:  # that of each worker ends with a page, and another one follows
            spare = self.indices.uniform(maximum(0, self.program.scratch - self.program.used_scratch - PAGE))
            self.code.line(f"%scratch = getelementptr i8, ptr %scratch.base, i64 {spare}")
        modes = self._set_modes()
        if self.guarded:
            self._tell_places()
        self.ops(self.program.main.body.ops)
        self._leave(modes, self.code.emit(f"load i32, ptr {self.state}, align 8"))
        if self.looks:
            self.code.start(self.stopped)
            self._leave(modes, str(CANCELLED))
        if self.profile:
            return self.define("tw_run_profiled", ["ptr %call", "ptr %ticks"])
        if self.guarded:
            own = self.define("tw_run_guarded", ["ptr %call", "ptr %places", "ptr %tell"])
            return f"{own}\n{_UNGUARDED.replace('SUFFIX', self.program.suffix)}"
        return self.define("tw_run", ["ptr %call"])

    def _leave(self, modes: str | None, result: str) -> None:
        """Return, with the floating-point modes of the caller."""
        if modes is not None:
            self.code.line(f"call void @tw_set_float(i64 {modes})")
        self.code.line(f"ret i32 {result}")

    def _look(self) -> None:
        """Before each kernel but the first: end the run where somebody has asked for it."""
        if self.is_first:
            self.is_first = False
            return
        self.looks = True
        go_on = self.code.label("go_on")
        self.code.branch(self.code.emit(f"icmp eq i32 {self.stops()}, {self.began}"), go_on, self.stopped)
        self.code.start(go_on)

    def _tell_places(self) -> None:
        """Say where the tensors of the arena are, before the first kernel."""
        places = [n for _, at, size in self.program.main.attrs.get(ZONES, ()) for n in (at, size)]
        words = [self.indices.uniform(n) for n in (self.program.used_scratch, *places)]

        def write() -> None:
            for k, word in enumerate(words):
                self.write(word, "%places", k)

        self._tell(write)

    def _tell(self, first: Callable[[], None] = lambda: None) -> None:
        """Say how many steps are done, after what `first` writes; end the run where the answer is not 0."""
        self.looks = True
        ask, go_on = self.code.label("ask"), self.code.label("go_on")
        self.code.branch(self.code.emit("icmp eq ptr %tell, null"), go_on, ask)
        self.code.start(ask)
        first()
        answer = self.code.emit(f"call i32 %tell(i64 {self.done})")
        self.code.branch(self.code.emit(f"icmp eq i32 {answer}, 0"), go_on, self.stopped)
        self.code.start(go_on)

    def _count(self, steps: int) -> None:
        """So many steps more are done."""
        self.done += steps
        if self.guarded:
            self._tell()

    def ops(self, ops: Iterable[Op]) -> None:
        if self.profile:  # each call has its own time
            self._tick(0)
            super().ops(ops)
            return
        for k, together in enumerate(_in_turn(ops)):
            if _is_concurrent(together):
                self._look()
                self._concurrent(_concurrent_symbol(k, self.program), [self.program.step(op) for op in together])
                self._count(len(together))
            else:
                super().ops(together)

    def call(self, op: Op) -> None:
        self._look()
        self.is_alone = False
        self._step(self.program.step(op))
        self._count(1)
        if self.profile:
            self.ticks += 1
            self._tick(self.ticks)
            if self.is_alone:
                counter = self._counters(self.ticks - 1)
                first, last = (self.read("%ticks", k) for k in (self.ticks - 1, self.ticks))
                self.write(self.code.emit(f"sub i64 {last}, {first}"), counter, 0)

    def _set_modes(self) -> str | None:
        """Set the floating-point modes, which the pool hands on to its workers; gives those of the caller."""
        if not self.flush:
            return None
        modes = self.code.emit("call i64 @tw_get_float()")
        self.code.line(f"call void @tw_set_float(i64 {self.code.emit(f'or i64 {modes}, {self.flush}')})")
        return modes

    def _tick(self, position: int) -> None:
        self.write(self.code.emit("call i64 @llvm.readcyclecounter()"), "%ticks", position)

    def _counters(self, step: int) -> str:
        """Where the times of the threads in a step are added up."""
        threads = self.read("%ticks", self.steps + 1)
        before = self.code.emit(f"mul i64 {threads}, {step}")
        position = self.code.emit(f"add i64 {before}, {self.steps + 2}")
        return self.code.emit(f"getelementptr i64, ptr %ticks, i64 {position}")

    def _pointer(self, ref: BufferRef) -> str:
        if ref.base in ("constants", "arena"):
            base = f"%{ref.base}"
        else:
            key = (ref.base, ref.index)
            if key not in self.bases:
                self.bases[key] = self._base(ref)
            base = self.bases[key]
        offset = self.indices.uniform(ref.offset)
        return base if offset == "0" else self.code.emit(f"getelementptr i8, ptr {base}, i64 {offset}")

    def _scratch(self, steps: Sequence[KernelCall]) -> tuple[str, str]:
        """Where the scratch memory of calls at the same time begins, and the bytes of each thread's."""
        most = dict.fromkeys(step.scratch for step in steps if step.scratch != 0)
        start = next((step.scratch_at for step in steps if step.scratch_at is not None), None)
        if start is None:
            return "%scratch", self.indices.uniform(self.program.scratch if most else ZERO)
        return self._pointer(BufferRef("arena", offset=start)), self.indices.uniform(maximum(0, *most))

    def _base(self, ref: BufferRef) -> str:
        if ref.base == "lent":
            slot = self.code.emit(f"getelementptr i8, ptr %constants, i64 {ref.index}")
            distance = self.code.emit(f"load i64, ptr {slot}, align 8")
            return self.code.emit(f"getelementptr i8, ptr %constants, i64 {distance}")
        return self.read("%in_data" if ref.base == "input" else "%out_data", ref.index, "ptr")

    def _concurrent(self, symbol: str, steps: Sequence[KernelCall]) -> None:
        """One fork for the iterations of all calls; a kernel that threads do not share is one iteration."""
        pointers = [self._pointer(ref) for step in steps for ref in step.buffers]
        dims = [self.indices.uniform(d) for step in steps for d in step.dims]
        iterations = [sym(1) if step.parallel is None else step.parallel for step in steps]
        dims += [self.indices.uniform(n) for n in iterations]
        self._fork(symbol, pointers, dims, self.indices.uniform(sum(iterations, sym(0))), self._scratch(steps))

    def _step(self, step: KernelCall) -> None:
        if step.checks:
            at = self.code.emit(f"getelementptr i32, ptr {self.state}, i64 1")
            self.code.line(f"store i32 {self.errors.base(step.checks)}, ptr {at}, align 4")
        pointers = [self._pointer(ref) for ref in step.buffers]
        dims = [self.indices.uniform(d) for d in step.dims]
        if step.parallel is None:
            self._direct(step, pointers, dims, "0")
            return
        extent = self.indices.uniform(step.parallel)
        if step.work.is_const:
            if step.work.value < self.fork_work:
                self._direct(step, pointers, dims, extent)
            else:
                self._fork(step.kernel, pointers, dims, extent, self._scratch([step]))
            return
        self._by_size(step, pointers, dims, extent)

    def _by_size(self, step: KernelCall, pointers: list[str], dims: list[str], extent: str) -> None:
        """Choose when the size is known: without a pool the task runs on the caller's thread."""
        self._fork(step.kernel, pointers, dims, extent, self._scratch([step]), self._pool_for(step.work))

    def _pool_for(self, work: Sym) -> str:
        """The pool, but for work of an unknown amount that turns out to be little."""
        if work.is_const:
            return "%pool"
        is_small = self.code.emit(f"icmp slt i64 {self.indices.uniform(work)}, {self.fork_work}")
        return self.code.emit(f"select i1 {is_small}, ptr null, ptr %pool")

    def _direct(self, step: KernelCall, pointers: list[str], dims: list[str], extent: str) -> None:
        arguments = [f"ptr {self.state}", *(f"ptr {p}" for p in pointers), *(f"i64 {d}" for d in dims)]
        scratch, stride = self._scratch([step])
        last = [f"i64 {stride}", f"ptr {self._pool_for(step.work)}"] if step.forks else ["i64 0", f"i64 {extent}"]
        arguments += [f"ptr {scratch}", *last]
        self.is_alone = not step.forks
        self.code.line(f"call void @{step.kernel}({', '.join(arguments)})")

    def _fork(
        self, symbol: str, pointers: list[str], dims: list[str], extent: str, scratch: tuple[str, str],
        pool: str = "%pool",
    ) -> None:  # fmt: skip
        words = [("ptr", self.state), ("ptr", scratch[0]), ("i64", scratch[1])]
        words += [("ptr", p) for p in pointers] + [("i64", d) for d in dims]
        task = f"ptr @{symbol}.task"
        if self.profile:
            task = f"ptr @{_timed_symbol(symbol, self.program)}"
            self.timed[symbol] = len(words)
            words.append(("ptr", self._counters(self.ticks)))
        for k, (kind, value) in enumerate(words):
            self.write(value, self.arguments, k, kind)
        self.code.line(f"call void @tw_parallel(ptr {pool}, {task}, ptr {self.arguments}, i64 {extent})")
